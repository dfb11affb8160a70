"""What can be set for `foveal serve`: only by the user, never by a project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from foveal.config.kinds import NUMBERS, TEXT, TEXTS, TRUTH, URL, Key, Kind, key_named, whole

Missed = Literal["once", "skip"]


class Schedule(NamedTuple):
    """A prompt that comes at given times."""

    name: str
    session: str
    cron: str
    prompt: str
    zone: str = "UTC"
    tenant: str = "default"
    missed: Missed = "once"
    """What happens with times that passed while no server ran: one run for all of them, or none."""


_NEEDED: Final = tuple(name for name in Schedule._fields if name not in Schedule._field_defaults)


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
    if strange := [name for name in table if name not in Schedule._fields]:
        return f"there is no {strange[0]}; allowed are {', '.join(Schedule._fields)}"
    if empty := [name for name, text in table.items() if not isinstance(text, str) or not text.strip()]:
        return f"{empty[0]} is a text that is not empty"
    if table.get("missed", "once") not in ("once", "skip"):
        return f"missed is once or skip, not {table['missed']}"
    return ""


def _no_text(text: str) -> Any:
    raise ValueError(text)


_SCHEDULES: Final = Kind(
    f"tables with different names, each with {', '.join(_NEEDED)} and perhaps zone, tenant, missed (once, skip)",
    lambda value: not _problem(value),
    _no_text,
    _problem,
)
_SECONDS: Final = whole(0, 86_400)


def _server(name: str, kind: Kind, about: str, default: Any) -> Key:
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
