"""Logs that pages have open: what one reads is not disturbed by another, and memory is bounded."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from weakref import ref

import pytest

from foveal.core.log.events import Event, UserSaid
from foveal.inspector import open_logs
from foveal.inspector.open_logs import OpenLog, OpenLogs
from foveal.inspector.sessions.collection import SessionCollection
from foveal.recall.archive.listing import given_sources
from foveal.stores import open_store

SESSIONS = 3
EVENTS = 400


@pytest.fixture
def sessions(tmp_path: Path) -> SessionCollection:
    async def write() -> None:
        async with open_store(str(tmp_path / "sessions.db")) as store:
            for number in range(SESSIONS):
                said = UserSaid(content="A long line. " * 500)
                await store.append(f"s{number}", [Event(seq, said, float(seq)) for seq in range(EVENTS)])

    asyncio.run(write())
    return SessionCollection(given_sources([str(tmp_path / "sessions.db")]))


@pytest.mark.parametrize("after_ms", [0, 5, 10, 20, 40, 80, 120])
def test_a_reader_that_leaves_does_not_disturb_the_next_one(
    sessions: SessionCollection, after_ms: int
) -> None:
    async def read() -> list[int]:
        log = OpenLog(await sessions.open("s0"))
        leaving = asyncio.create_task(log.timeline())
        await asyncio.sleep(after_ms / 1_000)
        leaving.cancel()
        return [row.seq for row in (await log.timeline()).rows]

    assert asyncio.run(read()) == list(range(EVENTS))


def test_the_logs_that_stay_open_are_bounded_by_their_texts(
    sessions: SessionCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_logs, "MAX_OPEN_CHARS", 4_000_000)

    async def open_all() -> list[bool]:
        logs, opened = OpenLogs(), []
        for number in range(SESSIONS):
            log = logs.of("default", await sessions.open(f"s{number}"))
            await log.events()
            opened.append(ref(log))
        del log
        logs.of("default", await sessions.open(f"s{SESSIONS - 1}"))
        gc.collect()
        return [each() is not None for each in opened]

    # Each has 2.6 million characters.
    assert asyncio.run(open_all()) == [False, False, True]


def test_a_log_that_a_stream_holds_is_not_read_twice(
    sessions: SessionCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_logs, "MAX_OPEN_LOGS", 1)

    async def open_both() -> bool:
        logs = OpenLogs()
        held = logs.of("default", await sessions.open("s0"))
        logs.of("default", await sessions.open("s1"))
        return logs.of("default", await sessions.open("s0")) is held

    assert asyncio.run(open_both())
