"""A configuration: every value that somebody has set, where it was set, and what it means for a session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, NamedTuple

from foveal.config.keys import KEYS, ConfigKey, Path, ScheduleSetting, dotted, find
from foveal.config.policy_settings import FIELDS, policy_of
from foveal.config.sources import ConfigValue, ValueSource
from foveal.core.models import model as models
from foveal.core.models.model import Model
from foveal.core.policies import Policy
from foveal.errors import BadSetting
from foveal.instructions.rules import InstructionRules

_SETTINGS = ("window", "reserve", "margin", "max_input_tokens", "max_output_tokens", "tokenizer")
_CLIPS = {"context.max_tool_result_tokens": "tokens", "context.tool_result_truncation": "strategy"}


class ServerSettings(NamedTuple):
    """An MCP server: a program to start, or an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = MappingProxyType({})
    url: str = ""


class ConfigEntry(NamedTuple):
    """One line of what `foveal config` prints."""

    name: str
    value: Any
    """As it may be shown: never a secret."""
    source: ValueSource
    about: str


@dataclass(frozen=True, kw_only=True)
class Config:
    values: Mapping[Path, ConfigValue]
    """What somebody has set, by path."""
    files: tuple[tuple[FilePath, bool], ...] = ()
    """The files that count, and whether each is there."""
    root: FilePath = FilePath(".")
    """Where the project begins."""
    trusted: bool | None = None
    notes: tuple[str, ...] = ()
    """What was passed over."""

    # ── values ───────────────────────────────────────────────────────────────────────────────────────

    def get(self, name: str) -> Any:
        """The value of a key; None when it is left to the model or to the policy."""
        return self._value(name).value

    def source(self, name: str) -> ValueSource:
        return self._value(name).source

    def _value(self, name: str) -> ConfigValue:
        path = tuple(name.split("."))
        if (value := self.values.get(path)) is not None:
            return value
        if (key := find(path)) is None:
            raise KeyError(name)
        return ConfigValue(
            tuple(key.default) if isinstance(key.default, list) else key.default, ValueSource("default")
        )

    def named(self, *path: str) -> dict[str, dict[str, Any]]:
        """Tables under names of the user's own, such as those of `[context.tools.NAME]`."""
        found: dict[str, dict[str, Any]] = {}
        for where, value in self.values.items():
            if where[: len(path)] == path and len(where) == len(path) + 2:
                found.setdefault(where[-2], {})[where[-1]] = value.value
        return found

    @property
    def agents(self) -> tuple[str, ...]:
        """The named agents."""
        return tuple(dict.fromkeys(path[1] for path in self.values if path[0] == "agents"))

    def agent(self, name: str) -> Config:
        """The configuration of a named agent: its own values before those of the files, the environment and flags
        before its own."""
        if name not in self.agents:
            raise BadSetting(
                "agent", name, f"one of {', '.join(self.agents) or 'those in [agents.NAME]: none'}"
            )
        own = {path[2:]: value for path, value in self.values.items() if path[:2] == ("agents", name)}
        above = {p: v for p, v in self.values.items() if v.source.kind in ("environment", "flag")}
        return replace(self, values=MappingProxyType({**self.values, **own, **above}))

    # ── what they mean ───────────────────────────────────────────────────────────────────────────────

    @property
    def model(self) -> str:
        """The model's name, with the address of its server if one is set; "" when it is to be chosen by what the
        environment has."""
        name, address = self.get("model") or "", self.get("base_url")
        return f"{name}@{address}" if name and address and "@" not in name else name

    @property
    def summariser(self) -> str:
        """The name of the model that writes summaries; "" is the conversation's own."""
        return self.get("compaction.model") or ""

    @property
    def rules(self) -> InstructionRules:
        """How AGENTS.md and preferences.md are read."""
        return InstructionRules(
            **{field: self.get(f"instructions.{field}") for field in InstructionRules.__struct_fields__}
        )

    @property
    def servers(self) -> tuple[ServerSettings, ...]:
        return tuple(ServerSettings(name, **table) for name, table in self.named("mcp").items())

    @property
    def schedules(self) -> tuple[ScheduleSetting, ...]:
        return tuple(ScheduleSetting(**table) for table in self.get("schedule"))

    def policy(self, *, window: int = 0) -> Policy:
        """The policy, for a model with such a window (needed for `safety_ratio` only)."""
        return policy_of(self.get, self.named("context", "tools"), window=window)

    def session(self, model: str | Model) -> dict[str, Any]:
        """Keyword arguments for `Session.open`, beside `model` and `summarise`."""
        window = self.get("window")
        if window is None:
            known = models.model(model.partition("@")[0]) if isinstance(model, str) else model
            window = known.window
        given = {name: self.get(name) for name in _SETTINGS}
        settings = {name: value for name, value in given.items() if value is not None}
        return settings | {
            "policy": self.policy(window=window),
            "prompt": self.get("compaction.prompt_template"),
        }

    # ── telling ──────────────────────────────────────────────────────────────────────────────────────

    def entries(self) -> Iterator[ConfigEntry]:
        """Every value with its source, those of the policy included."""
        policy, preset = self.policy(), self.get("context.policy")
        for key in KEYS:
            if "*" not in key.path:
                name = dotted(key.path)
                value, source = self._value(name)
                if value is None and name in FIELDS:
                    value, source = getattr(policy, FIELDS[name]), ValueSource("policy", preset)
                if value is None and policy.clip is not None and name in _CLIPS:
                    value, source = getattr(policy.clip, _CLIPS[name]), ValueSource("policy", preset)
                yield ConfigEntry(name, _safe(key, value), source, key.about)
        for path, (value, source) in sorted(self.values.items()):
            chosen = find(path)
            if chosen is not None and "*" in chosen.path:
                yield ConfigEntry(dotted(path), _safe(chosen, value), source, chosen.about)


def _safe(key: ConfigKey, value: Any) -> Any:
    """A value without what may be a secret in it."""
    if key.secret and value:
        return dict.fromkeys(value, "…") if isinstance(value, Mapping) else f"{len(value):,} not shown"
    return without_passwords(value) if isinstance(value, str) else value


def without_passwords(text: str) -> str:
    """A text whose addresses tell no names, passwords and queries."""
    return re.sub(r"(https?://[^\s?#]*)[?#]\S*", r"\1", re.sub(r"(https?://)[^\s/]*@", r"\1", text))
