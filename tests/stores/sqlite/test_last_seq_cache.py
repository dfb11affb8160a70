"""The cache of session ends: `news` without reading the file, and never a missed event."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log import Event, Noted
from foveal.stores import SqliteStore
from foveal.stores.sqlite.store_files import LastSeqCache


def event(seq: int) -> Event:
    return Event(seq, Noted(text=f"note {seq}"), 1.0)


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_store_sees_at_once_what_another_store_has_written(tmp_path: Path, durability: Any) -> None:
    async def work() -> None:
        path = tmp_path / "store.db"
        async with SqliteStore(path, durability=durability) as first, SqliteStore(path) as second:
            for seq in range(0, 40, 2):
                await first.append("s", [event(seq)])
                assert await first.read_new("s", first=seq + 1) == ([], False)
                assert await second.read_new("s", first=seq) == ([event(seq)], False)
                await second.append("s", [event(seq + 1)])
                assert await first.read_new("s", first=seq + 1) == ([event(seq + 1)], False)
                assert await first.read_new("s", first=seq + 2) == ([], False)
            await second.erase("s")
            assert (await first.read_new("s", first=40))[1]
            assert (await second.read_new("s", first=40))[1]

    asyncio.run(work())


@pytest.mark.parametrize("session", ["s", "new"])
def test_an_append_with_an_older_version_of_the_file_hides_no_event(tmp_path: Path, session: str) -> None:
    async def work() -> None:
        path = tmp_path / "store.db"
        async with SqliteStore(path, durability="normal") as first, SqliteStore(path) as second:
            await first.append("s", [event(0)])
            assert await first.read_new("s", first=1) == ([], False)  # the version that `first` knows
            await second.append("other", [event(0)])
            seq = 1 if session == "s" else 0
            await first.append(session, [event(seq)])
            await second.append(session, [event(seq + 1)])
            assert await first.read_new(session, first=seq + 1) == ([event(seq + 1)], False)

    asyncio.run(work())


def test_reading_beside_own_appends_never_misses_an_event(tmp_path: Path) -> None:
    async def work() -> None:
        async with SqliteStore(tmp_path / "store.db", durability="normal") as store:
            await store.append("s", [event(0)])
            seen = 1

            async def read() -> None:
                nonlocal seen
                while seen < 200:
                    news, _ = await store.read_new("s", first=seen)
                    assert [event.seq for event in news] == list(range(seen, seen + len(news)))
                    seen += len(news)
                    await asyncio.sleep(0)

            reading = asyncio.create_task(read())
            for seq in range(1, 200):
                await store.append("s", [event(seq)])
                if seq % 5 == 0:
                    await asyncio.sleep(0)
            await asyncio.wait_for(reading, 60)

    asyncio.run(work())


def test_the_end_of_a_session_is_unknown_after_a_cancelled_append() -> None:
    cache = LastSeqCache()
    cache.set_end("s", 7, 2)
    with cache.appending("s", 7, 3):
        assert not cache.is_end("s", 7, 2)
    assert cache.is_end("s", 7, 3)
    assert not cache.is_end("s", 8, 3)
    with pytest.raises(asyncio.CancelledError), cache.appending("s", 7, 4):
        raise asyncio.CancelledError
    cache.set_end("s", 7, 3)
    assert not cache.is_end("s", 7, 3)


def test_the_append_that_creates_a_session_makes_its_end_known() -> None:
    cache = LastSeqCache()
    with cache.appending("old", 7, 3):
        pass
    with cache.appending("new", 7, 3, creates=True):
        pass
    assert not cache.is_end("old", 7, 3)
    assert cache.is_end("new", 7, 3)
    assert not cache.is_end("new", 8, 3)


def test_another_change_of_sessions_invalidates_the_cache() -> None:
    cache = LastSeqCache()
    cache.set_end("s", 1, 5)
    changes = cache.changes
    with cache.invalidating():
        pass
    assert changes != cache.changes
    assert not cache.is_end("s", 1, 5)


def test_an_append_that_ends_after_a_newer_one_does_not_move_the_end_back() -> None:
    cache = LastSeqCache()
    cache.set_end("s", 7, 3)
    with cache.appending("s", 7, 4), cache.appending("s", 7, 5):
        pass
    assert not cache.is_end("s", 7, 4)
    cache.set_end("s", 7, 5)
    assert cache.is_end("s", 7, 5)


def test_the_end_after_an_append_is_unknown_if_a_newer_one_had_no_version() -> None:
    cache = LastSeqCache()
    cache.set_end("s", 7, 3)
    with ExitStack() as older, ExitStack() as newer:
        older.enter_context(cache.appending("s", 7, 4))
        newer.enter_context(cache.appending("s", None, 5))
        older.close()
    assert not cache.is_end("s", 7, 4)


def test_an_append_in_progress_during_another_change_does_not_set_the_end() -> None:
    cache = LastSeqCache()
    cache.set_end("s", 7, 3)
    with cache.appending("s", 7, 4), cache.invalidating():
        pass
    assert not cache.is_end("s", 7, 4)


def test_an_end_that_was_read_during_a_cancelled_append_is_forgotten() -> None:
    cache = LastSeqCache()
    with suppress(asyncio.CancelledError), cache.appending("s", 7, 4):
        cache.set_end("s", 7, 3)
        raise asyncio.CancelledError
    assert not cache.is_end("s", 7, 3)


def test_an_append_that_was_stored_first_and_returns_last_hides_no_event(tmp_path: Path) -> None:
    async def work() -> None:
        async with SqliteStore(tmp_path / "store.db", durability="normal") as store:
            await store.append("s", [event(0)])
            assert await store.read_new("s", first=1) == ([], False)
            store._writer._waits._to_skip = 1  # the next append waits for its thread and not for the result
            appending = asyncio.create_task(store.append("s", [event(1), event(2)]))
            await asyncio.sleep(0)
            store._writer.submit(lambda: None).done.acquire()  # events 1 and 2 are stored now
            await store.append("s", [event(3)])
            assert not appending.done()
            await appending
            assert await store.read_new("s", first=3) == ([event(3)], False)

    asyncio.run(work())


@pytest.mark.parametrize("by_another_store", [False, True])
def test_an_append_to_an_erased_session_does_not_hide_that_it_was_erased(
    tmp_path: Path, by_another_store: bool
) -> None:
    async def work() -> None:
        path = tmp_path / "store.db"
        async with SqliteStore(path, durability="normal") as store, SqliteStore(path) as other:
            await store.append("s", [event(0)])
            assert await store.read_new("s", first=1) == ([], False)
            await (other if by_another_store else store).erase("s")
            await store.append("s", [event(1)])
            assert await store.read_new("s", first=2) == ([], True)

    asyncio.run(work())
