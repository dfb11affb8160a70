"""A small SQLite file of the server's own, beside the stores: who may come in, what waits, what is due.

1. What `do` did is durable when it returns, all of it or nothing; with `lasting=False` it survives the end of the
   process, and after a power cut the newest of it may be missing.
2. Several processes may share the file. Each has one thread for it, so that no event loop waits for the disk.
3. The file is its owner's only, and one that is not ours is refused and left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import apsw

from foveal.errors import StoreError, StoreUnusable
from foveal.stores.sqlite.connection import connected, make, told, use_wal
from foveal.stores.sqlite.threads import WorkerThreads

T = TypeVar("T")
Act = Callable[[apsw.Connection], T]

APPLICATION: Final = 0x466F7653
"""`FovS`: what tells this file from a store and from other programs' files."""
VERSION: Final = 1


class Database:
    def __init__(self, path: Path, *, timeout: float = 5.0) -> None:
        self.path = path
        self._missing: list[str] = []
        self._timeout = timeout
        self._crew = WorkerThreads("foveal-database")
        self._connection: apsw.Connection | None = None
        self._closed = False

    def create_tables(self, statements: Sequence[str]) -> None:
        """Add the tables of one owner: the statements run before the next transaction. They must do nothing where
        the tables exist."""
        self._missing.extend(statements)

    async def do(self, act: Act[T], *, lasting: bool = True) -> T:
        """Change something, in a transaction of its own."""
        self._check_open()
        return await self._crew.do(lambda: self._carried_out("BEGIN IMMEDIATE", act, lasting=lasting))

    async def look(self, act: Act[T]) -> T:
        """Read one state of it."""
        self._check_open()
        return await self._crew.do(lambda: self._carried_out("BEGIN", act, lasting=True))

    async def prove(self) -> None:
        """That it can be written now; raises `StoreUnusable`."""
        await self.do(lambda connection: connection.pragma("user_version", VERSION))

    async def sweep(self) -> None:
        """Leave nothing in the files but what the tables hold."""

        def act() -> None:
            with told(str(self.path)), suppress(apsw.BusyError):
                self._opened().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        self._check_open()
        await self._crew.do(act)

    async def close(self) -> None:
        """Wait for what was asked for, then close the file; closing twice is fine."""
        if not self._closed:
            self._closed = True
            await self._crew.do(self._close)
            self._crew.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def _carried_out(self, begin: str, act: Act[T], *, lasting: bool) -> T:
        with told(str(self.path)):
            connection = self._opened()
            connection.pragma("synchronous", "full" if lasting else "normal")
            connection.execute(begin)
            try:
                done = act(connection)
                connection.execute("COMMIT")
                return done
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            make(str(self.path))
            connection = connected(str(self.path), self._timeout)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        if self._missing:
            self._create_missing(self._connection)
        return self._connection

    def _prepare(self, connection: apsw.Connection) -> None:
        _refuse_foreign(connection, self.path)
        use_wal(connection, self._timeout)
        connection.wal_autocheckpoint(1_000)
        connection.pragma("secure_delete", 1)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.pragma("application_id", APPLICATION)
            connection.pragma("user_version", VERSION)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _create_missing(self, connection: apsw.Connection) -> None:
        statements, self._missing = self._missing, []
        try:
            with connection:
                for statement in statements:
                    connection.execute(statement)
        except BaseException:
            self._missing = statements + self._missing
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # somebody else may just be making it
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    tables = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get
    connection.execute("COMMIT")
    if application != APPLICATION and (application or tables):
        raise StoreUnusable(
            f"{path} is a store or another program's SQLite file; choose another `server.folder`"
        )
    if version > VERSION:
        raise StoreUnusable(
            f"{path} was written by a later version of Foveal (its schema is {version}, this version knows "
            f"{VERSION}); it was left as it is: upgrade Foveal to use it"
        )
