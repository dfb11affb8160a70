"""Row-level security: a tenant's transaction sees and changes only the tenant's rows, whatever the SQL says.

The tests connect as a role that is neither the owner of the tables nor a superuser, as servers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from foveal.core.log import UserSaid
from foveal.errors import StoreUnusable
from foveal.ports import Checkpoint
from foveal.stores.postgres.connection import Connection, PostgresPool
from foveal.stores.postgres.schema import STORE_MIGRATIONS, STORE_TABLES, grant, migrate
from foveal.stores.postgres.store import PostgresStore
from support.postgres_server import database_url
from support.store_contract import LONG_TEXT, log, said

SECRET = f"the okapi of tenant B {LONG_TEXT}"
TABLES = tuple(f"foveal.{table}" for table in STORE_TABLES)


@pytest.fixture
def server_url(store_url: str) -> Iterator[str]:
    """The URL of a role that may only read and write rows; both tenants have a session `same`."""
    role = f"app_{uuid4().hex[:8]}"
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS".encode())
        url = database_url(store_url, store_url.partition("?")[0].rpartition("/")[2], user=role)
        asyncio.run(_fill(store_url, url, role))
        yield url
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


def test_the_owner_of_the_tables_is_isolated_too(postgres_url: str) -> None:
    role = f"owner_{uuid4().hex[:8]}"
    name = postgres_url.partition("?")[0].rpartition("/")[2]

    async def work() -> None:
        async with PostgresPool(database_url(postgres_url, name, user=role)) as pool:
            for tenant in "AB":
                await PostgresStore(pool, tenant).append("same", said(1))
            async with pool.transaction("A") as connection:
                assert await _fetch(connection, "SELECT tenant FROM foveal.session") == [("A",)]
                assert await _fetch(connection, "DELETE FROM foveal.event RETURNING tenant") == [("A",)]

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(f"GRANT CREATE ON DATABASE {name} TO {role}".encode())
        asyncio.run(work())
        connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
        connection.execute(f"DROP ROLE {role}".encode())


async def _fill(owner: str, url: str, role: str) -> None:
    async with PostgresPool(owner) as pool:
        await migrate(pool, "store", STORE_MIGRATIONS)
        await grant(pool, role)
    async with PostgresPool(url) as pool:
        for tenant, text in (("A", "of tenant A"), ("B", SECRET)):
            store = PostgresStore(pool, tenant)
            await store.append("same", log(UserSaid(content=text), UserSaid(content="more")))
            await store.keep_checkpoint("same", Checkpoint(seq=0, needed=(), state=text.encode()))
            await store.search("same", "okapi")
            async with pool.transaction(tenant) as connection:
                await connection.execute("INSERT INTO foveal.lease VALUES (%s, 'same', 1)", (tenant,))
        await PostgresStore(pool, "B").append("only of B", said(1))


async def _fetch(connection: Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    return await (await connection.execute(query.encode(), values)).fetchall()


def test_a_query_that_forgets_the_tenant_sees_only_its_rows(server_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(server_url) as pool:
            for table in TABLES:
                async with pool.transaction("A") as connection:
                    assert await _fetch(connection, f"SELECT DISTINCT tenant FROM {table}") in ([("A",)], [])
                    assert await _fetch(connection, f"SELECT 1 FROM {table} WHERE tenant = 'B'") == []
                async with pool.transaction("B") as connection:
                    assert await _fetch(connection, f"SELECT DISTINCT tenant FROM {table}") == [("B",)], table
                async with pool.transaction("C") as connection:
                    assert await _fetch(connection, f"SELECT count(*) FROM {table}") == [(0,)]

    asyncio.run(work())


def test_a_connection_without_a_tenant_sees_nothing(server_url: str) -> None:
    with psycopg.connect(server_url) as connection:
        for table in TABLES:
            assert connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() == (0,)
            assert connection.execute(f"DELETE FROM {table}".encode()).rowcount == 0
            connection.rollback()


def test_updates_and_deletes_that_forget_the_tenant_leave_others_alone(server_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(server_url) as pool:
            other = PostgresStore(pool, "B")
            before = await other.sessions(), await other.read("same"), await other.search("same", "okapi")
            async with pool.transaction("A") as connection:
                await connection.execute("UPDATE foveal.session SET title = 'changed', head = 0")
                await connection.execute("UPDATE foveal.event SET body = ''")
                assert await _fetch(connection, "UPDATE foveal.lease SET epoch = 9 RETURNING tenant") == [
                    ("A",)
                ]
            async with pool.transaction("A") as connection:
                for table in ("cut", "blob", *STORE_TABLES):
                    await connection.execute(f"DELETE FROM foveal.{table}".encode())
            assert (
                await other.sessions(),
                await other.read("same"),
                await other.search("same", "okapi"),
            ) == before
            assert await PostgresStore(pool, "A").sessions() == []

    asyncio.run(work())


def test_rows_cannot_be_written_for_another_tenant_nor_moved_to_it(server_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(server_url) as pool:
            for command in (
                "INSERT INTO foveal.lease VALUES ('B', 'new', 1)",
                "INSERT INTO foveal.lease VALUES ('B', 'same', 1) ON CONFLICT (tenant, name) DO"
                " UPDATE SET epoch = 5",
                "INSERT INTO foveal.blob VALUES ('B', '\\x00', '')",
                "UPDATE foveal.event SET tenant = 'B'",
                "UPDATE foveal.session SET tenant = 'B'",
            ):
                with pytest.raises(StoreUnusable, match="42501"):
                    async with pool.transaction("A") as connection:
                        await connection.execute(command.encode())

    asyncio.run(work())


def test_constraints_tell_nothing_of_other_tenants(server_url: str) -> None:
    """The same id, seq, blob and key succeed or fail alike, whether or not tenant B has them."""

    async def work() -> None:
        async with PostgresPool(server_url) as pool:
            store = PostgresStore(pool, "A")
            await store.append("only of B", log(UserSaid(content=SECRET)))
            await store.append("of no tenant", log(UserSaid(content=f"{SECRET} not stored before")))
            for insert in (
                "INSERT INTO foveal.cut VALUES ('A', {key}, 0, 0, 0, '\\x01')",
                "INSERT INTO foveal.event VALUES ('A', {key}, 0, gen_random_uuid(), 0, 0, '')",
            ):
                outcomes = {await _outcome(pool, insert.format(key=key)) for key in (1, 2, 3, 999)}
                assert len(outcomes - {"23505"}) <= 1, insert

    async def _outcome(pool: PostgresPool, command: str) -> str:
        try:
            async with pool.transaction("A") as connection:
                await connection.execute(command.encode())
                raise _UndoError
        except _UndoError:
            return "done"
        except Exception as problem:  # noqa: BLE001 - its kind is the outcome
            return "23505" if "23505" in str(problem) else type(problem).__name__

    asyncio.run(work())


class _UndoError(Exception):
    pass


def test_the_service_as_a_whole_may_see_all_tenants_when_it_says_so(server_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(server_url) as pool, pool.transaction(None) as connection:
            found = await _fetch(connection, "SELECT DISTINCT tenant FROM foveal.session ORDER BY 1")
            assert found == [("A",), ("B",)]

    asyncio.run(work())


def test_the_tenant_of_a_transaction_ends_with_it(server_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(server_url, connections=1) as pool:
            for options in ({}, {"snapshot": True}, {"durable": False}):
                async with pool.transaction("B", **options) as connection:
                    assert await _fetch(connection, "SELECT count(*) FROM foveal.session") == [(2,)]
                await connection.execute("SELECT 1")  # the same connection, outside of a transaction
                for setting in ("foveal.tenant", "foveal.all_tenants"):
                    assert await _fetch(connection, "SELECT current_setting(%s, true)", setting) == [("",)]

    asyncio.run(work())


def test_every_table_of_the_schema_with_a_tenant_is_isolated(postgres_url: str) -> None:
    async def work() -> None:
        async with PostgresPool(postgres_url) as pool:
            await migrate(pool, "store", STORE_MIGRATIONS)

    asyncio.run(work())
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT relname, relrowsecurity AND relforcerowsecurity FROM pg_class"
            " WHERE relnamespace = 'foveal'::regnamespace AND relkind = 'r'"
        ).fetchall()
    assert dict(found) == {**dict.fromkeys(STORE_TABLES, True), "schema_version": False}
