"""Recognising messages that were taken before, by content, without reading a long history again and again.

A message that is still shown is compared whole with our own copy, so that an edit in place is noticed at once. Of
one that is shown no more, the caller's own object is kept instead of a copy: comparing that costs next to nothing
and notices when it was replaced. In a very long history they are looked at in turns, a thousand at a call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Event,
    Instructed,
    Mark,
    Marked,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    parts,
)
from foveal.core.view.request import copied
from foveal.core.wire import MessageChunk, Wire, plain

MESSAGES: Final = (Instructed, UserSaid, ModelSaid, ToolReturned)

IN_TURN: Final = 1_024


class TakenMessages:
    """The messages that were taken, oldest first."""

    def __init__(self) -> None:
        self.before: list[int] = []
        """For each message, the seq of the last event that was recorded before it."""
        self._given: list[Any] = []
        """The caller's own objects."""
        self._kept: list[Any] = []
        """Our copy of each message, or the caller's object once it is hidden."""
        self._recent = 0
        """All messages from here on are shown …"""
        self._watched: list[int] = []
        """… and these before it."""
        self._turn = 0

    def __len__(self) -> int:
        return len(self.before)

    def add(self, messages: Sequence[Any], *, before: int) -> None:
        """Messages that were read together, after the event `before`."""
        self.before.extend([before] * len(messages))
        self._given.extend(messages)
        self._kept.extend(map(copied, messages))

    def replace(self, at: int, message: Any) -> None:
        self._given[at] = message
        self._kept[at] = copied(message)

    def share(self, start: int, natives: Callable[[int], Sequence[Any] | None]) -> None:
        """Where a message was written for the provider just as it was given, one copy of it is enough; `natives`
        tells what was written for the step of an event."""
        for at in range(start, len(self)):
            for written in natives(self.before[at] + 1) or ():
                if written == self._kept[at]:
                    self._kept[at] = written
                    break

    def beginning(self, at: int) -> int:
        """The first of the messages that were read together with the one at `at`."""
        return bisect_left(self.before, self.before[at]) if at < len(self) else at

    def cut(self, at: int) -> None:
        """Forget the messages from `at` on."""
        for column in (self.before, self._given, self._kept):
            del column[at:]
        self._recent = min(self._recent, at)
        self._watched = [place for place in self._watched if place < at]

    def same(self, given: Sequence[Any], at: int) -> bool:
        """Whether a message is the one that was taken, be it in another form: an object of a client library and
        the dict that it sends are the same message."""
        kept, new = self._kept[at], given[at]
        if kept == new:
            return True
        if _without_nulls(plain(kept)) != _without_nulls(plain(new)):
            return False
        self.replace(at, new)
        return True

    def end(self, at: int, last: int) -> int:
        """The seq before which the events of a message end."""
        after = bisect_right(self.before, self.before[at])
        return self.before[after] + 1 if after < len(self) else last

    def unchanged(self, given: list[Any]) -> bool:
        """Whether `given` begins with all the messages that were taken."""
        known, recent = len(self), self._recent
        if len(given) < known or given[recent:known] != self._kept[recent:known]:
            return False
        if not all(self._kept[place] == given[place] for place in self._watched):
            return False
        turn, end = self._turn, min(recent, self._turn + IN_TURN)
        self._turn = end if end < recent else 0
        return given[turn:end] == self._kept[turn:end]

    def hide(self, first: int, last: int, shown: Callable[[int], bool]) -> None:
        """The events `first` to `last` were hidden, but for those that are still shown."""
        low, high = (bisect_left(self.before, seq - 1) for seq in (first, last + 1))
        for at in range(low, high):
            if not shown(self.before[at] + 1):
                self._kept[at] = self._given[at]
        if high > self._recent:
            early = range(self._recent, high)
            self._watched += [at for at in early if self._kept[at] is not self._given[at]]
            self._recent = high
        self._watched = [at for at in self._watched if self._kept[at] is not self._given[at]]


def _without_nulls(value: Any) -> Any:
    """A library's object dumps fields that it does not have as null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None and item != []}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


# ── the same words with other marks ──────────────────────────────────────────────────────────────────────


def bare(fact: AnyFact) -> AnyFact:
    """A message without its other fields."""
    assert isinstance(fact, MESSAGES)
    words = tuple(_bare(part) for part in parts(fact.content))
    plain = replace(fact, content=words, extra=UNSET, dialect="")
    return replace(plain, listed=False) if isinstance(plain, ModelSaid) else plain


def _bare(part: AnyPart) -> AnyPart:
    return replace(part, extra=UNSET) if isinstance(part, Text | Call) else part


def marks(fact: AnyFact) -> tuple[Mark, ...]:
    """The other fields of a message, and of each of its parts."""
    assert isinstance(fact, MESSAGES)
    inner = (
        Mark(part=i, extra=p.extra) for i, p in enumerate(parts(fact.content)) if isinstance(p, Text | Call)
    )
    return (Mark(part=-1, extra=fact.extra), *(mark for mark in inner if mark.extra is not UNSET))


# ── history ───────────────────────────────────────────────────────────────────────────────────────
# A history that somebody else keeps, compared with what was taken of it: what is new, and what was edited.


class HistoryChange(NamedTuple):
    """How a history differs from what was taken."""

    at: int
    """From this message on it is new, or was edited."""
    replaced: list[tuple[int, AnyFact, Any]]
    """Messages before that which have other marks or, system messages, another text: where, the fact for it, and
    the message."""
    chunks: list[MessageChunk]
    messages: Sequence[Any]


class MessageHistory:
    """What was taken so far, message by message."""

    def __init__(self) -> None:
        self.taken = TakenMessages()
        self.replacing: dict[int, int] = {}
        """For an edited system message, by its place among the messages: the event with its newest text."""

    def compared(self, given: list[Any], wire: Wire, log: Sequence[Event]) -> HistoryChange:
        """What is new or different in a history, read but not yet recorded."""
        taken = self.taken
        if taken.unchanged(given):
            return _change(wire, len(taken), [], given)
        replaced: list[tuple[int, AnyFact, Any]] = []
        known, at = min(len(taken), len(given)), 0
        while at < known:
            if not taken.same(given, at):
                newer = self._newer_instruction(given, at, wire, log) or self._newer_marks(
                    given, at, wire, log
                )
                if not newer:
                    break
                replaced += [(at, fact, given[at]) for fact in newer]
            at += 1
        return _change(wire, taken.beginning(at), replaced, given)

    def _newer_instruction(
        self, given: list[Any], at: int, wire: Wire, log: Sequence[Event]
    ) -> list[AnyFact]:
        """An edited system message takes the place of the old one; the rest of the history still stands."""
        old = self.replacing.get(at, self.taken.before[at] + 1)
        if not isinstance(log[old].fact, Instructed):
            return []
        facts = next(wire.read(given, at)).facts
        fact = facts[0] if len(facts) == 1 else None
        return [replace(fact, replaces=old)] if isinstance(fact, Instructed) else []

    def _newer_marks(self, given: list[Any], at: int, wire: Wire, log: Sequence[Event]) -> list[AnyFact]:
        """The same words with other fields are no edit: cache marks move on with every request."""
        chunk = next(wire.read(given, at))
        first, end = self.taken.before[at] + 1, self.taken.end(at, len(log))
        old = [event for event in log[first:end] if isinstance(event.fact, MESSAGES)]
        if chunk.messages != 1 or len(old) != len(chunk.facts):
            return []
        pairs = list(zip(old, chunk.facts, strict=True))
        if any(bare(event.fact) != bare(fact) for event, fact in pairs):
            return []
        return [Marked(target=event.seq, marks=marks(fact)) for event, fact in pairs]

    def replaced(self, place: int, event: Event, message: Any) -> None:
        """The message at `place` came in another version, which `event` records."""
        if isinstance(event.fact, Instructed):
            self.replacing[place] = event.seq
        self.taken.replace(place, message)

    def cut(self, at: int) -> None:
        """What came from `at` on no longer stands."""
        self.taken.cut(at)
        self.replacing = {place: seq for place, seq in self.replacing.items() if place < at}


def _change(wire: Wire, at: int, replaced: list[tuple[int, AnyFact, Any]], given: list[Any]) -> HistoryChange:
    return HistoryChange(at, [r for r in replaced if r[0] < at], list(wire.read(given, at)), given[at:])
