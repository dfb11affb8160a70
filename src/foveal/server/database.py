"""The server's SQLite database: tokens, inbox, chats, schedules, jobs, digest index.

1. A `write` is one transaction and is durable when it returns. With `durable=False` it survives the end of the
   process, but a power cut may lose the newest writes.
2. Several processes may share the file. Each uses one thread for it, so the event loop never waits for the disk.
3. Only the file's owner can read it. A file that Foveal did not create is refused and left unchanged.
4. Each module that owns tables passes its schema to `create_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import apsw

from foveal.errors import StoreError, StoreUnusable
from foveal.stores.sqlite.connection import connect, create_file, translate_errors, use_wal
from foveal.stores.sqlite.threads import WorkerThreads

T = TypeVar("T")
Action = Callable[[apsw.Connection], T]

SERVER_APPLICATION_ID: Final = 0x466F7653
"""`FovS`: distinguishes this file from a store and from other programs' files."""
SERVER_SCHEMA_VERSION: Final = 1


class Database:
    def __init__(self, path: Path, *, timeout: float = 5.0) -> None:
        self.path = path
        self._pending_statements: list[str] = []
        self._timeout = timeout
        self._thread = WorkerThreads("foveal-database")
        self._connection: apsw.Connection | None = None
        self._closed = False

    def create_tables(self, statements: Sequence[str]) -> None:
        """Run these statements before the next transaction; they must do nothing if the tables exist."""
        self._pending_statements.extend(statements)

    async def write(self, act: Action[T], *, durable: bool = True) -> T:
        """Run `act` in a write transaction and return its result."""
        self._check_open()
        return await self._thread.run(lambda: self._run_transaction("BEGIN IMMEDIATE", act, durable=durable))

    async def read(self, act: Action[T]) -> T:
        """Run `act` in a read transaction: it sees one state of the database."""
        self._check_open()
        return await self._thread.run(lambda: self._run_transaction("BEGIN", act, durable=True))

    async def check_writable(self) -> None:
        """Raise `StoreUnusable` if the database cannot be written now."""
        await self.write(lambda connection: connection.pragma("user_version", SERVER_SCHEMA_VERSION))

    async def truncate_wal(self) -> None:
        """Remove deleted text from the files: only what the tables hold remains."""

        def act() -> None:
            with translate_errors(str(self.path)), suppress(apsw.BusyError):
                self._open().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        self._check_open()
        await self._thread.run(act)

    async def close(self) -> None:
        """Wait for running transactions, then close the file; closing twice does nothing."""
        if not self._closed:
            self._closed = True
            await self._thread.run(self._close)
            self._thread.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")

    # ── Runs in the thread ───────────────────────────────────────────────────────────────────────────

    def _run_transaction(self, begin: str, act: Action[T], *, durable: bool) -> T:
        with translate_errors(str(self.path)):
            connection = self._open()
            connection.pragma("synchronous", "full" if durable else "normal")
            connection.execute(begin)
            try:
                result = act(connection)
                connection.execute("COMMIT")
                return result
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            create_file(str(self.path))
            connection = connect(str(self.path), self._timeout)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        if self._pending_statements:
            self._run_pending_statements(self._connection)
        return self._connection

    def _prepare(self, connection: apsw.Connection) -> None:
        _refuse_foreign(connection, self.path)
        use_wal(connection, self._timeout)
        connection.wal_autocheckpoint(1_000)
        connection.pragma("secure_delete", 1)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.pragma("application_id", SERVER_APPLICATION_ID)
            connection.pragma("user_version", SERVER_SCHEMA_VERSION)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _run_pending_statements(self, connection: apsw.Connection) -> None:
        statements, self._pending_statements = self._pending_statements, []
        try:
            with connection:
                for statement in statements:
                    connection.execute(statement)
        except BaseException:
            self._pending_statements = statements + self._pending_statements
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # one snapshot: another process may be creating the file
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    tables = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get
    connection.execute("COMMIT")
    if application != SERVER_APPLICATION_ID and (application or tables):
        raise StoreUnusable(
            f"{path} is a store or another program's SQLite file; choose another `server.folder`"
        )
    if version > SERVER_SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} was written by a later version of Foveal (its schema is {version}, this version knows "
            f"{SERVER_SCHEMA_VERSION}); it was left unchanged: upgrade Foveal to use it"
        )
