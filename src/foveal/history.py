"""A history that somebody else keeps, compared with what was taken of it: what is new, and what was edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from foveal.events import AnyFact, Event, Instructed, Marked
from foveal.recognise import MESSAGES, Taken, bare, marks
from foveal.wire import Chunk, Wire


class Change(NamedTuple):
    """How a history differs from what was taken."""

    at: int
    """From this message on it is new, or was edited."""
    replaced: list[tuple[int, AnyFact, Any]]
    """Messages before that which have other marks or, system messages, another text: where, the fact for it, and
    the message."""
    chunks: list[Chunk]
    messages: Sequence[Any]


class History:
    """What was taken so far, message by message."""

    def __init__(self) -> None:
        self.taken = Taken()
        self.replacing: dict[int, int] = {}
        """For an edited system message, by its place among the messages: the event with its newest text."""

    def compared(self, given: list[Any], wire: Wire, log: Sequence[Event]) -> Change:
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


def _change(wire: Wire, at: int, replaced: list[tuple[int, AnyFact, Any]], given: list[Any]) -> Change:
    return Change(at, [r for r in replaced if r[0] < at], list(wire.read(given, at)), given[at:])
