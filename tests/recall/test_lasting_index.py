"""The index of past sessions that lasts: what it keeps, what it forgets, and who may read it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from foveal import transcripts
from foveal.core.log import Event, UserSaid
from foveal.errors import StoreUnusable
from foveal.recall.archive import Archive, ArchiveSource, SqliteSource, TranscriptSource
from foveal.recall.archive.index import INDEX_FORMAT, ArchiveIndex, IndexFile
from foveal.recall.archive.source import SessionEntry, SessionLog
from foveal.stores import open_store
from support.claude_files import claude_line, write_claude
from support.waiting import wait_until

T = TypeVar("T")

A_KEY = "AKIA" + "Z7Q2M4X5W3N5K3J6"
COMPLETE = "(3 searched)"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with three transcripts, and one for the index."""
    logs = tmp_path / "logs"
    for name in ("zebra", "lion", "giraffe"):
        write_claude(logs / f"{name}.jsonl", f"Where is the {name}?", f"The {name} sleeps")
    return logs, tmp_path / "cache" / "recall"


def with_archive(
    index: Path,
    work: Callable[[Archive], Coroutine[Any, Any, T]],
    *sources: ArchiveSource,
    work_s: float = 60.0,
) -> T:
    """Do work with an archive as a process of its own has it: nothing is known but what the index has."""

    async def scene() -> T:
        archive = Archive(sources, work_s=work_s, kept=IndexFile(index))
        try:
            return await work(archive)
        finally:
            await archive.close()

    return asyncio.run(scene())


def search(index: Path, query: str, *sources: ArchiveSource, work_s: float = 60.0) -> str:
    return with_archive(index, lambda archive: archive.search(query), *sources, work_s=work_s)


def search_files(index: Path, query: str, logs: Path, *, work_s: float = 60.0) -> str:
    return search(index, query, TranscriptSource(logs), work_s=work_s)


def build(index: Path, logs: Path) -> None:
    """Index everything, and take out what is gone."""

    async def work(archive: Archive) -> None:
        while await archive.index_sessions(work_s=60.0):
            pass

    with_archive(index, work, TranscriptSource(logs))


def stored_bytes(index: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(index.iterdir()))


# ── Restarts ─────────────────────────────────────────────────────────────────────────────────────────────


def test_after_a_restart_all_sessions_answer_without_being_read_again(places: tuple[Path, Path]) -> None:
    logs, index = places
    build(index, logs)
    answer = search_files(index, "lion", logs, work_s=-1.0)
    assert "> The lion sleeps" in answer
    assert COMPLETE in answer


def test_the_first_words_of_a_partial_answer_say_so(places: tuple[Path, Path]) -> None:
    logs, index = places
    answer = search_files(index, "sleeps", logs, work_s=-1.0)
    assert answer.startswith("[foveal recall: searched 0 of 3 sessions so far; nothing found")
    assert "3 sessions were not searched completely yet (they are being indexed): search again" in answer


class SlowSource(TranscriptSource):
    """Transcripts that take long to parse."""

    async def open(self, entry: SessionEntry) -> SessionLog:
        await asyncio.sleep(0.4)
        return await super().open(entry)


def test_the_session_with_the_words_is_found_before_the_others_are_indexed(tmp_path: Path) -> None:
    for number in range(12):
        write_claude(tmp_path / f"logs/{number}.jsonl", "Hello", f"number {number}", day=number + 2)
    write_claude(tmp_path / "logs/oldest.jsonl", "Where are they?", "The ponies sleep", day=1)
    answer = search(tmp_path / "index", "pony", SlowSource(tmp_path / "logs"), work_s=0.6)
    assert "> The ponies sleep" in answer
    assert answer.startswith("[foveal recall: 1 session ")  # the bytes of the others have none of the words
    common = search(tmp_path / "other", "hello", SlowSource(tmp_path / "logs"), work_s=0.6)
    assert common.startswith("[foveal recall: searched ")
    assert " of 13 sessions so far; " in common


def test_a_file_that_grew_or_changed_meanwhile_is_read_again(places: tuple[Path, Path]) -> None:
    logs, index = places
    build(index, logs)
    with (logs / "lion.jsonl").open("a") as file:
        file.write(claude_line("The lion roars", id="u2", parent="u1"))
    write_claude(logs / "zebra.jsonl", "Where is the okapi?", "The okapi sleeps")
    assert "> The lion roars" in search_files(index, "roars", logs)
    assert "> The okapi sleeps" in search_files(index, "okapi", logs)
    assert "nothing found" in search_files(index, "zebra", logs)


@pytest.mark.parametrize("is_other_process", [True, False])
def test_a_file_rewritten_with_the_same_size_and_time_is_read_again(
    places: tuple[Path, Path], is_other_process: bool
) -> None:
    logs, index = places
    file = logs / "lion.jsonl"
    source = TranscriptSource(logs)

    def found(query: str) -> str:
        if is_other_process:
            return search_files(index, query, logs)
        return search(index, query, source)

    assert "> The lion sleeps" in found("lion")
    for name in ("wolf", "bear"):
        text, status = file.read_text(), file.stat()
        file.write_text(text.replace("lion", name).replace("wolf", name))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert file.stat().st_size == status.st_size
        assert f"> The {name} sleeps" in found(name)
        assert "> The lion sleeps" not in found("lion")


def test_all_conversations_of_one_file_are_found_after_a_restart(tmp_path: Path) -> None:
    logs, index = tmp_path / "logs", tmp_path / "index"
    logs.mkdir()
    exported = [
        line
        for name in ("zebra", "lion")
        for line in transcripts.write_events([Event(0, UserSaid(content=f"A {name}"))], name, name)
    ]
    (logs / "both.jsonl").write_bytes(b"".join(exported))

    build(index, logs)
    answer = search_files(index, "lion", logs, work_s=-1.0)
    assert "> A lion" in answer
    assert "(2 searched)" in answer
    listed = with_archive(index, lambda archive: archive.sessions(), TranscriptSource(logs))
    assert "2 sessions, the most recently active first" in listed
    (logs / "both.jsonl").write_bytes(exported[0] + exported[1])
    build(index, logs)
    assert "nothing found" in search_files(index, "lion", logs)


# ── What it forgets ──────────────────────────────────────────────────────────────────────────────────────


def test_a_removed_transcript_leaves_neither_answers_nor_words(places: tuple[Path, Path]) -> None:
    logs, index = places
    build(index, logs)
    assert b"giraff" in stored_bytes(index)
    (logs / "giraffe.jsonl").unlink()
    assert "nothing found" in search_files(index, "giraffe", logs)
    build(index, logs)
    assert b"giraff" not in stored_bytes(index)
    assert "> The lion sleeps" in search_files(index, "lion", logs, work_s=-1.0)


def test_a_search_that_finds_a_transcript_removed_takes_its_words_out(places: tuple[Path, Path]) -> None:
    logs, index = places

    async def work(archive: Archive) -> None:
        await archive.search("giraffe")
        (logs / "giraffe.jsonl").unlink()
        await archive.search("giraffe")
        while archive.is_indexing:
            await asyncio.sleep(0.01)

    with_archive(index, work, TranscriptSource(logs))
    assert b"giraff" not in stored_bytes(index)


def test_sessions_of_a_store_are_never_kept_so_that_an_erasure_leaves_nothing(tmp_path: Path) -> None:
    path, index = tmp_path / "sessions.db", tmp_path / "index"

    async def work(archive: Archive) -> list[str]:
        async with open_store(path) as store:
            await store.append("chat", [Event(0, UserSaid(content="The zebra sleeps"), 1.0)])
            found = await archive.search("zebra")
            await store.erase("chat")
            return [found, await archive.search("zebra")]

    found, erased = with_archive(index, work, SqliteSource(path))
    assert "> The zebra sleeps" in found
    assert "nothing found" in erased
    assert b"zebra" not in stored_bytes(index)


def test_secrets_are_not_indexed(tmp_path: Path) -> None:
    write_claude(tmp_path / "logs/a.jsonl", "deploy", f"export AWS_ACCESS_KEY_ID={A_KEY}")
    build(tmp_path / "index", tmp_path / "logs")
    assert b"deploi" in stored_bytes(tmp_path / "index")
    assert A_KEY.lower().encode() not in stored_bytes(tmp_path / "index")
    assert "nothing found" in search_files(tmp_path / "index", A_KEY, tmp_path / "logs")


def test_a_place_that_is_not_used_for_a_month_is_forgotten(places: tuple[Path, Path], tmp_path: Path) -> None:
    logs, index = places
    build(index, logs)
    write_claude(tmp_path / "other/a.jsonl", "Where is the okapi?")
    build(index, tmp_path / "other")
    assert b"giraff" in stored_bytes(index)
    with apsw.Connection(str(index / "sessions.db")) as connection:  # open to the end, as in another process
        connection.execute("UPDATE places SET used = used - ?", (31 * 86_400,))
    build(index, tmp_path / "other")
    assert b"giraff" not in stored_bytes(index)
    assert b"okapi" in stored_bytes(index)


# ── Permissions ──────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_owner_can_read_it(places: tuple[Path, Path]) -> None:
    logs, index = places
    index.mkdir(parents=True, mode=0o755)
    (index / "sessions.db").touch(mode=0o644)

    async def modes(archive: Archive) -> set[int]:
        await archive.index_sessions(work_s=60.0)
        return {stat.S_IMODE(path.stat().st_mode) for path in index.iterdir()}

    assert with_archive(index, modes, TranscriptSource(logs)) == {0o600}
    assert stat.S_IMODE(index.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", "sessions.db"])
def test_what_belongs_to_another_user_is_refused(places: tuple[Path, Path], name: str) -> None:
    logs, index = places
    build(index, logs)
    os.chown(index / name, 54_321, 54_321)
    with pytest.raises(StoreUnusable, match="belongs to another user"):
        IndexFile(index)


@pytest.mark.parametrize("name", [".", "sessions.db"])
def test_a_link_is_refused(places: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    logs, index = places
    build(index, logs)
    path = Path(os.path.normpath(index / name))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnusable, match="remove it"):
        IndexFile(index)


# ── Damage and versions ──────────────────────────────────────────────────────────────────────────────────


def junk(path: Path) -> None:
    path.write_bytes(b"no database" * 1_000)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


def overwrite_middle(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4_096] + b"\xff" * (len(content) - 4_096))


def make_older(path: Path) -> None:
    with apsw.Connection(str(path)) as connection:
        connection.pragma("user_version", INDEX_FORMAT - 1)


@pytest.mark.parametrize("damage", [junk, cut, overwrite_middle, make_older])
def test_a_broken_or_older_index_is_built_again_and_says_so(
    places: tuple[Path, Path], damage: Callable[[Path], None]
) -> None:
    logs, index = places
    build(index, logs)
    damage(index / "sessions.db")

    async def work(archive: Archive) -> str:
        partial = await archive.search("lion")
        while archive.is_indexing:
            await asyncio.sleep(0.01)
        assert "> The lion sleeps" in await archive.search("lion")
        return partial

    answer = with_archive(index, work, TranscriptSource(logs), work_s=-1.0)
    assert "built again" in answer
    assert answer.startswith("[foveal recall: searched 0 of 3 sessions so far; ")
    assert COMPLETE in search_files(index, "lion", logs, work_s=-1.0)


def test_the_index_of_a_later_version_is_left_alone(places: tuple[Path, Path]) -> None:
    logs, index = places
    build(index, logs)
    with apsw.Connection(str(index / "sessions.db")) as connection:
        connection.pragma("user_version", INDEX_FORMAT + 1)
    with pytest.raises(StoreUnusable, match="later version"):
        IndexFile(index)


# ── Several processes ────────────────────────────────────────────────────────────────────────────────────


def start_server(home: Path, logs: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", "foveal.cli", "mcp", str(logs)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def count_indexed(index: Path) -> int:
    path = index / "sessions.db"
    if not path.exists():
        return 0
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        return int(connection.execute("SELECT count(*) FROM archived WHERE version != ''").get)
    except (apsw.SQLError, apsw.BusyError, apsw.CantOpenError):  # it is being created
        return 0


def make_many(logs: Path, number: int) -> None:
    for at in range(number):
        words = " ".join(f"word{at}x{nr}" for nr in range(2_000))
        write_claude(logs / f"{at}.jsonl", f"Question {at}", f"needle{at} {words}", "tail " * 100)


def assert_whole(index: Path, logs: Path, number: int) -> None:
    """Every session is in the index, once, and its words are found without reading files."""
    assert count_indexed(index) == number
    assert apsw.Connection(str(index / "sessions.db")).pragma("integrity_check") == "ok"
    for at in (0, number // 2, number - 1):
        answer = search_files(index, f"needle{at}", logs, work_s=-1.0)
        assert answer.startswith(
            f'[foveal recall: 1 session for "needle{at}", best first ({number} searched)'
        )


@pytest.mark.soak
def test_two_servers_build_one_index(tmp_path: Path) -> None:
    logs, index = tmp_path / "logs", tmp_path / "cache/foveal/recall"
    make_many(logs, 60)
    servers = [start_server(tmp_path, logs) for _ in range(2)]
    wait_until(lambda: count_indexed(index) == 60)
    ends = [server.communicate("", timeout=240) for server in servers]
    ended = [(server.returncode, *end) for server, end in zip(servers, ends, strict=True)]
    assert ended == [(0, "", "")] * 2
    assert_whole(index, logs, 60)


@pytest.mark.soak
def test_a_server_that_is_killed_while_it_builds_leaves_a_whole_index(tmp_path: Path) -> None:
    logs, index = tmp_path / "logs", tmp_path / "cache/foveal/recall"
    make_many(logs, 120)
    killed, other = start_server(tmp_path, logs), start_server(tmp_path, logs)
    wait_until(lambda: count_indexed(index) > 0)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=240)
    wait_until(lambda: count_indexed(index) == 120)
    other.communicate("", timeout=240)
    assert other.returncode == 0
    assert_whole(index, logs, 120)


def test_a_server_starts_while_another_writes(tmp_path: Path) -> None:
    first = IndexFile(tmp_path / "recall")
    ArchiveIndex(first)
    first.connection.execute("BEGIN IMMEDIATE")
    second = IndexFile(tmp_path / "recall")
    second.connection.set_busy_timeout(0)
    ArchiveIndex(second).close()
    first.connection.execute("ROLLBACK")
    first.close()
