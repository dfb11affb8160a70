"""The service's database for tests: a SQLite file, or a database on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from foveal.server.databases import Database
from foveal.server.databases.sqlite_database import SqliteDatabase


@asynccontextmanager
async def open_database(place: Path | str) -> AsyncIterator[Database]:
    """Open the database in a folder, or that of a PostgreSQL URL."""
    if isinstance(place, Path):
        database: Database = SqliteDatabase(place / "service.db")
        try:
            yield database
        finally:
            await database.close()
        return
    from foveal.server.databases.postgres_database import PostgresDatabase
    from foveal.stores.postgres.connection import PostgresPool

    async with PostgresPool(place) as pool:
        database = PostgresDatabase(pool)
        yield database
        await database.close()


def place_of(text: str) -> Path | str:
    """Return the place that a process was given as an argument."""
    return text if text.startswith("postgresql:") else Path(text)


@contextmanager
def service_database_url() -> Iterator[str]:
    """Create a database with the tables of a service and of its store, and drop it afterwards."""
    from support import postgres_server

    url = postgres_server.fresh_database(template=_template())
    try:
        yield url
    finally:
        postgres_server.drop_database(url)


@contextmanager
def emptied_database_url() -> Iterator[str]:
    """Name a database with the same tables, all empty. The tests of a process use it one after the other, because
    emptying it takes less than half of the time of creating one; a test that changes tables needs its own."""
    import psycopg

    url = _shared_url()
    yield url
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute(
            "SET session_replication_role = replica"
        )  # no trigger keeps rows of the audit trail
        connection.execute("SET foveal.all_tenants = 'on'")
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = 'foveal' AND table_name <> 'schema_version'"
        )
        tables = [f"foveal.{name}" for (name,) in found.fetchall()]
        used = connection.execute(
            f"SELECT {', '.join(f'EXISTS (SELECT 1 FROM {table})' for table in tables)}".encode()
        ).fetchone()
        assert used is not None
        if changed := [table for table, has_rows in zip(tables, used, strict=True) if has_rows]:
            connection.execute(f"TRUNCATE {', '.join(changed)} RESTART IDENTITY CASCADE".encode())


@cache
def _shared_url() -> str:
    from support import postgres_server

    return postgres_server.fresh_database(template=_template())


@cache
def _template() -> str:
    """Create a database with the tables once per process: copying it is faster than migrating."""
    from support import postgres_server

    url = postgres_server.fresh_database()

    async def migrate() -> None:
        from foveal.server.databases.postgres_database import PostgresDatabase
        from foveal.stores.postgres.connection import PostgresPool
        from foveal.stores.postgres.store import PostgresStore

        async with PostgresPool(url) as pool:
            await PostgresDatabase(pool).check_writable()
            await PostgresStore(pool, "default").sessions()

    asyncio.run(migrate())
    return urlsplit(url).path[1:]


def tables_with(url: str, word: str) -> list[str]:
    """Return the tables that have a word in any row."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("SET foveal.all_tenants = 'on'")
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'foveal'"
        tables = [name for (name,) in connection.execute(sql).fetchall()]
        rows = {table: connection.execute(f"SELECT * FROM foveal.{table}").fetchall() for table in tables}
        return [table for table in tables if word in str(rows[table]).lower()]
