"""Stores that share threads, connections and files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foveal.core.log import UserSaid
from foveal.errors import Conflict, StoreError
from foveal.stores import SqliteStore
from foveal.stores.sqlite import StoreFiles
from support.store_contract import log, said


def test_two_stores_of_a_file_see_each_others_events_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        files = StoreFiles()
        path = tmp_path / "a.db"
        durable, fast = (SqliteStore(path, durability=kind, files=files) for kind in ("full", "normal"))  # type: ignore[arg-type]
        await durable.append("s", said(1))
        assert await fast.read_new("s", first=1) == ([], False)
        for seq, store in enumerate((fast, durable, fast, fast, durable), 1):
            await store.append("s", said(1, first=seq))
            for reader in (durable, fast):
                assert await reader.read_new("s", first=seq) == (said(1, first=seq), False)
                assert await reader.read_new("s", first=seq + 1) == ([], False)
        with pytest.raises(Conflict):
            await fast.append("s", said(1, first=5))
        await files.close()
        with pytest.raises(StoreError, match="closed"):
            await fast.read("s")

    asyncio.run(work())


def test_a_released_file_is_opened_again_and_shows_what_others_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveal.stores.sqlite.store_files.MAX_IDLE_FILES", 1)

    async def work() -> None:
        files = StoreFiles()
        store = SqliteStore(tmp_path / "a.db", durability="normal", files=files)
        other = SqliteStore(tmp_path / "b.db", files=files)
        end = 0
        for _ in range(5):
            await store.append("s", said(1, first=end))
            assert await store.read_new("s", first=end + 1) == ([], False)  # the end is cached now
            await other.append("s", said(1, first=end // 2))  # takes the place of the other file
            async with SqliteStore(tmp_path / "a.db") as elsewhere:
                await elsewhere.append("s", said(1, first=end + 1))
            assert await store.read_new("s", first=end + 1) == (said(1, first=end + 1), False)
            end += 2
        await asyncio.gather(*(s.read("s") for s in (store, other) * 50))
        assert await store.read("s") == said(10)
        await files.close()

    asyncio.run(work())


def test_erasures_at_the_same_time_share_a_vacuum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with SqliteStore(tmp_path / "a.db") as store:
            for number in range(20):
                await store.append(f"s{number}", log(UserSaid(content=f"the secret of session {number}")))
            vacuums = 0
            vacuum = store._file.vacuum

            def counted() -> None:
                nonlocal vacuums
                vacuums += 1
                vacuum()

            monkeypatch.setattr(store._file, "vacuum", counted)
            await asyncio.gather(*(store.erase(f"s{number}") for number in range(20)))
            assert vacuums <= 2
            await store.append("s", said(1))
            await store.erase("s")
            assert vacuums <= 3
        assert b"the secret" not in (tmp_path / "a.db").read_bytes()

    asyncio.run(work())
