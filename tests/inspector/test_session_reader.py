"""Readers of sessions: parts of a log, and following it while another process writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from foveal import transcripts
from foveal.core.log import Event, Noted
from foveal.inspector.sessions.collection import SessionCollection
from foveal.inspector.sessions.source import MAX_PART_EVENTS, LogEnd, SessionMissing, SessionReader
from foveal.recall.archive import SqliteSource, StoreSource, TranscriptSource
from foveal.recall.archive.source import SessionEntry, SessionLog
from foveal.stores import open_store
from foveal.stores.memory import MemoryStore
from support.inspected_sessions import write_store, writer_process


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapped


async def read_all(reader: SessionReader) -> list[Event]:
    end = await reader.end()
    starts = range(0, end.next_seq, MAX_PART_EVENTS)
    return [event for first in starts for event in await reader.read(first, end.next_seq - 1)]


@run
async def test_a_log_is_read_in_parts() -> None:
    store = MemoryStore()
    log = [Event(seq, Noted(text=str(seq)), 1.0) for seq in range(MAX_PART_EVENTS + 7)]
    await store.append("demo", log)
    reader = await SessionCollection([StoreSource(store, "memory")]).open("demo")
    assert await reader.end() == LogEnd(len(log))
    assert len(await reader.read(0, len(log))) == MAX_PART_EVENTS
    assert await read_all(reader) == log
    assert await reader.pick([3, 1, 10**9, -1]) == [log[1], log[3]]
    assert await reader.read(len(log), len(log) + 5) == []


class CountingSource(StoreSource):
    """A source that counts how often a session is looked at."""

    looks = 0

    async def open(self, entry: SessionEntry) -> SessionLog:
        self.looks += 1
        return await super().open(entry)


@run
async def test_followers_of_a_session_look_at_it_together() -> None:
    store = MemoryStore()
    await store.append("demo", [Event(0, Noted(text="one"), 1.0)])
    source = CountingSource(store, "memory")
    reader = await SessionCollection([source]).open("demo")
    end, source.looks = await reader.end(), 0
    assert await asyncio.gather(*(reader.wait(end, timeout=1.2) for _ in range(50))) == 50 * [end]
    assert source.looks < 10
    waiting = [asyncio.create_task(reader.wait(end, timeout=30)) for _ in range(50)]
    await store.append("demo", [Event(1, Noted(text="two"), 2.0)])
    assert await asyncio.gather(*waiting) == 50 * [LogEnd(2)]


@pytest.mark.long
@run
async def test_a_reader_follows_another_process_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    await write_store(path, "demo", turns=2)
    reader = await SessionCollection([SqliteSource(path)]).open("demo")
    with writer_process(path, "demo") as append:
        end = await reader.end()
        assert await reader.wait(end, timeout=0.1) == end
        waiting = asyncio.create_task(reader.wait(end, timeout=30))
        last = await asyncio.to_thread(append)
        grown = await waiting
        assert end.next_seq < grown.next_seq <= last + 1
        assert (await reader.end()) == LogEnd(last + 1)
        async with open_store(path) as store:
            assert await read_all(reader) == await store.read("demo")


def line(number: int, text: str, *, id: str, kind: str = "assistant") -> str:
    message: dict[str, Any] = {"role": kind, "content": [{"type": "text", "text": text}], "id": id}
    entry = {
        "type": kind, "uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None,
        "sessionId": "s-1", "isSidechain": False, "message": message,
    }  # fmt: skip
    return json.dumps(entry) + "\n"


def append_text(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@run
async def test_a_growing_transcript_is_read_again_and_says_when_earlier_events_changed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s-1.jsonl"
    path.write_text(line(0, "count", id="m0", kind="user") + line(1, "one", id="m1"))
    reader = await SessionCollection([TranscriptSource(tmp_path)]).open("s-1")
    first = await reader.end()
    assert first.next_seq == 2

    append_text(path, line(2, "go on", id="m2", kind="user"))
    appended = await reader.wait(first, timeout=20)
    assert appended == LogEnd(3, first.generation)

    append_text(path, line(3, "two", id="m3"))
    answered = await reader.wait(appended, timeout=20)
    assert answered == LogEnd(4, first.generation)

    append_text(path, line(4, "three", id="m3"))  # the same message goes on
    regrouped = await reader.wait(answered, timeout=20)
    assert regrouped.next_seq == 4
    assert regrouped.generation != first.generation
    (transcript,) = transcripts.read(path)
    assert await read_all(reader) == list(transcript.events())


@run
async def test_half_a_line_at_the_end_of_a_transcript_is_a_note_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    whole = line(1, "one", id="m1")
    path.write_text(line(0, "count", id="m0", kind="user") + whole[:40])
    sessions = SessionCollection([TranscriptSource(tmp_path)])
    reader = await sessions.open("s-1")
    before = await reader.end()
    assert [type(event.fact).__name__ for event in await read_all(reader)] == ["UserSaid", "Noted"]
    assert reader.about.problems == ("1 line of the file was not understood; it is shown as a note",)
    append_text(path, whole[40:])
    after = await reader.wait(before, timeout=20)
    assert (after.next_seq, after.generation == before.generation) == (2, False)
    assert [type(event.fact).__name__ for event in await read_all(reader)] == ["UserSaid", "ModelSaid"]


@run
async def test_a_transcript_that_is_deleted_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    path.write_text(line(0, "count", id="m0", kind="user"))
    reader = await SessionCollection([TranscriptSource(tmp_path)]).open("s-1")
    assert (await reader.end()).next_seq == 1
    path.unlink()
    with pytest.raises(SessionMissing, match="does not exist any more"):
        await reader.end()
