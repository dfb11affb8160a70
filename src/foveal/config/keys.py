"""Every key that a configuration may have: what it means, what is allowed, what holds when nobody sets it.

A key is a path of names; `*` stands for a name that the user chooses (a tool, an agent, a server). Those that an
untrusted project may not set are not `safe`: they run commands, choose where conversations are sent, let tools run
unasked, or name files to read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from foveal.core.models.budget import LARGEST_WINDOW, MARGIN
from foveal.core.policies import PRESETS
from foveal.core.policies.presets import Mode
from foveal.core.reduction.truncation import Strategy
from foveal.instructions.rules import LARGEST, MARKERS, InstructionRules

# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────
# What a key of the configuration is, and the kinds of values that one may take.

Path: TypeAlias = tuple[str, ...]


class ValueKind(NamedTuple):
    """What values a key takes."""

    allowed: str
    fits: Callable[[Any], bool]
    read: Callable[[str], Any]
    """The value that a text means; raises ValueError when it means none."""
    problem: Callable[[Any], str] = lambda _: ""
    """What is wrong with a value that does not fit, if more can be said than what is allowed."""


def whole(least: int, most: int = LARGEST_WINDOW) -> ValueKind:
    return ValueKind(
        f"a whole number from {least:,} to {most:,}",
        lambda value: type(value) is int and least <= value <= most,
        lambda text: int(text.replace(",", "")),
    )


def share(most: float = 1.0) -> ValueKind:
    return ValueKind(
        f"a number from 0 to {most:g}",
        lambda value: type(value) in (int, float) and isfinite(value) and 0 <= value <= most,
        float,
    )


def one_of(names: Iterable[str]) -> ValueKind:
    names = tuple(names)
    return ValueKind(f"one of {', '.join(names)}", lambda value: value in names, str)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes", "on")


def _toml(text: str, otherwise: Callable[[], Any]) -> Any:
    """A list as TOML writes it, or else as people write one in a shell."""
    return tomllib.loads(f"x = {text}")["x"] if text.lstrip().startswith("[") else otherwise()


TEXT: Final = ValueKind("a text", lambda value: isinstance(value, str), str)
URL: Final = ValueKind(
    "an address that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    str,
)
TRUTH: Final = ValueKind("true or false", lambda value: isinstance(value, bool), _truth)
TEXTS: Final = ValueKind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    lambda text: _toml(text, lambda: [one.strip() for one in text.split(",") if one.strip()]),
)
NUMBERS: Final = ValueKind(
    "a list of whole numbers above 0",
    lambda value: isinstance(value, list) and all(type(one) is int and one > 0 for one in value),
    lambda text: _toml(text, lambda: [int(one) for one in text.replace(",", " ").split()]),
)
FILE_NAMES: Final = TEXTS._replace(
    allowed="a list of names of files, without a folder",
    fits=lambda value: TEXTS.fits(value) and all(one and not re.search(r"[/\\]|^\.+$", one) for one in value),
)


def _no_text(text: str) -> Any:
    raise ValueError(text)


TABLE: Final = ValueKind(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    _no_text,
)


class ConfigKey(NamedTuple):
    path: Path
    kind: ValueKind
    about: str
    default: Any = None
    """None is left to the model or to the policy."""
    safe: bool = True
    """An untrusted project may set it."""
    project: bool = True
    """A project may set it at all."""
    secret: bool = False
    """Its values are never printed."""

    @property
    def variable(self) -> str:
        """Its name in the environment; "" when it has none."""
        return "" if "*" in self.path else f"FOVEAL_{'_'.join(self.path).upper()}"


def key_named(name: str, kind: ValueKind, about: str, **more: Any) -> ConfigKey:
    return ConfigKey(tuple(name.split(".")), kind, about, **more)


# ── server keys ───────────────────────────────────────────────────────────────────────────────────
# What can be set for `foveal serve`: only by the user, never by a project.

Missed = Literal["once", "skip"]


class ScheduleSetting(NamedTuple):
    """A prompt that comes at given times."""

    name: str
    session: str
    cron: str
    prompt: str
    zone: str = "UTC"
    tenant: str = "default"
    missed: Missed = "once"
    """What happens with times that passed while no server ran: one run for all of them, or none."""


_NEEDED: Final = tuple(
    name for name in ScheduleSetting._fields if name not in ScheduleSetting._field_defaults
)


def _problem(value: Any) -> str:
    """What is wrong with a list of schedules; "" when nothing is."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        return "each is a table: [[schedule]]"
    names = [one.get("name") for one in value]
    for number, table in enumerate(value, 1):
        wrong = _wrong(table)
        if not wrong and names.index(table["name"]) != number - 1:
            wrong = "another one has this name"
        if wrong:
            return f"schedule {table.get('name') or number}: {wrong}"
    return ""


def _wrong(table: Mapping[str, Any]) -> str:
    if missing := [name for name in _NEEDED if name not in table]:
        return f"{missing[0]} is missing"
    if strange := [name for name in table if name not in ScheduleSetting._fields]:
        return f"there is no {strange[0]}; allowed are {', '.join(ScheduleSetting._fields)}"
    if empty := [name for name, text in table.items() if not isinstance(text, str) or not text.strip()]:
        return f"{empty[0]} is a text that is not empty"
    if table.get("missed", "once") not in ("once", "skip"):
        return f"missed is once or skip, not {table['missed']}"
    return ""


def _empty_value(text: str) -> Any:
    raise ValueError(text)


_SCHEDULES: Final = ValueKind(
    f"tables with different names, each with {', '.join(_NEEDED)} and perhaps zone, tenant, missed (once, skip)",
    lambda value: not _problem(value),
    _empty_value,
    _problem,
)
_SECONDS: Final = whole(0, 86_400)


def _server(name: str, kind: ValueKind, about: str, default: Any) -> ConfigKey:
    return key_named(name, kind, about, default=default, project=False)


SERVER_KEYS: Final = (
    _server("server.host", TEXT, "the address to listen on", "127.0.0.1"),
    _server("server.port", whole(0, 65_535), "the port; 0 takes a free one", 8790),
    _server("server.folder", TEXT, "where the server keeps everything", ""),
    _server(
        "server.hosts", TEXTS, "names that the server may be called by, beside those of this machine", []
    ),
    _server("server.max_body", whole(1_024, 1 << 30), "bytes that a request may have", 32 << 20),
    _server("server.max_depth", whole(4, 500), "how deep JSON may be nested", 100),
    _server("server.max_messages", whole(1, 1_000_000), "messages that a request may have", 20_000),
    _server("server.rate", whole(0, 1_000_000), "requests a minute and token; 0 is no limit", 600),
    _server("server.redact", TRUTH, "keep what looks like a key or password out of the log", default=True),
    _server("server.grace", _SECONDS, "seconds that running turns get when the server stops", 30),
    _server("server.silence", whole(1, 86_400), "seconds to wait for a byte from upstream", 900),
    _server("server.openai_url", URL, "upstream for chat completions and Responses", None),
    _server("server.anthropic_url", URL, "upstream for Anthropic's messages", None),
    _server("server.models", TEXTS, "models that clients may ask for, * for any part; none set: all", []),
    _server("telegram.allowed", NUMBERS, "user ids that the bot talks to; none set: nobody", []),
    _server("telegram.footer", TRUTH, "how full the window is, below each answer", default=True),
    _server("telegram.base_url", URL, "a Bot API server of your own", None),
    _server("discord.allowed", NUMBERS, "user ids that the bot talks to; none set: nobody", []),
    _server("discord.footer", TRUTH, "how full the window is, below each answer", default=True),
    _server("discord.base_url", URL, "another address of the API", None),
    _server("schedule", _SCHEDULES, "prompts that come at given times", []),
)


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


_DEFAULTS: Final = InstructionRules()
_TOKENS: Final = whole(0)
_SOME: Final = whole(1)
_STRATEGIES: Final = one_of(get_args(Strategy))

_OWN: Final = (
    key_named("model", TEXT, "provider/model; chosen by what the environment has, if not set", safe=False),
    key_named("base_url", URL, "where the model is served, if not at its provider's own address", safe=False),
    key_named("tokenizer", TEXT, "a vocabulary, auto or estimate", default="auto"),
    key_named("window", _SOME, "tokens that the model holds, if you know better"),
    key_named("reserve", _TOKENS, "tokens kept free for the answer"),
    key_named("margin", share(0.9), "share of the window that is never planned for", default=MARGIN),
    key_named("max_input_tokens", _SOME, "the most that a request may take"),
    key_named("max_output_tokens", _SOME, "the most that an answer may take"),
    key_named("context.policy", one_of(PRESETS), "how the window is kept", default="economy"),
    key_named(
        "context.max_history_tokens", _TOKENS, "tokens for messages other than instructions; 0 is no cap"
    ),
    key_named("context.max_tool_result_tokens", _TOKENS, "the most that is shown of a result; 0 is no limit"),
    key_named("context.tool_result_truncation", _STRATEGIES, "which part of a long result is shown"),
    key_named("context.tool_result_keep_first", _TOKENS, "so many of the first results are never masked"),
    key_named("context.tool_result_keep_last", _TOKENS, "so many of the newest results are never masked"),
    key_named("context.tools.*.max_tool_result_tokens", _TOKENS, "the same for one tool"),
    key_named("context.tools.*.tool_result_truncation", _STRATEGIES, "the same for one tool"),
    key_named("context.tools.*.mask", TRUTH, "false: results of this tool are never masked"),
    key_named("compaction.mode", one_of(get_args(Mode)), "whether old turns become summaries"),
    key_named("compaction.threshold", share(), "share of the room above which something is reduced"),
    key_named("compaction.token_threshold", _SOME, "the same as tokens of the whole request"),
    key_named("compaction.safety_ratio", share(), "the same as a share of the window"),
    key_named("compaction.invocation_threshold", _SOME, "a summary after so many turns"),
    key_named(
        "compaction.overlap_size", _TOKENS, "so many summarised turns are read again for the next summary"
    ),
    key_named("compaction.prompt_template", TEXT, "a prompt, or file://… with one", safe=False, default=""),
    key_named("compaction.model", TEXT, "who writes summaries; the model itself, if not set", safe=False),
    key_named("tools.allow", TEXTS, "tools that run without asking", safe=False, default=[]),
    key_named("tools.deny", TEXTS, "tools that are not offered", default=[]),
)
_ONCE: Final = (
    key_named(
        "instructions.max_bytes",
        whole(0, LARGEST),
        "for all AGENTS.md together; 0 reads none",
        default=_DEFAULTS.max_bytes,
    ),
    key_named(
        "instructions.preferences_max_bytes",
        whole(0, LARGEST),
        "for preferences.md; 0 reads none",
        default=_DEFAULTS.preferences_max_bytes,
    ),
    key_named("instructions.fallback_names", FILE_NAMES, "instead of AGENTS.md", safe=False, default=[]),
    key_named(
        "instructions.root_markers",
        TEXTS,
        "what the root of a project has; none: the working directory is the root",
        project=False,
        default=list(MARKERS),
    ),
    key_named("instructions.ignore", TEXTS, "folders whose AGENTS.md do not count", default=[]),
    key_named("mcp.*.command", TEXT, "the program to start", safe=False),
    key_named("mcp.*.args", TEXTS, "its arguments", safe=False, secret=True),
    key_named("mcp.*.env", TABLE, "its environment", safe=False, secret=True),
    key_named("mcp.*.url", URL, "or the address of a server that runs already", safe=False),
)
KEYS: Final = (
    *_OWN,
    *_ONCE,
    *SERVER_KEYS,
    *(key._replace(path=("agents", "*", *key.path), default=None) for key in _OWN),
)


def find(path: Path) -> ConfigKey | None:
    """The key that a path of names means."""
    return next((key for key in KEYS if len(key.path) == len(path) and _begins(key, path)), None)


def below(path: Path) -> tuple[str, ...]:
    """What may stand at a place that is no key: the names of tables and keys, `*` for any name."""
    found = (key.path[len(path)] for key in KEYS if len(key.path) > len(path) and _begins(key, path))
    return tuple(dict.fromkeys(found))


def _begins(key: ConfigKey, path: Path) -> bool:
    return all(known in ("*", name) for known, name in zip(key.path, path, strict=False))


def dotted(path: Path) -> str:
    """A path as TOML writes it."""
    return ".".join(name if _BARE.fullmatch(name) else f'"{name}"' for name in path)
