"""What configured values mean for a session: the policy's own names beside those of the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from foveal.core.policies import PRESETS, Policy, policy
from foveal.core.reduction.truncation import Limits
from foveal.errors import BadSetting

Get = Callable[[str], Any]
"""The value of a key, by its dotted name."""

FIELDS: Final = {
    "context.max_history_tokens": "max_history_tokens",
    "context.tool_result_keep_first": "keep_first",
    "context.tool_result_keep_last": "keep_last",
    "compaction.mode": "mode",
    "compaction.threshold": "act",
    "compaction.invocation_threshold": "every_turns",
    "compaction.overlap_size": "overlap_turns",
}
"""Keys that are fields of a policy under another name."""
PAIR: Final = ("compaction.invocation_threshold", "compaction.overlap_size")


def policy_of(get: Get, tools: dict[str, dict[str, Any]], *, window: int = 0) -> Policy:
    """The policy that a configuration means; `tools` are the tables of single tools, `window` is the model's."""
    preset = PRESETS[get("context.policy")]
    changes: dict[str, Any] = {field: get(name) for name, field in FIELDS.items() if get(name) is not None}
    _check_pair(get, preset)
    if "act" in changes:
        changes |= {field: min(getattr(preset, field), changes["act"]) for field in ("warn", "target")}
    if tokens := _act_tokens(get, window):
        changes["act_tokens"] = tokens
    limits = _limits(preset.clip, {name: get(f"context.{name}") for name in _LIMITS})
    if limits != preset.clip:
        changes["clip"] = limits
    if tools:
        changes["clip_tools"] = preset.clip_tools | _tool_limits(limits, tools)
        spared = (name for name, table in tools.items() if table.get("mask") is False)
        changes["exempt_tools"] = tuple(dict.fromkeys((*preset.exempt_tools, *spared)))
    return policy(preset, **changes)


_LIMITS: Final = ("max_tool_result_tokens", "tool_result_truncation")


def _limits(base: Limits | None, given: dict[str, Any]) -> Limits | None:
    """Limits with what is given changed; no tokens at all is no limit."""
    tokens, strategy = (given.get(name) for name in _LIMITS)
    if tokens is None and strategy is None:
        return base
    limits = base or Limits()
    if tokens is not None:
        limits = replace(limits, tokens=tokens or None)
    return replace(limits, strategy=strategy) if strategy is not None else limits


def _tool_limits(base: Limits | None, tools: dict[str, dict[str, Any]]) -> dict[str, Limits]:
    own = {name: table for name, table in tools.items() if any(field in table for field in _LIMITS)}
    return {name: _limits(base, table) or Limits() for name, table in own.items()}


def _act_tokens(get: Get, window: int) -> int:
    """The trigger in tokens: the lower of the two, where both are given."""
    ratio = get("compaction.safety_ratio")
    given = [get("compaction.token_threshold"), None if ratio is None else int(ratio * window)]
    return min((tokens for tokens in given if tokens), default=0)


def _check_pair(get: Get, preset: Policy) -> None:
    """A trigger by turns needs both values: by the configuration, or by the preset."""
    given = [name for name in PAIR if get(name) is not None]
    if len(given) == 1 and not preset.every_turns:
        other = next(name for name in PAIR if name not in given)
        raise BadSetting(given[0], get(given[0]), f"without {other}: give both, or neither")
