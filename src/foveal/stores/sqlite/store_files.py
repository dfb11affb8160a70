"""Files of stores: the threads and connections that stores of this process share.

1. Two stores of one file share its connections, its queues of calls, and what is known of its sessions.
2. Files share threads. A file has at most one writing and two reading calls in them, so a file that another process
   has locked does not stop the others.
3. Connections are open while a file is in use; of the others, those of `MAX_IDLE_FILES` files stay open.

Sessions of a store's SQLite file, read without changing the file.

1. The file is opened read-only: it is not migrated, and its write-ahead log is not copied into it.
2. All calls see the state that the file had when it was opened, also while another process writes it.
3. Calls block the event loop while they read: this is for commands, not for servers.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

import apsw

from foveal.core.log.events import Event
from foveal.errors import StoreUnusable
from foveal.ports import Checkpoint, SessionInfo
from foveal.stores.compression import LinePacker
from foveal.stores.sqlite import queries
from foveal.stores.sqlite.connection import SqliteFile, translate_errors
from foveal.stores.sqlite.schema import (
    FIRST_VERSION_WITH_CHECKPOINTS,
    ID_STRIDE,
    STORE_APPLICATION_ID,
    check_database,
)
from foveal.stores.sqlite.threads import CallQueue, WorkerThreads


class ReadOnlySqliteStore:
    """The part of `Store` that reads, on an existing file."""

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        """Open the file; raises `StoreUnusable` if it is not a store."""
        self.path: Final[str] = os.path.abspath(os.fspath(path))
        self._packer = LinePacker()
        with translate_errors(self.path):
            self._connection = open_read_only(self.path, timeout)
            try:
                self._connection.execute("BEGIN")
                check_database(self._connection, self.path)
                self._version: int = self._connection.pragma("user_version")
                if self._connection.pragma("application_id") != STORE_APPLICATION_ID:
                    raise StoreUnusable(f"{self.path} is empty: it is not a store; check the path")
            except BaseException:
                self._connection.close()
                raise

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        seqs = range(max(first, 0), ID_STRIDE if last is None else min(last + 1, ID_STRIDE))
        with translate_errors(self.path):
            key = queries.get_session(self._connection, session).key
            return queries.read(self._connection, self._packer, key, seqs)

    async def stored_bytes(self, session: str, *, first: int, last: int) -> list[int]:
        """Return the bytes that each event of a range takes in the file."""
        with translate_errors(self.path):
            key = queries.get_session(self._connection, session).key
            return queries.stored_bytes(self._connection, key, range(first, last + 1))

    async def checkpoint(self, session: str) -> Checkpoint | None:
        if self._version < FIRST_VERSION_WITH_CHECKPOINTS:
            return None
        with translate_errors(self.path):
            return queries.checkpoint(self._connection, session)

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]:
        with translate_errors(self.path):
            return queries.list_sessions(
                self._connection, limit=limit, before=before, with_erased=with_erased, memories=memories
            )

    async def close(self) -> None:
        self._connection.close()


def open_read_only(path: str, timeout: float) -> apsw.Connection:
    """Return a connection to an existing file that cannot change it."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(int(timeout * 1000))
    return connection


READERS_PER_FILE: Final = 2
"""Calls that read one file at once."""
SHARED_THREADS: Final = 8
"""Threads that write, and as many that read, for all files of a `StoreFiles`."""
MAX_IDLE_FILES: Final = 16
"""Files whose connections stay open while they are not used; each takes up to seven descriptors."""


class StoreFile:
    """A file, with the queues of its calls and what is known of its sessions."""

    def __init__(
        self,
        path: str,
        *,
        timeout: float,
        writers: WorkerThreads | None = None,
        readers: WorkerThreads | None = None,
    ) -> None:
        """Without `writers` and `readers`, the file has threads of its own."""
        self.file: SqliteFile = SqliteFile(path, timeout=timeout)
        self.last_seqs: LastSeqCache = LastSeqCache()
        self._writers = writers or WorkerThreads("foveal-write")
        self._readers = readers or WorkerThreads("foveal-read", threads=READERS_PER_FILE)
        self.writer: CallQueue = CallQueue(self._writers)
        self.readers: CallQueue = CallQueue(self._readers, at_once=READERS_PER_FILE)
        self._vacuum: asyncio.Future[None] | None = None
        """A vacuum that waits in the queue."""

    async def vacuum(self) -> None:
        """Remove deleted bytes from the file. Erasures that wait for it at the same time share one run, because it
        copies the whole file."""
        waiting = self._vacuum
        if waiting is None:
            waiting = self._vacuum = asyncio.ensure_future(self.writer.run(self._begin_vacuum))
        await asyncio.shield(waiting)

    def _begin_vacuum(self) -> None:
        self._vacuum = None  # an erasure after this point needs another run
        self.file.vacuum()

    def stop_threads(self) -> None:
        """Wait until all calls have ended, then end the threads; only where the file has its own."""
        self._writers.stop()
        self._readers.stop()


class StoreFiles:
    """The files of many stores; for one event loop."""

    def __init__(self) -> None:
        self._writers = WorkerThreads("foveal-write", threads=SHARED_THREADS)
        self._readers = WorkerThreads("foveal-read", threads=SHARED_THREADS)
        self._files: WeakValueDictionary[str, StoreFile] = WeakValueDictionary()
        self._used: OrderedDict[str, StoreFile] = OrderedDict()
        """The files that may have open connections, the least recently used first."""

    def get(self, path: str, timeout: float) -> StoreFile:
        """Return the file with this path, which all stores of it share."""
        known = self._files.get(path)
        if known is None:
            known = StoreFile(path, timeout=timeout, writers=self._writers, readers=self._readers)
            self._files[path] = known
        return known

    def use(self, file: StoreFile) -> None:
        """Keep the connections of a file that is about to be used, and close those of the least recently used."""
        path = file.file.path
        self._used[path] = file
        self._used.move_to_end(path)
        if len(self._used) > MAX_IDLE_FILES:
            _, oldest = self._used.popitem(last=False)
            # In the file's own queue: after the writes before it. A call after it opens the file again.
            oldest.writer.submit(oldest.file.release)

    async def close(self) -> None:
        """Wait for all calls, then close all files and end the threads."""
        while self._used:
            _, file = self._used.popitem()
            await file.writer.run(file.readers.wait_until_empty)
            await file.writer.run(file.file.close)
        self._writers.stop()
        self._readers.stop()


# ── Cache of session ends ────────────────────────────────────────────────────────────────────────────────

_MAX_CACHED_SESSIONS: Final = 10_000


class LastSeqCache:
    """Where sessions end, known without reading the file; for one event loop.

    SQLite's `data_version` changes when another connection has written to the file. While it is the same, a session
    ends where this store's last append left it.

    1. A read makes an end known, because it also tells whether the session is erased, and so does the append that
       creates the session. Other appends move a known end.
    2. Of appends to a session that overlap, the last one to return is not always the last one that was stored.
       After them the end is unknown until it is read again."""

    def __init__(self) -> None:
        self.changes: int = 0
        """Grows before and after each change: an end that was read while this changed must not be cached."""
        self._ends: dict[str, tuple[int, int]] = {}
        self._newest: dict[str, int] = {}
        """For sessions with an append in progress, the value of `changes` when the newest one began."""
        self._uncertain: set[str] = set()

    def version_of(self, session: str) -> int | None:
        """Return the version of the file at which the session's next seq was known; None if it is not known."""
        known = self._ends.get(session)
        return None if known is None else known[0]

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
    def appending(
        self, session: str, version: int | None, end: int, *, creates: bool = False
    ) -> Iterator[None]:
        """Cover an append after which the session's next seq is `end`; with `creates`, it fails if the session
        exists.

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
        if is_newest and (creates or (known is not None and known[0] == version)):
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
