"""Copy of a server's data between a folder, a store file and a PostgreSQL database.

1. A source is opened read-only and is never changed, not even migrated.
2. A target is created if it does not exist. It keeps what it has: a session or row that exists there with other
   content is an error, and is left as it is.
3. Everything is read back from the target and compared: events by their encoded bytes, rows column by column.
4. A copy that was interrupted is run again: it compares what is there, and continues after it.
5. A folder or store file that a server or chat uses is refused: the copy holds all of its session locks. A database
   is refused while a process holds a lease, runs jobs or is connected, at the beginning of the copy and at its end.
6. The order is: tokens, the sessions of each tenant, then the other tables. Rows of the tables that are already in
   the target are compared before the first session is copied, which takes long.

Copied: all sessions with titles, times, erasures and checkpoints, and the service's tables. Left out: the search
index, which the first search of a session builds again, and the job engine's own state: open jobs are handed to the
engine again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from foveal.errors import BadSetting, StoreUnusable
from foveal.server.checked_copy import (
    OTHER_TABLES,
    TOKENS_TABLE,
    CopiedStore,
    CopyProgress,
    ServiceTables,
    SessionTarget,
    TableCopySpec,
    check_table,
    copy_sessions,
    copy_table,
)
from foveal.server.databases.postgres_database import SERVICE_MIGRATIONS, PostgresDatabase
from foveal.server.databases.sqlite_database import SqliteDatabase
from foveal.server.storage import DataFolder
from foveal.stores import SqliteStore, check_tenant_name, is_postgres_url, other_url_error, require_postgres
from foveal.stores.postgres.connection import PostgresPool, SqlStatement, describe_url
from foveal.stores.postgres.schema import STORE_MIGRATIONS, migrate, schema_version
from foveal.stores.postgres.store import PostgresStore
from foveal.stores.sqlite.store_files import ReadOnlySqliteStore

if sys.platform != "win32":
    import fcntl


@contextmanager
def hold_unused(lock_file: Path, name: str, *, is_source: bool = False) -> Iterator[None]:
    """Hold all session locks in a file of them; raises `StoreUnusable` if another process holds one.

    Those of a source may be held by several copies, and their file is not written: if there is none, no server or
    chat has used the source."""
    if sys.platform == "win32" or not (lock_file if is_source else lock_file.parent).exists():
        yield
        return
    file = os.open(lock_file, os.O_RDONLY if is_source else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if is_source else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            advice = "; `--live` copies the sessions of a source that is in use" if is_source else ""
            raise StoreUnusable(
                f"{name} is used by a server, a chat or another copy, which holds a lock: end it first{advice}"
            ) from None
        yield
    finally:
        os.close(file)


ONLY_TENANT: Final = ""
"""The tenant of a store file, whose sessions have no tenant."""


class CopySource(NamedTuple):
    """An opened source."""

    name: str
    tenants: Sequence[str]
    open_store: Callable[[str], CopiedStore]
    tables: ServiceTables | None
    """None for a store file, and for a database that no server has used."""
    check_unused: Callable[[], Awaitable[None]]
    """Raises `StoreUnusable` if another process uses the source."""


class CopyTarget(NamedTuple):
    """An opened target."""

    name: str
    open_store: Callable[[str], SessionTarget]
    tables: ServiceTables | None
    check_unused: Callable[[], Awaitable[None]]


class CopyPlace(Protocol):
    """A source or target that is not open."""

    @property
    def name(self) -> str:
        """The path, or the URL without user and password; the same for the same place."""
        ...

    @property
    def is_file(self) -> bool:
        """Whether it is a store file, which holds the sessions of one tenant."""
        ...

    def source(self, *, is_live: bool) -> AbstractAsyncContextManager[CopySource]:
        """Open the place to read it; `is_live`: also if another process uses it."""
        ...

    def target(self) -> AbstractAsyncContextManager[CopyTarget]: ...


async def _held() -> None:
    """Do nothing: the locks are held for the whole copy."""


class _PathPlace:
    """A place on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return str(self.path.resolve())


# ── A folder ─────────────────────────────────────────────────────────────────────────────────────────────


class FolderPlace(_PathPlace):
    """The data folder of a server."""

    is_file: bool = False

    @asynccontextmanager
    async def source(self, *, is_live: bool) -> AsyncIterator[CopySource]:
        folder = DataFolder(self.path)
        service, files = self.path / "service.db", sorted((self.path / "tenants").glob("*.db"))
        if not service.is_file() and not files:
            raise StoreUnusable(
                f"{self.path} is not a server's data folder: it has neither service.db nor tenants/*.db; name the"
                " folder of `foveal serve`, a store file or a postgresql:// URL"
            )
        database = SqliteDatabase(service, is_read_only=True) if service.is_file() else None
        with hold_unused(folder.lock_file, str(self.path), is_source=True) if not is_live else nullcontext():
            try:
                yield CopySource(
                    str(self.path),
                    [check_tenant_name(file.stem) for file in files],
                    lambda tenant: ReadOnlySqliteStore(folder.tenant_file(tenant)),
                    None if database is None else ServiceTables(database, is_sqlite=True),
                    _held,
                )
            finally:
                if database is not None:
                    await database.close()

    @asynccontextmanager
    async def target(self) -> AsyncIterator[CopyTarget]:
        folder = DataFolder.create(self.path)
        with hold_unused(folder.lock_file, str(self.path)):
            database = folder.open_database()
            try:
                yield CopyTarget(
                    str(self.path),
                    # The file is written to disk when it is closed.
                    lambda tenant: SqliteStore(
                        folder.tenant_file(check_tenant_name(tenant)), durability="normal"
                    ),
                    ServiceTables(database, is_sqlite=True),
                    _held,
                )
            finally:
                await database.close()


# ── A store file ─────────────────────────────────────────────────────────────────────────────────────────


class FilePlace(_PathPlace):
    """The file of one store, as the command line and the library use it."""

    is_file: bool = True

    @asynccontextmanager
    async def source(self, *, is_live: bool) -> AsyncIterator[CopySource]:
        if not self.path.is_file():
            raise StoreUnusable(f"the store file {self.path} does not exist: check the path")
        with hold_unused(self._lock_file, str(self.path), is_source=True) if not is_live else nullcontext():
            yield CopySource(
                str(self.path), [ONLY_TENANT], lambda tenant: ReadOnlySqliteStore(self.path), None, _held
            )

    @asynccontextmanager
    async def target(self) -> AsyncIterator[CopyTarget]:
        with hold_unused(self._lock_file, str(self.path)):
            yield CopyTarget(
                str(self.path), lambda tenant: SqliteStore(self.path, durability="normal"), None, _held
            )

    @property
    def _lock_file(self) -> Path:
        """The session locks of `foveal chat`."""
        return self.path.with_name(f"{self.path.name}.locks")


TenantPairs: TypeAlias = list[tuple[str, str]]
"""A tenant of the source, and the one of the target that gets its sessions."""


def pair_tenants(source: CopySource, tenant: str | None, *, to_file: bool) -> TenantPairs:
    """Return which tenant is copied to which. `tenant` names the one of a store file, or the only one that is
    copied; raises `BadSetting`."""
    from_file = list(source.tenants) == [ONLY_TENANT]
    if tenant is not None and from_file and to_file:
        raise BadSetting("--tenant", tenant, "store files have no tenants")
    if from_file:
        return [(ONLY_TENANT, ONLY_TENANT if to_file else tenant or "default")]
    listed = ", ".join(source.tenants) or "no tenants"
    if tenant is not None and tenant not in source.tenants:
        raise BadSetting("--tenant", tenant, f"{source.name} has {listed}")
    names = source.tenants if tenant is None else [tenant]
    if not to_file:
        return [(name, name) for name in names]
    if len(names) != 1:
        raise BadSetting("--tenant", "", f"a store file holds one tenant; {source.name} has {listed}")
    return [(names[0], ONLY_TENANT)]


# ── A PostgreSQL database ────────────────────────────────────────────────────────────────────────────────

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


# ── The copy ─────────────────────────────────────────────────────────────────────────────────────────────


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
