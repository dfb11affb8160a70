"""Requests that a log shows: which were sent, and what each one could show.

1. The log has no event for a request. An answer of the model, or reported usage, shows that one was sent, also if
   the answer was taken back later or never came.
2. The usage names the newest event that the request could show; without a report, that is the event before the
   answer.
3. The newest request stays open, because its usage may follow its answer, or its answer its usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from foveal.core.log.events import Event, ForeignSummary, ModelSaid, ToolReturned, Used, UserSaid


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

    def __init__(self) -> None:
        self.open: FoundRequest | None = None
        """The newest request, which later events may still complete."""
        self._recent: dict[int, Event] = {}
        """The events since the last closed request, by seq."""

    def add(self, event: Event) -> FoundRequest | None:
        """Take over the next event; return the request that is complete because of it."""
        closed = None
        if isinstance(event.fact, ModelSaid):
            closed = self._answered(event)
        elif isinstance(event.fact, Used):
            closed = self._reported(event, event.fact)
        self._recent[event.seq] = event
        return closed

    def _answered(self, event: Event) -> FoundRequest | None:
        sent = self.open
        if sent is not None and sent.answer < 0 and not self._is_followed(sent):
            at = self._sent_at(sent.used, event.seq)
            self.open = sent._replace(at=at, answer=event.seq, time=self._time(at, sent.time))
            return None
        closed = self._close()
        at = self._sent_at(None, event.seq)
        self.open = FoundRequest(at, event.seq, self._time(at, event.at))
        return closed

    def _reported(self, event: Event, used: Used) -> FoundRequest | None:
        sent = self.open
        if sent is None or sent.used is not None or used.until > sent.answer:
            # The answer follows, or it was lost: the request was paid either way.
            closed = self._close()
            at = self._sent_at(used, event.seq)
            self.open = FoundRequest(at, -1, self._time(at, event.at), used, event.seq)
            return closed
        at = self._sent_at(used, sent.answer)
        self.open = sent._replace(at=at, time=self._time(at, sent.time), used=used, used_seq=event.seq)
        return None

    def _is_followed(self, sent: FoundRequest) -> bool:
        """Return whether the conversation went on without the answer to a request."""
        later = (event.fact for seq, event in self._recent.items() if seq > sent.used_seq)
        return any(isinstance(fact, UserSaid | ToolReturned) for fact in later)

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


def logged_requests(events: Iterable[Event]) -> list[FoundRequest]:
    """Return the requests of a whole log."""
    finder = RequestFinder()
    closed = [request for event in events if (request := finder.add(event)) is not None]
    return closed if finder.open is None else [*closed, finder.open]
