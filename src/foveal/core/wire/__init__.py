"""Provider formats: reading messages into facts and writing facts as messages.

A `Wire` handles one dialect and has no access to views or budgets: `read` turns messages into facts, `write`
turns one fact (as it is to be shown) into messages, and `join` combines the messages of many steps into a
legal list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from msgspec import Raw

from foveal.core.log.events import AnyFact, Dialect, unraw
from foveal.core.tokens.media_tokens import DEFAULT_MEDIA_UNITS, MAX_IMAGE_UNITS, image_dimensions
from foveal.core.wire import anthropic, openai_chat, openai_responses
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.common import BadField, Json, MessageChunk, encode_json, json_text
from foveal.core.wire.dialect_detection import detect_dialect
from foveal.core.wire.event_text import original_text, quote_lines, transcript_text
from foveal.core.wire.media import MediaSize, measure_media, media_source, mime_type
from foveal.core.wire.overflow_errors import ProviderOverflow, recognise_overflow, stop_reason
from foveal.core.wire.safe_print import exact_line, one_line, readable, visible
from foveal.core.wire.usage import read_usage
from foveal.errors import BadSetting

__all__ = [
    "DEFAULT_MEDIA_UNITS",
    "MAX_IMAGE_UNITS",
    "MediaSize",
    "MessageChunk",
    "ProviderOverflow",
    "Wire",
    "detect_dialect",
    "exact_line",
    "image_dimensions",
    "measure_media",
    "media_source",
    "mime_type",
    "one_line",
    "original_text",
    "plain_json",
    "quote_lines",
    "raw_setting",
    "read_usage",
    "readable",
    "recognise_overflow",
    "stop_reason",
    "strip_cache_marks",
    "tools_text",
    "transcript_text",
    "visible",
    "wire_for",
]


class ReadMessages(Protocol):
    """Type of `Wire.read`."""

    def __call__(self, messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]: ...


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: steps cache their messages per wire
class Wire:
    """Reads and writes the messages of one dialect."""

    dialect: Dialect
    read: ReadMessages
    """Return the facts in the messages from `start` on; raises `MalformedMessage`."""
    write: Callable[[AnyFact], list[Json]]
    """Return the messages of one fact, new objects on each call."""
    join: Callable[[Iterable[Sequence[Json]]], list[Json]]
    """Return the messages of many steps as one legal list, which shares messages with the groups and changes
    none."""


_WIRES: Final[dict[str, Wire]] = {
    wire.dialect: wire
    for wire in (
        Wire(openai_chat.OPENAI_CHAT, openai_chat.read, openai_chat.write, openai_chat.join),
        Wire(
            openai_responses.OPENAI_RESPONSES,
            openai_responses.read,
            openai_responses.write,
            openai_responses.join,
        ),
        Wire(anthropic.ANTHROPIC_MESSAGES, anthropic.read, anthropic.write, anthropic.join),
    )
}


def wire_for(dialect: Dialect) -> Wire:
    """Return the wire of a dialect; "" (messages that all dialects read alike) gives that of chat."""
    try:
        return _WIRES[dialect or openai_chat.OPENAI_CHAT]
    except KeyError:
        raise BadSetting("dialect", dialect, f"one of {', '.join(_WIRES)}") from None


def tools_text(tools: Sequence[Any]) -> str:
    """Return the list of tools as the JSON text that is sent, for counting; "" if there are none."""
    if not tools:
        return ""
    try:
        return json_text(list(tools))
    except BadField as bad:
        raise BadSetting("tools", tools, f"dicts or objects of a client library: {bad.problem}") from None


def raw_setting(value: object, field: str) -> Raw:
    """Return a value as JSON bytes; raises `BadSetting` for `field` if it cannot be encoded."""
    try:
        return Raw(encode_json(value))
    except BadField as bad:
        raise BadSetting(field, value, f"a value that JSON has; it {bad.problem}") from None


def plain_json(message: object) -> Any:
    """Return a message as dicts and lists, without client objects; the message itself if it cannot be
    encoded."""
    try:
        return unraw(Raw(encode_json(message)))
    except BadField:
        return message
