"""Both stores pass the contract tests; then tests of the SQLite store alone."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.core.log import Erased, Event, Noted, ToolReturned, UserSaid, encode
from foveal.errors import BadSetting, StoreError, StoreUnusable
from foveal.ports import Checkpoint, Store
from foveal.stores import MemoryStore, SqliteStore, open_store
from foveal.stores.compression import DICTIONARY, MAX_INLINE_BYTES, CutText, LinePacker
from foveal.stores.sqlite.schema import ID_STRIDE, MIGRATIONS, STORE_APPLICATION_ID, STORE_SCHEMA_VERSION
from support.effort import examples, rest_in_soak
from support.store_contract import LONG_TEXT, RANDOM_TEXT, Contract, StoreFactory, StoreMachine, log, said


def make_memory(path: Path, clock: Callable[[], float]) -> Store:
    return MemoryStore(clock=clock)


def make_full(path: Path, clock: Callable[[], float]) -> Store:
    return SqliteStore(path, clock=clock)


def make_normal(path: Path, clock: Callable[[], float]) -> Store:
    return SqliteStore(path, durability="normal", clock=clock)


class TestMemoryStore(Contract):
    make: ClassVar[StoreFactory] = staticmethod(make_memory)
    in_memory = True


class TestSqliteStore(Contract):
    make: ClassVar[StoreFactory] = staticmethod(make_full)


@pytest.mark.soak
class TestSqliteStoreOfNormalDurability(Contract):
    """The same statements with another synchronisation; `TestSqliteMachine` and most tests of sessions use it."""

    make: ClassVar[StoreFactory] = staticmethod(make_normal)


class _MemoryMachine(StoreMachine):
    make: ClassVar[StoreFactory] = staticmethod(make_memory)
    in_memory = True


class _SqliteMachine(StoreMachine):
    make: ClassVar[StoreFactory] = staticmethod(make_normal)


MACHINE_SETTINGS = settings(examples(12), stateful_step_count=25)


class TestMemoryMachine(_MemoryMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = MACHINE_SETTINGS


class TestSqliteMachine(_SqliteMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = MACHINE_SETTINGS


# ── Packing ──────────────────────────────────────────────────────────────────────────────────────────────

PACKER = LinePacker()


@given(st.lists(st.one_of(st.text(max_size=50), st.integers(4000, 4200).map("\\".ljust)), max_size=8))
def test_a_packed_line_is_unpacked_to_the_same_bytes(texts: list[str]) -> None:
    line = encode(Event(0, UserSaid(content='"'.join(texts)))) + b"".join(
        encode(Event(0, Noted(text=t))) for t in texts
    )
    packed = PACKER.pack(line)
    cuts = [
        CutText(cut.offset, PACKER.decompress_blob(PACKER.compress_blob(cut.text))) for cut in packed.cuts
    ]
    assert PACKER.unpack(packed.body, cuts) == line
    assert all(len(cut.text) > MAX_INLINE_BYTES for cut in cuts)


def test_the_dictionary_never_changes() -> None:
    assert (
        hashlib.sha256(DICTIONARY).hexdigest()
        == "a59b984101cbfdcbf2590aedc4178a222a25913dc90f40e281cad3a35c455f8d"
    )


# ── The file ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def rows_of(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


def write(path: Path, **sessions: list[Event]) -> None:
    async def work() -> None:
        async with open_store(path, durability="normal") as store:
            for session, events in sessions.items():
                await store.append(session, events)

    asyncio.run(work())


def read(path: Path, session: str) -> list[Event]:
    async def work() -> list[Event]:
        async with open_store(path) as store:
            return await store.read(session)

    return asyncio.run(work())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_created_for_their_owner_only(path: Path, umask: int) -> None:
    async def work() -> None:
        async with open_store(path) as store:
            await store.append("a", said(1))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
            assert modes == {"chats.db": 0o600, "chats.db-wal": 0o600, "chats.db-shm": 0o600}

    before = os.umask(umask)
    try:
        asyncio.run(work())
    finally:
        os.umask(before)


def test_permissions_of_an_existing_file_do_not_change(path: Path) -> None:
    write(path, a=said(1))
    path.chmod(0o640)
    assert read(path, "a") == said(1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_durability_sets_the_synchronous_pragma(path: Path) -> None:
    async def synchronous(store: SqliteStore) -> object:
        async with store:
            await store.append(store.durability, said(1))
            assert store._file._writer is not None
            return store._file._writer.connection.pragma("synchronous")

    assert asyncio.run(synchronous(open_store(path))) == 2
    assert asyncio.run(synchronous(open_store(path, durability="normal"))) == 1
    with pytest.raises(BadSetting, match="durability"):
        open_store(path, durability="none")  # type: ignore[arg-type]


def test_identical_large_texts_are_stored_once(path: Path) -> None:
    result = ToolReturned(call_id="1", content=RANDOM_TEXT)
    write(path, a=log(result), b=log(*[result] * 20), c=log(UserSaid(content=RANDOM_TEXT)))
    assert rows_of(path, "SELECT count(*) FROM blobs") == [(1,)]
    assert rows_of(path, "SELECT count(*) FROM cuts") == [(22,)]


def test_bytes_of_shared_texts_are_divided_among_sessions(path: Path) -> None:
    async def work() -> None:
        async with open_store(path) as store:
            await store.append("a", log(UserSaid(content=RANDOM_TEXT)))
            alone = (await store.info("a")).bytes
            await store.fork("a", "b", at=0)
            shared = (await store.info("a")).bytes
            assert 0.5 * alone <= shared <= 0.51 * alone
            assert (await store.info("b")).bytes == shared

    asyncio.run(work())


def test_bytes_of_sessions_add_up_to_about_the_file_size(path: Path) -> None:
    pick = random.Random(5)

    def text() -> str:
        return " ".join(
            f"{pick.getrandbits(pick.choice((8, 20, 40))):x}" for _ in range(pick.randint(5, 300))
        )

    async def work() -> int:
        async with open_store(path, durability="normal") as store:
            for session in "abc":
                await store.append(session, log(*(UserSaid(content=text()) for _ in range(400))))
            return sum(info.bytes for info in await store.sessions())

    counted = asyncio.run(work())
    assert 0.8 <= counted / path.stat().st_size <= 1.05


def test_the_schema_refuses_gaps_duplicates_and_deletion(path: Path) -> None:
    write(path, a=said(3))
    connection = apsw.Connection(str(path))
    for seq in (2, 4, -1):
        with pytest.raises(apsw.ConstraintError):
            connection.execute("INSERT INTO events VALUES (?, 1.0, 0, x'7b7d')", (ID_STRIDE + seq,))
    with pytest.raises(apsw.ConstraintError, match="gapless"):
        connection.execute("INSERT INTO events VALUES (?, 1.0, 0, x'7b7d')", (7 * ID_STRIDE,))
    with pytest.raises(apsw.ConstraintError, match="append-only"):
        connection.execute("DELETE FROM events")
    connection.close()
    assert read(path, "a") == said(3)


def test_a_long_write_ahead_log_is_copied_into_the_database(path: Path) -> None:
    async def work() -> None:
        async with open_store(path, durability="normal") as store:
            for seq in range(3_000):
                await store.append("a", log(Noted(text=str(seq)), first=seq))
            await store.info("a")
            assert path.stat().st_size > 50_000
            assert Path(f"{path}-wal").stat().st_size < 8 << 20

    asyncio.run(work())


def test_calls_on_a_closed_store_raise(path: Path) -> None:
    async def work() -> None:
        async with open_store(path) as store:
            await store.append("a", said(1))
        for call in (store.append("a", said(1, first=1)), store.read("a"), store.sessions()):
            with pytest.raises(StoreError, match="closed"):
                await call

    asyncio.run(work())


def test_an_id_or_title_with_a_lone_surrogate_is_refused(path: Path) -> None:
    async def work() -> None:
        async with open_store(path) as store:
            await store.append("a", said(1))
            for call in (
                store.append("\ud800", said(1)),
                store.rename("a", "\ud800"),
                store.read("\ud800"),
            ):
                with pytest.raises(StoreError, match="Unicode"):
                    await call
            assert [info.id for info in await store.sessions()] == ["a"]

    asyncio.run(work())


def test_a_cancelled_append_is_atomic_and_the_store_still_works(path: Path) -> None:
    async def work() -> None:
        async with open_store(path) as store:
            for _ in range(30):
                end = (await store.info("a")).events if await store.sessions() else 0
                task = asyncio.ensure_future(store.append("a", said(3, first=end)))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await store.append("b", said(1))  # runs after the cancelled appends
            found = await store.read("a")
            assert found == said(len(found))
            assert len(found) % 3 == 0

    asyncio.run(work())


def test_a_store_may_be_used_from_several_event_loops(path: Path) -> None:
    store = open_store(path)
    for seq in range(5):
        asyncio.run(store.append("a", said(1, first=seq)))
    assert asyncio.run(store.read("a")) == said(5)
    asyncio.run(store.close())


def test_an_unclosed_store_does_not_keep_the_program_running(path: Path) -> None:
    program = f"""
import asyncio
from foveal.core.log.events import Event, Noted
from foveal.stores import open_store
store = open_store({str(path)!r})
asyncio.run(store.append("a", [Event(0, Noted(text="x"))]))
asyncio.run(store.read("a"))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
    assert [event.fact for event in read(path, "a")] == [Noted(text="x")]


@pytest.mark.soak
def test_a_text_of_100_megabytes_is_stored_and_read(path: Path) -> None:
    events = log(ToolReturned(call_id="1", content="0123456789" * 10_000_000))
    write(path, a=events)
    assert path.stat().st_size < 1_000_000
    assert read(path, "a") == events


# ── Erasure ──────────────────────────────────────────────────────────────────────────────────────────────


def stored_bytes(path: Path, session: int) -> list[bytes]:
    """Return the stored bodies of a session's events and blobs."""
    span = f"BETWEEN {session * ID_STRIDE} AND {session * ID_STRIDE + ID_STRIDE - 1}"
    events = rows_of(path, f"SELECT body FROM events WHERE id {span}")
    blobs = rows_of(path, f"SELECT body FROM blobs WHERE id IN (SELECT blob FROM cuts WHERE event {span})")
    return [bytes(body) for (body,) in events + blobs if isinstance(body, bytes)]


def count_remnants(path: Path, bodies: list[bytes]) -> int:
    """Count the pieces of 16 bytes of these bodies that are anywhere in the store's files."""
    files = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    pieces = sorted({body[at : at + 16] for body in bodies for at in range(20, len(body) - 16, 16)})
    assert len(pieces) > 200
    return sum(piece in files for piece in random.Random(1).sample(pieces, min(len(pieces), 1_000)))


def secrets(seed: int, count: int) -> list[Event]:
    """Return events, long and short, of words that occur nowhere else."""
    pick = random.Random(seed)
    words = (
        [f"{pick.getrandbits(64):016x}" for _ in range(pick.choice((3, 20, 60, 400)))] for _ in range(count)
    )
    return log(*(UserSaid(content=" ".join(some)) for some in words))


@pytest.mark.long
@pytest.mark.parametrize("durability", rest_in_soak(["full", "normal"]))
def test_erased_text_is_not_in_the_bytes_of_the_files(path: Path, durability: str) -> None:
    gone, kept = secrets(1, 80), secrets(2, 80)
    words = [word.encode() for event in gone for word in event.fact.content.split()[:2]]  # type: ignore[union-attr]

    async def work() -> None:
        async with open_store(path, durability=durability) as store:  # type: ignore[arg-type]
            for mine, other in zip(gone, kept, strict=True):  # interleaved, so that split pages leave copies
                await store.append("gone", [mine])
                await store.append("kept", [other])
            await store.rename("gone", "a title of 0123456789abcdef")
            await store.keep_checkpoint(
                "gone", Checkpoint(seq=9, needed=(), state=b"state of fedcba9876543210")
            )
            assert await store.search("gone", words[0].decode())
            bodies = stored_bytes(path, 1)
            assert count_remnants(path, bodies) > 100
            await store.erase("gone")
            assert count_remnants(path, bodies) == 0
            files = b"".join(file.read_bytes() for file in path.parent.glob("chats.db*"))
            assert not [word for word in [*words, b"0123456789abcdef", b"fedcba9876543210"] if word in files]
            assert await store.search("gone", words[0].decode()) == []
            assert await store.read("kept") == kept
            assert {type(event.fact) for event in await store.read("gone")} == {Erased}

    asyncio.run(work())
    assert count_remnants(path, [encode(event) for event in gone]) == 0


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────


def create_file_of_version(path: Path, version: int) -> None:
    """Create a file as version `version` of the schema."""
    connection = apsw.Connection(str(path))
    for step in MIGRATIONS[:version]:
        step(connection)
    connection.pragma("application_id", STORE_APPLICATION_ID)
    connection.pragma("user_version", version)
    connection.close()


def test_a_file_of_an_older_version_is_migrated_with_its_content(path: Path) -> None:
    events = [*said(3), *log(UserSaid(content=LONG_TEXT), first=3)]
    write(path.with_name("new.db"), a=events)
    create_file_of_version(path, 1)
    connection = apsw.Connection(str(path))
    connection.execute("ATTACH ? AS new", (str(path.with_name("new.db")),))
    for table in ("sessions", "events", "blobs", "cuts"):
        connection.execute(f"INSERT INTO main.{table} SELECT * FROM new.{table}")
    connection.close()
    assert read(path, "a") == events
    assert rows_of(path, "PRAGMA user_version") == [(STORE_SCHEMA_VERSION,)]

    async def work() -> None:
        async with open_store(path) as store:
            assert [hit.seq for hit in await store.search("a", "parser")] == [3]
            await store.keep_checkpoint("a", Checkpoint(seq=1, needed=(), state=b""))

    asyncio.run(work())


@pytest.mark.parametrize("made", [Path.touch, lambda path: create_file_of_version(path, 0)])
def test_an_empty_file_becomes_a_store(path: Path, made: Callable[[Path], None]) -> None:
    made(path)
    write(path, a=said(2))
    assert read(path, "a") == said(2)


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_file_of_version(path, 1)
    before = rows_of(path, "SELECT name FROM sqlite_schema")

    def fails(connection: apsw.Connection) -> None:
        connection.execute("CREATE TABLE half_done(x)")
        raise apsw.FullError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("foveal.stores.sqlite.schema.MIGRATIONS", (MIGRATIONS[0], fails))
        with pytest.raises(StoreUnusable, match="disk is full"):
            read(path, "a")
    assert rows_of(path, "SELECT name FROM sqlite_schema") == before
    write(path, a=said(1))
    assert read(path, "a") == said(1)


def test_a_file_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    write(path, a=said(3))
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", STORE_SCHEMA_VERSION + 1)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=f"later version of Foveal.*{STORE_SCHEMA_VERSION + 1}.*upgrade"):
        read(path, "a")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["chats.db"]


def test_a_newer_file_with_a_write_ahead_log_is_not_touched(path: Path) -> None:
    write(path, a=said(3))
    connection = apsw.Connection(str(path))
    connection.wal_autocheckpoint(0)
    connection.pragma("user_version", STORE_SCHEMA_VERSION + 1)
    files = [path, Path(f"{path}-wal")]
    before = [file.read_bytes() for file in files]
    assert len(before[1]) > 0
    with pytest.raises(StoreUnusable, match="later version"):
        read(path, "a")
    assert [file.read_bytes() for file in files] == before
    connection.close()
