"""A server's data in a PostgreSQL database that the processes of several machines share.

Everything of one process uses one pool of connections, and one more connection listens for wake-ups. A store
refuses to write for a process whose lease on the session was taken over.
"""

from __future__ import annotations

from pathlib import Path

from foveal.ports import Store
from foveal.server.databases import Database
from foveal.server.databases.postgres_database import PostgresDatabase
from foveal.stores.postgres.connection import MAX_CONNECTIONS, PostgresPool, SqlStatement
from foveal.stores.postgres.leases import LEASE_TIMES, LeaseTimes, PostgresWakeups, SessionLeases
from foveal.stores.postgres.store import PostgresStore
from foveal.stores.session_locks import Locks


class PostgresStorage:
    """`Storage` in a database. It connects when it is first used."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = MAX_CONNECTIONS,
        times: LeaseTimes = LEASE_TIMES,
        listens: bool = True,
    ) -> None:
        """`connections`: the most that the pool opens; `listens=False`: poll instead of using LISTEN and NOTIFY."""
        self._url = url
        self._pool = PostgresPool(url, connections=connections)
        self.wakeups: PostgresWakeups = PostgresWakeups(self._pool, url, listens=listens)
        self._leases = SessionLeases(self._pool, self.wakeups, times=times)

    @property
    def place(self) -> str:
        return self._pool.name

    @property
    def folder(self) -> Path | None:
        return None

    @property
    def jobs_database_url(self) -> str:
        return self._url

    def open_database(self) -> Database:
        return PostgresDatabase(self._pool, epoch_of=self._leases.epoch)

    def open_locks(self) -> Locks:
        return self._leases

    def open_store(self, tenant: str, *, durable: bool = True) -> Store:
        def epoch_of(session: str) -> int | None:
            return self._leases.epoch(tenant, session)

        return PostgresStore(self._pool, tenant, epoch_of=epoch_of, durable=durable)

    async def tenants(self) -> list[str]:
        statement = SqlStatement("SELECT DISTINCT tenant FROM foveal.session ORDER BY tenant")
        (rows,) = await self._pool.run(None, statement, snapshot=True)
        return [tenant for (tenant,) in rows]

    async def close(self) -> None:
        await self._leases.close()
        await self.wakeups.close()
        await self._pool.close()
