"""Every key that a configuration may have: what it means, what is allowed, what holds when nobody sets it.

A key is a path of names; `*` stands for a name that the user chooses (a tool, an agent, a server). Those that an
untrusted project may not set are not `safe`: they run commands, choose where conversations are sent, let tools run
unasked, or name files to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from foveal.budget import LARGEST_WINDOW, MARGIN
from foveal.clip import Strategy
from foveal.instructions import LARGEST, MARKERS, Rules
from foveal.policies import PRESETS
from foveal.policies.settings import Mode

Path: TypeAlias = tuple[str, ...]
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class Kind(NamedTuple):
    """What values a key takes."""

    allowed: str
    fits: Callable[[Any], bool]
    read: Callable[[str], Any]
    """The value that a text means; raises ValueError when it means none."""


def _whole(least: int, most: int = LARGEST_WINDOW) -> Kind:
    return Kind(
        f"a whole number from {least:,} to {most:,}",
        lambda value: type(value) is int and least <= value <= most,
        lambda text: int(text.replace(",", "")),
    )


def _share(most: float = 1.0) -> Kind:
    return Kind(
        f"a number from 0 to {most:g}",
        lambda value: type(value) in (int, float) and isfinite(value) and 0 <= value <= most,
        float,
    )


def _one_of(names: Iterable[str]) -> Kind:
    names = tuple(names)
    return Kind(f"one of {', '.join(names)}", lambda value: value in names, str)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes", "on")


_TEXT: Final = Kind("a text", lambda value: isinstance(value, str), str)
_URL: Final = Kind(
    "an address that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    str,
)
_TRUTH: Final = Kind("true or false", lambda value: isinstance(value, bool), _truth)
_TEXTS: Final = Kind(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    lambda text: [one.strip() for one in text.split(",") if one.strip()],
)
_FILE_NAMES: Final = _TEXTS._replace(
    allowed="a list of names of files, without a folder",
    fits=lambda value: (
        _TEXTS.fits(value) and all(one and not re.search(r"[/\\]|^\.+$", one) for one in value)
    ),
)


def _no_text(text: str) -> Any:
    raise ValueError(text)


_TABLE: Final = Kind(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    _no_text,
)


class Key(NamedTuple):
    path: Path
    kind: Kind
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


def _key(name: str, kind: Kind, about: str, **more: Any) -> Key:
    return Key(tuple(name.split(".")), kind, about, **more)


_DEFAULTS: Final = Rules()
_TOKENS: Final = _whole(0)
_SOME: Final = _whole(1)
_STRATEGIES: Final = _one_of(get_args(Strategy))

_OWN: Final = (
    _key("model", _TEXT, "provider/model; chosen by what the environment has, if not set", safe=False),
    _key("base_url", _URL, "where the model is served, if not at its provider's own address", safe=False),
    _key("tokenizer", _TEXT, "a vocabulary, auto or estimate", default="auto"),
    _key("window", _SOME, "tokens that the model holds, if you know better"),
    _key("reserve", _TOKENS, "tokens kept free for the answer"),
    _key("margin", _share(0.9), "share of the window that is never planned for", default=MARGIN),
    _key("max_input_tokens", _SOME, "the most that a request may take"),
    _key("max_output_tokens", _SOME, "the most that an answer may take"),
    _key("context.policy", _one_of(PRESETS), "how the window is kept", default="economy"),
    _key("context.max_history_tokens", _TOKENS, "tokens for messages other than instructions; 0 is no cap"),
    _key("context.max_tool_result_tokens", _TOKENS, "the most that is shown of a result; 0 is no limit"),
    _key("context.tool_result_truncation", _STRATEGIES, "which part of a long result is shown"),
    _key("context.tool_result_keep_first", _TOKENS, "so many of the first results are never masked"),
    _key("context.tool_result_keep_last", _TOKENS, "so many of the newest results are never masked"),
    _key("context.tools.*.max_tool_result_tokens", _TOKENS, "the same for one tool"),
    _key("context.tools.*.tool_result_truncation", _STRATEGIES, "the same for one tool"),
    _key("context.tools.*.mask", _TRUTH, "false: results of this tool are never masked"),
    _key("compaction.mode", _one_of(get_args(Mode)), "whether old turns become summaries"),
    _key("compaction.threshold", _share(), "share of the room above which something is reduced"),
    _key("compaction.token_threshold", _SOME, "the same as tokens of the whole request"),
    _key("compaction.safety_ratio", _share(), "the same as a share of the window"),
    _key("compaction.invocation_threshold", _SOME, "a summary after so many turns"),
    _key("compaction.overlap_size", _TOKENS, "so many summarised turns are read again for the next summary"),
    _key("compaction.prompt_template", _TEXT, "a prompt, or file://… with one", safe=False, default=""),
    _key("compaction.model", _TEXT, "who writes summaries; the model itself, if not set", safe=False),
    _key("tools.allow", _TEXTS, "tools that run without asking", safe=False, default=[]),
    _key("tools.deny", _TEXTS, "tools that are not offered", default=[]),
)
_ONCE: Final = (
    _key(
        "instructions.max_bytes",
        _whole(0, LARGEST),
        "for all AGENTS.md together; 0 reads none",
        default=_DEFAULTS.max_bytes,
    ),
    _key(
        "instructions.preferences_max_bytes",
        _whole(0, LARGEST),
        "for preferences.md; 0 reads none",
        default=_DEFAULTS.preferences_max_bytes,
    ),
    _key("instructions.fallback_names", _FILE_NAMES, "instead of AGENTS.md", safe=False, default=[]),
    _key(
        "instructions.root_markers",
        _TEXTS,
        "what the root of a project has; none: the working directory is the root",
        project=False,
        default=list(MARKERS),
    ),
    _key("instructions.ignore", _TEXTS, "folders whose AGENTS.md do not count", default=[]),
    _key("mcp.*.command", _TEXT, "the program to start", safe=False),
    _key("mcp.*.args", _TEXTS, "its arguments", safe=False, secret=True),
    _key("mcp.*.env", _TABLE, "its environment", safe=False, secret=True),
    _key("mcp.*.url", _URL, "or the address of a server that runs already", safe=False),
)
KEYS: Final = (
    *_OWN,
    *_ONCE,
    *(key._replace(path=("agents", "*", *key.path), default=None) for key in _OWN),
)


def find(path: Path) -> Key | None:
    """The key that a path of names means."""
    return next((key for key in KEYS if len(key.path) == len(path) and _begins(key, path)), None)


def below(path: Path) -> tuple[str, ...]:
    """What may stand at a place that is no key: the names of tables and keys, `*` for any name."""
    found = (key.path[len(path)] for key in KEYS if len(key.path) > len(path) and _begins(key, path))
    return tuple(dict.fromkeys(found))


def _begins(key: Key, path: Path) -> bool:
    return all(known in ("*", name) for known, name in zip(key.path, path, strict=False))


def dotted(path: Path) -> str:
    """A path as TOML writes it."""
    return ".".join(name if _BARE.fullmatch(name) else f'"{name}"' for name in path)
