"""Logs of the sessions that the pages show, each with its timeline.

A log is read once, in parts. Reading and folding happen in a thread, one at a time per session, because a long log
takes longer than other requests may wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from foveal.core.log.events import Event
from foveal.inspection.session_source import MAX_PART_EVENTS, LogEnd, SessionAbout, SessionReader
from foveal.inspection.timeline import Timeline
from foveal.inspection.timeline_builder import InspectedSettings, TimelineBuilder

MAX_OPEN_LOGS: Final = 4
"""Logs that stay in memory after their last use."""
T = TypeVar("T")


class OpenLog:
    """The log of one session."""

    def __init__(self, reader: SessionReader) -> None:
        self.reader: SessionReader = reader
        self.end: LogEnd = LogEnd(0)
        """The end of what is in memory."""
        self._builder = TimelineBuilder(inspected_settings(reader.about))
        self._lock = asyncio.Lock()

    def use(self, reader: SessionReader) -> None:
        """Read with another reader of the same session, which knows its present title."""
        self.reader = reader

    async def events(self) -> list[Event]:
        """Return all events up to now."""
        async with self._lock:
            await self._update()
            return list(self._builder.log)

    async def timeline(self, first: int = 0) -> Timeline:
        """Return the timeline from event `first` on."""
        async with self._lock:
            await self._update()
            made = await asyncio.to_thread(self._builder.document, min(first, self._builder.next_seq))
        about = self.reader.about
        return msgspec.structs.replace(
            made, title=about.title, origin=about.origin or made.origin, problems=about.problems
        )

    async def encoded_timeline(self, first: int, encode: Callable[[Timeline], T]) -> T:
        """Return the timeline as `encode` writes it, in a thread."""
        return await asyncio.to_thread(encode, await self.timeline(first))

    async def _update(self) -> None:
        """Read what is new; all of it if earlier events are others now."""
        end = await self.reader.end()
        if end.generation != self.end.generation or end.next_seq < self._builder.next_seq:
            self._builder = TimelineBuilder(inspected_settings(self.reader.about))
        while (first := self._builder.next_seq) < end.next_seq:
            part = await self.reader.read(first, min(first + MAX_PART_EVENTS, end.next_seq) - 1)
            if not part:
                break
            await asyncio.to_thread(self._builder.add, part)
        self.end = LogEnd(self._builder.next_seq, end.generation)


class OpenLogs:
    """The logs that were used last."""

    def __init__(self) -> None:
        self._logs: OrderedDict[tuple[str, str], OpenLog] = OrderedDict()

    def of(self, tenant: str, reader: SessionReader) -> OpenLog:
        """Return the log that a reader reads."""
        key = (tenant, reader.about.key)
        log = self._logs.pop(key, None) or OpenLog(reader)
        log.use(reader)
        self._logs[key] = log
        if len(self._logs) > MAX_OPEN_LOGS:
            self._logs.popitem(last=False)
        return log


def inspected_settings(about: SessionAbout) -> InspectedSettings:
    """Return what a timeline needs to know beside the log."""
    settings: dict[str, Any] = about.settings
    return InspectedSettings(
        id=about.key,
        title=about.title,
        format=about.format,
        model=about.model,
        window=settings.get("window"),
        reserve=settings.get("reserve") or 0,
        problems=about.problems,
    )
