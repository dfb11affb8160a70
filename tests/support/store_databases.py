"""One PostgreSQL database with the tables of a store for all tests of a process, emptied before each of them.

Creating a database, its tables and dropping it takes longer than most tests of the store. A test takes an empty
database (`postgres_url`) if it changes the tables, their rights or the database itself.
"""

from __future__ import annotations

import asyncio
from functools import cache

import psycopg

from foveal.stores.postgres.connection import PostgresPool
from foveal.stores.postgres.schema import STORE_MIGRATIONS, STORE_TABLES, migrate
from support.postgres_server import fresh_database

_END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
"""Ends the connections that a test has left open; dropping its database would end them too."""


def emptied_database() -> str:
    """Return the URL of the database, without any rows."""
    url = _database()
    tables = ", ".join(f"foveal.{table}" for table in STORE_TABLES)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_END_OTHERS.encode())
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE".encode())
    return url


@cache
def _database() -> str:
    url = fresh_database()

    async def create_tables() -> None:
        async with PostgresPool(url) as pool:
            await migrate(pool, "store", STORE_MIGRATIONS)

    asyncio.run(create_tables())
    return url
