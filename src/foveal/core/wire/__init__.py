"""Messages of the providers to facts, and facts to messages that their provider accepts.

A wire knows one dialect and nothing of views or budgets: `read` turns messages into facts, `write` one fact (as it
is to be shown) into messages, `join` puts the messages of many steps together so that the whole is legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from msgspec import Raw

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Dialect,
    Media,
    Opaque,
    Text,
    Thinking,
    unraw,
)
from foveal.core.wire.anthropic import read as anthropic
from foveal.core.wire.common import BadField, Json, MessageChunk, encoded, json_text
from foveal.core.wire.dialect_detection import detect
from foveal.core.wire.event_text import quoted, transcript
from foveal.core.wire.media import (
    MOST_IMAGE_UNITS,
    UNKNOWN_UNITS,
    MediaSize,
    dimensions,
    measure,
    mime,
    source,
)
from foveal.core.wire.openai_chat import read as openai_chat
from foveal.core.wire.openai_responses import read as openai_responses
from foveal.core.wire.overflow_errors import ProviderOverflow, recognise, silent, stop_reason
from foveal.core.wire.safe_print import one_line, visible
from foveal.core.wire.usage import used
from foveal.errors import BadSetting

__all__ = [
    "MOST_IMAGE_UNITS",
    "UNKNOWN_UNITS",
    "MediaSize",
    "MessageChunk",
    "ProviderOverflow",
    "Wire",
    "detect",
    "dimensions",
    "measure",
    "mime",
    "one_line",
    "opaque",
    "original",
    "plain",
    "quoted",
    "recognise",
    "silent",
    "source",
    "stop_reason",
    "tools_text",
    "transcript",
    "used",
    "visible",
    "wire",
]


class Wire(Protocol):
    """One dialect."""

    @property
    def dialect(self) -> Dialect: ...

    def read(self, messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
        """The facts in the messages from `start` on; raises `MalformedMessage`."""
        ...

    def write(self, fact: AnyFact) -> list[Json]:
        """The messages of one fact, new ones each time."""
        ...

    def join(self, groups: Iterable[Sequence[Json]]) -> list[Json]:
        """The messages of many steps as one legal list; shares messages with the groups, changes none."""
        ...


_WIRES: Final[dict[str, Wire]] = {
    "": openai_chat,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
}


def wire(dialect: Dialect) -> Wire:
    """The wire of a dialect; messages that every dialect reads alike are chat's."""
    try:
        return _WIRES[dialect]
    except KeyError:
        raise BadSetting("dialect", dialect, f"one of {', '.join(filter(None, _WIRES))}") from None


def tools_text(tools: Sequence[Any]) -> str:
    """The list of tools as the JSON text that is sent, for counting; "" when there are none."""
    if not tools:
        return ""
    try:
        return json_text(list(tools))
    except BadField as bad:
        raise BadSetting("tools", tools, f"dicts or objects of a client library: {bad.problem}") from None


def opaque(value: object, field: str) -> Raw:
    """A JSON value as bytes; raises `BadSetting` for the field when it is none."""
    try:
        return Raw(encoded(value))
    except BadField as bad:
        raise BadSetting(field, value, f"a value that JSON has; it {bad.problem}") from None


def plain(message: object) -> Any:
    """A message as dicts and lists, whatever objects of client libraries are in it; itself if that cannot be."""
    try:
        return unraw(Raw(encoded(message)))
    except BadField:
        return message


def original(fact: AnyFact) -> str:
    """All the words of one fact, each text exactly as it is; parts stand on lines of their own."""
    content: Content | None = getattr(fact, "content", None)
    if content is None:
        return str(getattr(fact, "text", "") or getattr(fact, "summary", ""))
    return content if isinstance(content, str) else "\n".join(map(_words, content))


def _words(part: AnyPart) -> str:
    match part:
        case Text() | Thinking():
            return part.text
        case Call():
            return f"{part.name} {part.arguments}"
        case Media():
            return f"[{part.mime or 'media'}, {part.size:,} bytes]"
        case Opaque():
            return bytes(part.native).decode("utf-8", "replace")
