"""The store on PostgreSQL: the contract of every store, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psycopg
from hypothesis import settings

from foveal.core.log import UserSaid
from foveal.ports import Checkpoint, Store
from foveal.stores.postgres.connection import PostgresPool
from foveal.stores.postgres.sql_statements import session_page
from foveal.stores.postgres.store import PostgresStore
from support.effort import examples
from support.postgres_server import fresh_database
from support.store_contract import LONG_TEXT, Contract, StoreMachine, log


@cache
def shared_database() -> str:
    """The database of all tests in this file that need no empty one: each has a tenant of its own."""
    return fresh_database()


def make(path: Path, clock: Callable[[], float]) -> Store:
    pool = PostgresPool(shared_database(), connections=4)
    return PostgresStore(pool, tenant=str(path), clock=clock, owns_pool=True)


class TestPostgresStore(Contract):
    make = staticmethod(make)


class PostgresMachine(StoreMachine):
    make = staticmethod(make)


class TestPostgresAnyOrder(PostgresMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(examples(8), stateful_step_count=25)


def test_erasing_deletes_every_row_with_a_text_and_keeps_what_others_use(store_url: str) -> None:
    shared, own = f"shared {LONG_TEXT}", f"okapi of one session {LONG_TEXT}"

    async def work() -> None:
        async with PostgresStore(PostgresPool(store_url), owns_pool=True) as store:
            await store.append("kept", log(UserSaid(content=shared)))
            await store.append("gone", log(UserSaid(content=shared), UserSaid(content=own)))
            await store.keep_checkpoint("gone", Checkpoint(seq=1, needed=(), state=b"okapi"))
            await store.rename("gone", "okapi")
            await store.search("gone", "okapi")
            before = rows(store_url)
            assert before == {"blob": 2, "cut": 3, "checkpoint": 1, "search_progress": 1, "search_piece": 42}
            await store.erase("gone")
            assert rows(store_url) == {"blob": 1, "cut": 1}
            assert await store.read("kept") == log(UserSaid(content=shared))

    asyncio.run(work())


def rows(url: str) -> dict[str, int]:
    """How many rows the tables with texts and caches have, without the empty ones."""
    tables = ("blob", "cut", "checkpoint", "search_progress", "search_piece")
    with psycopg.connect(url) as connection:
        found = {
            table: connection.execute(f"SELECT count(*) FROM foveal.{table}".encode()).fetchall()[0][0]
            for table in tables
        }
        words = connection.execute("SELECT count(*) FROM foveal.search_term").fetchall()[0][0]
    assert (words > 0) == (found["search_progress"] > 0)
    return {table: count for table, count in found.items() if count}


def test_a_page_of_sessions_is_read_from_the_index(store_url: str) -> None:
    async def work() -> None:
        async with PostgresStore(PostgresPool(store_url), owns_pool=True) as store:
            await store.append("a", log(UserSaid(content="x")))
            async with store._pool.transaction(store.tenant) as connection:
                await connection.execute(
                    "INSERT INTO foveal.session (tenant, id, created, active, head, bytes, erasures)"
                    " SELECT 'default', 's' || nr, nr, nr, 1, 0, nr % 2 FROM generate_series(1, 3000) AS nr"
                )
                await connection.execute("ANALYZE foveal.session")
                for with_erased in (True, False):
                    page = session_page(
                        "default", 20, (1500.0, "s1500"), with_erased=with_erased, memories=False
                    )
                    plan = await connection.execute(f"EXPLAIN {page.sql}".encode(), page.values)
                    text = "\n".join(line for (line,) in await plan.fetchall())
                    assert "Index Scan" in text
                    assert "Sort" not in text

    asyncio.run(work())
