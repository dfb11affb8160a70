"""Logs of the sessions that the pages show, each with its timeline.

A log is read once, in parts. Reading and folding happen in a thread, one at a time per session, because a long log
takes longer than other requests may wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from foveal.core.log.events import Event
from foveal.core.wire.event_text import original_text
from foveal.inspection.log_views import LogViews
from foveal.inspection.session_source import MAX_PART_EVENTS, LogEnd, SessionAbout, SessionReader
from foveal.inspection.timeline import Timeline
from foveal.inspection.timeline_builder import InspectedSettings, TimelineBuilder

MAX_OPEN_LOGS: Final = 16
"""Logs that stay in memory after their last use."""
MAX_OPEN_CHARS: Final = 100_000_000
"""Characters of all texts in these logs together, except that the newest one always stays."""
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
        self._builder: TimelineBuilder | None = None
        self._views = LogViews()
        self._lock = asyncio.Lock()

    def use(self, reader: SessionReader) -> None:
        """Read with another reader of the same session, which knows its present title."""
        self.reader = reader

    async def events(self) -> list[Event]:
        """Return all events up to now."""
        return (await self.snapshot()).events

    async def snapshot(self) -> LogSnapshot:
        """Return all events up to now, with the views that are kept of them."""
        return await self._read(lambda builder: LogSnapshot(list(builder.log), self._views))

    async def timeline(self, first: int = 0) -> Timeline:
        """Return the timeline from event `first` on."""
        made, generation = await self._read(
            lambda builder: (builder.document(min(first, builder.next_seq)), self.end.generation)
        )
        about = self.reader.about
        return msgspec.structs.replace(
            made,
            title=about.title,
            origin=about.origin or made.origin,
            problems=about.problems,
            generation=generation,
        )

    async def encoded_timeline(self, first: int, encode: Callable[[Timeline], T]) -> T:
        """Return the timeline as `encode` writes it, in a thread."""
        return await asyncio.to_thread(encode, await self.timeline(first))

    async def _read(self, make: Callable[[TimelineBuilder], T]) -> T:
        """Return what `make` makes of the log up to now, in a thread."""

        async def work() -> T:
            async with self._lock:
                return await asyncio.to_thread(make, await self._update())

        # A thread goes on when its caller is cancelled. The lock stays until it ends, so that no other one begins.
        return await asyncio.shield(work())

    async def _update(self) -> TimelineBuilder:
        """Read what is new; all of it if earlier events are others now."""
        end, builder = await self.reader.end(), self._builder
        if builder is None or end.generation != self.end.generation or end.next_seq < builder.next_seq:
            # In a thread: it loads the vocabulary of the model.
            builder = await asyncio.to_thread(TimelineBuilder, inspected_settings(self.reader.about))
            self._builder, self._views, self.chars = builder, LogViews(), 0
        while (first := builder.next_seq) < end.next_seq:
            part = await self.reader.read(first, min(first + MAX_PART_EVENTS, end.next_seq) - 1)
            if not part:
                break
            self.chars += await asyncio.to_thread(_add_events, builder, part)
        self.end = LogEnd(builder.next_seq, end.generation)
        return builder


def _add_events(builder: TimelineBuilder, events: list[Event]) -> int:
    """Add events to a timeline, and return the characters of their texts."""
    builder.add(events)
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
