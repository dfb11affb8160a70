"""The copy as a whole: tokens, the sessions of each tenant, then the other tables.

Rows of the tables that are already in the target are compared before the first session is copied, which takes long.

A PostgreSQL database as the source or target of a copy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from foveal.errors import BadSetting, StoreUnusable
from foveal.server.copying.places import (
    CopyPlace,
    CopySource,
    CopyTarget,
    FilePlace,
    FolderPlace,
    pair_tenants,
)
from foveal.server.copying.progress import CopyProgress
from foveal.server.copying.session_copy import copy_sessions
from foveal.server.copying.table_copy import (
    OTHER_TABLES,
    TOKENS_TABLE,
    ServiceTables,
    TableCopySpec,
    check_table,
    copy_table,
)
from foveal.server.databases.postgres_database import SERVICE_MIGRATIONS, PostgresDatabase
from foveal.stores import is_postgres_url, other_url_error, require_postgres
from foveal.stores.postgres.connection import PostgresPool, SqlStatement, describe_url
from foveal.stores.postgres.schema import STORE_MIGRATIONS, migrate, schema_version
from foveal.stores.postgres.store import PostgresStore

EXECUTOR_IN_USE_S: Final = 30
"""Seconds after its last heartbeat for which a process that runs jobs counts as running."""
MAX_DISCONNECT_S: Final = 10.0
"""Seconds that connections of ended processes may take to disappear from a busy server."""
CONNECTION_USERS: Final = "other connections of Foveal"

_USERS: Final = f"""
SELECT 'leases held', count(*) FROM foveal.lease WHERE until > clock_timestamp()
UNION ALL
SELECT 'servers that run jobs', count(*) FROM foveal.executors
    WHERE seen > clock_timestamp() - interval '{EXECUTOR_IN_USE_S} seconds'
UNION ALL
SELECT '{CONNECTION_USERS}', count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'foveal%%' AND pid <> pg_backend_pid()
"""


class DatabasePlace:
    """The database of servers, with all tenants."""

    is_file: bool = False

    def __init__(self, url: str) -> None:
        self._url = url
        self.name: str = describe_url(url)

    @asynccontextmanager
    async def source(self, *, is_live: bool) -> AsyncIterator[CopySource]:
        async with self._open_pool() as pool:
            has_service = await _check_versions(pool)
            statement = SqlStatement("SELECT DISTINCT tenant FROM foveal.session ORDER BY tenant")
            (rows,) = await pool.run(None, statement, snapshot=True)
            check = partial(
                _check_unused, pool, advice="; `--live` copies the sessions of a source that is in use"
            )
            if has_service and not is_live:
                await check()
            yield CopySource(
                pool.name,
                [tenant for (tenant,) in rows],
                lambda tenant: PostgresStore(pool, tenant),
                ServiceTables(PostgresDatabase(pool), is_sqlite=False) if has_service else None,
                check if has_service and not is_live else _unchecked,
            )

    @asynccontextmanager
    async def target(self) -> AsyncIterator[CopyTarget]:
        async with self._open_pool() as pool:
            await migrate(pool, "store", STORE_MIGRATIONS)
            await migrate(pool, "service", SERVICE_MIGRATIONS)
            await _check_unused(pool)
            yield CopyTarget(
                pool.name,
                lambda tenant: PostgresStore(pool, tenant, durable=False),
                ServiceTables(PostgresDatabase(pool), is_sqlite=False),
                partial(_check_unused, pool),
            )

    def _open_pool(self) -> PostgresPool:
        # One connection: any other one that is named as Foveal's belongs to another process.
        return PostgresPool(self._url, connections=1)


async def _unchecked() -> None:
    """Do nothing: the source may be in use."""


async def _check_versions(pool: PostgresPool) -> bool:
    """Raise `StoreUnusable` unless the tables have this version, because a source is not migrated; return whether
    there are tables of the service."""
    for component, migrations in (("store", STORE_MIGRATIONS), ("service", SERVICE_MIGRATIONS)):
        version, newest = await schema_version(pool, component), migrations[-1].version
        if version == 0 and component == "service":
            return False
        if version != newest:
            advice = (
                "check the URL"
                if version == 0
                else "run `foveal database migrate` on it first"
                if version < newest
                else "upgrade Foveal"
            )
            raise StoreUnusable(
                f"{pool.name} has version {version} of the {component} tables, and this version of Foveal copies"
                f" version {newest}: {advice}"
            )
    return True


async def _check_unused(pool: PostgresPool, *, advice: str = "") -> None:
    """Raise `StoreUnusable` if another process uses the database."""
    until = time.monotonic() + MAX_DISCONNECT_S
    while True:
        (rows,) = await pool.run(None, SqlStatement(_USERS), snapshot=True)
        users = {what: count for what, count in rows if count}
        if not users:
            return
        if users.keys() != {CONNECTION_USERS} or time.monotonic() > until:
            raise StoreUnusable(
                f"{pool.name} is used by other processes ({', '.join(f'{n} {what}' for what, n in users.items())}):"
                f" end them, and wait {EXECUTOR_IN_USE_S} s for those that were killed{advice}"
            )
        await asyncio.sleep(0.2)


def copy_place(text: str) -> CopyPlace:
    """Return the place that a user has named. A path that does not exist is a store file if it ends in `.db`."""
    if is_postgres_url(text):
        require_postgres()

        return DatabasePlace(text)
    if "://" in text:
        raise other_url_error(text, "a postgresql:// URL, a data folder or a store file")
    path = Path(text).expanduser().absolute()
    is_file = path.is_file() or (not path.exists() and path.suffix == ".db")
    return FilePlace(path) if is_file else FolderPlace(path)


async def copy_database(
    source: CopyPlace,
    target: CopyPlace,
    progress: CopyProgress,
    *,
    tenant: str | None = None,
    is_live: bool = False,
) -> None:
    """Copy everything from `source` to `target`, and compare it there.

    `tenant`: the tenant of a store file; between other places, copy only the sessions of this tenant. `is_live`:
    copy only the sessions, of a source that may be in use."""
    if source.name == target.name:
        raise BadSetting("TO", target.name, "another place than FROM")
    async with source.source(is_live=is_live) as opened:
        pairs = pair_tenants(opened, tenant, to_file=target.is_file)
        async with target.target() as into:
            has_tables = not is_live and tenant is None
            if has_tables:
                await _check_tables(opened, into)
                # First the tokens: a server on an incomplete target must not serve requests without one.
                await _copy_tables(opened, into, [TOKENS_TABLE], progress)
            for of_source, of_target in pairs:
                await _copy_tenant(opened, into, of_source, of_target, progress)
            if has_tables:
                await _copy_tables(opened, into, OTHER_TABLES, progress)
            await opened.check_unused()
            await into.check_unused()
            if into.tables is not None:
                # COMMIT writes what was not yet on the database's disk.
                await into.tables.database.check_writable()


async def _copy_tenant(
    source: CopySource, target: CopyTarget, of_source: str, of_target: str, progress: CopyProgress
) -> None:
    progress.begin(of_source or source.name)
    reader = source.open_store(of_source)
    try:
        writer = target.open_store(of_target)
        try:
            name = f"{target.name}, tenant {of_target}" if of_target else target.name
            await copy_sessions(reader, writer, name, progress)
        finally:
            await writer.close()
    finally:
        await reader.close()
    progress.tenants += 1


async def _check_tables(source: CopySource, target: CopyTarget) -> None:
    if source.tables is not None and target.tables is not None:
        for table in (TOKENS_TABLE, *OTHER_TABLES):
            await check_table(table, source.tables, target.tables, target.name)


async def _copy_tables(
    source: CopySource, target: CopyTarget, tables: Sequence[TableCopySpec], progress: CopyProgress
) -> None:
    if source.tables is not None and target.tables is not None:
        for table in tables:
            await copy_table(table, source.tables, target.tables, target.name, progress)
