"""Recognises a history in the messages of a log, by their facts.

After a restart there are no copies of the caller's messages, and what a sliding window has left out is not kept as
a copy either. `StoredMessages` compares what the log has said with what is read from the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Event,
    ForeignSummary,
    Instructed,
    Mark,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    parts,
    text_of,
)
from foveal.core.log.ranges import Ranges
from foveal.core.wire import MessageChunk
from foveal.core.wire.common import encode_json

MESSAGE_FACTS: Final = (Instructed, UserSaid, ModelSaid, ToolReturned, ForeignSummary)
MIN_TELLING_CHARS: Final = 40
"""Text of a message, or of several, that is hardly said in two conversations."""
MIN_SHORT_MESSAGES: Final = 3
"""Different messages with so much text together, if none has it alone."""


class StoredMessages:
    """The messages of a stored log, and what they have in common with a history."""

    def __init__(self, said: Sequence[Event]) -> None:
        self._newest = {
            event.fact.replaces: event
            for event in said
            if isinstance(event.fact, Instructed) and event.fact.replaces is not None
        }
        self.events: list[Event] = [
            e for e in said if not isinstance(e.fact, Instructed) or e.fact.replaces is None
        ]

    def newest(self, event: Event) -> Event:
        """Return the event with the newest text of a message: that of a system message may have changed."""
        while event.seq in self._newest:
            event = self._newest[event.seq]
        return event

    def common_beginning(self, chunks: Sequence[MessageChunk], first: int = 0) -> tuple[int, int]:
        """Return the index after the last event from `first` on that the history begins with, and the number of
        chunks up to there."""
        for number, chunk in enumerate(chunks):
            held = map(self.newest, self.events[first : first + len(chunk.facts)])
            if first + len(chunk.facts) > len(self.events) or not all(map(_is_stored, held, chunk.facts)):
                return first, number
            first += len(chunk.facts)
        return first, len(chunks)

    def end_of_left_out(self, chunks: Sequence[MessageChunk], first: int) -> int:
        """Return the index of the event from which on all stored messages follow in these chunks, because a
        sliding window has left out those from `first` on; 0 if there is none, or if they say too little to be
        those of one conversation."""
        for start in range(first + 1, len(self.events) if chunks else 0):
            if isinstance(self.events[start - 1].fact, Instructed):
                return 0
            if self.common_beginning(chunks, start)[0] == len(self.events):
                return start if says_something(event.fact for event in self.events[start:]) else 0
        return 0

    def is_unrelated(self, taken: int, chunks: Sequence[MessageChunk]) -> bool:
        """Return whether the history has only system messages, the first `taken` events, in common with the
        log."""
        if len(self.events) == taken:
            return False
        if not all(isinstance(event.fact, Instructed) for event in self.events[:taken]):
            return False
        return not self._has_any_of(taken, chunks)

    def is_diverged(self, taken: int, chunks: Sequence[MessageChunk]) -> bool:
        """Return whether the history leaves the log, of which it has the first `taken` events, before its newest
        user message, and has little of what follows there."""
        later = self.events[taken + 1 :]
        return any(isinstance(e.fact, UserSaid) for e in later) and not self._has_any_of(taken, chunks)

    def _has_any_of(self, taken: int, chunks: Sequence[MessageChunk]) -> bool:
        said = {_content_key(event.fact) for event in self.events[taken:]}
        facts = (fact for chunk in chunks for fact in chunk.facts)
        return says_something(fact for fact in facts if _content_key(fact) in said)

    def returned(self, chunks: Sequence[MessageChunk]) -> Ranges:
        """Return the ranges of seq of the messages that a history has: its beginning, and all from some message on
        to the newest. None if it has another message before the newest."""
        taken, matched = self.common_beginning(chunks)
        start = taken if taken == len(self.events) else self.end_of_left_out(chunks[matched:], taken)
        if not start:
            return ()
        pieces = (self.events[:taken], self.events[start:])
        return tuple((piece[0].seq, piece[-1].seq) for piece in pieces if piece)


def says_something(shared: Iterable[AnyFact]) -> bool:
    """Return whether messages that two histories share make them one conversation. What any two users may say, such
    as "ok", does not, however often it is said."""
    chars = {_content_key(fact): _telling_chars(fact) for fact in shared}.values()
    return sum(chars) >= MIN_TELLING_CHARS and (
        len(chars) >= MIN_SHORT_MESSAGES or max(chars) >= MIN_TELLING_CHARS
    )


def _is_stored(event: Event, fact: AnyFact) -> bool:
    """Return whether an event records this message, perhaps with other marks around it."""
    if type(event.fact) is not type(fact):
        return False
    bare = without_marks(event.fact)
    if isinstance(bare, Instructed):
        bare = replace(bare, replaces=None)
    return bare == without_marks(fact)


def _content_key(fact: AnyFact) -> bytes:
    return encode_json(without_marks(fact))


def _telling_chars(fact: AnyFact) -> int:
    """Return how much text a message has. Calls, results and media count as much: they hardly occur twice."""
    assert isinstance(fact, MESSAGE_FACTS)
    if isinstance(fact, ToolReturned | ForeignSummary):
        return MIN_TELLING_CHARS
    is_text = all(isinstance(part, Text) for part in parts(fact.content))
    return len(text_of(fact.content)) if is_text else MIN_TELLING_CHARS


# ── Marks ────────────────────────────────────────────────────────────────────────────────────────────────


def without_marks(fact: AnyFact) -> AnyFact:
    """Return a message with its content only, without any other fields."""
    assert isinstance(fact, MESSAGE_FACTS)
    if isinstance(fact, ForeignSummary):
        return replace(fact, extra=UNSET)
    content = tuple(_part_without_marks(part) for part in parts(fact.content))
    bare = replace(fact, content=content, extra=UNSET, dialect="")
    return replace(bare, listed=False, imported=False) if isinstance(bare, ModelSaid) else bare


def _part_without_marks(part: AnyPart) -> AnyPart:
    return replace(part, extra=UNSET) if isinstance(part, Text | Call) else part


def marks_of(fact: AnyFact) -> tuple[Mark, ...]:
    """Return the other fields of a message and of each of its parts."""
    assert isinstance(fact, MESSAGE_FACTS)
    inner = (
        Mark(part=i, extra=p.extra) for i, p in enumerate(parts(fact.content)) if isinstance(p, Text | Call)
    )
    return (Mark(part=-1, extra=fact.extra), *(mark for mark in inner if mark.extra is not UNSET))
