"""Full-text index of many past sessions, in memory.

1. A session is indexed when a search first needs it, and brought up to date when it has changed: its new events are
   added, and of a transcript also those that were grouped differently when it was shorter.
2. The index holds at most `MAX_INDEXED_CHARS` characters of text; it takes about an eighth of that in memory.
3. Work is done in threads, in steps of `_BATCH_EVENTS`, so that the caller can report progress and stop.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import apsw

from foveal.core.log.events import Event
from foveal.core.wire.event_text import search_text
from foveal.ports import Hit
from foveal.recall.archive.archive_source import SessionEntry, SessionLog
from foveal.stores.sqlite.full_text import FullTextIndex

MAX_INDEXED_CHARS: Final = 1_000_000_000
_BATCH_EVENTS: Final = 200
"""Events that are read and indexed in one step."""


class _IndexedSession:
    """What the index has of a session."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.version: tuple[float, ...] = ()
        """The version that is indexed completely; () while there is none."""
        self.digests = array("q")
        """Of the text of each indexed event, where events can change."""

    def count_unchanged(self, digests: Sequence[int]) -> int:
        """Return how many events from the first on are as they were indexed."""
        same = 0
        for old, new in zip(self.digests, digests, strict=False):
            if old != new:
                break
            same += 1
        return same


class ArchiveIndex:
    """The index; for one task at a time."""

    def __init__(self, *, max_chars: int = MAX_INDEXED_CHARS) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._sessions: dict[str, _IndexedSession] = {}
        self._connection = apsw.Connection(":memory:")
        self._index = _create_index(self._connection)

    @property
    def is_full(self) -> bool:
        """Whether no further session is indexed."""
        return self._chars >= self._max_chars

    def can_hold(self, entries: Sequence[SessionEntry]) -> bool:
        """Return whether all these sessions fit into an empty index."""
        return sum(entry.size for entry in entries) <= self._max_chars

    def clear(self) -> None:
        """Forget all sessions."""
        self._chars, self._sessions = 0, {}
        self._connection.close()
        self._connection = apsw.Connection(":memory:")
        self._index = _create_index(self._connection)

    def is_current(self, entry: SessionEntry) -> bool:
        """Return whether the session is indexed as it is now."""
        known = self._sessions.get(entry.handle)
        return known is not None and known.version == entry.version

    async def update(
        self, entry: SessionEntry, log: SessionLog, report: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Index what is new of a session. After each step, `report` gets the part of it that is done, from 0 to 1,
        and returns whether to go on; a later call continues."""
        known = self._sessions.setdefault(entry.handle, _IndexedSession(len(self._sessions) + 1))
        start = self._index.last_indexed(known.key) + 1
        if log.end < start:  # shorter than before: another file has taken its place
            start = 0
            self._index.remove_from(known.key, 0)
        if not log.is_append_only:
            start = await self._drop_changed(known, log)
        while start < log.end:
            events = await log.pick(range(start, min(start + _BATCH_EVENTS, log.end)))
            await asyncio.to_thread(self._add, known, events, is_fixed=log.is_append_only)
            start += len(range(start, log.end)[:_BATCH_EVENTS])
            if not await report(start / log.end) and start < log.end:
                return
        known.version = entry.version

    async def _drop_changed(self, known: _IndexedSession, log: SessionLog) -> int:
        """Remove the events from the first changed one on; return its seq."""
        if not known.digests:
            return 0
        events = await log.pick(range(min(log.end, len(known.digests))))
        digests = await asyncio.to_thread(lambda: [hash(search_text(event.fact)) for event in events])
        same = known.count_unchanged(digests)
        del known.digests[same:]
        self._index.remove_from(known.key, same)
        return same

    def _add(self, known: _IndexedSession, events: Sequence[Event], *, is_fixed: bool) -> None:
        texts = [(event.seq, search_text(event.fact)) for event in events]
        with self._connection:  # one transaction: each row by itself takes longer
            self._index.add(known.key, texts)
        self._chars += sum(len(text) for _, text in texts)
        if not is_fixed:
            known.digests.extend(hash(text) for _, text in texts)

    async def search(self, entries: Sequence[SessionEntry], query: str, limit: int) -> list[tuple[str, Hit]]:
        """Return the best events of these sessions as far as they are indexed, each with its session's handle."""
        handles = self._handles(entries)
        found = await asyncio.to_thread(self._index.search_sessions, handles.keys(), query, limit)
        return [(handles[session], hit) for session, hit in found]

    async def events_with_all(self, entries: Sequence[SessionEntry], text: str) -> dict[str, list[int]]:
        """Return the seqs of events with all words of a text, newest first, by the handles of their sessions."""
        handles = self._handles(entries)
        found = await asyncio.to_thread(self._index.events_with_all, handles.keys(), text)
        return {handles[session]: seqs for session, seqs in found.items()}

    def _handles(self, entries: Sequence[SessionEntry]) -> dict[int, str]:
        """Return the handles of the sessions that are indexed, by their keys in the index."""
        return {
            known.key: entry.handle
            for entry in entries
            if (known := self._sessions.get(entry.handle)) is not None
        }


def _create_index(connection: apsw.Connection) -> FullTextIndex:
    index = FullTextIndex(connection)
    index.create()
    return index
