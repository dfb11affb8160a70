"""Connections to a store's SQLite file: opening, transactions, write-ahead log, errors.

1. `SqliteFile` holds one connection that writes, used by one thread at a time, and a pool of connections that read
   beside it.
2. A new file belongs to its owner only (mode 0600). A file of another program, or of a later version of Foveal, is
   refused before anything is written to it.
3. When anything fails, the current transaction is undone as a whole: what was appended before is intact. Errors of
   SQLite and zstd become `StoreError`s that say what to do.
"""

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
from foveal.stores.sqlite.full_text import FullTextIndex
from foveal.stores.sqlite.schema import check_database, check_header, migrate

# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────

_DAMAGE_ADVICE: Final = (
    "is damaged: copy it away, then restore a backup or run `sqlite3 FILE .recover` on the copy"
)
_ADVICE: Final[tuple[tuple[type[apsw.Error], str], ...]] = (
    (apsw.NotADBError, "is not a store, nor any other SQLite file: choose another path"),
    (apsw.CorruptError, _DAMAGE_ADVICE),
    (
        apsw.BusyError,
        "is locked by another process, which did not release it in time: end that process or try again",
    ),
    (apsw.LockedError, "is locked by another connection, which did not release it in time: try again"),
    (apsw.FullError, "could not grow, the disk is full: make room and try again; nothing was half written"),
    (
        apsw.ReadOnlyError,
        "cannot be written: the file, its folder or the disk is read-only; change that or the path",
    ),
    (apsw.PermissionsError, "is not accessible to this user: change its owner or its permissions"),
    (
        apsw.CantOpenError,
        "cannot be opened: check that it and its folder exist and that this user may read and write both",
    ),
    (
        apsw.IOError,
        "could not be read or written: a quota or the disk is full, or the disk fails; make room and try again",
    ),
    (apsw.SchemaChangeError, "was changed by another program while in use: close it there and open it again"),
)


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise errors of SQLite and zstd as `StoreError`s."""
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
    except (zstandard.ZstdError, UnreadableEvent, UnicodeDecodeError) as problem:
        raise StoreUnusable(f"{path} {_DAMAGE_ADVICE} ({problem})") from problem


def _advice(problem: apsw.Error) -> str:
    for kind, advice in _ADVICE:
        if isinstance(problem, kind):
            return advice
    return "could not be used"


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────────────

Durability: TypeAlias = Literal["full", "normal"]
"""What survives a power cut: `"full"` everything, `"normal"` all but the newest appends."""

_MAX_WAL_FILE_BYTES: Final = 8 << 20
"""Size to which SQLite shortens the file of the write-ahead log after a checkpoint."""


def open_writer(path: str, *, timeout: float) -> apsw.Connection:
    """Return a connection that writes; the file is created or migrated to this version's schema."""
    create_file(path)
    if not _has_wal(path):  # otherwise the header may be older than the log: `check_database` reads both
        _check_readable_header(path)
    connection = connect(path, timeout)
    try:
        # No checkpoint on close before the file is accepted: a file that is refused stays as it is.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        with connection:  # one snapshot: another process may be creating the file
            check_database(connection, path)
        if connection.readonly("main"):
            raise StoreUnusable(
                f"{path} cannot be written: change its permissions, or copy it to another place"
            )
        connection.pragma("secure_delete", 1)
        migrate(connection)
        use_wal(connection, timeout)
        connection.pragma("synchronous", "full")
        connection.pragma("journal_size_limit", _MAX_WAL_FILE_BYTES)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: str, *, timeout: float) -> apsw.Connection:
    """Return a connection that never writes, to a file that is already open."""
    connection = connect(path, timeout)
    connection.pragma("query_only", 1)
    return connection


def connect(path: str, timeout: float) -> apsw.Connection:
    """Return a connection to an existing file that waits `timeout` seconds for locks."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(int(timeout * 1000))
    connection.wal_autocheckpoint(0)  # `SqliteFile.checkpoint_wal` does it, outside of appends
    return connection


def create_file(path: str) -> None:
    """Create the file with mode 0600, which SQLite copies to the files beside it; leave an existing file alone."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreUnusable(f"{path} cannot be created: there is no folder {folder}; create it first")
    if os.path.isdir(path):
        raise StoreUnusable(f"{path} is a folder: name a file in it")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise StoreUnusable(
            f"{path} cannot be created ({problem.strerror}): choose another folder"
        ) from problem
    _sync_folder(folder)


def _has_wal(path: str) -> bool:
    try:
        return os.path.getsize(f"{path}-wal") > 0
    except OSError:
        return False


def _check_readable_header(path: str) -> None:
    try:
        check_header(path)
    except OSError as problem:
        raise StoreUnusable(
            f"{path} cannot be read ({problem.strerror}): change its permissions, or the path"
        ) from problem


def _sync_folder(folder: str) -> None:
    """Write the folder to disk, so that the new file's name survives a power cut."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # the folder may be writable but not readable, or the system cannot open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def use_wal(connection: apsw.Connection, timeout: float) -> None:
    """Switch the file to a write-ahead log; retries, because SQLite does not apply the busy timeout to this."""
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


# ── The file ─────────────────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

CHECKPOINT_PAGES: Final = 1_000
"""Pages of the write-ahead log after which it is copied into the database."""

_MAX_CACHED_KEYS: Final = 10_000


class StoreConnection(NamedTuple):
    """A connection with its packer, index and caches; for one thread at a time."""

    connection: apsw.Connection
    cursor: apsw.Cursor
    """Reused by the most frequent statements, because creating a cursor takes time."""
    packer: LinePacker
    text_index: FullTextIndex
    session_keys: dict[str, int]
    """Keys of sessions by id. A session's key never changes."""

    @classmethod
    def wrap(cls, connection: apsw.Connection) -> StoreConnection:
        """Return the connection with empty caches."""
        return cls(connection, connection.cursor(), LinePacker(), FullTextIndex(connection), {})

    def remember_key(self, session: str, key: int) -> None:
        """Cache the key of a session."""
        if len(self.session_keys) >= _MAX_CACHED_KEYS:
            self.session_keys.clear()
        self.session_keys[session] = key


Work = Callable[[StoreConnection], T]


class SqliteFile:
    """The file of one store, shared by the threads of this process. All methods block.

    A write has the durability of its caller: two stores of different durability may share the file."""

    def __init__(self, path: str, *, timeout: float) -> None:
        self.path = path
        self._timeout = timeout
        self._durability: Durability = "full"
        """That of the last write; a new connection has `full`."""
        self._opened = 0
        """How often the file was opened."""
        self._lock = threading.Lock()
        self._writer: StoreConnection | None = None
        self._readers: deque[StoreConnection] = deque()
        self._closed = False
        self._wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._wal_restarts = True
        """Whether the next write starts the write-ahead log again, which waits for the disk at any durability."""

    def write(self, work: Work[T], durability: Durability) -> T:
        """Run `work` in a transaction of its own, after the writers before it."""
        return self.exclusive(lambda db: in_transaction(db, "BEGIN IMMEDIATE", work), durability)

    def exclusive(self, work: Work[T], durability: Durability) -> T:
        """Run `work` while no other thread of this process writes, after the writers before it."""
        with self._lock, translate_errors(self.path):
            db = self._open()
            self._set_durability(db, durability)
            db.connection.set_busy_timeout(int(self._timeout * 1000))
            try:
                result = work(db)
            finally:
                db.connection.set_busy_timeout(0)  # `try_now` and `data_version` must not wait
            self._wal_restarts = False
            return result

    def try_now(self, work: Work[bool]) -> bool:
        """Run `work` with durability `normal` if that waits for no lock and no disk; return whether it was done.

        Errors are ignored here: the caller then uses `exclusive`, which raises them."""
        if self._wal_restarts or not self._lock.acquire(blocking=False):
            return False
        try:
            if self._writer is None:
                return False
            self._set_durability(self._writer, "normal")
            return work(self._writer)
        except apsw.Error:
            return False
        finally:
            self._lock.release()

    def _set_durability(self, db: StoreConnection, durability: Durability) -> None:
        if durability != self._durability:
            db.connection.pragma("synchronous", durability)
            self._durability = durability

    def data_version(self) -> int | None:
        """Return a number that changes when another connection writes the file, or this process opens it again;
        None if reading it would wait."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._writer is None:
                return None
            found: int = self._writer.cursor.execute("PRAGMA data_version").get
            return self._opened << 32 | found
        except apsw.Error:
            return None
        finally:
            self._lock.release()

    def read(self, work: Work[T]) -> T:
        """Run `work` on one state of the database, whatever is written meanwhile."""
        with translate_errors(self.path):
            try:
                db = self._readers.pop()
            except IndexError:
                db = self._new_reader()
            opened = self._opened
            try:
                return in_transaction(db, "BEGIN", work)
            finally:
                if self._writer is not None and self._opened == opened:
                    self._readers.append(db)
                else:  # the file was released meanwhile
                    db.connection.close()

    def _new_reader(self) -> StoreConnection:
        with self._lock:
            self._open()
        return StoreConnection.wrap(open_reader(self.path, timeout=self._timeout))

    def open(self) -> None:
        """Open the file for writing, unless it is open."""
        with self._lock, translate_errors(self.path):
            self._open()

    def _open(self) -> StoreConnection:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed: open it again to use it")
        if self._writer is None:
            connection = open_writer(self.path, timeout=self._timeout)
            connection.set_wal_hook(self._record_wal_size)
            self._writer = StoreConnection.wrap(connection)
            self._opened += 1
            self._durability = "full"
            self._wal_pages, self._checkpoint_at, self._wal_restarts = 0, CHECKPOINT_PAGES, True
        return self._writer

    # ── Write-ahead log ──────────────────────────────────────────────────────────────────────────────────

    def _record_wal_size(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # the log was copied, and started again
            self._checkpoint_at = CHECKPOINT_PAGES
        self._wal_pages = pages
        return apsw.SQLITE_OK

    @property
    def needs_wal_checkpoint(self) -> bool:
        """Whether the log has grown by `CHECKPOINT_PAGES` since this was last true."""
        if self._wal_pages < self._checkpoint_at:
            return False
        self._checkpoint_at = self._wal_pages + CHECKPOINT_PAGES
        return True

    def checkpoint_wal(self) -> None:
        """Copy the log into the database. If that fails, nothing is lost and a later call tries again."""

        def work(db: StoreConnection) -> None:
            db.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

        with suppress(StoreError):
            self.exclusive(work, "full")
        self._wal_restarts = True

    def vacuum(self) -> None:
        """Remove deleted bytes from the files: they survive in pages that were split and in the write-ahead log."""

        def work(db: StoreConnection) -> None:
            db.connection.execute("VACUUM")
            db.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        try:
            self.exclusive(work, "full")
        except StoreUnusable as problem:
            raise StoreUnusable(
                "the text was erased from the log, but deleted bytes may remain in the files: "
                f"erase again after fixing this: {problem}"
            ) from problem
        self._wal_restarts = True

    def release(self) -> None:
        """Close all connections that are not in use; the next call opens the file again."""
        with self._lock, translate_errors(self.path):
            self._close_connections()

    def close(self) -> None:
        """Close all connections; later calls raise `StoreError`."""
        with self._lock, translate_errors(self.path):
            self._closed = True
            self._close_connections()

    def _close_connections(self) -> None:
        while self._readers:
            self._readers.pop().connection.close()
        if self._writer:
            writer, self._writer = self._writer, None
            writer.connection.close()


def in_transaction(db: StoreConnection, begin: str, work: Work[T]) -> T:
    """Run `work` in a transaction that is undone when it raises."""
    connection = db.connection
    connection.execute(begin)
    try:
        result = work(db)
        connection.execute("COMMIT")
        return result
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
