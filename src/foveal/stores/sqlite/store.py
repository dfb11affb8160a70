"""Store of sessions in one SQLite file.

1. The store's own threads wait for the disk: one writes, two read.
2. Several processes may use the same file.
3. A cancelled call may have been carried out: after cancelling an append, read the session again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self, TypeVar

from foveal.core.log.events import Event
from foveal.errors import BadSetting
from foveal.ports import Checkpoint, Hit, SessionInfo
from foveal.stores.sqlite import erase, queries
from foveal.stores.sqlite.connection import Durability, SqliteFile, StoreConnection, Work, in_transaction
from foveal.stores.sqlite.full_text import searchable_text
from foveal.stores.sqlite.schema import ID_STRIDE
from foveal.stores.sqlite.threads import WorkerThreads

T = TypeVar("T")

_READER_THREADS: Final = 2
_INDEX_BATCH_EVENTS: Final = 500
"""Events that a search adds to the index in one transaction."""


class SqliteStore:
    """A `Store` in the file `path`, which is created if it does not exist; its folder must exist.

    `async with` opens the file; without it the first call does."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`timeout`: seconds to wait for another process that writes."""
        if durability not in ("full", "normal"):
            raise BadSetting("durability", durability, "`full` or `normal`")
        self._file = SqliteFile(os.path.abspath(os.fspath(path)), durability=durability, timeout=timeout)
        self._clock = clock
        self._writer = WorkerThreads("foveal-write")
        self._readers = WorkerThreads("foveal-read", threads=_READER_THREADS)
        self._last_seqs = LastSeqCache()

    @property
    def path(self) -> str:
        """The absolute path of the file."""
        return self._file.path

    @property
    def durability(self) -> Durability:
        """What survives a power cut."""
        return self._file.durability

    async def __aenter__(self) -> Self:
        try:
            await self._writer.run(self._file.open)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls before this one, then close the file; closing twice is allowed."""
        await self._writer.run(self._readers.stop)
        await self._writer.run(self._file.close)
        self._writer.stop()

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if not events:
            return
        now = self._clock()
        with self._last_seqs.appending(session, self._file.data_version(), events[-1].seq + 1):
            # A small append that waits for nothing is done here; a thread would take longer to wake the loop.
            if not self._file.try_now(lambda db: _append_one(db, session, events)):
                await self._writer.run(
                    lambda: self._file.exclusive(lambda db: _append_batch(db, session, events, now))
                )
        if self._file.needs_wal_checkpoint:
            self._writer.submit(self._file.checkpoint_wal)

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        seqs = range(max(first, 0), ID_STRIDE if last is None else min(last + 1, ID_STRIDE))

        def work(db: StoreConnection) -> list[Event]:
            return queries.read(
                db.connection, db.packer, queries.get_session(db.connection, session).key, seqs
            )

        return await self._read(work)

    async def read_new(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        version, changes = self._file.data_version(), self._last_seqs.changes
        if self._last_seqs.is_end(session, version, first):
            return [], False

        def work(db: StoreConnection) -> tuple[list[Event], bool]:
            key = queries.get_session(db.connection, session).key
            erased = queries.is_erased(db.connection, key)
            return queries.read(db.connection, db.packer, key, range(max(first, 0), ID_STRIDE)), erased

        events, erased = await self._read(work)
        if changes == self._last_seqs.changes and not erased:
            self._last_seqs.set_end(session, version, events[-1].seq + 1 if events else first)
        return events, erased

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        def work(db: StoreConnection) -> list[Event]:
            return queries.pick(
                db.connection, db.packer, queries.get_session(db.connection, session).key, seqs
            )

        return await self._read(work)

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return await self._read(lambda db: queries.checkpoint(db.connection, session))

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        await self._write(lambda db: queries.keep_checkpoint(db.connection, session, checkpoint))

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        while await self._read(lambda db: _index_is_behind(db, session)):
            await self._write(lambda db: _index_batch(db, session))
        return await self._read(lambda db: _search(db, session, query, limit))

    async def sessions(self) -> list[SessionInfo]:
        return await self._read(lambda db: queries.list_sessions(db.connection))

    async def info(self, session: str) -> SessionInfo:
        return await self._read(lambda db: queries.session_info(db.connection, session))

    async def rename(self, session: str, title: str) -> None:
        await self._write(lambda db: queries.rename(db.connection, session, title))

    async def fork(self, session: str, new: str, *, at: int) -> None:
        now = self._clock()
        await self._write(lambda db: queries.fork(db.connection, session, new, at, now))

    async def erase(self, session: str) -> None:
        def work(db: StoreConnection) -> None:
            db.text_index.remove(erase.erase(db.connection, db.packer, session))

        with self._last_seqs.invalidating():
            await self._write(work)
        await self._writer.run(self._file.vacuum)

    async def _read(self, work: Work[T]) -> T:
        return await self._readers.run(lambda: self._file.read(work))

    async def _write(self, work: Work[T]) -> T:
        return await self._writer.run(lambda: self._file.write(work))


def _append_batch(db: StoreConnection, session: str, events: Sequence[Event], now: float) -> None:
    if _append_one(db, session, events):
        return
    rows = queries.to_rows(db.packer, events)

    def work(db: StoreConnection) -> int:
        return queries.append(db.connection, db.packer, session, events[0].seq, rows, now)

    db.remember_key(session, in_transaction(db, "BEGIN IMMEDIATE", work))


def _append_one(db: StoreConnection, session: str, events: Sequence[Event]) -> bool:
    """Append the only event if it is small and the session's key is cached; return whether that was done."""
    key = db.session_keys.get(session)
    return key is not None and len(events) == 1 and queries.append_one(db.cursor, db.packer, key, events[0])


def _index_is_behind(db: StoreConnection, session: str) -> bool:
    """Return whether the index lacks events of the session."""
    key, end, _ = queries.get_session(db.connection, session)
    return db.text_index.last_indexed(key) + 1 < end


def _index_batch(db: StoreConnection, session: str) -> None:
    key = queries.get_session(db.connection, session).key
    start = db.text_index.last_indexed(key) + 1
    events = queries.read(db.connection, db.packer, key, range(start, start + _INDEX_BATCH_EVENTS))
    db.text_index.add(key, [(event.seq, searchable_text(event)) for event in events])


def _search(db: StoreConnection, session: str, query: str, limit: int) -> list[Hit]:
    return (
        db.text_index.search(queries.get_session(db.connection, session).key, query, limit)
        if limit > 0
        else []
    )


# ── Cache of session ends ────────────────────────────────────────────────────────────────────────────────

_MAX_CACHED_SESSIONS: Final = 10_000


class LastSeqCache:
    """Where sessions end, known without reading the file; for one event loop.

    SQLite's `data_version` changes when another connection has written to the file. While it is the same, a session
    ends where this store's last append left it.

    1. Only a read makes an end known: it also tells whether the session is erased. An append moves a known end.
    2. Of appends to a session that overlap, the last one to return is not always the last one that was stored.
       After them the end is unknown until it is read again."""

    def __init__(self) -> None:
        self.changes = 0
        """Grows before and after each change: an end that was read while this changed must not be cached."""
        self._ends: dict[str, tuple[int, int]] = {}
        self._newest: dict[str, int] = {}
        """For sessions with an append in progress, the value of `changes` when the newest one began."""
        self._uncertain: set[str] = set()

    def is_end(self, session: str, version: int | None, end: int) -> bool:
        """Return whether `end` is the session's next seq, as long as the file has this version."""
        return version is not None and self._ends.get(session) == (version, end)

    def set_end(self, session: str, version: int | None, end: int) -> None:
        """Record that the session's next seq was `end` after the file had this version."""
        if version is None or session in self._uncertain:
            return
        if len(self._ends) >= _MAX_CACHED_SESSIONS:
            self._ends.clear()
        self._ends[session] = version, end

    @contextmanager
    def appending(self, session: str, version: int | None, end: int) -> Iterator[None]:
        """Cover an append after which the session's next seq is `end`.

        A cancelled append may still be carried out at any later time, so its session is not cached again."""
        self.changes += 1
        number = self._newest[session] = self.changes
        known = self._ends.pop(session, None)
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._uncertain.add(session)
            raise
        finally:
            self.changes += 1
            self._ends.pop(session, None)  # cached while this append was in progress
            is_newest = self._newest.pop(session, None) == number
        if is_newest and known is not None and known[0] == version:
            self.set_end(session, version, end)

    @contextmanager
    def invalidating(self) -> Iterator[None]:
        """Cover another change of sessions: ends that are cached or read meanwhile become invalid, and so do the
        ends of appends in progress."""
        try:
            yield
        finally:
            self.changes += 1
            self._ends.clear()
            self._newest.clear()
