"""Calls that a log shows: which requests were sent, and what each one could show.

1. The log has no event for a request. An answer of the model, or reported usage, shows that one was sent, also if
   the answer was taken back later or never came. An answer that was imported shows none. All that counts calls
   counts them by `call_after`.
2. The usage names the newest event that the request could show; without a report, that is the event before the
   answer.
3. The newest request stays open, because its usage may follow its answer, or its answer its usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from foveal.core.log.events import Event, ForeignSummary, ModelSaid, ToolReturned, Used, UserSaid


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest call of a log, which later events may still complete."""

    answer: int = -1
    """The event of the answer; -1 if it has not come, or was lost."""
    is_reported: bool = False
    """Whether its usage is known."""
    is_left: bool = False
    """Whether the conversation went on without its answer."""

    def awaits(self, event: Event) -> bool:
        """Return whether an answer, or usage, belongs to this call, and not to another one."""
        if isinstance(event.fact, Used):
            return not self.is_reported and event.fact.until <= self.answer
        return self.is_reported and self.answer < 0 and not self.is_left


def call_after(call: OpenCall | None, event: Event) -> tuple[OpenCall | None, bool]:
    """Return the newest call of a log after one more event, and whether the event shows a call that was not
    known."""
    fact = event.fact
    if isinstance(fact, UserSaid | ToolReturned):
        is_awaited = call is not None and call.answer < 0 and not call.is_left
        return (replace(call, is_left=True) if call is not None and is_awaited else call), False
    if not isinstance(fact, ModelSaid | Used):
        return call, False
    is_new = call is None or not call.awaits(event)
    before = OpenCall() if call is None or is_new else call
    if isinstance(fact, Used):
        return replace(before, is_reported=True), is_new
    return replace(before, answer=event.seq), is_new


class FoundRequest(NamedTuple):
    """A request that was answered, or whose usage was reported."""

    at: int
    """The newest event that it could show."""
    answer: int
    """The event of the answer; -1 if it has not come, or was lost."""
    time: float | None
    used: Used | None = None
    used_seq: int = -1


class RequestFinder:
    """Finds the requests in a growing log."""

    def __init__(self, *, with_imported: bool = False) -> None:
        """`with_imported`: also those to which another program got the answer."""
        self.open: FoundRequest | None = None
        """The newest request, which later events may still complete."""
        self._with_imported = with_imported
        self._call: OpenCall | None = None
        self._recent: dict[int, Event] = {}
        """The events since the last closed request, by seq."""

    def add(self, event: Event) -> FoundRequest | None:
        """Take over the next event; return the request that is complete because of it."""
        closed, fact = None, event.fact
        if not isinstance(fact, ModelSaid) or self._with_imported or not fact.imported:
            self._call, is_new = call_after(self._call, event)
            if is_new:
                closed = self._close()
            if isinstance(fact, ModelSaid):
                self._answered(event)
            elif isinstance(fact, Used):
                self._reported(event, fact)
        self._recent[event.seq] = event
        return closed

    def _answered(self, event: Event) -> None:
        sent = self.open
        at = self._sent_at(None if sent is None else sent.used, event.seq)
        if sent is None:
            self.open = FoundRequest(at, event.seq, self._time(at, event.at))
        else:
            self.open = sent._replace(at=at, answer=event.seq, time=self._time(at, sent.time))

    def _reported(self, event: Event, used: Used) -> None:
        sent = self.open
        if sent is None:  # the answer follows, or it was lost: the request was paid either way
            at = self._sent_at(used, event.seq)
            self.open = FoundRequest(at, -1, self._time(at, event.at), used, event.seq)
            return
        at = self._sent_at(used, sent.answer)
        self.open = sent._replace(at=at, time=self._time(at, sent.time), used=used, used_seq=event.seq)

    def _sent_at(self, used: Used | None, answer: int) -> int:
        """Return the newest event that a request could show."""
        at = used.until - 1 if used is not None and 0 < used.until <= answer else answer - 1
        at = at if at in self._recent else answer - 1
        while self._is_foreign_summary(at) and at - 1 in self._recent:
            at -= 1  # the provider sent its summary with the answer
        return at

    def _is_foreign_summary(self, seq: int) -> bool:
        return seq in self._recent and isinstance(self._recent[seq].fact, ForeignSummary)

    def _time(self, at: int, otherwise: float | None) -> float | None:
        return self._recent[at].at if at in self._recent else otherwise

    def _close(self) -> FoundRequest | None:
        closed, self.open = self.open, None
        if closed is not None:
            self._recent = {seq: event for seq, event in self._recent.items() if seq >= closed.at}
        return closed


def logged_requests(events: Iterable[Event], *, with_imported: bool = False) -> list[FoundRequest]:
    """Return the requests of a whole log."""
    finder = RequestFinder(with_imported=with_imported)
    closed = [request for event in events if (request := finder.add(event)) is not None]
    return closed if finder.open is None else [*closed, finder.open]
