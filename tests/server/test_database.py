"""The server's own small file, and the turnstile that lets one at a time work on a session."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from foveal.errors import StoreError, StoreUnusable
from foveal.server import Database, Inbox, SessionLocks
from foveal.server.inbox import KEPT, SCHEMA
from foveal.stores import open_store
from support.gated_provider import run

COUNTED = ("CREATE TABLE IF NOT EXISTS counted (n INTEGER NOT NULL)",)


def add(n: int) -> Callable[[apsw.Connection], None]:
    def act(db: apsw.Connection) -> None:
        db.execute("INSERT INTO counted VALUES (?)", (n,))

    return act


def all_of_it(db: apsw.Connection) -> list[int]:
    return [n for (n,) in db.execute("SELECT n FROM counted ORDER BY n")]


def counted(path: Path) -> Database:
    database = Database(path)
    database.create_tables(COUNTED)
    return database


# ── the database ──────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_what_was_done_is_there_for_everybody_and_after_reopening(tmp_path: Path) -> None:
    one, other = (counted(tmp_path / "c.db") for _ in range(2))
    await one.do(add(1))
    await other.do(add(2), lasting=False)
    assert await one.look(all_of_it) == [1, 2]
    await one.close()
    await other.close()
    again = counted(tmp_path / "c.db")
    assert await again.look(all_of_it) == [1, 2]
    await again.close()


@run
async def test_an_act_that_fails_leaves_nothing_of_itself(tmp_path: Path) -> None:
    database = counted(tmp_path / "c.db")

    def act(db: apsw.Connection) -> None:
        add(1)(db)
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        await database.do(act)
    with pytest.raises(StoreUnusable, match=r"c\.db"):
        await database.do(lambda db: db.execute("INSERT INTO nowhere VALUES (1)"))
    assert await database.look(all_of_it) == []
    await database.close()


@run
async def test_many_at_once_are_done_one_after_the_other(tmp_path: Path) -> None:
    databases = [counted(tmp_path / "c.db") for _ in range(3)]
    await asyncio.gather(*(databases[n % 3].do(add(n)) for n in range(60)))
    assert await databases[0].look(all_of_it) == list(range(60))
    for database in databases:
        await database.close()


@run
async def test_a_file_that_is_not_a_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db"):
        pass
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    (tmp_path / "text.db").write_text("not SQLite at all, but long enough to look at" * 10, "utf-8")
    newer = counted(tmp_path / "newer.db")
    await newer.do(lambda db: db.pragma("user_version", 99))
    await newer.close()
    for name in ("store.db", "other.db", "text.db", "newer.db"):
        before = (tmp_path / name).read_bytes()
        database = counted(tmp_path / name)
        with pytest.raises(StoreUnusable, match=name):
            await database.look(all_of_it)
        await database.close()
        assert (tmp_path / name).read_bytes() == before


@run
async def test_a_closed_database_says_so_and_closing_twice_is_fine(tmp_path: Path) -> None:
    database = counted(tmp_path / "c.db")
    await database.do(add(1))
    await database.close()
    await database.close()
    with pytest.raises(StoreError, match="closed"):
        await database.do(add(2))


@run
async def test_what_was_asked_for_before_closing_is_done(tmp_path: Path) -> None:
    database = counted(tmp_path / "c.db")
    await asyncio.gather(*(database.do(add(n)) for n in range(5)), database.close())
    again = counted(tmp_path / "c.db")
    assert await again.look(all_of_it) == list(range(5))
    await again.close()


@run
async def test_what_was_deleted_is_not_in_the_files_after_a_sweep(tmp_path: Path) -> None:
    database = Database(tmp_path / "c.db")
    database.create_tables(("CREATE TABLE IF NOT EXISTS said (t TEXT)",))
    await database.do(lambda db: db.execute("INSERT INTO said VALUES ('the canary sings')"))
    await database.do(lambda db: db.execute("DELETE FROM said"))
    await database.sweep()
    for path in tmp_path.iterdir():
        assert b"canary" not in path.read_bytes(), path
        assert os.stat(path).st_mode & 0o077 == 0
    await database.close()


# ── the desk ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_message_that_is_done_leaves_its_key_for_a_week_and_not_its_words(tmp_path: Path) -> None:
    database = Database(tmp_path / "c.db")
    database.create_tables(SCHEMA)
    desk, given = Inbox(database), {"content": "the canary sings", "dialect": ""}
    entry, fresh = await desk.put("t", "s", key="k", now=1_000.0, **given)
    assert fresh
    assert entry.said == "the canary sings"
    assert (await desk.take("t", "s", last=4)) == entry._replace(since=4)
    taken = await desk.take("t", "s", last=9)
    assert taken is not None
    assert (taken.state, taken.since) == ("taken", 4)
    await desk.done(entry.id, why="answered", problem="", code="")
    assert await desk.take("t", "s", last=9) is None
    same, fresh = await desk.put("t", "s", key="k", now=1_000.0 + KEPT - 1, **given)
    assert (same.id, same.state, same.content, fresh) == (entry.id, "done", None, False)
    await desk.put("t", "s", key="k2", now=1_000.0 + KEPT + 1, **given)
    later, fresh = await desk.put("t", "s", key="k", now=1_000.0 + KEPT + 2, **given)
    assert fresh
    assert later.id > entry.id
    await database.close()


# ── the turnstile ────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_tasks_of_one_process_go_through_one_after_the_other_and_other_sessions_beside_them(
    tmp_path: Path,
) -> None:
    turnstile, inside, most = SessionLocks(tmp_path / "lock"), 0, 0

    async def pass_through() -> None:
        nonlocal inside, most
        async with turnstile.hold("t", "s"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with turnstile.hold("t", "other"):
        await asyncio.gather(*(pass_through() for _ in range(10)))
    assert most == 1
    turnstile.close()


@run
async def test_who_only_tries_is_told_at_once_and_lets_go_once(tmp_path: Path) -> None:
    turnstile = SessionLocks(tmp_path / "lock")
    first = await turnstile.try_hold("t", "s")
    assert first is not None
    assert await turnstile.try_hold("t", "s") is None
    first.release()
    first.release()
    second = await turnstile.try_hold("t", "s")
    assert second is not None
    second.release()
    turnstile.close()


HOLDER = """
import asyncio, sys
from pathlib import Path
from foveal.server.locks import SessionLocks

async def main():
    async with SessionLocks(Path(sys.argv[1])).hold("t", "s"):
        print("held", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@run
async def test_a_process_that_is_killed_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        turnstile = SessionLocks(path)
        assert await turnstile.try_hold("t", "s") is None
        other = await turnstile.try_hold("t", "another")
        assert other is not None
        waiting = asyncio.create_task(_held(turnstile))
        holder.send_signal(signal.SIGKILL)
        await waiting
    other.release()
    turnstile.close()


async def _held(turnstile: SessionLocks) -> None:
    async with turnstile.hold("t", "s"):
        return
