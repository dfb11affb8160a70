"""Actions of the inspector: the same events as from everywhere else, also while a chat has the session open."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foveal.core.engine.operations import OperationName
from foveal.core.log import (
    Compacted,
    Dropped,
    Event,
    Expanded,
    ModelSaid,
    Opened,
    Pinned,
    Reverted,
    Superseded,
    UserSaid,
)
from foveal.core.log.events import REDUCTIONS
from foveal.errors import NotDropped, UnknownHandle
from foveal.inspector.sessions.actions import StoreActor
from foveal.inspector.sessions.collection import ArchivedSession, SessionCollection
from foveal.inspector.sessions.source import ActionResult, NotWritable, SessionAction
from foveal.recall.archive import SqliteSource, StoreSource, TranscriptSource
from foveal.sessions import Session
from foveal.stores import open_store
from foveal.stores.memory import MemoryStore
from support.inspected_sessions import SMALL_SETTINGS, append_turn, fill_session, write_store, writer_process
from support.paths import TESTS

SETTINGS: Any = {name: value for name, value in SMALL_SETTINGS.items() if name != "model"}


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapped


async def act(reader: ArchivedSession, name: OperationName, event: str = "", **how: str) -> ActionResult:
    return await reader.act(SessionAction(operation=name, event=event, **how))


async def events_of(path: Path, first: int = 0) -> list[Event]:
    async with open_store(path) as store:
        return await store.read("demo", first=first)


async def opened(path: Path, *, turns: int = 12) -> tuple[ArchivedSession, int]:
    """Return the reader of a new session, and the seq of its next event."""
    await write_store(path, "demo", turns=turns)
    reader = await SessionCollection([SqliteSource(path)], actor=StoreActor(**SETTINGS)).open("demo")
    return reader, (await reader.end()).next_seq


@run
async def test_a_message_is_superseded_and_holds_again(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    reader, end = await opened(path)
    old, new = [event for event in await events_of(path) if isinstance(event.fact, UserSaid)][-2:]
    done = [await act(reader, "supersede", old.handle, by=new.handle), await act(reader, "undo")]
    assert [event.fact for event in await events_of(path, end)] == [
        Superseded(target=old.seq, by=new.seq),
        Reverted(target=end),
    ]
    replaced = f"{old.handle} replaced by {new.handle}: requested by the user"
    assert [result.text for result in done] == [
        f"{old.handle} is replaced by {new.handle}; undo e{end} takes that back",
        f"e{end} is taken back: {replaced}",
    ]
    with pytest.raises(UnknownHandle):
        await act(reader, "supersede", old.handle)


@run
async def test_each_action_records_the_event_of_its_operation(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    reader, end = await opened(path)
    log = await events_of(path)
    said = [event.handle for event in log if isinstance(event.fact, ModelSaid)][-2]
    done = [
        await act(reader, "pin", text="Keep the API."),
        await act(reader, "pin", said),
        await act(reader, "undo", f"e{end + 1}"),
        await act(reader, "drop", said),
        await act(reader, "undo"),
        await act(reader, "expand", said),
        await act(reader, "compact", focus="the files"),
    ]
    recorded = await events_of(path, end)
    target = int(said[1:])
    (compacted,) = (event.fact for event in recorded if isinstance(event.fact, Compacted))
    assert [event.fact for event in recorded] == [
        Pinned(text="Keep the API."),
        Pinned(target=target),
        Reverted(target=end + 1),
        Dropped(
            ranges=recorded[3].fact.ranges if isinstance(recorded[3].fact, Dropped) else (),
            reason="hand",
            rule="dropped on request",
            names_ranges=True,
        ),
        Reverted(target=end + 3),
        Expanded(first=target, last=target),
        compacted,
    ]
    assert compacted.reason == "hand"
    assert done == [
        ActionResult(event=f"e{end}", text="the rule is in every request"),
        ActionResult(event=f"e{end + 1}", text=f"{said} stays in every request"),
        ActionResult(event=f"e{end + 2}", text=f"e{end + 1} is taken back: pinned {said}"),
        ActionResult(
            event=f"e{end + 3}", text=f"{said} is not shown any more; undo e{end + 3} brings it back"
        ),
        ActionResult(event=f"e{end + 4}", text=done[4].text),
        ActionResult(event=f"e{end + 5}", text=f"{said} is shown in full until the next user message"),
        ActionResult(
            event=f"e{end + 6}",
            text=f"summarised e{compacted.first} to e{compacted.last} by ledger: requested by the user",
        ),
    ]
    assert done[4].text.startswith(f"e{end + 3} is taken back: dropped ")


@run
async def test_the_newest_reduction_is_undone_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    reader, end = await opened(path)
    async with open_store(path) as store:
        await (await Session.open(store, "demo", **SMALL_SETTINGS)).compact()
    assert (await act(reader, "undo")).event == f"e{end + 1}"
    assert [event.fact for event in await events_of(path, end + 1)] == [Reverted(target=end)]


@run
async def test_a_summariser_of_the_caller_writes_the_summary() -> None:
    store, focus = MemoryStore(), []

    async def summarise(request: Any) -> str:
        focus.append("the files" in str(request.messages))
        raise RuntimeError("no answer")

    await fill_session(store, "demo", turns=6)
    actor = StoreActor(summarise=summarise, **SETTINGS)
    reader = await SessionCollection([StoreSource(store, "memory")], actor=actor).open("demo")
    await act(reader, "compact", focus="the files")
    assert True in focus


@run
async def test_an_action_records_no_other_model_or_policy() -> None:
    store = MemoryStore()
    session = await Session.open(
        store, "demo", **SMALL_SETTINGS, policy={"preset": "rolling", "keep_last": 2}
    )
    await session.append(UserSaid(content="hello"), ModelSaid(content="hello"), UserSaid(content="go on"))
    await session.append(Opened(model="gpt-4.1", policy="of the application"))
    reader = await SessionCollection([StoreSource(store, "memory")]).open("demo")
    await act(reader, "drop", "e2")
    kinds = [type(event.fact).__name__ for event in await store.read("demo")]
    assert kinds == ["Opened", "UserSaid", "ModelSaid", "UserSaid", "Opened", "Dropped"]


@run
async def test_what_cannot_be_done_is_refused_and_records_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    reader, end = await opened(path, turns=2)
    latest = [event.handle for event in await events_of(path) if isinstance(event.fact, UserSaid)][-1]
    with pytest.raises(NotDropped, match="the latest message of the user"):
        await act(reader, "drop", latest)
    for name, event in (("undo", "e1"), ("drop", ""), ("expand", "n40"), ("pin", "e9999"), ("drop", "m1.0")):
        with pytest.raises(UnknownHandle):
            await act(reader, name, event)  # type: ignore[arg-type]
    assert await events_of(path, end) == []


def test_an_action_is_read_from_json() -> None:
    given = b'{"action": "supersede", "event": "e1", "by": "e3"}'
    expected = SessionAction(operation="supersede", event="e1", by="e3")
    assert msgspec.json.decode(given, type=SessionAction) == expected


def test_an_action_with_unknown_fields_is_not_read() -> None:
    for given in (b'{"action": "erase"}', b'{"action": "undo", "session": "x"}', b"{}"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(given, type=SessionAction)


@run
async def test_transcripts_and_read_only_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    _, end = await opened(path, turns=1)
    transcript = SessionCollection([TranscriptSource(TESTS / "data" / "transcripts" / "pi.jsonl")])
    with pytest.raises(NotWritable, match="`foveal import` copies it into a store"):
        await act(await transcript.open("pi"), "undo")
    path.chmod(stat.S_IRUSR)
    refusal = "" if path.stat().st_uid == 0 else "cannot be written"
    sessions = SessionCollection([SqliteSource(path)])
    assert refusal in (await sessions.open("demo")).about.reason
    assert (await (await sessions.open("demo")).end()).next_seq == end


@run
async def test_a_session_without_a_model_is_refused() -> None:
    store = MemoryStore()
    await store.append("demo", [Event(0, UserSaid(content="hello"), 1.0)])
    reader = await SessionCollection([StoreSource(store, "memory")]).open("demo")
    with pytest.raises(NotWritable, match="does not say which model answers it"):
        await act(reader, "undo")


# ── While a chat has the session open ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", ["chat", "inspector"])
@run
async def test_a_chat_and_the_inspector_write_one_after_the_other(tmp_path: Path, first: str) -> None:
    path = tmp_path / "chats.db"
    reader, _ = await opened(path, turns=2)
    async with open_store(path) as store:
        chat = await Session.open(store, "demo", **SMALL_SETTINGS)
        await chat.fit()
        if first == "chat":
            await append_turn(chat, 7)
        said = next(event for event in await chat.events() if isinstance(event.fact, ModelSaid))
        dropped = await act(reader, "drop", said.handle)
        await append_turn(chat, 8)
        assert (await chat.why(said.seq)).by == dropped.event
        undone = await act(reader, "undo", dropped.event)
        await append_turn(chat, 9)
        status = await chat.why(said.seq)
        assert dropped.event not in (status.by, undone.event)
        await chat.close()
    log = await events_of(path)
    assert [event.seq for event in log] == list(range(len(log)))
    assert sum(isinstance(event.fact, UserSaid) for event in log) == 4 + (first == "chat")


@pytest.mark.long
@run
async def test_an_action_goes_between_the_turns_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    reader, _ = await opened(path, turns=2)
    with writer_process(path, "demo") as append:
        await asyncio.to_thread(append)
        pinned = await act(reader, "pin", text="Keep the API.")
        last = await asyncio.to_thread(append)
        log = await events_of(path)
    assert len(log) == last + 1
    place = int(pinned.event[1:])
    assert log[place].fact == Pinned(text="Keep the API.")
    assert [type(event.fact).__name__ for event in log[place + 1 :] if not isinstance(event.fact, REDUCTIONS)] == [
        "UserSaid", "ModelSaid", "Used", "ToolReturned", "ModelSaid", "Used"
    ]  # fmt: skip
