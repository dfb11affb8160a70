"""The file of a store, for threads: one of them writes at a time, others read beside it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import apsw
import zstandard

from foveal.errors import StoreError, StoreUnusable, UnreadableEvent
from foveal.stores.compression import LinePacker
from foveal.stores.sqlite.full_text import TextIndex
from foveal.stores.sqlite.schema import migrate, refuse_at_sight, refuse_foreign

# ── faults ────────────────────────────────────────────────────────────────────────────────────────
# What SQLite reports, in words that say what to do.
#
# Whatever goes wrong, the transaction in progress is undone as a whole: what had been appended before is intact.

_ADVICE: Final[tuple[tuple[type[apsw.Error], str], ...]] = (
    (apsw.NotADBError, "is not a store, nor any other SQLite file: choose another path"),
    (
        apsw.CorruptError,
        "is damaged: copy it away, then restore a backup or run `sqlite3 FILE .recover` on the copy",
    ),
    (
        apsw.BusyError,
        "is locked by another process, which did not let go in time: end that process or try again",
    ),
    (apsw.LockedError, "is locked by another connection, which did not let go in time: try again"),
    (apsw.FullError, "could not grow, the disk is full: make room and try again; nothing was half written"),
    (
        apsw.ReadOnlyError,
        "cannot be written: the file, its folder or the disk is read-only; change that or the path",
    ),
    (apsw.PermissionsError, "may not be used by this user: change its owner or its permissions"),
    (
        apsw.CantOpenError,
        "cannot be opened: see that it and its folder exist and that this user may read and write both",
    ),
    (
        apsw.IOError,
        "could not be read or written: a quota or the disk is full, or the disk fails; make room and try again",
    ),
    (apsw.SchemaChangeError, "was changed by another program while in use: close it there and open it again"),
)


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turn errors of SQLite and of the compression into ours."""
    try:
        yield
    except apsw.TooBigError:
        raise StoreError(
            "an event is larger than SQLite can hold (1 GB): split it; nothing was stored"
        ) from None
    except apsw.Error as problem:
        raise StoreUnusable(f"{path} {_advice(problem)} ({problem})") from problem
    except UnicodeEncodeError:
        raise StoreError(
            "the path of a store and the id and title of a session must be valid Unicode; nothing was stored"
        ) from None
    except (zstandard.ZstdError, UnreadableEvent) as problem:
        raise StoreUnusable(f"{path} is damaged: an event in it cannot be read ({problem})") from problem


def _advice(problem: apsw.Error) -> str:
    for kind, advice in _ADVICE:
        if isinstance(problem, kind):
            return advice
    return "could not be used"


# ── opening ───────────────────────────────────────────────────────────────────────────────────────
# Opening a store's file: made for its owner only, recognised before anything is written to it.

Durability: TypeAlias = Literal["full", "normal"]
"""`full`: what was appended survives a power cut. `normal`: it survives the end of the process, and after a power
cut the newest appends may be missing, as if they had not been made."""

_LARGEST_WAL: Final = 8 << 20
"""Bytes that the file of the write-ahead log keeps after it was copied into the database."""


def opened(path: str, *, durability: Durability, timeout: float) -> apsw.Connection:
    """A connection that may write, to a file of this version's schema."""
    make(path)
    if not _has_log(path):
        _at_sight(path)
    connection = connected(path, timeout)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # a file that is refused stays as it is
        refuse_foreign(connection, path)
        if connection.readonly("main"):
            raise StoreUnusable(
                f"{path} cannot be written: change its permissions, or copy it to another place"
            )
        connection.pragma("secure_delete", 1)
        migrate(connection)
        use_wal(connection, timeout)
        connection.pragma("synchronous", durability)
        connection.pragma("journal_size_limit", _LARGEST_WAL)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        connection.close()
        raise
    return connection


def reader(path: str, *, timeout: float) -> apsw.Connection:
    """Another connection to a file that is open already; it never writes."""
    connection = connected(path, timeout)
    connection.pragma("query_only", 1)
    return connection


def connected(path: str, timeout: float) -> apsw.Connection:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(int(timeout * 1000))
    connection.wal_autocheckpoint(0)
    return connection


def make(path: str) -> None:
    """Make the file with the permissions that SQLite then gives to those beside it; leave an existing one."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreUnusable(f"{path} cannot be made: there is no folder {folder}; make it first")
    if os.path.isdir(path):
        raise StoreUnusable(f"{path} is a folder: name a file in it")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise StoreUnusable(f"{path} cannot be made ({problem.strerror}): choose another folder") from problem
    _settle(folder)


def _has_log(path: str) -> bool:
    try:
        return os.path.getsize(f"{path}-wal") > 0
    except OSError:
        return False


def _at_sight(path: str) -> None:
    try:
        refuse_at_sight(path)
    except OSError as problem:
        raise StoreUnusable(
            f"{path} cannot be read ({problem.strerror}): change its permissions, or the path"
        ) from problem


def _settle(folder: str) -> None:
    """Make sure that the new file's name survives a power cut."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written but not read, or a system without handles of folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def use_wal(connection: apsw.Connection, timeout: float) -> None:
    """Switch the file to the write-ahead log, which waits for no lock by itself."""
    until = time.monotonic() + timeout
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
            break
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreUnusable(
            f"{connection.filename} cannot use a write-ahead log here: is it on a network disk?"
        )


# ── file ──────────────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

PAGES: Final = 1_000
"""Pages in the write-ahead log from which on it is copied into the database."""


_KEYS: Final = 10_000


class OpenConnection(NamedTuple):
    """A connection and what goes with it; for one thread at a time."""

    connection: apsw.Connection
    cursor: apsw.Cursor
    """For what is done most often: to make one takes time."""
    packer: LinePacker
    words: TextIndex
    keys: dict[str, int]
    """Sessions whose key is known: it never changes."""

    @classmethod
    def to(cls, connection: apsw.Connection) -> OpenConnection:
        return cls(connection, connection.cursor(), LinePacker(), TextIndex(connection), {})

    def remember(self, session: str, key: int) -> None:
        if len(self.keys) >= _KEYS:
            self.keys.clear()
        self.keys[session] = key


Work = Callable[[OpenConnection], T]


class SqliteFile:
    def __init__(self, path: str, *, durability: Durability, timeout: float) -> None:
        self.path = path
        self.durability: Final = durability
        self._timeout = timeout
        self._lock = threading.Lock()
        self._writer: OpenConnection | None = None
        self._readers: deque[OpenConnection] = deque()
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

    def _new_reader(self) -> OpenConnection:
        with self._lock:
            self._open()
        return OpenConnection.to(reader(self.path, timeout=self._timeout))

    def open(self) -> None:
        with self._lock, told(self.path):
            self._open()

    def _open(self) -> OpenConnection:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed: open it again to use it")
        if self._writer is None:
            connection = opened(self.path, durability=self.durability, timeout=self._timeout)
            connection.set_wal_hook(self._grown)
            self._writer = OpenConnection.to(connection)
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

        def work(door: OpenConnection) -> None:
            door.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

        with suppress(StoreError):
            self.alone(work)
        self._fresh = True

    def scrub(self) -> None:
        """Leave nothing in the files but what the tables hold: deleted bytes survive in pages that were split,
        and in the write-ahead log."""

        def work(door: OpenConnection) -> None:
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


def in_transaction(door: OpenConnection, begin: str, work: Work[T]) -> T:
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
