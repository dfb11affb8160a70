"""The cache of session ends: `news` without reading the file, and never a missed event."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log import Event, Noted
from foveal.stores import SqliteStore
from foveal.stores.sqlite import LastSeqCache


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
    with cache.appending("s", 7, 3):
        assert not cache.is_end("s", 7, 2)
    assert cache.is_end("s", 7, 3)
    assert not cache.is_end("s", 8, 3)
    with pytest.raises(asyncio.CancelledError), cache.appending("s", 7, 4):
        raise asyncio.CancelledError
    cache.set_end("s", 7, 3)
    assert not cache.is_end("s", 7, 3)


def test_another_change_of_sessions_invalidates_the_cache() -> None:
    cache = LastSeqCache()
    cache.set_end("s", 1, 5)
    changes = cache.changes
    with cache.invalidating():
        pass
    assert changes != cache.changes
    assert not cache.is_end("s", 1, 5)
