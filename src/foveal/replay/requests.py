"""A request as the lab looks at it: pieces with their tokens and their words.

The same message is always the same piece, so two requests are compared piece by piece, by identity, and nothing is
counted or read twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from foveal.events import (
    AnyFact,
    AnyPart,
    Call,
    Dialect,
    Media,
    Opaque,
    Text,
    Thinking,
    parts,
    raw,
)
from foveal.meter import PER_MESSAGE, Meter
from foveal.replay.needs import argument_texts
from foveal.tokens import Counter
from foveal.wire import tools_text, wire


class Piece:
    """One message, or what stands in front of all messages."""

    __slots__ = ("text", "tokens")

    def __init__(self, tokens: int, text: str) -> None:
        self.tokens = tokens
        self.text = text
        """All words in it; the arguments of calls are decoded."""


class Request(NamedTuple):
    pieces: tuple[Piece, ...]
    tokens: int


class Reader:
    """Turns messages of one conversation into pieces."""

    def __init__(self, dialect: Dialect, counter: Counter) -> None:
        self._wire = wire(dialect)
        self._meter = Meter(counter)
        self._counted = 0
        self._known: dict[bytes, Piece] = {}

    def request(self, messages: Sequence[Any], *, system: str | None, tools: Sequence[Any]) -> Request:
        """The whole request, in the order in which providers read it: tools, system, messages."""
        return whole([*self.front(system=system, tools=tools), *map(self.piece, messages)])

    def front(self, *, system: str | None, tools: Sequence[Any]) -> list[Piece]:
        """What stands in front of all messages."""
        return [self._words(text) for text in (tools_text(tools), system or "") if text]

    def piece(self, message: Any) -> Piece:
        key = bytes(raw(message))
        known = self._known.get(key)
        if known is None:
            facts = [fact for chunk in self._wire.read((message,)) for fact in chunk.facts]
            tokens = sum(map(self._units, facts))
            known = self._known[key] = Piece(tokens, "\n".join(map(words, facts)))
        return known

    def fact(self, fact: AnyFact) -> list[Piece]:
        """The pieces that one fact is written as."""
        return [self.piece(message) for message in self._wire.write(fact)]

    def count(self, text: str) -> int:
        return self._meter.counter.count(text)

    def _words(self, text: str) -> Piece:
        key = text.encode("utf-8", "surrogatepass")
        if key not in self._known:
            self._known[key] = Piece(PER_MESSAGE + self.count(text), text)
        return self._known[key]

    def _units(self, fact: Any) -> int:
        self._counted += 1
        return self._meter.message(self._counted, fact)


def whole(pieces: Sequence[Piece]) -> Request:
    return Request(tuple(pieces), sum(piece.tokens for piece in pieces))


def words(fact: AnyFact) -> str:
    """All words of a message, each text as it is."""
    content = getattr(fact, "content", "")
    return content if isinstance(content, str) else "\n".join(t for p in parts(content) for t in _texts(p))


def _texts(part: AnyPart) -> Iterator[str]:
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
