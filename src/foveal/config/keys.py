"""All configuration keys: meaning, allowed values, default, and which sources may set them.

1. A key is a path of names; `*` matches a name that the user chooses (a tool, an agent, a server).
2. A project can never set a key whose `project` is False: it chooses where conversations are sent, which calls run
   without asking, what a command may reach, or it belongs to `foveal serve`. Such a value in its file is ignored.
3. Every other value in a project's file counts only if the user allows that value.
4. `tools.allow` and `tools.deny` name one tool, or, as `github__*`, all whose names begin so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from foveal.config.instructions.rules import MAX_RULE_BYTES, ROOT_MARKERS, InstructionRules
from foveal.core.log.events import Priority
from foveal.core.models.budget import (
    DEFAULT_MEMORY_TOKENS,
    MAX_MEMORY_TOKENS,
    MAX_WINDOW_TOKENS,
    MIN_MEMORY_TOKENS,
)
from foveal.core.models.spending import LIMIT_FORM, read_limits
from foveal.core.policies.presets import PRESETS, Mode
from foveal.core.reduction.truncation import Strategy
from foveal.core.wire.safe_print import one_line
from foveal.errors import BadSetting
from foveal.policies import find_policy

SERVER_MARK: Final = "__"
"""Ends the name of the MCP server in the name of a tool where it first stands."""
_TOOL_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+\*?")


def is_tool_pattern(text: str) -> bool:
    """Return whether a text can be the name of a tool, or how names begin."""
    return _TOOL_PATTERN.fullmatch(text) is not None


def names_tool(pattern: str, tool: str) -> bool:
    """Return whether a pattern names a tool. `github__*` are the tools of one MCP server only."""
    if not pattern.endswith("*"):
        return tool == pattern
    server, mark, begin = pattern[:-1].partition(SERVER_MARK)
    if not mark:
        return tool.startswith(server)
    found, found_mark, name = tool.partition(SERVER_MARK)
    return bool(found_mark) and found == server and name.startswith(begin)


def denied_tools(names: Iterable[str], deny: Iterable[str]) -> frozenset[str]:
    """Return which tools are not offered at all, given the entries of `tools.deny`; raises `BadSetting`.

    Entries about commands, such as `run: git push`, deny no tool."""
    patterns = [entry.strip() for entry in deny if ":" not in entry]
    for pattern in patterns:
        if not is_tool_pattern(pattern):
            raise BadSetting("deny", one_line(pattern), 'the name of a tool, or names like "github__*"')
    return frozenset(name for name in names if any(names_tool(pattern, name) for pattern in patterns))


# ── Kinds of values ──────────────────────────────────────────────────────────────────────────────────────

KeyPath: TypeAlias = tuple[str, ...]


class ValueKind(NamedTuple):
    """What values a key accepts."""

    allowed: str
    """Description for error messages."""
    is_valid: Callable[[Any], bool]
    parse: Callable[[str], Any]
    """Returns the value of a variable or flag; raises ValueError if it has none."""
    explain: Callable[[Any], str] = lambda _: ""
    """Returns what is wrong with an invalid value, where that says more than `allowed`; else ""."""


def whole_number(lowest: int, highest: int = MAX_WINDOW_TOKENS) -> ValueKind:
    return ValueKind(
        f"a whole number from {lowest:,} to {highest:,}",
        lambda value: type(value) is int and lowest <= value <= highest,
        lambda text: int(text.replace(",", "")),
    )


def fraction(highest: float = 1.0) -> ValueKind:
    return ValueKind(
        f"a number from 0 to {highest:g}",
        lambda value: type(value) in (int, float) and isfinite(value) and 0 <= value <= highest,
        float,
    )


def one_of(names: Iterable[str]) -> ValueKind:
    names = tuple(names)
    return ValueKind(f"one of {', '.join(names)}", lambda value: value in names, str)


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes", "on")


def _parse_list(text: str, otherwise: Callable[[], Any]) -> Any:
    """Parse a TOML list; for any other text, call `otherwise`, which parses the short form for a shell."""
    return tomllib.loads(f"x = {text}")["x"] if text.lstrip().startswith("[") else otherwise()


STRING: Final = ValueKind("a string", lambda value: isinstance(value, str), str)
HTTP_URL: Final = ValueKind(
    "a URL that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    str,
)
POSTGRES_URL: Final = ValueKind(
    "a URL that begins with postgresql://",
    lambda value: isinstance(value, str) and value.startswith(("postgresql://", "postgres://")),
    str,
)
BOOLEAN: Final = ValueKind("true or false", lambda value: isinstance(value, bool), _parse_bool)
STRINGS: Final = ValueKind(
    "a list of strings",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    lambda text: _parse_list(text, lambda: [item.strip() for item in text.split(",") if item.strip()]),
)
POSITIVE_NUMBERS: Final = ValueKind(
    "a list of whole numbers above 0",
    lambda value: isinstance(value, list) and all(type(item) is int and item > 0 for item in value),
    lambda text: _parse_list(text, lambda: [int(item) for item in text.replace(",", " ").split()]),
)
FILE_NAMES: Final = STRINGS._replace(
    allowed="a list of file names without folders",
    is_valid=lambda value: (
        STRINGS.is_valid(value) and all(item and not re.search(r"[/\\]|^\.+$", item) for item in value)
    ),
)


def _refuse_text(text: str) -> Any:
    raise ValueError(text)


STRING_TABLE: Final = ValueKind(
    "a table of strings",
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    _refuse_text,
)


def _policy_problem(value: Any) -> str:
    """Return what is wrong with a table of a policy, "" if nothing is."""
    if not isinstance(value, Mapping):
        return "a policy is a table: [policies.NAME]"
    try:
        find_policy("", {"": value})
    except BadSetting as problem:
        return f"{problem.field} = {problem.value!r} is not allowed: {problem.allowed}"
    return ""


POLICY_TABLE: Final = ValueKind(
    "a table of settings of a policy, and perhaps preset",
    lambda value: not _policy_problem(value),
    _refuse_text,
    _policy_problem,
)
POLICY_NAME: Final = ValueKind(
    f"one of {', '.join(PRESETS)}, a table [policies.NAME], or a policy of an installed package",
    lambda value: isinstance(value, str) and value != "",
    str,
)


HIDDEN: Final = "…"
"""Stands for a secret."""
_URL: Final = re.compile(r"(?P<scheme>\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://)(?P<rest>\S*)")


class ConfigKey(NamedTuple):
    """A configuration key."""

    path: KeyPath
    kind: ValueKind
    description: str
    default: Any = None
    """None: the model or the policy decides."""
    project: bool = True
    """Whether a project may set it, with the user's consent."""
    secret: bool = False
    """Whether its values are never printed. This field is the only place that says so: all output uses `shown`."""
    short_variable: str = ""
    """A second, shorter name of its environment variable."""

    @property
    def variable(self) -> str:
        """Name of its environment variable; "" if it has none."""
        return "" if "*" in self.path else f"FOVEAL_{'_'.join(self.path).upper()}"

    def shown(self, value: Any) -> Any:
        """Return a value as logs, pages and commands show it: without secrets."""
        if isinstance(value, Mapping):
            return {name: HIDDEN if self.secret else _without_passwords(one) for name, one in value.items()}
        if self.secret and value and self.kind is not POSTGRES_URL:  # the host of a database is no secret
            return HIDDEN if isinstance(value, str) else f"{len(value):,} not shown"
        return _without_passwords(value)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return strip_url_secrets(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_passwords, value))
    return value


def strip_url_secrets(text: str) -> str:
    """Remove user names, passwords and queries from the URLs in a text."""
    return _URL.sub(lambda found: found["scheme"] + _public_part(found["rest"]), text)


def _public_part(rest: str) -> str:
    """Return what may be shown of a URL behind its scheme."""
    before, at, behind = rest.rpartition("@")
    if at and "/" in before and not re.search(r"[:?#]", before):
        before, behind = "", rest  # an @ of the path, without anything that could be a password
    return "…" if re.search(r"[?#]", before) else re.split(r"[?#]", behind)[0]


def config_key(name: str, kind: ValueKind, description: str, **more: Any) -> ConfigKey:
    return ConfigKey(tuple(name.split(".")), kind, description, **more)


# ── Keys of the server ───────────────────────────────────────────────────────────────────────────────────

MissedRuns = Literal["once", "skip"]


class ScheduleSetting(NamedTuple):
    """A prompt that the server sends at given times."""

    name: str
    session: str
    cron: str
    prompt: str
    zone: str = "UTC"
    tenant: str = "default"
    missed: MissedRuns = "once"
    """What to do about times that passed while no server ran: one run for all of them, or none."""
    agent: str = ""
    """The agent `[agents.NAME]` with which its session is created."""


_REQUIRED_FIELDS: Final = tuple(
    name for name in ScheduleSetting._fields if name not in ScheduleSetting._field_defaults
)


def _schedules_problem(value: Any) -> str:
    """Return what is wrong with a list of schedules, "" if nothing is."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return "each is a table: [[schedule]]"
    names = [item.get("name") for item in value]
    for number, table in enumerate(value, 1):
        wrong = _schedule_problem(table)
        if not wrong and names.index(table["name"]) != number - 1:
            wrong = "another schedule has this name"
        if wrong:
            return f"schedule {table.get('name') or number}: {wrong}"
    return ""


def _schedule_problem(table: Mapping[str, Any]) -> str:
    if missing := [name for name in _REQUIRED_FIELDS if name not in table]:
        return f"{missing[0]} is missing"
    if unknown := [name for name in table if name not in ScheduleSetting._fields]:
        return f"there is no {unknown[0]}; allowed are {', '.join(ScheduleSetting._fields)}"
    if empty := [name for name, text in table.items() if not isinstance(text, str) or not text.strip()]:
        return f"{empty[0]} must be a string that is not empty"
    if table.get("missed", "once") not in ("once", "skip"):
        return f"missed must be once or skip, not {table['missed']}"
    return ""


_SCHEDULES: Final = ValueKind(
    f"tables with different names, each with {', '.join(_REQUIRED_FIELDS)} "
    "and perhaps zone, tenant, missed (once, skip), agent",
    lambda value: not _schedules_problem(value),
    _refuse_text,
    _schedules_problem,
)
_SECONDS_OF_A_DAY: Final = whole_number(0, 86_400)


def _server_key(name: str, kind: ValueKind, description: str, default: Any, **more: Any) -> ConfigKey:
    return config_key(name, kind, description, default=default, project=False, **more)


_CHAT_TOOL: Final = re.compile(r"fetch|files:/.+|mcp:.+")
_CHAT_TOOLS: Final = STRINGS._replace(
    allowed="a list of fetch, files:/FOLDER and mcp:NAME",
    is_valid=lambda value: STRINGS.is_valid(value) and all(map(_CHAT_TOOL.fullmatch, value)),
)
_ABOUT_TOOLS: Final = "tools of the model in chats; files are only read, fetch and mcp ask before each call"
_ABOUT_APPROVERS: Final = "who may allow a call: the owners of the bot, or also the administrators of a group"


def _limits_problem(value: Any) -> str:
    """Return what is wrong with spending limits, "" if nothing is."""
    try:
        read_limits(value)
    except BadSetting as problem:
        return problem.allowed
    return ""


SPENDING_LIMITS: Final = ValueKind(
    LIMIT_FORM,
    lambda value: not _limits_problem(value),
    lambda text: _parse_list(text, lambda: [item.strip() for item in text.split(";") if item.strip()]),
)
_BUDGET_KEYS: Final = (
    _server_key("budgets.tenant", SPENDING_LIMITS, "most that each tenant may spend", None),
    _server_key("budgets.user", SPENDING_LIMITS, "most that each user of a tenant may spend", None),
    _server_key("budgets.conversation", SPENDING_LIMITS, "most that each conversation may spend", None),
    _server_key("budgets.agent", SPENDING_LIMITS, "most that each agent [agents.NAME] may spend", None),
)
SERVER_KEYS: Final = (
    _server_key("server.host", STRING, "the address to listen on", "127.0.0.1"),
    _server_key("server.port", whole_number(0, 65_535), "the port; 0 chooses a free one", 8790),
    _server_key("server.folder", STRING, "where the server keeps its files", ""),
    _server_key(
        "server.database",
        POSTGRES_URL,
        "a PostgreSQL database in place of the folder",
        None,
        secret=True,
        short_variable="FOVEAL_DATABASE",
    ),
    _server_key("server.hosts", STRINGS, "further host names that requests may use", []),
    _server_key("server.max_body", whole_number(1_024, 1 << 30), "maximum bytes of a request body", 32 << 20),
    _server_key("server.max_depth", whole_number(4, 500), "maximum nesting depth of JSON", 100),
    _server_key(
        "server.max_messages", whole_number(1, 1_000_000), "maximum number of messages in a request", 20_000
    ),
    _server_key(
        "server.rate", whole_number(0, 1_000_000), "requests per minute and token; 0 is no limit", 600
    ),
    _server_key(
        "server.redact", BOOLEAN, "remove likely API keys and passwords before storing", default=True
    ),
    _server_key(
        "server.grace", _SECONDS_OF_A_DAY, "seconds that running turns get when the server stops", 30
    ),
    _server_key("server.silence", whole_number(1, 86_400), "seconds to wait for a byte from upstream", 900),
    _server_key(
        "server.proxy_retention_days",
        whole_number(0, 36_500),
        "days after which unused sessions of drop-in clients are erased; 0 keeps them",
        0,
    ),
    _server_key("server.webhook", HTTP_URL, "a URL that is asked before each cut of a session", None),
    _server_key(
        "server.webhook_secret",
        STRING,
        "the secret with which calls of the webhook are signed",
        None,
        secret=True,
        short_variable="FOVEAL_WEBHOOK_SECRET",
    ),
    _server_key(
        "server.webhook_private",
        BOOLEAN,
        "let the webhook be at an address that is not public",
        default=False,
    ),
    _server_key(
        "server.memory",
        BOOLEAN,
        "remember what users of sessions and bots ask to be remembered",
        default=True,
    ),
    _server_key(
        "server.memory_tools",
        BOOLEAN,
        "offer the model the tools remember and forget in sessions and bots with a memory",
        default=False,
    ),
    _server_key(
        "server.memory_budget",
        whole_number(MIN_MEMORY_TOKENS, MAX_MEMORY_TOKENS),
        "maximum tokens of a user's memory in a request",
        DEFAULT_MEMORY_TOKENS,
    ),
    _server_key(
        "server.approval_minutes",
        whole_number(1, 1_440),
        "minutes after which a bot's question whether a tool may run expires; the tool is then not run",
        10,
    ),
    _server_key("server.openai_url", HTTP_URL, "upstream for chat completions and Responses", None),
    _server_key("server.anthropic_url", HTTP_URL, "upstream for Anthropic messages", None),
    _server_key(
        "server.forward_other_paths",
        BOOLEAN,
        "forward the other paths of OpenAI's and Anthropic's APIs unchanged",
        default=True,
    ),
    _server_key(
        "server.summary_cost_share",
        fraction(),
        "share of what a cut removes that a summary by the model of a drop-in conversation may cost; a dearer one "
        "is written without a model; 0 has the model write each",
        0.3,
    ),
    _server_key(
        "server.models",
        STRINGS,
        "models that clients may request, with * as a wildcard; an empty list allows all",
        [],
    ),
    _server_key("telegram.allowed", POSITIVE_NUMBERS, "ids of users who may talk to the bot", []),
    _server_key("telegram.agent", STRING, "the agent [agents.NAME] of new conversations", None),
    _server_key("telegram.tools", _CHAT_TOOLS, _ABOUT_TOOLS, []),
    _server_key("telegram.approvers", one_of(("owners", "admins")), _ABOUT_APPROVERS, default="owners"),
    _server_key("telegram.footer", BOOLEAN, "show how full the window is below each answer", default=True),
    _server_key(
        "telegram.webhook",
        one_of(("keep", "delete")),
        "whether the bot deletes a webhook that another program has set",
        default="keep",
    ),
    _server_key("telegram.base_url", HTTP_URL, "URL of your own Bot API server", None),
    _server_key("discord.allowed", POSITIVE_NUMBERS, "ids of users who may talk to the bot", []),
    _server_key("discord.agent", STRING, "the agent [agents.NAME] of new conversations", None),
    _server_key("discord.tools", _CHAT_TOOLS, _ABOUT_TOOLS, []),
    _server_key("discord.approvers", one_of(("owners", "admins")), _ABOUT_APPROVERS, default="owners"),
    _server_key("discord.footer", BOOLEAN, "show how full the window is below each answer", default=True),
    _server_key("discord.base_url", HTTP_URL, "another URL of the API", None),
    *_BUDGET_KEYS,
    *(key._replace(path=("budgets", "tenants", "*", key.path[-1])) for key in _BUDGET_KEYS),
    _server_key(
        "budgets.unknown_price",
        one_of(("refuse", "allow")),
        "what happens to models without a price under a limit in dollars; allow: they count in tokens only",
        "refuse",
    ),
    _server_key(
        "budgets.tell_model",
        BOOLEAN,
        "tell the model in sessions and bots how much is left, at the end of a request, in few steps",
        default=False,
    ),
    _server_key("schedule", _SCHEDULES, "prompts that the server sends at given times", []),
)


# ── Keys ─────────────────────────────────────────────────────────────────────────────────────────────────

_BARE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


_DEFAULT_RULES: Final = InstructionRules()
_FROM_ZERO: Final = whole_number(0)
_FROM_ONE: Final = whole_number(1)
_STRATEGIES: Final = one_of(get_args(Strategy))

MAX_TOOL_ITERATIONS: Final = 50
"""Most rounds of tool calls in one turn, unless the configuration has another number."""
_AGENT_KEYS: Final = (
    config_key(
        "model",
        STRING,
        "provider/model; if not set, chosen by the API keys in the environment",
        project=False,
    ),
    config_key(
        "base_url", HTTP_URL, "URL of the model's API, if it is not the provider's own", project=False
    ),
    config_key("tokenizer", STRING, "a vocabulary, auto or estimate", default="auto"),
    config_key("window", _FROM_ONE, "tokens in the model's context window, if the known value is wrong"),
    config_key("reserve", _FROM_ZERO, "tokens reserved for the answer"),
    config_key(
        "margin",
        fraction(0.9),
        "share of the window kept free as a safety margin; if not set, it follows the measured error of counting",
    ),
    config_key("max_input_tokens", _FROM_ONE, "maximum size of a request"),
    config_key("max_output_tokens", _FROM_ONE, "maximum size of an answer"),
    config_key(
        "binds_thinking",
        BOOLEAN,
        "whether a provider refuses thinking once anything before it has changed; if not set, by the model's name",
    ),
    config_key(
        "prompt",
        STRING,
        "text, or file://… with one, that follows Foveal's system text in new sessions",
        project=False,
        default="",
    ),
    config_key(
        "max_tool_iterations",
        whole_number(1, 10_000),
        "rounds of tool calls in one turn, after which the turn ends",
        project=False,
        default=MAX_TOOL_ITERATIONS,
    ),
    config_key(
        "tasks.max_tokens",
        _FROM_ZERO,
        "tokens that one sub-agent may take, with those that it starts; 0 is no limit",
        project=False,
        default=0,
    ),
    config_key(
        "tasks.max_cost",
        fraction(10_000),
        "the same in dollars, as far as the price of the model is known",
        project=False,
        default=0,
    ),
    config_key(
        "on_disconnect",
        one_of(("continue", "pause")),
        "what the server does with an answer when its client goes away: write it to the end, or stop",
        project=False,
        default="continue",
    ),
    config_key("context.policy", POLICY_NAME, "the context policy", default="economy"),
    config_key(
        "context.max_history_tokens", _FROM_ZERO, "tokens for messages other than instructions; 0 is no cap"
    ),
    config_key(
        "context.max_tool_result_tokens",
        _FROM_ZERO,
        "maximum size of a tool result; 0 is no limit; if not set, the chat has a limit of its own",
    ),
    config_key("context.tool_result_truncation", _STRATEGIES, "which part of a long tool result is shown"),
    config_key(
        "context.tool_result_keep_first", _FROM_ZERO, "this many of the first tool results are never masked"
    ),
    config_key(
        "context.tool_result_keep_last", _FROM_ZERO, "this many of the newest tool results are never masked"
    ),
    config_key("context.tools.*.max_tool_result_tokens", _FROM_ZERO, "the same for one tool"),
    config_key("context.tools.*.tool_result_truncation", _STRATEGIES, "the same for one tool"),
    config_key("context.tools.*.mask", BOOLEAN, "false: results of this tool are never masked"),
    config_key(
        "context.tools.*.priority",
        one_of(get_args(Priority)),
        "when results of this tool are hidden: low first, high last",
    ),
    config_key(
        "context.model_cuts",
        BOOLEAN,
        "offer the model the tools context_status and context_cut, with which it asks for a cut",
        default=False,
    ),
    config_key(
        "context.hook",
        STRINGS,
        "a program and its arguments that the chat asks before each cut: JSON on its input and output",
        project=False,
        secret=True,
        default=[],
    ),
    config_key("compaction.mode", one_of(get_args(Mode)), "whether old turns are summarised"),
    config_key(
        "compaction.threshold",
        fraction(),
        "share of the room for messages, in mode confirm of the window, above which the context is reduced",
    ),
    config_key("compaction.token_threshold", _FROM_ONE, "the same as tokens of the whole request"),
    config_key("compaction.safety_ratio", fraction(), "the same as a share of the window"),
    config_key(
        "compaction.invocation_threshold",
        _FROM_ZERO,
        "summarise after this many turns; 0 waits for the tokens",
    ),
    config_key(
        "compaction.overlap_size",
        _FROM_ZERO,
        "this many summarised turns are read again for the next summary",
    ),
    config_key(
        "compaction.prompt_template",
        STRING,
        "the prompt for summaries, or file://… with one",
        default="",
    ),
    config_key(
        "compaction.summarise",
        one_of(("auto", "native")),
        "who writes summaries: auto, a model; native, first the provider's own compaction API where it has one",
        default="auto",
    ),
    config_key(
        "compaction.model",
        STRING,
        "the model that writes summaries; if not set, the session's model",
        project=False,
    ),
    config_key("tools.allow", STRINGS, "tools that run without asking", project=False, default=[]),
    config_key(
        "tools.approval",
        one_of(("ask", "auto")),
        "ask: every call that changes something asks; auto: commands that stay in the sandbox do not",
        project=False,
        default="auto",
    ),
    config_key(
        "tools.branches",
        BOOLEAN,
        "offer the model the tools branch and return, which fold a part of its work to the result",
        project=False,
        default=False,
    ),
    config_key(
        "tools.core", STRINGS, "tools of MCP servers that are never deferred", project=False, default=[]
    ),
    config_key(
        "tools.defer",
        BOOLEAN,
        "the model loads the tools of MCP servers when it needs them; requests are smaller",
        project=False,
        default=False,
    ),
    config_key(
        "tools.deny",
        STRINGS,
        "tools that are not offered, and commands that never run",
        project=False,  # a list replaces the user's list, which would take denials away
        default=[],
    ),
)
_GLOBAL_KEYS: Final = (
    config_key(
        "instructions.max_bytes",
        whole_number(0, MAX_RULE_BYTES),
        "limit for all AGENTS.md files together; 0 disables reading",
        default=_DEFAULT_RULES.max_bytes,
    ),
    config_key(
        "instructions.preferences_max_bytes",
        whole_number(0, MAX_RULE_BYTES),
        "limit for preferences.md; 0 disables reading",
        default=_DEFAULT_RULES.preferences_max_bytes,
    ),
    config_key(
        "instructions.fallback_names",
        FILE_NAMES,
        "file names to try where there is no AGENTS.md",
        default=[],
    ),
    config_key(
        "instructions.root_markers",
        STRINGS,
        "files that mark the root of a project; with an empty list, the working directory is the root",
        project=False,
        default=list(ROOT_MARKERS),
    ),
    config_key("instructions.ignore", STRINGS, "folders whose AGENTS.md is ignored", default=[]),
    config_key(
        "tools.sandbox",
        one_of(("auto", "off")),
        "run commands in a sandbox where there is one, or never",
        project=False,
        default="auto",
    ),
    config_key(
        "tools.network", BOOLEAN, "let commands in the sandbox use the network", project=False, default=False
    ),
    config_key(
        "memory.enabled", BOOLEAN, "use what was remembered, and remember more", project=False, default=True
    ),
    config_key(
        "memory.budget",
        whole_number(MIN_MEMORY_TOKENS, MAX_MEMORY_TOKENS),
        "most tokens of each memory that a request shows",
        project=False,
        default=DEFAULT_MEMORY_TOKENS,
    ),
    config_key(
        "memory.learn_spoken",
        BOOLEAN,
        'obey "remember that …" and "forget that …" in your messages',
        project=False,
        default=True,
    ),
    config_key(
        "memory.learn_tools",
        BOOLEAN,
        "offer the model the tools remember and forget",
        project=False,
        default=True,
    ),
    config_key(
        "memory.learn_proposals",
        BOOLEAN,
        "propose at the end of a session what you stated in it",
        project=False,
        default=True,
    ),
    config_key(
        "memory.propose_with_model",
        BOOLEAN,
        "ask the model that writes summaries for proposals too; each session then costs one more request",
        project=False,
        default=False,
    ),
    config_key(
        "memory.tool",
        BOOLEAN,
        "offer the model the tool memory, with files of its own under /memories",
        project=False,
        default=False,
    ),
    config_key("policies.*", POLICY_TABLE, "settings of a policy of your own, for context.policy"),
    config_key("mcp.*.command", STRING, "the program to start"),
    config_key("mcp.*.args", STRINGS, "its arguments", secret=True),
    config_key("mcp.*.env", STRING_TABLE, "its environment", secret=True),
    config_key("mcp.*.url", HTTP_URL, "the URL of a server that already runs"),
)
KEYS: Final = (
    *_AGENT_KEYS,
    *_GLOBAL_KEYS,
    *SERVER_KEYS,
    *(key._replace(path=("agents", "*", *key.path), default=None) for key in _AGENT_KEYS),
)


class KeyAlias(NamedTuple):
    """Another spelling of a key, for people who know it from other programs."""

    path: KeyPath
    target: KeyPath
    values: Mapping[Any, Any]
    """The value of the target for each value of the alias."""
    kind: ValueKind

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return f"FOVEAL_{'_'.join(self.path).upper()}"


ALIASES: Final = (
    KeyAlias(("compaction", "enabled"), ("compaction", "mode"), {True: "auto", False: "off"}, BOOLEAN),
)


def find_alias(path: KeyPath) -> KeyAlias | None:
    """Return the alias for a path of names, also below `[agents.NAME]`; its paths are then below it too."""
    above = path[:2] if path[:1] == ("agents",) else ()
    found = next((alias for alias in ALIASES if alias.path == path[len(above) :]), None)
    return found and found._replace(path=path, target=(*above, *found.target))


@lru_cache(maxsize=1_024)  # requests of a server ask for the same few settings again
def find_key(path: KeyPath) -> ConfigKey | None:
    """Return the key for a path of names, None if there is none."""
    return next((key for key in KEYS if len(key.path) == len(path) and _starts_with(key, path)), None)


def names_below(path: KeyPath) -> tuple[str, ...]:
    """Return the names of tables and keys below a path; `*` for any name."""
    found = (key.path[len(path)] for key in KEYS if len(key.path) > len(path) and _starts_with(key, path))
    return tuple(dict.fromkeys(found))


def _starts_with(key: ConfigKey, path: KeyPath) -> bool:
    return all(known in ("*", name) for known, name in zip(key.path, path, strict=False))


def dotted_name(path: KeyPath) -> str:
    """Return a path in TOML notation."""
    return ".".join(name if _BARE_NAME.fullmatch(name) else f'"{name}"' for name in path)
