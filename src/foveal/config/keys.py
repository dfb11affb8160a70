"""Every key that a configuration may have: what it means, what is allowed, what holds when nobody sets it.

A key is a path of names; `*` stands for a name that the user chooses (a tool, an agent, a server). Those that an
untrusted project may not set are not `safe`: they run commands, choose where conversations are sent, let tools run
unasked, or name files to read.
"""

from __future__ import annotations

import re
from typing import Final, get_args

from foveal.budget import MARGIN
from foveal.clip import Strategy
from foveal.config.kinds import (
    FILE_NAMES,
    TABLE,
    TEXT,
    TEXTS,
    TRUTH,
    URL,
    Key,
    Path,
    key_named,
    one_of,
    share,
    whole,
)
from foveal.config.server_keys import SERVER_KEYS
from foveal.instructions import LARGEST, MARKERS, Rules
from foveal.policies import PRESETS
from foveal.policies.settings import Mode

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


_DEFAULTS: Final = Rules()
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
