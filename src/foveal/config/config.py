"""A loaded configuration: its values, their sources, and settings derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from msgspec import structs

from foveal.config.instructions.rules import InstructionRules
from foveal.config.keys import KEYS, KeyPath, ScheduleSetting, dotted_name, find_key
from foveal.config.project import ItemAnswer
from foveal.config.sources import ConfigValue, ValueSource
from foveal.core.engine.settings import SettingArguments, resolve_settings
from foveal.core.models.model import Model, model
from foveal.core.policies import Policy, policy
from foveal.core.reduction.truncation import Limits
from foveal.errors import BadSetting
from foveal.policies import NO_TABLES, find_policy
from foveal.ports import Provider
from foveal.providers import LOCAL_SERVICE
from foveal.user_paths import prompt_text

# ── Policy ─────────────────────────────────────────────────────────────────────────────────────────────

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


def build_policy(
    get: GetValue,
    tools: dict[str, dict[str, Any]],
    *,
    window: int = 0,
    named: Mapping[str, Mapping[str, Any]] = NO_TABLES,
) -> Policy:
    """Return the configured policy; `tools` are the tables of single tools, `window` is the model's, and `named`
    are the tables `[policies.NAME]`."""
    preset = find_policy(get("context.policy"), named)
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
        ranked = {name: table["priority"] for name, table in tools.items() if "priority" in table}
        changes["tool_priorities"] = {**preset.tool_priorities, **ranked}
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
        limits = structs.replace(limits, tokens=tokens or None)
    return structs.replace(limits, strategy=strategy) if strategy is not None else limits


def _tool_limits(base: Limits | None, tools: dict[str, dict[str, Any]]) -> dict[str, Limits]:
    own = {name: table for name, table in tools.items() if any(field in table for field in _LIMIT_KEYS)}
    return {name: _with_limits(base, table) or Limits() for name, table in own.items()}


def _trigger_tokens(get: GetValue, window: int) -> int:
    """Return the trigger in tokens: the lower of the two if both are set."""
    ratio = get("compaction.safety_ratio")
    given = [get("compaction.token_threshold"), None if ratio is None else int(ratio * window)]
    return min((tokens for tokens in given if tokens), default=0)


def _check_turn_trigger(get: GetValue, preset: Policy) -> None:
    """Raise `BadSetting` unless both values of the trigger by turns are set, here or in the preset, and if a number
    of turns that is set here would do nothing in the mode."""
    given = [name for name in TURN_TRIGGER_KEYS if get(name) is not None]
    if len(given) == 1 and not preset.every_turns:
        other = next(name for name in TURN_TRIGGER_KEYS if name not in given)
        raise BadSetting(given[0], get(given[0]), f"without {other}: give both, or neither")
    turns, mode = get(TURN_TRIGGER_KEYS[0]), get("compaction.mode") or preset.mode
    if turns and mode == "off":
        allowed = "0 in mode 'off', which never summarises: choose mode 'auto' or 'confirm', or leave it out"
        raise BadSetting(TURN_TRIGGER_KEYS[0], turns, allowed)


# ── Configuration ──────────────────────────────────────────────────────────────────────────────────────

_SESSION_KEYS = (
    "window",
    "reserve",
    "margin",
    "max_input_tokens",
    "max_output_tokens",
    "tokenizer",
    "binds_thinking",
)
_UNSURE = ("default", "server")
"""Sources of a window that the model's server may replace by a larger one."""
_CLIP_FIELDS = {"context.max_tool_result_tokens": "tokens", "context.tool_result_truncation": "strategy"}


class McpServerSettings(NamedTuple):
    """An MCP server: a program to start, or the URL of a running server."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = MappingProxyType({})
    url: str = ""
    is_of_project: bool = False
    """Whether the project's file has it."""

    @property
    def fields(self) -> dict[str, Any]:
        """What connects to it, as `McpServers` takes it."""
        if self.url:
            return {"url": self.url}
        return {"command": self.command, "args": list(self.args), "env": dict(self.env)}


class MemorySettings(NamedTuple):
    """What is remembered across sessions, and how: the keys below `[memory]`."""

    enabled: bool
    budget: int
    learn_spoken: bool
    learn_tools: bool
    learn_proposals: bool
    propose_with_model: bool
    tool: bool


class ConfigEntry(NamedTuple):
    """A line of the output of `foveal config`."""

    name: str
    value: Any
    """In printable form, without secrets."""
    source: ValueSource
    description: str


class ConfigChange(NamedTuple):
    """A setting that differs between two configurations."""

    name: str
    before: Any
    """In printable form, without secrets; the same as `after` if only a secret differs."""
    after: Any


@dataclass(frozen=True, kw_only=True)
class Config:
    """An immutable configuration; `load` creates it."""

    values: Mapping[KeyPath, ConfigValue]
    """Values that were set, by path."""
    files: tuple[tuple[FilePath, bool], ...] = ()
    """The files that are read, and whether each exists."""
    root: FilePath = FilePath(".")
    """The root folder of the project."""
    project_items: tuple[ItemAnswer, ...] = ()
    """The MCP servers and settings of the project's file, and which of them the user allows."""
    notes: tuple[str, ...] = ()
    """Settings that were ignored, and why."""

    # ── Values ───────────────────────────────────────────────────────────────────────────────────────────

    def get(self, name: str) -> Any:
        """Return the value of a key; None if the model or the policy decides it."""
        return self._value(name).value

    def source(self, name: str) -> ValueSource:
        """Return where the value of a key was set."""
        return self._value(name).source

    def _value(self, name: str) -> ConfigValue:
        path = tuple(name.split("."))
        if (value := self.values.get(path)) is not None:
            return value
        if (key := find_key(path)) is None:
            raise KeyError(name)
        return ConfigValue(
            tuple(key.default) if isinstance(key.default, list) else key.default, ValueSource("default")
        )

    def named_tables(self, *path: str) -> dict[str, dict[str, Any]]:
        """Return the tables whose names the user chooses, such as `[context.tools.NAME]`, by name."""
        found: dict[str, dict[str, Any]] = {}
        for where, value in self.values.items():
            if where[: len(path)] == path and len(where) == len(path) + 2:
                found.setdefault(where[-2], {})[where[-1]] = value.value
        return found

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the configured agents."""
        return tuple(dict.fromkeys(path[1] for path in self.values if path[0] == "agents"))

    def bot_agent(self, platform: str) -> str:
        """Return the agent of a bot's new sessions; "" for the settings of the server."""
        has_key = find_key((platform, "agent")) is not None
        return (self.get(f"{platform}.agent") if has_key else None) or ""

    def agent(self, name: str) -> Config:
        """Return the configuration of a named agent.

        Its own values override those of the files; the environment and flags override its own values."""
        if name not in self.agents:
            raise BadSetting(
                "agent", name, f"one of {', '.join(self.agents) or 'those in [agents.NAME]: none'}"
            )
        own = {path[2:]: value for path, value in self.values.items() if path[:2] == ("agents", name)}
        above = {p: v for p, v in self.values.items() if v.source.kind in ("environment", "flag")}
        return replace(self, values=MappingProxyType({**self.values, **own, **above}))

    # ── Derived settings ─────────────────────────────────────────────────────────────────────────────────

    @property
    def model(self) -> str:
        """The model's name, with the URL of its server if one is set; "" if the environment decides. A model that
        runs on this machine has no such URL."""
        name, address = self.get("model") or "", self.get("base_url")
        has_url = "@" in name or name.partition("/")[0].lower() == LOCAL_SERVICE
        return f"{name}@{address}" if name and address and not has_url else name

    def system_text(self, default: str) -> str:
        """Return the system text of a new session: the one of the program, and the user's own after it."""
        own = prompt_text(self.get("prompt")).strip()
        return f"{default}\n\n{own}" if own else default

    @property
    def summariser(self) -> str:
        """Name of the model that writes summaries; "" for the session's model."""
        return self.get("compaction.model") or ""

    @property
    def summarises_natively(self) -> bool:
        """Whether a provider is asked to compact conversations with its own API, before any model is."""
        return bool(self.get("compaction.summarise") == "native")

    @property
    def rules(self) -> InstructionRules:
        """Rules for AGENTS.md and preferences.md."""
        return InstructionRules(
            **{field: self.get(f"instructions.{field}") for field in InstructionRules.__struct_fields__}
        )

    @property
    def memory(self) -> MemorySettings:
        """Whether and how memories are used."""
        return MemorySettings(*(self.get(f"memory.{field}") for field in MemorySettings._fields))

    @property
    def servers(self) -> tuple[McpServerSettings, ...]:
        """The configured MCP servers."""
        of_project = {
            path[1]
            for path, value in self.values.items()
            if value.source.kind == "project" and path[0] == "mcp"
        }
        return tuple(
            McpServerSettings(name, **table, is_of_project=name in of_project)
            for name, table in self.named_tables("mcp").items()
        )

    @property
    def schedules(self) -> tuple[ScheduleSetting, ...]:
        """The configured schedules."""
        return tuple(ScheduleSetting(**table) for table in self.get("schedule"))

    def policy(self, *, window: int = 0) -> Policy:
        """Return the policy; only `safety_ratio` needs the model's window."""
        return build_policy(
            self.get, self.named_tables("context", "tools"), window=window, named=self.named_policies
        )

    @property
    def named_policies(self) -> dict[str, Mapping[str, Any]]:
        """The tables `[policies.NAME]`, by name."""
        return {path[1]: value.value for path, value in self.values.items() if path[0] == "policies"}

    def check_room(self) -> None:
        """Raise `BadSetting` if the reserve or the margin leave no room for messages in the window that is set, or
        else in that of the model that is set, if it is known."""
        given = {name: self.get(name) for name in ("reserve", "margin", "max_output_tokens")}
        if all(value is None for value in given.values()):  # without them, there is room in every window
            return
        window, name = self.get("window"), self.get("model") or ""
        if window is None and (not name or model(name.partition("@")[0]).sources["window"] in _UNSURE):
            return  # the environment names the model, or its provider knows the window
        settings = {**given, "window": window, "tokenizer": "estimate"}
        resolve_settings(name.partition("@")[0] or "the model", **cast(SettingArguments, settings))

    def session(self, model: str | Model) -> dict[str, Any]:
        """Return keyword arguments for `Session.open`, except `model` and `summarise`."""
        window = self.get("window")
        if window is None:
            window = _known_window(model) if isinstance(model, str) else model.window
        given = {name: self.get(name) for name in _SESSION_KEYS}
        settings = {name: value for name, value in given.items() if value is not None}
        return settings | {
            "policy": self.policy(window=window),
            "prompt": self.get("compaction.prompt_template"),
        }

    # ── Comparing ────────────────────────────────────────────────────────────────────────────────────────

    def changes(self, newer: Config) -> list[ConfigChange]:
        """Return the settings whose values differ in a newer configuration, by name."""
        paths = [
            path
            for path in sorted({*self.values, *newer.values})
            if self._raw_value(path) != newer._raw_value(path)
        ]
        return [ConfigChange(dotted_name(path), self._shown(path), newer._shown(path)) for path in paths]

    def with_values_of(self, other: Config, is_chosen: Callable[[str], bool]) -> Config:
        """Return this configuration with the values of another one where a name is chosen."""
        own = {path: value for path, value in self.values.items() if not is_chosen(dotted_name(path))}
        kept = {path: value for path, value in other.values.items() if is_chosen(dotted_name(path))}
        return replace(self, values=MappingProxyType({**own, **kept}))

    def _raw_value(self, path: KeyPath) -> Any:
        """Return the value of a path; None if it is a name in a table and not set."""
        if path in self.values:
            return self.values[path].value
        key = find_key(path)
        return None if key is None or "*" in key.path else self.get(".".join(path))

    def _shown(self, path: KeyPath) -> Any:
        key, value = find_key(path), self._raw_value(path)
        return value if key is None or value is None else key.shown(value)

    def hidden_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and values that were set and are not shown as they are: secrets, and URLs with some."""
        for path in sorted(self.values):
            if (value := self._raw_value(path)) != self._shown(path):
                yield dotted_name(path), value

    # ── Listing ──────────────────────────────────────────────────────────────────────────────────────────

    def entries(self) -> Iterator[ConfigEntry]:
        """Yield every value with its source, including values of the policy."""
        policy, preset = self.policy(), self.get("context.policy")
        for key in KEYS:
            if "*" not in key.path:
                name = dotted_name(key.path)
                value, source = self._value(name)
                if value is None and name in POLICY_FIELDS:
                    value, source = getattr(policy, POLICY_FIELDS[name]), ValueSource("policy", preset)
                if value is None and policy.clip is not None and name in _CLIP_FIELDS:
                    value, source = getattr(policy.clip, _CLIP_FIELDS[name]), ValueSource("policy", preset)
                yield ConfigEntry(name, key.shown(value), source, key.description)
        for path, (value, source) in sorted(self.values.items()):
            chosen = find_key(path)
            if chosen is not None and "*" in chosen.path:
                yield ConfigEntry(dotted_name(path), chosen.shown(value), source, chosen.description)


def _known_window(name: str) -> int:
    """Return the context window of a model, given by name with or without the URL of its server."""
    return model(name.partition("@")[0]).window


def provider_from_config(
    config: Config, name: str | None, *, environment: Mapping[str, str], progress: Callable[[Any], None]
) -> Provider:
    """Return the provider of a model, by default of the configured model, as `provider` does."""
    from foveal.providers.selection import provider_factory  # few commands need a provider

    variables = dict(environment)
    if base_url := config.get("base_url"):
        variables["OPENAI_BASE_URL"] = base_url
    found: Provider = provider_factory(variables)(
        name or config.model or None,
        environment=variables,
        # A configured window belongs to the configured model only.
        window=config.get("window") if not name else None,
        progress=progress,
    )
    return found
