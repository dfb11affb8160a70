"""A page of the list of sessions costs the same however many sessions a store has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from foveal.core.log import Event, Noted, UserSaid
from foveal.stores import SqliteStore
from foveal.stores.sqlite import queries
from foveal.stores.sqlite.connection import open_reader
from foveal.stores.sqlite.schema import MIGRATIONS
from support.store_contract import said

SHARED_TEXT = "a system prompt that all sessions have in common " * 100


async def fill(path: Path, count: int) -> None:
    """Make sessions that were active 10 s apart and have a blob in common; a third of them is erased."""
    async with SqliteStore(path, durability="normal") as store:
        for number in range(count):
            facts = (Noted(text="begun"), UserSaid(content=SHARED_TEXT), Noted(text="ended"))
            at = 1_000.0 + number * 10
            await store.append(f"s{number}", [Event(seq, fact, at + seq) for seq, fact in enumerate(facts)])
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE sessions SET erased = 1 WHERE key % 3 = 0")  # `erase` would vacuum each time
    connection.close()


def steps_of_pages(path: Path, *, with_erased: bool) -> list[int]:
    """Return the steps of SQLite's virtual machine for the first page and for one in the middle of the list."""
    connection = open_reader(str(path), timeout=1)
    ids = [
        info.id
        for info in queries.list_sessions(connection, limit=None, before=None, with_erased=with_erased)
    ]
    middle = queries.session_info(connection, ids[len(ids) // 2])
    found = []
    for before in (None, (middle.active, middle.id)):
        steps = 0

        def count() -> bool:
            nonlocal steps
            steps += 1
            return False

        connection.set_progress_handler(count, 1)
        page = queries.list_sessions(connection, limit=20, before=before, with_erased=with_erased)
        connection.set_progress_handler(None)
        start = 0 if before is None else ids.index(middle.id) + 1
        assert [info.id for info in page] == ids[start : start + 20]
        found.append(steps)
    connection.close()
    return found


@pytest.mark.long
def test_a_page_costs_the_same_at_five_times_the_sessions(tmp_path: Path) -> None:
    # At 300 sessions a blob has more sharers than are counted; from there on nothing may grow.
    asyncio.run(fill(tmp_path / "few.db", 300))
    asyncio.run(fill(tmp_path / "many.db", 1_500))
    for with_erased in (True, False):
        few = steps_of_pages(tmp_path / "few.db", with_erased=with_erased)
        many = steps_of_pages(tmp_path / "many.db", with_erased=with_erased)
        assert max(many) < 1.1 * min(few), with_erased


def test_a_store_of_the_version_before_lists_its_sessions_in_order(tmp_path: Path) -> None:
    async def fill_old(path: Path) -> None:
        async with SqliteStore(path) as store:
            for id, at in (("a", 10.0), ("b", 20.0)):
                await store.append(id, [Event(0, Noted(text="x"), at)])
            await store.append("a", [Event(1, Noted(text="y"), 30.0)])
            await store.append("untimed", said(1))

    path = tmp_path / "old.db"
    asyncio.run(fill_old(path))
    connection = apsw.Connection(str(path))
    connection.execute(
        "DROP TRIGGER activity_is_current; DROP INDEX sessions_by_activity;"
        " UPDATE sessions SET active = created; PRAGMA user_version = 2"
    )
    assert len(MIGRATIONS) == 3
    connection.close()

    async def listed() -> list[str]:
        async with SqliteStore(path) as store:
            return [info.id for info in await store.sessions(limit=2, before=(100.0, ""))]

    assert asyncio.run(listed()) == ["a", "b"]
