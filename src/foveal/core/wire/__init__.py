"""Provider formats: reading messages into facts and writing facts as messages.

A `Wire` handles one dialect and has no access to views or budgets: `read` turns messages into facts, `write`
turns one fact (as it is to be shown) into messages, and `join` combines the messages of many steps into a
legal list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from msgspec import Raw

from foveal.core.log.events import AnyFact, Dialect, DialectName, unraw
from foveal.core.wire import anthropic, bedrock, gemini, openai_chat, openai_responses
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.common import (
    BadField,
    Json,
    MessageChunk,
    as_mapping,
    encode_json,
    is_utf8,
    json_text,
    replace_surrogates,
    same_role,
)
from foveal.core.wire.dialects import DIALECTS, checked_dialect, detect_dialect, full_name, likely_dialect
from foveal.core.wire.event_text import original_text, quote_lines, transcript_text
from foveal.core.wire.safe_print import exact_line
from foveal.errors import BadSetting

__all__ = [
    "DIALECTS",
    "MessageChunk",
    "Wire",
    "checked_dialect",
    "detect_dialect",
    "exact_line",
    "full_name",
    "is_same_message",
    "likely_dialect",
    "original_text",
    "plain_json",
    "quote_lines",
    "raw_setting",
    "replace_surrogates",
    "strip_cache_marks",
    "tools_text",
    "transcript_text",
    "wire_for",
    "without_nulls",
]


T = TypeVar("T")


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
    merges: Callable[[Json, Json], bool] | None = None
    """Return whether `join` makes one message of two written ones in a row; None if it never does. It may put one
    message in front, and changes neither the order nor the number of messages otherwise."""
    has_system_beside: bool = False
    """Whether the system text is a field beside the messages."""
    bound: Wire | None = None
    """The wire for models that bind thinking, if it differs: it changes less of what comes before thinking."""

    def for_thinking(self, *, is_bound: bool) -> Wire:
        """Return the wire for a model that binds thinking to what comes before it, or for one that does not."""
        return self.bound if is_bound and self.bound is not None else self

    def runs(self, written: Iterable[T], message_of: Callable[[T], Json]) -> list[list[T]]:
        """Return which written messages `join` makes one message of."""
        runs: list[list[T]] = []
        for one in written:
            if runs and self.merges is not None and self.merges(message_of(runs[-1][-1]), message_of(one)):
                runs[-1].append(one)
            else:
                runs.append([one])
        return runs


def _as_utf8(wire: Wire) -> Wire:
    """Return the wire with a reader that replaces lone surrogates."""

    def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
        for chunk in wire.read(messages, start):
            if all(map(is_utf8, chunk.facts)):
                yield chunk
            else:
                yield MessageChunk(chunk.messages, tuple(map(replace_surrogates, chunk.facts)))

    return replace(wire, read=read)


_WIRES: Final[dict[str, Wire]] = {
    wire.dialect: _as_utf8(wire)
    for wire in (
        Wire(openai_chat.OPENAI_CHAT, openai_chat.read, openai_chat.write, openai_chat.join),
        Wire(
            openai_responses.OPENAI_RESPONSES,
            openai_responses.read,
            openai_responses.write,
            openai_responses.join,
        ),
        Wire(
            anthropic.ANTHROPIC_MESSAGES,
            anthropic.read,
            anthropic.write,
            anthropic.join,
            merges=same_role,
            has_system_beside=True,
            bound=Wire(
                anthropic.ANTHROPIC_MESSAGES,
                anthropic.read,
                anthropic.write_bound,
                anthropic.join_bound,
                merges=anthropic.merges_bound,
                has_system_beside=True,
            ),
        ),
        Wire(
            gemini.GEMINI_CONTENTS,
            gemini.read,
            gemini.write,
            gemini.join,
            merges=same_role,
            has_system_beside=True,
        ),
        Wire(
            bedrock.BEDROCK_CONVERSE,
            bedrock.read,
            bedrock.write,
            bedrock.join,
            merges=same_role,
            has_system_beside=True,
            bound=Wire(
                bedrock.BEDROCK_CONVERSE,
                bedrock.read,
                bedrock.write_bound,
                bedrock.join,
                merges=same_role,
                has_system_beside=True,
            ),
        ),
    )
}


def wire_for(dialect: DialectName) -> Wire:
    """Return the wire of a dialect; "" (messages that all dialects read alike) gives that of chat."""
    return _WIRES[checked_dialect(dialect) or openai_chat.OPENAI_CHAT]


def tools_text(tools: Sequence[Any]) -> str:
    """Return the list of tools as the JSON text that is sent, for counting; "" if there are none."""
    if not tools:
        return ""
    try:
        for tool in tools:
            if not as_mapping(tool):
                raise BadField("", "is empty")
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


def is_same_message(one: object, other: object) -> bool:
    """Return whether two messages are the same, apart from empty fields: a library's object dumps fields that it
    does not have as null."""
    return one == other or without_nulls(plain_json(one)) == without_nulls(plain_json(other))


def without_nulls(value: Any) -> Any:
    """Return a JSON value without empty fields."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None and item != []}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
