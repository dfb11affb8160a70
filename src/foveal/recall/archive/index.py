"""Full-text index of many past sessions: in memory, and of transcripts also in a file that lasts.

1. Only words of transcripts are kept in the file. A store erases sessions without telling an index, and nothing may
   survive that: its sessions are indexed in memory.
2. A session that its source no longer lists is removed, and so is all of a source that was not used for
   `MAX_UNUSED_S`.
3. The index holds sessions of at most `MAX_INDEXED_BYTES`; it takes about an eighth of that.
4. Work is done in threads, in steps, so that the caller can report progress and stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from hashlib import blake2b
from typing import Final, TypeVar

import apsw

from foveal.ports import Hit
from foveal.recall.archive.index_file import IndexFile
from foveal.recall.archive.session_index import SessionIndex, version_text
from foveal.recall.archive.source import SessionEntry, SessionLog
from foveal.stores.sqlite.connection import translate_errors
from foveal.stores.sqlite.full_text import search_sessions

MAX_INDEXED_BYTES: Final = 1_000_000_000
MAX_UNUSED_S: Final = 30 * 86_400
"""Time for which the words of a source stay in the file after its last use."""
_MEMORY_KEYS_START: Final = 1 << 30
_PLACES: Final = "CREATE TABLE IF NOT EXISTS places (place TEXT PRIMARY KEY, used REAL NOT NULL) STRICT"

T = TypeVar("T")


class ArchiveIndex:
    """The index; for one task at a time."""

    def __init__(self, kept: IndexFile | None = None, *, max_bytes: int = MAX_INDEXED_BYTES) -> None:
        """`kept`: the file that lasts. Without one, all sessions are indexed in memory."""
        self._max_bytes = max_bytes
        self._kept = kept
        self._memory = SessionIndex(apsw.Connection(":memory:"), first_key=_MEMORY_KEYS_START)
        self._parts = [self._memory, *([SessionIndex(kept.connection)] if kept is not None else [])]
        """In memory, and in the file if there is one."""
        self._used: set[str] = set()
        """Places whose use this process has noted in the file."""
        self._guarded(self._create)

    def _create(self) -> None:
        for part in self._parts:
            part.create()
        if self._kept is not None:
            self._kept.connection.execute(_PLACES)
        self._used.clear()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    @property
    def notice(self) -> str:
        """Why the index is built anew, "" if it is not."""
        return self._kept.notice if self._kept is not None else ""

    @property
    def lasts(self) -> bool:
        """Whether it is kept after this process."""
        return self._kept is not None

    @property
    def is_full(self) -> bool:
        """Whether no further session is indexed."""
        known = self._guarded(lambda: [each for part in self._parts for each in part.sessions().values()])
        return sum(session.size for session in known) >= self._max_bytes

    def can_hold(self, entries: Sequence[SessionEntry]) -> bool:
        """Return whether all these sessions fit into an empty index."""
        return sum(entry.size for entry in entries) <= self._max_bytes

    def clear(self) -> None:
        """Forget all sessions."""
        for part in self._parts:
            part.forget(list(part.sessions()))

    def current(self, entries: Sequence[SessionEntry]) -> set[str]:
        """Return the handles of the sessions that are indexed as they are now."""
        return self._guarded(lambda: set().union(*(part.current(entries) for part in self._parts)))

    def remembered_parts(self, handle: str, version: tuple[float, ...]) -> int:
        """Return how many sessions a file of this version has, by the handle of the first; 1 if that is unknown."""
        known = self._guarded(self._parts[-1].sessions).get(handle)
        return known.parts if known is not None and known.version == version_text(version) else 1

    # ── Updates ──────────────────────────────────────────────────────────────────────────────────────────

    async def update(
        self, entry: SessionEntry, place: str, log: SessionLog, report: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Index what is new of a session of the source named `place`. After each step, `report` gets the part of it
        that is done, from 0 to 1, and returns whether to go on; a later call continues."""
        chosen = self._parts[-1] if log.is_lasting else self._memory
        for part in self._parts:
            if part is not chosen and entry.handle in part.sessions():
                await asyncio.to_thread(part.forget, [entry.handle])
        with self._translated():
            try:
                await chosen.update(entry, _place_digest(place), log, report)
            except apsw.BusyError:  # another process writes for long: a later call continues
                return
            except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as problem:
                await asyncio.to_thread(self._repair, problem)

    async def forget_unlisted(self, listed: Mapping[str, Collection[str]]) -> None:
        """Remove the sessions that are gone; `listed` has the handles of all sessions of a source by its name."""
        handles = {_place_digest(name): found for name, found in listed.items()}
        await asyncio.to_thread(self._guarded, lambda: self._forget_unlisted(handles))

    def _forget_unlisted(self, listed: Mapping[str, Collection[str]]) -> None:
        for part in self._parts:
            gone = [
                handle
                for handle, session in list(part.sessions().items())
                if session.place in listed and handle not in listed[session.place]
            ]
            part.forget(gone)
        if self._kept is not None and not listed.keys() <= self._used:
            self._forget_unused(self._kept.connection, listed)
            self._used |= listed.keys()

    def _forget_unused(self, connection: apsw.Connection, used: Collection[str]) -> None:
        now, part = time.time(), self._parts[-1]
        with part.writing():
            connection.executemany(
                "INSERT OR REPLACE INTO places VALUES (?, ?)", ((place, now) for place in used)
            )
            connection.execute("DELETE FROM places WHERE used < ?", (now - MAX_UNUSED_S,))
            rows = connection.execute(
                "SELECT handle FROM archived WHERE place NOT IN (SELECT place FROM places)"
            )
            unused = [handle for (handle,) in rows]
        part.forget(unused)

    @property
    def needs_tidying(self) -> bool:
        """Whether words of removed sessions are still stored."""
        return any(part.has_words_of_removed for part in self._parts)

    async def tidy(self) -> None:
        """Take the words of removed sessions out of memory and file."""
        for part in self._parts:
            if part.has_unused_words:
                await asyncio.to_thread(self._guarded, part.drop_unused_words)
                if part is not self._memory and self._kept is not None:
                    await asyncio.to_thread(self._kept.shrink_log)

    def try_build(self) -> bool:
        """Return whether this process may build the index: of those that share the file, one at a time."""
        return self._kept is None or self._kept.try_build()

    def end_build(self) -> None:
        """Let another process build."""
        if self._kept is not None:
            self._kept.end_build()

    # ── Search ───────────────────────────────────────────────────────────────────────────────────────────

    async def search(self, entries: Sequence[SessionEntry], query: str, limit: int) -> list[tuple[str, Hit]]:
        """Return the best events of these sessions as far as they are indexed, each with its session's handle."""

        def work() -> list[tuple[str, Hit]]:
            with ExitStack() as open_parts:
                for part in self._parts:
                    open_parts.enter_context(part.reading())
                keys = [self._handles(part, entries) for part in self._parts]
                parts = [
                    (part.full_text, found.keys()) for part, found in zip(self._parts, keys, strict=True)
                ]
                handles = {key: handle for found in keys for key, handle in found.items()}
                return [(handles[key], hit) for key, hit in search_sessions(parts, query, limit)]

        return await asyncio.to_thread(self._guarded, work)

    async def events_with_all(self, entries: Sequence[SessionEntry], text: str) -> dict[str, list[int]]:
        """Return the seqs of events with all words of a text, newest first, by the handles of their sessions."""

        def work() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for part in self._parts:
                with part.reading():
                    handles = self._handles(part, entries)
                    seqs = part.full_text.events_with_all(handles.keys(), text)
                    found |= {handles[key]: each for key, each in seqs.items()}
            return found

        return await asyncio.to_thread(self._guarded, work)

    def _handles(self, part: SessionIndex, entries: Sequence[SessionEntry]) -> dict[int, str]:
        """Return the handles of the sessions that are indexed, by their keys in the index."""
        known = part.sessions()
        return {known[entry.handle].key: entry.handle for entry in entries if entry.handle in known}

    # ── Damage ───────────────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do the work, and once more with an empty index if the file is damaged. Raises `StoreUnusable`."""
        with self._translated():
            try:
                return work()
            except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as problem:
                self._repair(problem)
                return work()

    def _repair(self, problem: apsw.Error) -> None:
        """Empty a damaged file, and create the tables, which are missing while another process empties it."""
        if self._kept is not None and not isinstance(problem, apsw.SQLError):
            self._kept.empty("was damaged")
        self._create()

    def _translated(self) -> AbstractContextManager[None]:
        return translate_errors(self._kept.path if self._kept is not None else "the index in memory")


def _place_digest(name: str) -> str:
    """Return what the file has of a source's name, which can be a path with private words."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
