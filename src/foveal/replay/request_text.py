"""Requests of a replay as texts with their token counts.

The same message always becomes the same `MessageText` object. Requests are therefore compared piece by piece by
identity, and no message is counted or read twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from foveal.core.log.events import AnyFact, AnyPart, Call, Dialect, Media, Opaque, Text, Thinking, parts, raw
from foveal.core.tokens.counter import Counter
from foveal.core.tokens.message_tokens import PER_MESSAGE, MessageTokens
from foveal.core.wire import tools_text, wire_for


class MessageText:
    """A message, the tools or the system text of a request."""

    __slots__ = ("text", "tokens")

    def __init__(self, tokens: int, text: str) -> None:
        self.tokens = tokens
        self.text = text
        """All text of it; the arguments of calls are decoded."""


class RequestText(NamedTuple):
    """A whole request."""

    pieces: tuple[MessageText, ...]
    tokens: int


def make_request(pieces: Sequence[MessageText]) -> RequestText:
    """Return a request of these pieces."""
    return RequestText(tuple(pieces), sum(piece.tokens for piece in pieces))


class RequestReader:
    """Turns the messages of a conversation into texts, each message once."""

    def __init__(self, dialect: Dialect, counter: Counter) -> None:
        self._wire = wire_for(dialect)
        self._message_tokens = MessageTokens(counter)
        self._fact_count = 0
        self._known: dict[bytes, MessageText] = {}

    def request(self, messages: Sequence[Any], *, system: str | None, tools: Sequence[Any]) -> RequestText:
        """Return the request in the order in which providers read it: tools, system, messages."""
        return make_request([*self.prefix(system=system, tools=tools), *map(self.message, messages)])

    def prefix(self, *, system: str | None, tools: Sequence[Any]) -> list[MessageText]:
        """Return what precedes all messages: tools and system text."""
        return [self._plain_text(text) for text in (tools_text(tools), system or "") if text]

    def message(self, message: Any) -> MessageText:
        """Return the text of a message in the conversation's dialect."""
        key = bytes(raw(message))
        known = self._known.get(key)
        if known is None:
            facts = [fact for chunk in self._wire.read((message,)) for fact in chunk.facts]
            tokens = sum(map(self._tokens, facts))
            known = self._known[key] = MessageText(tokens, "\n".join(map(fact_text, facts)))
        return known

    def messages_of(self, fact: AnyFact) -> list[MessageText]:
        """Return the messages that a fact is written as."""
        return [self.message(message) for message in self._wire.write(fact)]

    def count(self, text: str) -> int:
        """Return the tokens of a text."""
        return self._message_tokens.counter.count(text)

    def _plain_text(self, text: str) -> MessageText:
        key = text.encode("utf-8", "surrogatepass")
        if key not in self._known:
            self._known[key] = MessageText(PER_MESSAGE + self.count(text), text)
        return self._known[key]

    def _tokens(self, fact: Any) -> int:
        self._fact_count += 1
        return self._message_tokens.message(self._fact_count, fact)


def fact_text(fact: AnyFact) -> str:
    """Return all text of a message, unchanged."""
    content = getattr(fact, "content", "")
    if isinstance(content, str):
        return content
    return "\n".join(text for part in parts(content) for text in _part_texts(part))


def _part_texts(part: AnyPart) -> Iterator[str]:
    match part:
        case Text() | Thinking():
            yield part.text
        case Call():
            yield part.name
            yield from argument_texts(part)
        case Opaque():
            yield bytes(part.native).decode("utf-8", "replace")
        case Media():
            pass


def argument_texts(call: Call) -> Iterator[str]:
    """Yield the texts in the arguments of a call, decoded; arguments that are not JSON are yielded unchanged."""
    try:
        yield from _json_texts(json.loads(call.arguments))
    except (ValueError, RecursionError):
        yield call.arguments


def _json_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _json_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _json_texts(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
