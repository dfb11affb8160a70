"""The SQLite store under kill -9, competing processes, damaged files, full disks and missing permissions.

The tests use real processes, files and errors. FOVEAL_SOAK=1 kills ten times as often and damages more bytes.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import IO, Final

import apsw
import pytest

from foveal.core.log import Erased, Event, Noted
from foveal.errors import StoreError, StoreUnusable, UnknownSession
from foveal.stores import SqliteStore, open_store
from foveal.stores.sqlite import schema
from foveal.stores.sqlite.connection import open_writer
from support import warm_start
from support.effort import rest_in_soak
from support.paths import SUPPORT
from support.store_worker import SESSION, batch, event
from support.warm_start import WarmProcess

SOAK: Final = bool(os.environ.get("FOVEAL_SOAK"))
ROUNDS: Final = 200 if SOAK else 20
WORKER: Final = SUPPORT / "store_worker.py"
CHILD_TIMEOUT_S: Final = 240


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


def worker(*args: object) -> AbstractContextManager[WarmProcess]:
    return warm_start.child([WORKER, *args])


def output_of(*args: object) -> str:
    """Return what a child prints until it ends."""
    with worker(*args) as child:
        out, err = child.communicate(timeout=CHILD_TIMEOUT_S)
    assert child.returncode == 0, err.decode()
    return out.decode().strip()


def read(path: Path, session: str = SESSION, *, first: int = 0) -> list[Event]:
    async def work() -> list[Event]:
        async with open_store(path) as store:
            return await store.read(session, first=first)

    return asyncio.run(work())


def write(path: Path, first: int, last: int) -> None:
    async def work() -> None:
        async with open_store(path, durability="normal") as store:
            await store.append(SESSION, [event(seq) for seq in range(first, last + 1)])

    asyncio.run(work())


def expected(first: int, last: int) -> list[Event]:
    return [event(seq) for seq in range(first, last + 1)]


# ── Kill -9 ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("durability", "seed"), rest_in_soak([("full", 1), ("normal", 3), ("full", 2), ("normal", 4)], kept=2)
)
def test_acknowledged_events_survive_kill_9_at_any_moment(path: Path, durability: str, seed: int) -> None:
    pick = random.Random(seed)
    ends = {0}
    acknowledged = checked = -1
    with worker("spawn", path, durability) as spawner:
        for nr in range(ROUNDS):
            appended = pick.choice((0, 1, 4, 16)) if nr % 3 < 2 else None
            seconds = pick.choice((0.0, 0.004, 0.02)) * pick.random()
            acknowledged = max(acknowledged, _spawn_and_kill(spawner, appended, seconds))
            if acknowledged < 0:
                continue
            found = read(path, first=max(checked, 0))
            assert found == expected(max(checked, 0), found[-1].seq)
            assert found[-1].seq >= acknowledged
            assert found[-1].seq + 1 in _boundaries(ends, found[-1].seq + 1), "half of a batch was written"
            checked = found[-1].seq
    assert checked > ROUNDS / 2
    assert read(path) == expected(0, checked)
    assert _is_intact(path)


def _spawn_and_kill(spawner: WarmProcess, appended: int | None, seconds: float) -> int:
    """Kill a child some time after so many appends, or after its start if that is None; return the last
    acknowledged seq."""
    assert spawner.stdin is not None
    assert spawner.stdout is not None
    spawner.stdin.write(b"go\n")
    spawner.stdin.flush()
    word, pid = spawner.stdout.readline().split()
    assert word == b"child"
    last = -1
    if appended is not None:
        assert spawner.stdout.readline() == b"open\n"
        for _ in range(appended):
            last = int(spawner.stdout.readline())
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGKILL)
    return max(last, _last_number(spawner.stdout))


def _last_number(lines: IO[bytes]) -> int:
    last = -1
    for line in lines:
        if line == b"ended\n":
            return last
        if line != b"open\n":
            last = int(line)
    raise AssertionError("the spawner has ended")


def _boundaries(ends: set[int], upto: int) -> set[int]:
    """Return where the batches from event 0 on end."""
    newest = max(ends)
    while newest < upto:
        newest += len(batch(newest))
        ends.add(newest)
    return ends


def _is_intact(path: Path) -> bool:
    connection = apsw.Connection(str(path))
    try:
        return bool(connection.pragma("integrity_check") == "ok")
    finally:
        connection.close()


@pytest.mark.parametrize("seed", range(20 if SOAK else 2))
def test_a_killed_erasure_is_atomic_and_can_be_repeated(path: Path, seed: int) -> None:
    write(path, 0, 400)
    with worker("erase", path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdin.write(b"go\n")
        child.stdin.flush()
        time.sleep(0.05 * random.Random(seed).random())
        child.kill()
        child.wait()
    found = read(path)
    assert [e.seq for e in found] == list(range(401))
    assert found == expected(0, 400) or all(isinstance(e.fact, Erased) for e in found)

    async def again() -> None:
        async with open_store(path) as store:
            await store.erase(SESSION)

    asyncio.run(again())
    assert all(isinstance(e.fact, Erased) for e in read(path))
    assert _is_intact(path)


# ── Several processes ────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_another_process_is_creating_is_not_foreign(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process creates the tables between two reads of the check."""
    has_tables = schema._has_tables

    def created_meanwhile(connection: apsw.Connection) -> bool:
        with suppress(apsw.BusyError):  # the check holds its snapshot
            other = apsw.Connection(str(path))
            schema.migrate(other)
            other.close()
        return has_tables(connection)

    monkeypatch.setattr(schema, "_has_tables", created_meanwhile)
    open_writer(str(path), timeout=1.0).close()


def test_exactly_one_of_eight_processes_wins_each_seq(path: Path) -> None:
    count = 100 if SOAK else 25
    commands = [[WORKER, "compete", path, f"process {nr}", count] for nr in range(8)]
    children = [warm_start.start(command, stdout=PIPE, stderr=PIPE) for command in commands]
    try:
        answers = [child.communicate(timeout=CHILD_TIMEOUT_S) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [err for _, err in answers if err] == []
    found = read(path)
    assert [e.seq for e in found] == list(range(8 * count))
    for nr, (out, _) in enumerate(answers):
        assert {found[int(seq)].fact for seq in out.split()} == {Noted(text=f"process {nr}")}
        assert len(out.split()) == count


def test_a_locked_file_is_a_clear_error_until_it_is_unlocked(path: Path) -> None:
    write(path, 0, 3)

    async def work(holder: WarmProcess) -> None:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        async with SqliteStore(path, timeout=0.2) as store:
            assert await store.read(SESSION) == expected(0, 3)
            start = time.monotonic()
            for first in (4, 5):
                with pytest.raises(StoreUnusable, match="locked by another process"):
                    await store.append(SESSION, expected(4, first))
            assert time.monotonic() - start < CHILD_TIMEOUT_S
            holder.communicate(timeout=CHILD_TIMEOUT_S)
            await store.append(SESSION, expected(4, 4))

    with worker("hold", path) as holder:
        asyncio.run(work(holder))
    assert read(path) == expected(0, 4)


# ── Damaged files ───────────────────────────────────────────────────────────────────────────────────────────


def _database_and_log(path: Path) -> tuple[bytes, bytes]:
    """Return the bytes of a database with events 0–29 and of its write-ahead log with events 30–59."""
    write(path, 0, 29)

    async def work() -> tuple[bytes, bytes]:
        async with open_store(path) as store:
            for seq in range(30, 60):
                await store.append(SESSION, [event(seq)])
            return path.read_bytes(), Path(f"{path}-wal").read_bytes()

    return asyncio.run(work())


def _offsets(size: int) -> list[int]:
    """Return offsets around the starts of frames, and random ones."""
    stride = 7 if SOAK else 29
    frames = [32 + nr * 4120 + off for nr in range(0, size // 4120, stride) for off in (-1, 0, 1, 24)]
    anywhere = random.Random(11).sample(range(size), 300 if SOAK else 10)
    return sorted({offset for offset in [0, 1, 31, 32, size - 1, *frames, *anywhere] if 0 <= offset < size})


def test_a_write_ahead_log_cut_at_any_byte_keeps_a_gapless_prefix(
    tmp_path: Path,
) -> None:
    database, log = _database_and_log(tmp_path / "whole.db")
    damaged = tmp_path / "damaged.db"
    lengths: list[int] = []
    for offset in _offsets(len(log)):
        damaged.write_bytes(database)
        Path(f"{damaged}-wal").write_bytes(log[:offset])
        Path(f"{damaged}-shm").unlink(missing_ok=True)
        found = read(damaged)
        assert found == expected(0, len(found) - 1)
        assert len(found) >= 30
        write(damaged, len(found), len(found) + 2)
        assert read(damaged) == expected(0, len(found) + 2)
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert lengths[0] == 30
    assert lengths[-1] >= 58


def test_a_damaged_write_ahead_log_never_changes_earlier_events(tmp_path: Path) -> None:
    database, log = _database_and_log(tmp_path / "whole.db")
    damaged = tmp_path / "damaged.db"
    for offset in _offsets(len(log))[:: 1 if SOAK else 3]:
        damaged.write_bytes(database)
        Path(f"{damaged}-wal").write_bytes(log[:offset] + bytes([log[offset] ^ 0xFF]) + log[offset + 1 :])
        Path(f"{damaged}-shm").unlink(missing_ok=True)
        found = read(damaged)
        assert found == expected(0, len(found) - 1)
        assert len(found) >= 30


def test_a_damaged_database_is_an_error_or_has_gapless_seqs(tmp_path: Path) -> None:
    write(tmp_path / "whole.db", 0, 200)
    database = (tmp_path / "whole.db").read_bytes()
    pick = random.Random(3)
    errors = 0
    for _ in range(200 if SOAK else 25):
        broken = bytearray(database)
        start = pick.randrange(len(broken))
        broken[start : start + 64] = pick.randbytes(len(broken[start : start + 64]))
        damaged = tmp_path / "damaged.db"
        damaged.write_bytes(broken)
        try:
            found = read(damaged)
        except StoreError:
            errors += 1
        else:
            assert [e.seq for e in found] == list(range(len(found)))
            asyncio.run(_problems_of_reading(damaged))  # no other error than a `StoreError`
    assert errors > 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DELETE FROM events", "session 'test session' has no events"),
        ("UPDATE events SET body = x''", "the row of an event has no text"),
        ("UPDATE sessions SET id = cast(x'ff' AS TEXT), title = cast(x'ff' AS TEXT)", "can't decode byte"),
    ],
)
def test_rows_that_damage_has_emptied_are_a_clear_error(path: Path, damage: str, words: str) -> None:
    write(path, 0, 9)
    connection = apsw.Connection(str(path))
    connection.execute(f"DROP TRIGGER events_remain; {damage}")
    connection.close()
    problems = [str(problem) for problem in asyncio.run(_problems_of_reading(path))]
    assert problems
    assert all("is damaged: copy it away" in problem for problem in problems)
    assert any(words in problem for problem in problems)


async def _problems_of_reading(path: Path) -> list[StoreError]:
    """Return the errors of the calls that read; a session whose id is damaged is unknown."""
    problems: list[StoreError] = []
    async with open_store(path) as store:
        for call in (
            lambda: store.read(SESSION),
            lambda: store.pick(SESSION, [0]),
            lambda: store.info(SESSION),
            lambda: store.sessions(limit=5),
            lambda: store.sessions(),
        ):
            try:
                await call()
            except UnknownSession:
                pass
            except StoreError as problem:
                problems.append(problem)
    return problems


@pytest.mark.parametrize("size", [1, 100, 4096, 5000])
def test_a_database_cut_short_is_a_clear_error(path: Path, size: int) -> None:
    write(path, 0, 200)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreUnusable, match=r"chats\.db (is|could)"):
        read(path)


# ── Files of other programs ────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_not_a_database_is_refused_and_not_touched(path: Path) -> None:
    path.write_bytes(b"Dear diary, today I was not a database. " * 200)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"not a store.*choose another path"):
        read(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("application", [0, 0x0F055112])
def test_the_sqlite_file_of_another_program_is_refused_and_not_touched(path: Path, application: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE recipes(name)")
    connection.pragma("application_id", application)
    connection.pragma("user_version", 99)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="another program"):
        read(path)
    assert path.read_bytes() == before


def test_the_error_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"there is no folder .*missing; create it"):
        read(tmp_path / "missing" / "chats.db")
    with pytest.raises(StoreUnusable, match="is a folder"):
        read(tmp_path)
    assert list(tmp_path.iterdir()) == []


# ── Full disks and missing permissions ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [100_000, 300_000, 1_000_000])
def test_a_full_disk_is_a_clear_error_and_loses_nothing(path: Path, size: int) -> None:
    write(path, 0, 5)
    acknowledged, error, words = output_of("limited", path, size).split(" ", 2)
    assert error == "StoreUnusable"
    assert "full" in words
    assert int(acknowledged) >= 5
    found = read(path)
    assert found == expected(0, len(found) - 1)
    assert len(found) > int(acknowledged)
    write(path, len(found), len(found) + 5)
    assert read(path) == expected(0, len(found) + 5)


def test_a_full_tmpfs_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        path = disk / "chats.db"
        write(path, 0, 5)
        acknowledged, error, words = output_of("limited", path, 1 << 30).split(" ", 2)
        assert (error, "full" in words) == ("StoreUnusable", True)
        copy = tmp_path / "copy.db"
        for file in disk.iterdir():
            shutil.copy(file, tmp_path / file.name.replace("chats", "copy"))
        found = read(copy)
        assert found == expected(0, len(found) - 1)
        assert len(found) > int(acknowledged) >= 5
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def shared_store() -> Iterator[Path]:
    """Return a store that all users may read and write, in a folder with the same permissions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.db"
        write(path, 0, 3)
        path.chmod(0o666)
        path.parent.chmod(0o777)
        yield path
        path.parent.chmod(0o700)


def test_another_user_with_permissions_may_use_the_file(shared_store: Path) -> None:
    assert output_of("unprivileged", shared_store) == "299 fine"


def test_a_read_only_file_is_a_clear_error(shared_store: Path) -> None:
    shared_store.chmod(0o444)
    assert _is_refused(shared_store, "cannot be written")


def test_a_read_only_folder_is_a_clear_error(shared_store: Path) -> None:
    shared_store.parent.chmod(0o555)
    assert _is_refused(shared_store, "cannot be opened", "cannot be written", "could not be used")
    new = shared_store.with_name("new.db")
    words = output_of("unprivileged", new)
    assert "StoreUnusable" in words
    assert "cannot be created (Permission denied)" in words
    assert not new.exists()


def test_an_unreadable_file_is_a_clear_error(shared_store: Path) -> None:
    shared_store.chmod(0o000)
    assert _is_refused(shared_store, "cannot be read (Permission denied)")


def _is_refused(path: Path, *words: str) -> bool:
    """Return whether a user without permissions gets one of these errors and nothing is lost."""
    output = output_of("unprivileged", path)
    assert "StoreUnusable" in output
    assert any(word in output for word in words), output
    path.chmod(0o600)
    path.parent.chmod(0o700)
    return read(path) == expected(0, 3)


def test_a_clock_that_goes_backwards_loses_nothing(path: Path) -> None:
    async def work() -> None:
        times = iter([1e9, 5e8, 0.0, -1.0, 2e9])
        async with SqliteStore(path, clock=lambda: next(times)) as store:
            for seq in range(4):
                await store.append("a", [Event(seq, Noted(text=str(seq)))])
            assert [e.seq for e in await store.read("a")] == [0, 1, 2, 3]
            assert (await store.info("a")).created == 1e9

    asyncio.run(work())


def test_a_store_that_cannot_be_opened_can_be_tried_again(path: Path) -> None:
    async def work() -> None:
        store = open_store(path)
        path.write_bytes(b"no database at all" * 400)
        with pytest.raises(StoreError):
            await store.sessions()
        path.unlink()
        assert await store.sessions() == []
        await store.close()

    asyncio.run(work())
