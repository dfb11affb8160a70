"""The policy that a configuration describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from foveal.core.policies import PRESETS, Policy, policy
from foveal.core.reduction.truncation import Limits
from foveal.errors import BadSetting

GetValue = Callable[[str], Any]
"""Returns the value of a key by its dotted name."""

POLICY_FIELDS: Final = {
    "context.max_history_tokens": "max_history_tokens",
    "context.tool_result_keep_first": "keep_first",
    "context.tool_result_keep_last": "keep_last",
    "compaction.mode": "mode",
    "compaction.threshold": "act",
    "compaction.invocation_threshold": "every_turns",
    "compaction.overlap_size": "overlap_turns",
}
"""Configuration keys and the policy fields that they set."""
TURN_TRIGGER_KEYS: Final = ("compaction.invocation_threshold", "compaction.overlap_size")


def build_policy(get: GetValue, tools: dict[str, dict[str, Any]], *, window: int = 0) -> Policy:
    """Return the configured policy; `tools` are the tables of single tools, `window` is the model's."""
    preset = PRESETS[get("context.policy")]
    changes: dict[str, Any] = {
        field: get(name) for name, field in POLICY_FIELDS.items() if get(name) is not None
    }
    _check_turn_trigger(get, preset)
    if "act" in changes:
        changes |= {field: min(getattr(preset, field), changes["act"]) for field in ("warn", "target")}
    if tokens := _trigger_tokens(get, window):
        changes["act_tokens"] = tokens
    limits = _with_limits(preset.clip, {name: get(f"context.{name}") for name in _LIMIT_KEYS})
    if limits != preset.clip:
        changes["clip"] = limits
    if tools:
        changes["clip_tools"] = preset.clip_tools | _tool_limits(limits, tools)
        unmasked = (name for name, table in tools.items() if table.get("mask") is False)
        changes["exempt_tools"] = tuple(dict.fromkeys((*preset.exempt_tools, *unmasked)))
    return policy(preset, **changes)


_LIMIT_KEYS: Final = ("max_tool_result_tokens", "tool_result_truncation")


def _with_limits(base: Limits | None, given: dict[str, Any]) -> Limits | None:
    """Return `base` with the given values replaced; 0 tokens means no limit."""
    tokens, strategy = (given.get(name) for name in _LIMIT_KEYS)
    if tokens is None and strategy is None:
        return base
    limits = base or Limits()
    if tokens is not None:
        limits = replace(limits, tokens=tokens or None)
    return replace(limits, strategy=strategy) if strategy is not None else limits


def _tool_limits(base: Limits | None, tools: dict[str, dict[str, Any]]) -> dict[str, Limits]:
    own = {name: table for name, table in tools.items() if any(field in table for field in _LIMIT_KEYS)}
    return {name: _with_limits(base, table) or Limits() for name, table in own.items()}


def _trigger_tokens(get: GetValue, window: int) -> int:
    """Return the trigger in tokens: the lower of the two if both are set."""
    ratio = get("compaction.safety_ratio")
    given = [get("compaction.token_threshold"), None if ratio is None else int(ratio * window)]
    return min((tokens for tokens in given if tokens), default=0)


def _check_turn_trigger(get: GetValue, preset: Policy) -> None:
    """Raise `BadSetting` unless both values of the trigger by turns are set, here or in the preset."""
    given = [name for name in TURN_TRIGGER_KEYS if get(name) is not None]
    if len(given) == 1 and not preset.every_turns:
        other = next(name for name in TURN_TRIGGER_KEYS if name not in given)
        raise BadSetting(given[0], get(given[0]), f"without {other}: give both, or neither")
