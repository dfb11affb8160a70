"""Tests of the server's database in SQLite, and of the session locks."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from subprocess import PIPE

import apsw
import pytest

from foveal.errors import StoreError, StoreUnusable
from foveal.server import AuthTokens, ChatMessage, ChatPlace, Chats, SessionLocks, SqliteDatabase
from foveal.server.auth_tokens import AuthToken, MemoryChoice
from foveal.server.databases import Act, Transaction
from foveal.server.databases.sqlite_database import SERVER_APPLICATION_ID, SQLITE_UPGRADES
from foveal.server.inbox import Inbox, SessionSetup
from foveal.stores import open_store
from support import warm_start
from support.gated_provider import run

COUNTED = ("CREATE TABLE IF NOT EXISTS counted (n INTEGER NOT NULL)",)


def add(n: int) -> Act[int]:
    return lambda db: db.execute("INSERT INTO counted VALUES (?)", n)


async def all_numbers(db: Transaction) -> list[int]:
    return [n for (n,) in await db.fetch("SELECT n FROM counted ORDER BY n")]


def database_with_table(path: Path) -> SqliteDatabase:
    return SqliteDatabase(path, tables=COUNTED)


# ── Database ──────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_write_is_visible_to_others_and_after_reopening(tmp_path: Path) -> None:
    one, other = (database_with_table(tmp_path / "c.db") for _ in range(2))
    await one.write(add(1))
    await other.write(add(2), durable=False)
    assert await one.read(all_numbers) == [1, 2]
    await one.close()
    await other.close()
    again = database_with_table(tmp_path / "c.db")
    assert await again.read(all_numbers) == [1, 2]
    await again.close()


@run
async def test_a_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    database = database_with_table(tmp_path / "c.db")

    async def act(db: Transaction) -> None:
        await add(1)(db)
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        await database.write(act)
    with pytest.raises(StoreUnusable, match=r"c\.db"):
        await database.write(lambda db: db.execute("INSERT INTO nowhere VALUES (1)"))
    assert await database.read(all_numbers) == []
    await database.close()


@run
async def test_concurrent_writes_run_one_after_the_other(tmp_path: Path) -> None:
    databases = [database_with_table(tmp_path / "c.db") for _ in range(3)]
    await asyncio.gather(*(databases[n % 3].write(add(n)) for n in range(60)))
    assert await databases[0].read(all_numbers) == list(range(60))
    for database in databases:
        await database.close()


@run
async def test_a_foreign_file_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db"):
        pass
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    (tmp_path / "text.db").write_text("not SQLite at all, but long enough to look at" * 10, "utf-8")
    newer = database_with_table(tmp_path / "newer.db")
    await newer.write(lambda db: db.execute("PRAGMA user_version = 99"))
    await newer.close()
    for name in ("store.db", "other.db", "text.db", "newer.db"):
        before = (tmp_path / name).read_bytes()
        database = database_with_table(tmp_path / name)
        with pytest.raises(StoreUnusable, match=name):
            await database.read(all_numbers)
        await database.close()
        assert (tmp_path / name).read_bytes() == before


FIRST_SCHEMA = """
    CREATE TABLE chats (face TEXT NOT NULL, chat INTEGER NOT NULL, number INTEGER NOT NULL,
        PRIMARY KEY (face, chat)) STRICT, WITHOUT ROWID;
    CREATE TABLE chat_messages (face TEXT NOT NULL, key TEXT NOT NULL, chat INTEGER NOT NULL,
        session TEXT NOT NULL, state TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (face, key)) STRICT, WITHOUT ROWID;
    CREATE TABLE rooms (tenant TEXT NOT NULL, session TEXT NOT NULL, model TEXT NOT NULL,
        PRIMARY KEY (tenant, session)) STRICT, WITHOUT ROWID;
    CREATE TABLE errands (
        place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
        session TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, prompt TEXT NOT NULL,
        schedule TEXT NOT NULL, at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT 0,
        UNIQUE (tenant, session, kind, key));
    CREATE TABLE schedules (
        tenant TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, cron TEXT NOT NULL, zone TEXT NOT NULL,
        prompt TEXT NOT NULL, missed TEXT NOT NULL, enabled INTEGER NOT NULL, source TEXT NOT NULL,
        following REAL NOT NULL, due REAL, result TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (tenant, name)) WITHOUT ROWID;
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY, hash BLOB UNIQUE, tenant TEXT NOT NULL, label TEXT NOT NULL, created REAL NOT NULL,
        revoked REAL) WITHOUT ROWID;
    INSERT INTO tokens VALUES ('t', x'00', 'a', 'the laptop', 1.0, NULL);
    INSERT INTO rooms VALUES ('a', 's', 'm');
    INSERT INTO chats VALUES ('telegram', 42, 3);
    INSERT INTO chat_messages VALUES ('telegram', 'm', 42, 'telegram-42-3', 'open', 1.5)"""


def file_of_version_1(path: Path) -> Path:
    connection = apsw.Connection(str(path))
    connection.execute(FIRST_SCHEMA)
    connection.pragma("application_id", SERVER_APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.close()
    return path


async def read_chats(database: SqliteDatabase) -> tuple[str, list[ChatMessage], SessionSetup | None]:
    chats = Chats(database)
    setup = await Inbox(database).session_setup("a", "s")
    return await chats.session("telegram", ChatPlace(42)), await chats.undelivered("telegram", now=2.0), setup


UPGRADED = (
    "telegram-42-3",
    [ChatMessage(key="m", place=ChatPlace(42), session="telegram-42-3", at=1.5)],
    SessionSetup("m"),
)


@run
async def test_databases_opened_at_once_upgrade_the_file_once(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path / "c.db")
    databases = [SqliteDatabase(path) for _ in range(4)]
    assert await asyncio.gather(*map(read_chats, databases)) == [UPGRADED] * 4
    for database in databases:
        await database.close()


@run
async def test_an_upgraded_file_stays_usable_beside_a_server_of_the_version_before(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path / "c.db")
    upgrading = SqliteDatabase(path)
    assert await read_chats(upgrading) == UPGRADED
    await upgrading.write(lambda db: db.execute("PRAGMA user_version = 1"))  # its check whether it can write
    await upgrading.close()
    for reading in (SqliteDatabase(path, is_read_only=True), SqliteDatabase(path)):
        assert await read_chats(reading) == UPGRADED
        await reading.close()


@run
async def test_a_file_of_version_2_is_read_as_it_is_and_then_upgraded(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path / "c.db")
    connection = apsw.Connection(str(path))
    for statement in SQLITE_UPGRADES[2]:
        connection.execute(statement)
    connection.pragma("user_version", 2)
    connection.close()
    before = path.read_bytes()
    reading = SqliteDatabase(path, is_read_only=True)
    assert await read_chats(reading) == UPGRADED
    await reading.close()
    assert path.read_bytes() == before
    upgrading = SqliteDatabase(path)
    await Inbox(upgrading).set_session_setup("a", "s", SessionSetup("m", agent="reviewer"))
    assert await read_chats(upgrading) == (*UPGRADED[:2], SessionSetup("m", agent="reviewer"))
    await upgrading.close()


@run
async def test_a_file_of_version_3_is_read_as_it_is_and_then_upgraded(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path / "c.db")
    connection = apsw.Connection(str(path))
    for statement in (*SQLITE_UPGRADES[2], *SQLITE_UPGRADES[3]):
        connection.execute(statement)
    connection.pragma("user_version", 3)
    connection.close()
    before = path.read_bytes()
    reading = SqliteDatabase(path, is_read_only=True)
    assert await read_chats(reading) == UPGRADED
    await reading.close()
    assert path.read_bytes() == before
    upgrading = SqliteDatabase(path)
    await Inbox(upgrading).set_session_setup("a", "s", SessionSetup("m", user="ada"))
    assert await read_chats(upgrading) == (*UPGRADED[:2], SessionSetup("m", user="ada"))
    await upgrading.close()


@run
async def test_a_file_of_version_4_is_read_as_it_is_and_then_upgraded(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path / "c.db")
    connection = apsw.Connection(str(path))
    for version in (2, 3, 4):
        for statement in SQLITE_UPGRADES[version]:
            connection.execute(statement)
    connection.pragma("user_version", 4)
    connection.close()
    before = path.read_bytes()
    known = [AuthToken(id="t", tenant="a", label="the laptop", created=1.0)]
    reading = SqliteDatabase(path, is_read_only=True)
    assert await AuthTokens(reading).list() == known
    await reading.close()
    assert path.read_bytes() == before
    upgrading = SqliteDatabase(path)
    assert await AuthTokens(upgrading).list() == known
    await AuthTokens(upgrading).create("a", memory=MemoryChoice("ada"), now=2.0)
    assert [token.memory for token in await AuthTokens(upgrading).list()] == [None, MemoryChoice("ada")]
    await upgrading.close()


@run
async def test_a_file_of_version_5_is_read_as_it_is_and_then_upgraded(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path / "c.db")
    connection = apsw.Connection(str(path))
    for version in (2, 3, 4, 5):
        for statement in SQLITE_UPGRADES[version]:
            connection.execute(statement)
    connection.pragma("user_version", 5)
    connection.close()
    before = path.read_bytes()
    known = [AuthToken(id="t", tenant="a", label="the laptop", created=1.0, role="tenant")]
    reading = SqliteDatabase(path, is_read_only=True)
    assert await AuthTokens(reading).list() == known
    await reading.close()
    assert path.read_bytes() == before
    upgrading = SqliteDatabase(path)
    assert await AuthTokens(upgrading).list() == known
    await AuthTokens(upgrading).create("", role="admin", now=2.0)
    assert [token.role for token in await AuthTokens(upgrading).list()] == ["tenant", "admin"]
    await upgrading.close()


@run
async def test_the_check_whether_a_file_can_be_written_keeps_its_version(tmp_path: Path) -> None:
    database = database_with_table(tmp_path / "c.db")
    await database.write(lambda db: db.execute("PRAGMA user_version = 99"))  # another process has upgraded it
    await database.check_writable()
    assert await database.read(lambda db: db.fetch("PRAGMA user_version")) == [(99,)]
    await database.close()


@run
async def test_a_closed_database_raises_and_closing_twice_is_allowed(tmp_path: Path) -> None:
    database = database_with_table(tmp_path / "c.db")
    await database.write(add(1))
    await database.close()
    await database.close()
    with pytest.raises(StoreError, match="closed"):
        await database.write(add(2))


@run
async def test_close_waits_for_pending_writes(tmp_path: Path) -> None:
    database = database_with_table(tmp_path / "c.db")
    await asyncio.gather(*(database.write(add(n)) for n in range(5)), database.close())
    again = database_with_table(tmp_path / "c.db")
    assert await again.read(all_numbers) == list(range(5))
    await again.close()


@run
async def test_deleted_text_is_removed_from_the_files(tmp_path: Path) -> None:
    tables = ("CREATE TABLE IF NOT EXISTS texts (t TEXT)",)
    database = SqliteDatabase(tmp_path / "c.db", tables=tables)
    await database.write(lambda db: db.execute("INSERT INTO texts VALUES ('the canary sings')"))
    await database.write(lambda db: db.execute("DELETE FROM texts"))
    await database.remove_deleted_text()
    for path in tmp_path.iterdir():
        assert b"canary" not in path.read_bytes(), path
        assert os.stat(path).st_mode & 0o077 == 0
    await database.close()


@run
async def test_an_act_that_awaits_something_else_is_refused(tmp_path: Path) -> None:
    database = database_with_table(tmp_path / "c.db")

    async def act(db: Transaction) -> None:
        await add(1)(db)
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits something else"):
        await database.write(act)
    assert await database.read(all_numbers) == []
    await database.close()


# ── Locks ─────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_lock_serialises_tasks_of_one_session_only(
    tmp_path: Path,
) -> None:
    locks, inside, most = SessionLocks(tmp_path / "lock"), 0, 0

    async def critical_section() -> None:
        nonlocal inside, most
        async with locks.lock("t", "s"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with locks.lock("t", "other"):
        await asyncio.gather(*(critical_section() for _ in range(10)))
    assert most == 1
    await locks.close()


@run
async def test_try_lock_returns_at_once_and_releases_once(tmp_path: Path) -> None:
    locks = SessionLocks(tmp_path / "lock")
    first = await locks.try_lock("t", "s")
    assert first is not None
    assert await locks.try_lock("t", "s") is None
    first.release()
    first.release()
    second = await locks.try_lock("t", "s")
    assert second is not None
    second.release()
    await locks.close()


HOLDER = """
import asyncio, sys
from pathlib import Path
from foveal.stores.session_locks import SessionLocks

async def main():
    async with SessionLocks(Path(sys.argv[1])).lock("t", "s"):
        print("held", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@run
async def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = tmp_path / "holder.py"
    program.write_text(HOLDER)
    with warm_start.start([program, path], stdout=PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        locks = SessionLocks(path)
        assert await locks.try_lock("t", "s") is None
        other = await locks.try_lock("t", "another")
        assert other is not None
        waiting = asyncio.create_task(_lock_and_release(locks))
        holder.send_signal(signal.SIGKILL)
        await waiting
    other.release()
    await locks.close()


async def _lock_and_release(locks: SessionLocks) -> None:
    async with locks.lock("t", "s"):
        return
