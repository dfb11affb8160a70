"""The file of a store, for threads: one of them writes at a time, others read beside it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import apsw

from foveal.errors import StoreError, StoreUnusable
from foveal.stores.blobs import Packer
from foveal.stores.faults import told
from foveal.stores.opening import Durability, opened, reader
from foveal.stores.text_index import TextIndex

T = TypeVar("T")

PAGES: Final = 1_000
"""Pages in the write-ahead log from which on it is copied into the database."""


_KEYS: Final = 10_000


class Door(NamedTuple):
    """A connection and what goes with it; for one thread at a time."""

    connection: apsw.Connection
    cursor: apsw.Cursor
    """For what is done most often: to make one takes time."""
    packer: Packer
    words: TextIndex
    keys: dict[str, int]
    """Sessions whose key is known: it never changes."""

    @classmethod
    def to(cls, connection: apsw.Connection) -> Door:
        return cls(connection, connection.cursor(), Packer(), TextIndex(connection), {})

    def remember(self, session: str, key: int) -> None:
        if len(self.keys) >= _KEYS:
            self.keys.clear()
        self.keys[session] = key


Work = Callable[[Door], T]


class File:
    def __init__(self, path: str, *, durability: Durability, timeout: float) -> None:
        self.path = path
        self.durability: Final = durability
        self._timeout = timeout
        self._lock = threading.Lock()
        self._writer: Door | None = None
        self._readers: deque[Door] = deque()
        self._closed = False
        self._pages = 0
        self._settle_at = PAGES
        self._fresh = True
        """Whether the next write begins the log anew, which waits for the disk at any durability."""

    def write(self, work: Work[T]) -> T:
        """Do the work in one transaction of its own; waits for its turn."""
        return self.alone(lambda door: in_transaction(door, "BEGIN IMMEDIATE", work))

    def alone(self, work: Work[T]) -> T:
        """Do the work while nobody else in this process writes; waits for its turn."""
        with self._lock, told(self.path):
            door = self._open()
            door.connection.set_busy_timeout(int(self._timeout * 1000))
            try:
                done = work(door)
            finally:
                door.connection.set_busy_timeout(0)
            self._fresh = False
            return done

    def at_once(self, work: Work[bool]) -> bool:
        """Do the work if nothing at all has to be waited for, and tell whether it was done. What goes wrong is
        left to `alone`, which will meet it again."""
        if self.durability == "full" or self._fresh or not self._lock.acquire(blocking=False):
            return False
        try:
            return self._writer is not None and work(self._writer)
        except apsw.Error:
            return False
        finally:
            self._lock.release()

    def version(self) -> int | None:
        """A number that changes when anybody else has written into the file; None when that cannot be told without
        waiting."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._writer is None:
                return None
            found: int = self._writer.cursor.execute("PRAGMA data_version").get
            return found
        except apsw.Error:
            return None
        finally:
            self._lock.release()

    def read(self, work: Work[T]) -> T:
        """Do the work on one state of the database, whatever is written meanwhile."""
        with told(self.path):
            try:
                door = self._readers.pop()
            except IndexError:
                door = self._new_reader()
            try:
                return in_transaction(door, "BEGIN", work)
            finally:
                self._readers.append(door)

    def _new_reader(self) -> Door:
        with self._lock:
            self._open()
        return Door.to(reader(self.path, timeout=self._timeout))

    def open(self) -> None:
        with self._lock, told(self.path):
            self._open()

    def _open(self) -> Door:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed: open it again to use it")
        if self._writer is None:
            connection = opened(self.path, durability=self.durability, timeout=self._timeout)
            connection.set_wal_hook(self._grown)
            self._writer = Door.to(connection)
        return self._writer

    # ── the write-ahead log ──────────────────────────────────────────────────────────────────────────────

    def _grown(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:
            self._settle_at = PAGES
        self._pages = pages
        return apsw.SQLITE_OK

    @property
    def unsettled(self) -> bool:
        """Whether the log has become long; told once for every so many pages."""
        if self._pages < self._settle_at:
            return False
        self._settle_at = self._pages + PAGES
        return True

    def settle(self) -> None:
        """Copy the log into the database. If that fails nothing is lost, and it is tried again later."""

        def work(door: Door) -> None:
            door.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

        with suppress(StoreError):
            self.alone(work)
        self._fresh = True

    def scrub(self) -> None:
        """Leave nothing in the files but what the tables hold: deleted bytes survive in pages that were split,
        and in the write-ahead log."""

        def work(door: Door) -> None:
            door.connection.execute("VACUUM")
            door.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        try:
            self.alone(work)
        except StoreUnusable as problem:
            raise StoreUnusable(
                "the log no longer has the erased text, but the files may still have it: "
                f"erase again when this is solved: {problem}"
            ) from problem
        self._fresh = True

    def close(self) -> None:
        with self._lock, told(self.path):
            self._closed = True
            while self._readers:
                self._readers.pop().connection.close()
            if self._writer:
                self._writer.connection.close()
                self._writer = None


def in_transaction(door: Door, begin: str, work: Work[T]) -> T:
    """All of it or nothing; `work` may raise."""
    connection = door.connection
    connection.execute(begin)
    try:
        done = work(door)
        connection.execute("COMMIT")
        return done
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
