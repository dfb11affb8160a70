"""The server's database in PostgreSQL, shared by the processes of several machines.

1. A transaction whose connection breaks before COMMIT is run again; it has changed nothing. If the connection
   breaks during COMMIT, only a `repeatable` act is run again: running it twice is the same as running it once.
2. A transaction of a tenant sees only the tenant's rows: row-level security enforces it.
3. PostgreSQL's `text` has no NUL, so a text that contains one is stored with escapes.
"""

from __future__ import annotations

import time
from asyncio import Lock
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

from foveal.errors import LeaseLost, StoreError
from foveal.server.databases.database import Act, RowValues, Transaction
from foveal.server.databases.postgres_schema import SERVICE_MIGRATIONS
from foveal.stores.postgres.connection import Connection, ConnectionLost, PostgresPool
from foveal.stores.postgres.schema import STORE_MIGRATIONS, migrate
from foveal.stores.postgres.text_values import from_text, to_key, to_text

T = TypeVar("T")
EpochOf = Callable[[str, str], int | None]
"""Returns the epoch of the lease that this process holds on a tenant's session; None without one."""


class PostgresDatabase:
    def __init__(self, pool: PostgresPool, *, epoch_of: EpochOf = lambda tenant, session: None) -> None:
        """The pool is not closed by this object."""
        self._pool = pool
        self._epoch_of = epoch_of
        self._migrating = Lock()
        self._has_tables = False
        self._closed = False

    async def write(
        self, act: Act[T], *, tenant: str | None = None, durable: bool = True, repeatable: bool = False
    ) -> T:
        """Run `act` in a write transaction and return its result."""
        return await self._run(act, repeatable=repeatable, tenant=tenant, durable=durable)

    async def read(self, act: Act[T], *, tenant: str | None = None) -> T:
        """Run `act` in a read transaction: it sees one state of the database."""
        return await self._run(act, repeatable=True, tenant=tenant, snapshot=True)

    async def check_writable(self) -> None:
        """Raise `StoreUnusable` if the database cannot be written now."""

        async def act(db: Transaction) -> None:
            await db.execute("DELETE FROM rooms WHERE tenant = ''")  # no tenant has this name
            await db.fetch("SELECT pg_current_xact_id()")  # COMMIT then writes, even if nothing was deleted

        await self.write(act)

    async def remove_deleted_text(self) -> None:
        """Do nothing: the rows are gone, and VACUUM reuses their space."""

    async def close(self) -> None:
        """Refuse further transactions; closing twice does nothing."""
        self._closed = True

    async def _run(self, act: Act[T], *, repeatable: bool, tenant: str | None, **options: Any) -> T:
        until = time.monotonic() + self._pool.wait_s
        await self._create_tables()
        while True:
            try:
                async with self._pool.transaction(tenant, **options) as connection:
                    return await act(_PostgresTransaction(connection, self._epoch_of))
            except ConnectionLost as problem:
                if (problem.outcome_unknown and not repeatable) or time.monotonic() > until:
                    raise

    async def _create_tables(self) -> None:
        if self._closed:
            raise StoreError(f"{self._pool.name} is closed")
        if not self._has_tables:
            async with self._migrating:
                await migrate(self._pool, "store", STORE_MIGRATIONS)  # leases are in a table of the store
                await migrate(self._pool, "service", SERVICE_MIGRATIONS)
                self._has_tables = True


class _PostgresTransaction:
    def __init__(self, connection: Connection, epoch_of: EpochOf) -> None:
        self._connection = connection
        self._epoch_of = epoch_of

    async def fetch(self, sql: str, *values: Any) -> list[RowValues]:
        cursor = await self._connection.execute(_with_marks(sql), _storable(values))
        return [_original(row) for row in await cursor.fetchall()]

    async def execute(self, sql: str, *values: Any) -> int:
        return (await self._connection.execute(_with_marks(sql), _storable(values))).rowcount

    async def execute_many(self, sql: str, rows: Iterable[RowValues]) -> None:
        values = [_storable(row) for row in rows]
        if values:
            await self._connection.cursor().executemany(_with_marks(sql), values)

    async def lock(self, name: str) -> None:
        await self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_key(name),))

    async def try_lock(self, name: str) -> bool:
        cursor = await self._connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (_lock_key(name),))
        return (await cursor.fetchall())[0][0] is True

    async def check_lease(self, tenant: str, session: str) -> None:
        epoch = self._epoch_of(tenant, session)
        if epoch is None:
            return
        sql = "SELECT 1 FROM lease WHERE tenant = %s AND name = %s AND epoch = %s FOR SHARE"
        cursor = await self._connection.execute(sql, (tenant, to_key(session), epoch))
        if not await cursor.fetchall():
            raise LeaseLost(session)


@lru_cache
def _with_marks(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _storable(values: Iterable[Any]) -> list[Any]:
    return [to_text(value) if isinstance(value, str) else value for value in values]


def _original(row: RowValues) -> RowValues:
    return tuple(from_text(value) if isinstance(value, str) else value for value in row)


def _lock_key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)
