"""Logs of the sessions that the pages show, each with its timeline.

A log is read once, in parts. Reading and folding happen in a thread, one at a time per session, because a long log
takes longer than other requests may wait. The outline of a long log is ready before its timeline.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from foveal.core.log.events import Event
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.core.wire.event_text import original_text
from foveal.inspector.sessions.source import MAX_PART_EVENTS, LogEnd, SessionAbout, SessionReader
from foveal.inspector.timeline.message_text import LogViews
from foveal.inspector.timeline.timeline import Timeline

if TYPE_CHECKING:  # they load the engine, which the first page does not need
    from foveal.inspector.step_surprises import StepSurprises
    from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder, TimelineRows

MAX_OPEN_LOGS: Final = 16
"""Logs that stay in memory after their last use."""
MAX_OPEN_CHARS: Final = 100_000_000
"""Characters of all texts in these logs together, except that the newest one always stays."""
MIN_OUTLINE_EVENTS: Final = 2_000
"""Events from which on a page gets an outline first; the timeline of a shorter log takes less than a second."""
T = TypeVar("T")


class LogSnapshot(NamedTuple):
    """A log as it was at one time."""

    events: list[Event]
    views: LogViews


class OpenLog:
    """The log of one session."""

    def __init__(self, reader: SessionReader) -> None:
        self.reader: SessionReader = reader
        self.end: LogEnd = LogEnd(0)
        """The end of what is in memory."""
        self.chars: int = 0
        """Characters of the texts in memory."""
        self._events: list[Event] = []
        """What was read; the timeline may not have all of it yet."""
        self._rows: TimelineRows | None = None
        self._outline: Timeline | None = None
        """Kept until the timeline is there: a page is expected to ask for it."""
        self._builder: TimelineBuilder | None = None
        self._views = LogViews()
        self._surprises: tuple[LogEnd, StepSurprises] | None = None
        self._lock = asyncio.Lock()

    def surprises(self) -> StepSurprises | None:
        """Return what was kept of the log as it is in memory."""
        known = self._surprises
        return known[1] if known is not None and known[0] == self.end else None

    def keep_surprises(self, found: StepSurprises) -> None:
        """Keep the surprise of the steps: a page that is loaded again asks for it again."""
        if found.at + 1 == self.end.next_seq:
            self._surprises = self.end, found

    def use(self, reader: SessionReader) -> None:
        """Read with another reader of the same session, which knows its present title."""
        self.reader = reader

    async def events(self) -> list[Event]:
        """Return all events up to now."""
        return (await self.snapshot()).events

    async def snapshot(self) -> LogSnapshot:
        """Return all events up to now, with the views that are kept of them."""

        async def work() -> LogSnapshot:
            await self._load()
            return LogSnapshot(list(self._events), self._views)

        return await self._alone(work)

    async def timeline(self, first: int = 0) -> Timeline:
        """Return the timeline from event `first` on."""
        made, generation = await self._read(
            lambda builder: (builder.document(min(first, builder.next_seq)), self.end.generation)
        )
        return self._described(made, generation)

    async def outline(self) -> Timeline:
        """Return the outline of a long log; the timeline if that does not take longer."""
        made = await self._alone(self._outlined)
        return await self.timeline() if made is None else self._described(made, self.end.generation)

    def _described(self, made: Timeline, generation: int) -> Timeline:
        about = self.reader.about
        return msgspec.structs.replace(
            made,
            title=about.title,
            format=about.format,
            origin=about.origin or made.origin,
            problems=about.problems,
            generation=generation,
        )

    async def _outlined(self) -> Timeline | None:
        """Return the outline; None if the timeline has most events already."""
        await self._load()
        known = len(self._builder.log) if self._builder is not None else 0
        if len(self._events) - known < MIN_OUTLINE_EVENTS:
            return None
        if self._outline is None or self._outline.next != self.end.next_seq:
            self._outline = await asyncio.to_thread(self._make_outline)
        return self._outline

    def _make_outline(self) -> Timeline:
        from foveal.inspector.timeline.builder import TimelineRows, timeline_outline

        self._rows = self._rows or TimelineRows()
        return timeline_outline(self.reader.about.key, self._events, self._rows)

    def _make_builder(self, counts: MessageCounts | None) -> TimelineBuilder:
        """Return a timeline without events. It loads the vocabulary of the model."""
        from foveal.inspector.timeline.builder import TimelineBuilder

        return TimelineBuilder(inspected_settings(self.reader.about), counts=counts, row_maker=self._rows)

    async def _read(self, make: Callable[[TimelineBuilder], T]) -> T:
        """Return what `make` makes of the log up to now, in a thread."""

        async def work() -> T:
            return await asyncio.to_thread(make, await self._update())

        return await self._alone(work)

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work while no other one runs."""

        async def run() -> T:
            async with self._lock:
                return await work()

        # A thread goes on when its caller is cancelled. The lock stays until it ends, so that no other one begins.
        return await asyncio.shield(run())

    async def _update(self) -> TimelineBuilder:
        """Bring the timeline up to date."""
        await self._load()
        builder = self._builder
        if builder is None:
            builder = await asyncio.to_thread(self._make_builder, await self.reader.counts())
        new = self._events[len(builder.log) :]
        for start in range(0, len(new), MAX_PART_EVENTS):
            await asyncio.to_thread(builder.add, new[start : start + MAX_PART_EVENTS])
        self._builder, self._outline = builder, None
        return builder

    async def _load(self) -> None:
        """Read what is new; all of it if earlier events are others now."""
        end = await self.reader.end()
        if end.generation != self.end.generation or end.next_seq < self.end.next_seq:
            self._events, self._rows, self._builder, self._outline = [], None, None, None
            self._views, self.chars = LogViews(), 0
        while (first := self._events[-1].seq + 1 if self._events else 0) < end.next_seq:
            part = await self.reader.read(first, min(first + MAX_PART_EVENTS, end.next_seq) - 1)
            if not part:
                break
            self._events += part
            self.chars += await asyncio.to_thread(_text_chars, part)
        self.end = LogEnd(self._events[-1].seq + 1 if self._events else 0, end.generation)


def _text_chars(events: list[Event]) -> int:
    """Return the characters of the texts of events."""
    return sum(len(original_text(event.fact)) for event in events)


class OpenLogs:
    """The logs that were used last."""

    def __init__(self) -> None:
        self._logs: OrderedDict[tuple[str, str], OpenLog] = OrderedDict()
        self._in_use: WeakValueDictionary[tuple[str, str], OpenLog] = WeakValueDictionary()
        """Also those that only a stream holds: two of one session would take the memory twice."""

    def of(self, tenant: str, reader: SessionReader) -> OpenLog:
        """Return the log that a reader reads."""
        key = (tenant, reader.about.key)
        log = self._logs.pop(key, None) or self._in_use.get(key) or OpenLog(reader)
        log.use(reader)
        self._logs[key] = self._in_use[key] = log
        while len(self._logs) > 1 and self._is_full:
            self._logs.popitem(last=False)
        return log

    @property
    def _is_full(self) -> bool:
        chars = sum(log.chars for log in self._logs.values())
        return len(self._logs) > MAX_OPEN_LOGS or chars > MAX_OPEN_CHARS


def inspected_settings(about: SessionAbout) -> InspectedSettings:
    """Return what a timeline needs to know beside the log."""
    from foveal.inspector.timeline.builder import InspectedSettings

    settings: dict[str, Any] = about.settings
    return InspectedSettings(
        id=about.key,
        title=about.title,
        format=about.format,
        model=about.model,
        window=settings.get("window"),
        reserve=settings.get("reserve"),
        problems=about.problems,
    )
