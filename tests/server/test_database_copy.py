"""Copies of a server's data between folders, store files and PostgreSQL databases."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE
from typing import Any
from uuid import uuid4

import apsw
import msgspec
import psycopg
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from foveal import Memory
from foveal.cli.__main__ import main
from foveal.core.log import AnyFact, Event, Noted, UserSaid, encode
from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.core.tokens.counter import Estimate
from foveal.errors import BadSetting, StoreError, StoreUnusable
from foveal.ports import Checkpoint, Store
from foveal.server.audit import AuditAction, AuditFilter, AuditTrail
from foveal.server.auth_tokens import AuthTokens, MemoryChoice
from foveal.server.checked_copy import (
    OTHER_TABLES,
    PAGE_BYTES,
    TOKENS_TABLE,
    CopyProgress,
    PageSize,
    TableCopySpec,
    fitting_items,
)
from foveal.server.database_copy import copy_database, copy_place
from foveal.server.databases import Database, Transaction
from foveal.server.inbox import Inbox, SessionSetup
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.storage import Storage
from foveal.stores import SqliteStore
from foveal.stores.sqlite.schema import STORE_SCHEMA_VERSION
from support import warm_start
from support.postgres_server import database_url
from support.serve_process import serving
from support.service_databases import open_database, service_database_url
from support.store_contract import UNUSUAL_FACTS, Clock, log, said
from support.warm_start import WarmProcess

TABLES = (TOKENS_TABLE, *OTHER_TABLES)
MADE_TABLES = (
    *(
        "chat_places",
        "chat_messages",
        "chat_notices",
        "chat_questions",
        "pairing_codes",
        "pairing_misses",
        "paired",
    ),
    *("schedules", "heads", "beside", "audit", "daily_usage", "learned_limits", "spending"),
)
"""Tables that the tests fill with rows of made values."""


# ── Reading a place as a server does ─────────────────────────────────────────────────────────────────────


@contextmanager
def storage_of(place: str | Path) -> Iterator[Storage]:
    from foveal.server.postgres_storage import PostgresStorage
    from foveal.server.storage import DataFolder, FolderStorage

    yield FolderStorage(DataFolder.create(place)) if isinstance(place, Path) else PostgresStorage(place)


async def sessions_of(store: Store) -> dict[str, Any]:
    """Return all that a store holds of its sessions and memories, apart from their size on disk."""
    return {
        info.id: (
            msgspec.structs.replace(info, bytes=0),
            [encode(event) for event in await store.read(info.id)],
            await store.checkpoint(info.id),
        )
        for memories in (False, True)
        for info in await store.sessions(memories=memories)
    }


async def rows_of(database: Database, table: TableCopySpec) -> list[tuple[Any, ...]]:
    names = [f'"{name}"' for name in (*table.key, *table.others)]
    if table.name == "pairing_misses":
        names = names[1:]  # the order of the rows stands for their ids
    rows = await database.read(lambda db: db.fetch(f"SELECT {', '.join(names)} FROM {table.name}"))
    return sorted(rows, key=repr)


def contents(place: str | Path, tenants: tuple[str, ...] = ("default", "other")) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        found: dict[str, Any] = {}
        with storage_of(place) as storage:
            for tenant in tenants:
                store = storage.open_store(tenant)
                found[tenant] = await sessions_of(store)
                await store.close()
            database = storage.open_database()
            for table in TABLES:
                found[table.name] = await rows_of(database, table)
            await database.close()
            await storage.close()
        return found

    return asyncio.run(read())


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of the files of a folder; an empty write-ahead log and its index hold no content."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and path.stat().st_size
    }


def copy(source: str | Path, target: str | Path, **options: Any) -> CopyProgress:
    progress = CopyProgress()
    places = copy_place(str(source)), copy_place(str(target))
    asyncio.run(copy_database(*places, progress, **options))
    return progress


# ── Content ──────────────────────────────────────────────────────────────────────────────────────────────


async def fill_store(store: SqliteStore, *, many: int = 400) -> None:
    await store.append("unusual \0 id", log(*UNUSUAL_FACTS.values()))
    await store.append("long " * 400, said(3))
    await store.append("many", said(many))
    times = (None, -5.0, None)
    await store.append("untimed", [Event(seq, Noted(text="x"), at) for seq, at in enumerate(times)])
    await store.rename("many", "Ünï \0 \\0 'title'")
    await store.keep_checkpoint("many", Checkpoint(seq=many * 3 // 4, needed=(1, 5), state=b"\0state"))
    await store.fork("unusual \0 id", "fork", at=8)
    await store.append("erased", said(40))
    await store.erase("erased")
    await store.fork("erased", "fork of an erased one", at=3)
    for owner in ("ada", "grace"):
        memory = Memory(owner, store=store, counting=Estimate())
        await memory.remember("I use tabs.")
    await memory.erase()
    await memory.remember("I use spaces.")


async def fill_tables(database: Database, *, messages: int = 40, rows: int = 8) -> None:
    """`messages`: how many are in the inbox; half of them have an answer. `rows`: made ones, of each table."""
    inbox, queue = Inbox(database), JobQueue(database)
    for number in range(messages):
        text = "\0\\" * number
        entry, _ = await inbox.put(
            "default", "many", key=f"k{number}", message=UserSaid(content=text), now=1e9
        )
        if number < messages // 2:
            await inbox.take("default", "many", last=number)
            await inbox.finish(entry, why="answered", problem="", code="")
    await inbox.take("default", "many", last=99)
    for tenant in ("default", "other"):
        tokens = AuthTokens(database)
        _, secret = await tokens.create(tenant, label="l\0", memory=MemoryChoice("ada"), now=1e9)
        await tokens.log_in(f"login of {tenant}", secret)
        await inbox.add_session_user(tenant, "many", "grace")
        await inbox.set_session_setup(tenant, "many", SessionSetup("openai/m", agent="reviewer", user="ada"))
        await queue.add(Job(tenant=tenant, session="many", key="j", kind="run", at=1e9, prompt="do\0"))
    await queue.mark_taken([job.id for job in await queue.untaken()])
    await database.write(lambda db: fill_rows(db, [(table, n) for table in TABLES for n in range(rows)]))


async def fill_rows(db: Transaction, chosen: list[tuple[TableCopySpec, int]]) -> None:
    """Insert made rows into tables whose rows have no class of their own here."""
    for table, number in chosen:
        if table.name in MADE_TABLES:
            names = [
                name for name in (*table.key, *table.others) if (table.name, name) != ("pairing_misses", "id")
            ]
            values = [value_of(name, number) for name in names]
            columns = ", ".join(f'"{name}"' for name in names)
            marks = ", ".join("?" * len(names))
            await db.execute(f"INSERT INTO {table.name} ({columns}) VALUES ({marks})", *values)


def value_of(column: str, number: int) -> Any:
    if column in ("code", "digest", "words", "teller"):
        return bytes([number, 0, 255]) * (number + 1)
    if column in ("stale", "enabled"):
        return number % 2
    if column in (
        "chat",
        "tokens",
        "topic",
        "reply_to",
        "parts",
        "author",
        "moved_from",
        "user",
        "number",
        "seq",
        "turn",
        "calls",
        "input",
        "cache_read",
        "cache_write",
        "output",
        "unpriced",
        "start",
        "nanodollars",
        "tokens",
    ):
        return (-1) ** number * 2**40 * number + number
    if column in ("at", "until", "since", "following", "due", "dollars"):
        return 1e9 / (number + 3)
    return f"{column} {number} \\ \0 'é'"


def fill_folder(path: Path, *, many: int, messages: int, rows: int) -> Path:
    (path / "tenants").mkdir()

    async def fill() -> None:
        for tenant in ("default", "other"):
            file = path / "tenants" / f"{tenant}.db"
            async with SqliteStore(file, durability="normal", clock=Clock()) as store:
                await fill_store(store, many=many)
        async with open_database(path) as database:
            await fill_tables(database, messages=messages, rows=rows)

    asyncio.run(fill())
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a server with two tenants, of which each test gets a copy."""
    return fill_folder(tmp_path_factory.mktemp("filled"), many=4, messages=4, rows=2)


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "from"))


# ── There and back ───────────────────────────────────────────────────────────────────────────────────────


def test_a_copy_to_a_database_and_back_is_equal_and_a_second_copy_changes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    (tmp_path / "from").mkdir()
    folder = fill_folder(tmp_path / "from", many=400, messages=40, rows=8)
    before = digests(folder)
    first = copy(folder, postgres_url)
    copy(postgres_url, tmp_path / "back")
    assert digests(folder) == before
    expected = contents(folder)
    assert expected["inbox"]
    assert all(expected[table.name] for table in TABLES)
    assert contents(postgres_url) == expected
    assert contents(tmp_path / "back") == expected
    sessions = [session for tenant in ("default", "other") for session in expected[tenant].values()]
    memories = [
        id for name in ("default", "other") for id in expected[name] if id.startswith(MEMORY_LOG_PREFIX)
    ]
    assert len(memories) == 4
    assert (first.tenants, first.sessions) == (2, len(sessions) - len(memories))
    assert first.events == first.new_events == sum(len(events) for _, events, _ in sessions)
    assert first.rows == {table.name: len(expected[table.name]) for table in TABLES}

    second = copy(folder, postgres_url)
    assert (second.events, second.rows) == (first.events, first.rows)
    assert (second.new_events, second.new_rows) == (0, 0)
    assert contents(postgres_url) == expected


_storable = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_facts = st.one_of(
    st.sampled_from(sorted(UNUSUAL_FACTS)).map(UNUSUAL_FACTS.__getitem__),
    st.builds(lambda text: UserSaid(content=text), st.text(max_size=200)),
)
_times = st.one_of(st.none(), st.floats(-1e12, 1e12))
_logs = st.lists(st.tuples(_facts, _times), min_size=1, max_size=12)
_sessions = st.dictionaries(
    _storable.filter(bool), st.tuples(_logs, _storable, st.booleans(), st.integers(0, 11)), max_size=4
)
_numbers = st.lists(st.integers(0, 250), max_size=6, unique=True)


@settings(max_examples=12 if os.environ.get("FOVEAL_SOAK") else 2, phases=[Phase.explicit, Phase.generate])
@given(sessions=_sessions, numbers=_numbers)
def test_any_content_comes_back_equal(sessions: dict[str, Any], numbers: list[int]) -> None:
    with service_database_url() as url, tempfile.TemporaryDirectory() as name:
        source, back = Path(name) / "from", Path(name) / "back"
        (source / "tenants").mkdir(parents=True)
        asyncio.run(_fill(source, sessions, numbers))
        copy(source, url)
        copy(url, back)
        assert contents(url, ("default",)) == contents(back, ("default",)) == contents(source, ("default",))


async def _fill(folder: Path, sessions: dict[str, Any], numbers: list[int]) -> None:
    async with SqliteStore(folder / "tenants" / "default.db", clock=Clock()) as store:
        for id, (made, title, is_erased, fork_at) in sessions.items():
            facts: list[tuple[AnyFact, float | None]] = made
            await store.append(id, [Event(seq, fact, at) for seq, (fact, at) in enumerate(facts)])
            await store.rename(id, title)
            if fork_at < len(facts):
                await store.fork(id, f"fork {uuid4().hex}", at=fork_at)
            if is_erased:
                await store.erase(id)
    async with open_database(folder) as database:
        await database.write(lambda db: fill_rows(db, [(table, n) for table in TABLES for n in numbers]))


def test_a_store_file_becomes_a_tenant_and_a_file_again(tmp_path: Path, service_url: str) -> None:
    async def fill() -> None:
        async with SqliteStore(tmp_path / "chats.db", clock=Clock()) as store:
            await fill_store(store, many=4)

    async def read(name: str) -> dict[str, Any]:
        async with SqliteStore(tmp_path / name) as store:
            return await sessions_of(store)

    asyncio.run(fill())
    copy(tmp_path / "chats.db", service_url, tenant="team")
    copy(service_url, tmp_path / "back.db")
    assert asyncio.run(read("back.db")) == asyncio.run(read("chats.db")) != {}


def test_ids_continue_after_those_of_the_source(tmp_path: Path, service_url: str) -> None:
    async def fill() -> int:
        async with open_database(tmp_path / "from") as database:
            inbox = Inbox(database)
            await inbox.put("a", "s", key="old", message=UserSaid(content="x"), now=0.0)
            last, _ = await inbox.put("a", "s", key="deleted", message=UserSaid(content="x"), now=0.0)
            await database.write(lambda db: db.execute("DELETE FROM inbox WHERE id = ?", last.id))
            return last.id

    async def next_id(place: Path | str) -> int:
        async with open_database(place) as database:
            entry, _ = await Inbox(database).put("a", "s", key="new", message=UserSaid(content="x"), now=0.0)
            return entry.id

    (tmp_path / "from").mkdir()
    last = asyncio.run(fill())
    copy(tmp_path / "from", service_url)
    copy(service_url, tmp_path / "back")
    assert [asyncio.run(next_id(place)) for place in (service_url, tmp_path / "back")] == [
        last + 1,
        last + 1,
    ]


def test_copied_jobs_are_handed_to_the_engine_again(folder: Path, service_url: str) -> None:
    async def untaken(place: Path | str) -> int:
        async with open_database(place) as database:
            return len(await JobQueue(database).untaken())

    copy(folder, service_url)
    assert [asyncio.run(untaken(place)) for place in (folder, service_url)] == [0, 2]


def test_the_audit_trail_of_the_target_stays(folder: Path, service_url: str) -> None:
    async def trail(place: Path | str, *actions: AuditAction) -> list[str]:
        async with open_database(place) as database:
            trail = AuditTrail(database, clock=time.time)
            for action in actions:
                await trail.record(action)
            return [entry.action async for entry in trail.entries(AuditFilter(since=1e9))]

    asyncio.run(trail(folder, "token", "erase", "undo"))
    asyncio.run(trail(service_url, "config"))
    copy(folder, service_url)
    assert asyncio.run(trail(service_url)) == ["config", "token", "erase", "undo"]


def test_a_file_of_an_earlier_version_is_copied_and_not_migrated(folder: Path, service_url: str) -> None:
    file = folder / "tenants" / "default.db"
    connection = apsw.Connection(str(file))
    connection.execute("DROP TRIGGER activity_is_current; DROP INDEX sessions_by_activity")
    connection.pragma("user_version", STORE_SCHEMA_VERSION - 1)
    connection.close()
    service = apsw.Connection(str(folder / "service.db"))
    service.execute("DROP TABLE beside; DROP TABLE chat_places; DROP TABLE chat_messages")
    for table in ("rooms", "errands", "schedules"):
        service.execute(f"ALTER TABLE {table} DROP COLUMN agent")
    service.execute("ALTER TABLE rooms DROP COLUMN person; ALTER TABLE tokens DROP COLUMN memory")
    service.execute("DROP TABLE memory_sessions; ALTER TABLE tokens DROP COLUMN role")
    service.execute("DROP TABLE audit; DROP TABLE daily_usage")
    service.execute(
        """CREATE TABLE chats (face TEXT, chat INTEGER, number INTEGER);
        CREATE TABLE chat_messages (face TEXT, key TEXT, chat INTEGER, session TEXT, state TEXT, at REAL);
        INSERT INTO chats VALUES ('telegram', 42, 3);
        INSERT INTO chat_messages VALUES ('telegram', 'm', 42, 'telegram-42-3', 'open', 1.5)"""
    )
    service.pragma("user_version", 1)
    service.close()
    before = digests(folder)
    copy(folder, service_url)
    assert digests(folder) == before
    assert contents(service_url)["default"] == contents(folder)["default"]
    with psycopg.connect(service_url) as connection:
        connection.execute("SET foveal.all_tenants = 'on'")
        assert connection.execute("SELECT * FROM foveal.chat_places").fetchall() == [
            ("telegram", 42, 0, 3, None)
        ]
        stored = connection.execute("SELECT key, topic, parts FROM foveal.chat_messages").fetchall()
        assert stored == [("m", 0, 0)]


def test_a_role_that_may_only_read_and_write_rows_can_copy(
    folder: Path, service_url: str, tmp_path: Path
) -> None:
    role = f"app_{uuid4().hex[:8]}"
    name = service_url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(service_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS".encode())
        assert main(["database", "migrate", service_url, "--grant", role]) == 0
        try:
            url = database_url(service_url, name, user=role)
            copy(folder, url)
            copy(url, tmp_path / "back")
            assert contents(tmp_path / "back") == contents(folder)
        finally:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


# ── Interruptions ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def large_folder(folder: Path) -> Path:
    """A folder whose copy takes some seconds."""

    async def fill() -> None:
        async with SqliteStore(folder / "tenants" / "default.db", durability="normal") as store:
            for number in range(4):
                await store.append(f"large {number}", said(6_000, text=f"word {number} " * 20))

    asyncio.run(fill())
    return folder


def _size(path: Path) -> int:
    """The bytes of a file; 0 if it is gone, as the journal of a database soon is."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def copy_and_kill(source: str | Path, target: str | Path, is_time: Callable[[], bool]) -> None:
    command = [sys.executable, "-m", "foveal.cli", "database", "copy", str(source), str(target)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not is_time():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.soak
def test_a_killed_copy_continues(large_folder: Path, postgres_url: str, tmp_path: Path) -> None:
    def events_there() -> int:
        with suppress(psycopg.Error), psycopg.connect(postgres_url) as connection:
            row = connection.execute("SELECT count(*) FROM foveal.event").fetchone()
            return row[0] if row else 0
        return 0

    copy_and_kill(large_folder, postgres_url, lambda: events_there() > 3_000)
    left = events_there()
    progress = copy(large_folder, postgres_url)
    assert 0 < left < progress.events == left + progress.new_events
    expected = contents(large_folder)
    assert contents(postgres_url) == expected

    back = tmp_path / "back"

    def bytes_there() -> int:
        return sum(_size(path) for path in back.rglob("default.db*"))

    copy_and_kill(postgres_url, back, lambda: bytes_there() > 200_000)
    again = copy(postgres_url, back)
    assert 0 < again.new_events < again.events
    assert contents(back) == expected


# ── Differences ──────────────────────────────────────────────────────────────────────────────────────────


def append(place: str | Path, session: str, events: list[Event]) -> None:
    async def work() -> None:
        with storage_of(place) as storage:
            store = storage.open_store("default")
            await store.append(session, events)
            await store.close()
            await storage.close()

    asyncio.run(work())


def small_folder(path: Path) -> Path:
    append(path, "a", said(40))
    append(path, "b", said(4))
    return path


def test_other_content_of_a_session_is_refused_and_stays(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    append(service_url, "a", [*said(20), *said(1, first=20, text="another")])
    before = contents(service_url)["default"]["a"]
    with pytest.raises(StoreError, match=r"session 'a' in .*tenant default differs .*: event 20 is another"):
        copy(source, service_url)
    assert contents(service_url)["default"]["a"] == before


CHANGE_AN_EVENT = """
    CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.at := NEW.at + 0.001; RETURN NEW; END $$;
    CREATE TRIGGER change BEFORE INSERT ON foveal.event FOR EACH ROW WHEN (NEW.seq = 7) EXECUTE FUNCTION change()
"""


def test_an_event_that_the_target_stores_differently_is_found(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    with psycopg.connect(service_url) as connection:
        connection.execute(CHANGE_AN_EVENT)
    with pytest.raises(StoreError, match=r"session 'a' .* event 7 is another than that of the source"):
        copy(source, service_url)


def test_a_longer_session_in_the_target_is_refused(tmp_path: Path) -> None:
    source = small_folder(tmp_path / "from")
    append(tmp_path / "to", "b", said(5))
    with pytest.raises(StoreError, match="it has 5 events, the source 4"):
        copy(source, tmp_path / "to")
    assert len(contents(tmp_path / "to")["default"]["b"][1]) == 5


def test_other_sessions_of_the_target_stay(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    append(service_url, "c", said(3))
    copy(source, service_url)
    assert set(contents(service_url)["default"]) == {"a", "b", "c"}


def test_a_row_with_another_value_is_refused_without_showing_it(folder: Path, service_url: str) -> None:
    copy(folder, service_url)
    with psycopg.connect(service_url) as connection:
        connection.execute("UPDATE foveal.inbox SET content = 'hunter2', at = 7 WHERE key = 'k3'")
    with pytest.raises(StoreError, match=r"table inbox .* has another value in content, at") as caught:
        copy(folder, service_url)
    assert "hunter2" not in str(caught.value)


def test_rows_are_compared_before_sessions_are_copied(folder: Path, service_url: str, tmp_path: Path) -> None:
    copy(folder, service_url)
    with psycopg.connect(service_url) as connection:
        connection.execute("UPDATE foveal.inbox SET at = 7 WHERE key = 'k3'")
    source = Path(shutil.copytree(folder, tmp_path / "longer"))
    append(source, "late", said(3))
    with pytest.raises(StoreError, match=r"table inbox .* has another value in at"):
        copy(source, service_url)
    assert "late" not in contents(service_url)["default"]


def test_one_tenant_is_copied_without_the_others_and_the_tables(folder: Path, service_url: str) -> None:
    progress = copy(folder, service_url, tenant="other")
    found, expected = contents(service_url), contents(folder)
    assert (progress.tenants, progress.rows.total()) == (1, 0)
    assert (found["default"], found["other"]) == ({}, expected["other"])
    assert found["inbox"] == []


def test_a_session_that_was_erased_since_is_erased_in_the_target(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    copy(source, service_url)

    async def erase() -> None:
        async with SqliteStore(source / "tenants" / "default.db") as store:
            await store.erase("a")

    asyncio.run(erase())
    copy(source, service_url)
    assert contents(service_url) == contents(source)
    with psycopg.connect(service_url) as connection:
        assert connection.execute("SELECT count(*) FROM foveal.event").fetchone() == (44,)


def test_other_content_of_an_erased_session_is_not_erased(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")

    async def erase() -> None:
        async with SqliteStore(source / "tenants" / "default.db") as store:
            await store.erase("a")

    asyncio.run(erase())
    append(service_url, "a", log(Noted(text="mine"), Noted(text="too")))
    with pytest.raises(StoreError, match="event 0 is another"):
        copy(source, service_url)
    assert not contents(service_url)["default"]["a"][0].erased


# ── Places in use ────────────────────────────────────────────────────────────────────────────────────────

HOLD_LOCK = """
import asyncio, sys
from pathlib import Path
from foveal.stores.session_locks import SessionLocks
async def hold():
    async with SessionLocks(Path(sys.argv[1])).lock("default", "a"):
        print("held", flush=True)
        sys.stdin.readline()
asyncio.run(hold())
"""
HOLD_LEASE = """
import asyncio, sys
from foveal.server.postgres_storage import PostgresStorage
async def hold():
    async with PostgresStorage(sys.argv[1]).open_locks().lock("default", "a"):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(hold())
"""


@contextmanager
def running(code: str, place: str | Path) -> Iterator[WarmProcess]:
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "hold.py"
        program.write_text(code)
        process = warm_start.start([program, place], stdin=PIPE, stdout=PIPE, encoding="utf-8")
        try:
            assert process.stdout
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
            process.communicate()


def test_a_folder_with_a_running_turn_is_refused(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    with running(HOLD_LOCK, source / "turnstile.lock"):
        with pytest.raises(StoreUnusable, match="is used by a server"):
            copy(source, service_url)
        with pytest.raises(StoreUnusable, match="is used by a server"):
            copy(small_folder(tmp_path / "other"), source)
    assert copy(source, service_url).sessions == 2


def test_a_database_with_a_running_turn_is_refused(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    copy(source, service_url)
    with running(HOLD_LEASE, service_url):
        with pytest.raises(StoreUnusable, match="1 leases held"):
            copy(source, service_url)
        with pytest.raises(StoreUnusable, match="1 leases held"):
            copy(service_url, tmp_path / "back")


def test_of_a_running_server_only_the_sessions_are_copied(tmp_path: Path, service_url: str) -> None:
    with serving() as server:
        assert server.ask("/api/sessions", body={"id": "demo"}).status == 201
        assert server.ask("/api/sessions/demo/turns", body={"text": "hello", "stream": False}).status == 200
        with pytest.raises(StoreUnusable, match="`--live`"):
            copy(server.folder, service_url)
        progress = copy(server.folder, service_url, is_live=True)
        assert (progress.sessions, progress.rows) == (1, {})
        assert server.ask("/api/sessions/demo/turns", body={"text": "more", "stream": False}).status == 200
        assert server.stop() == 0
        rest = copy(server.folder, service_url)
        assert 0 < rest.new_events < rest.events
        assert contents(service_url) == contents(server.folder)


def test_a_database_with_a_running_server_is_refused(tmp_path: Path, service_url: str) -> None:
    source = small_folder(tmp_path / "from")
    with serving(environment={"FOVEAL_DATABASE": service_url}):
        with pytest.raises(StoreUnusable, match="servers that run jobs"):
            copy(source, service_url)
        progress = copy(service_url, tmp_path / "back", is_live=True)
        assert progress.sessions == 0


# ── Places that cannot be used ───────────────────────────────────────────────────────────────────────────


def test_wrong_places_end_the_command_with_one_sentence(
    tmp_path: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(small_folder(tmp_path / "from"))
    (tmp_path / "text.db").write_text("no database" * 20)
    (tmp_path / "empty").mkdir()
    wrong = {
        ("mysql://bob:hunter2@db/x", source): "a postgresql:// URL, a data folder or a store file",
        (source, "postgresql://bob:hunter2@127.0.0.1:1/x"): "cannot be reached",
        (source, "postgresql://bob:hunter2%zz@db/x"): "special characters of the password percent-encoded",
        (source, "postgresql://bob:hunter2@db/x?bogus=1"): "has no parameter 'bogus'",
        (source, "postgresql://bob:%zz?hunter2=@db/x"): "special characters of the password percent-encoded",
        (source, source): "another place than FROM",
        (source, database_url(postgres_url, "missing")): "create the database first",
        (str(tmp_path / "missing"), source): "is not a server's data folder",
        (str(tmp_path / "empty"), source): "is not a server's data folder",
        (str(tmp_path / "missing.db"), source): "does not exist: check the path",
        (str(tmp_path / "text.db"), source): "is not a store",
        (postgres_url, source): "check the URL",
    }
    for (one, other), words in wrong.items():
        assert main(["database", "copy", one, other]) == 1
        shown = capsys.readouterr()
        assert words in shown.err
        assert "hunter2" not in shown.err
        assert "Traceback" not in shown.err
        assert shown.out == ""
    assert not (tmp_path / "missing").exists()


def test_a_tenant_is_named_for_store_files_only(tmp_path: Path, service_url: str, folder: Path) -> None:
    with pytest.raises(BadSetting, match="has default, other"):
        copy(folder, tmp_path / "one.db")
    with pytest.raises(BadSetting, match="has default, other"):
        copy(folder, tmp_path / "one.db", tenant="third")
    assert not (tmp_path / "one.db").exists()
    with pytest.raises(BadSetting, match="store files have no tenants"):
        copy(_one_file(tmp_path), tmp_path / "other.db", tenant="default")


def test_a_tenant_whose_name_is_no_file_name_is_refused(tmp_path: Path, service_url: str) -> None:
    copy(_one_file(tmp_path), service_url, tenant="../../outside")
    with pytest.raises(BadSetting, match="tenant"):
        copy(service_url, tmp_path / "deep" / "er")
    assert not list(tmp_path.rglob("outside*"))


def _one_file(folder: Path) -> Path:
    async def fill() -> None:
        async with SqliteStore(folder / "one.db") as store:
            await store.append("a", said(1))

    asyncio.run(fill())
    return folder / "one.db"


def test_the_command_prints_what_it_compared(
    tmp_path: Path, service_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["database", "copy", str(small_folder(tmp_path / "from")), service_url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "compared and equal: 1 tenant, 2 sessions, 44 events, 0 rows",
        "copied by this run: 44 events, 0 rows",
    ]


def test_pages_follow_the_size_of_what_is_copied() -> None:
    size = PageSize()
    sizes = []
    for item_bytes in (100, 100, 100, 1 << 20, 1 << 20, 100 << 20, 100):
        sizes.append(size.items)
        size.adapt(size.items, size.items * item_bytes)
    assert sizes == [4, 8, 16, 32, 4, 4, 1]
    assert PAGE_BYTES == 4 << 20
    assert [fitting_items(sizes) for sizes in ([], [9], [1 << 20, 9], [1 << 18] * 5, [9, 9, 1 << 19])] == [
        1,
        1,
        1,
        2,
        2,
    ]
