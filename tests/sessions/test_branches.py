"""Branches of a session: durable, nested, and taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import foveal
from foveal import BadSetting, ModelSaid, Session, ToolReturned, UnknownHandle, UserSaid
from foveal.core.log.events import Call, text_of
from foveal.sessions.event_writer import SessionOptions


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapped


async def opened(store: foveal.ports.Store) -> Session:
    return await Session.open(store, "demo", model="gpt-4.1", tokenizer="estimate")


async def shown(session: Session) -> list[str]:
    return [text_of(fact.content) for fact in (await session.fit()).facts]


@run
async def test_a_branch_that_was_open_when_the_process_ended_can_end_later(tmp_path: Path) -> None:
    async with foveal.open_store(tmp_path / "chats.db") as store:
        session = await opened(store)
        await session.append(UserSaid(content="Why is CI red?"))
        branch = await session.begin_branch("Find the failing test.")
        await session.append(ModelSaid(content="I look at 40 files."))
    async with foveal.open_store(tmp_path / "chats.db") as store:
        session = await opened(store)
        assert await session.open_branches() == (branch,)
        fold = await session.end_branch("test_dates.py fails")
        first, record = await shown(session)
        assert first == "Why is CI red?"
        assert "Task: Find the failing test.\nResult: test_dates.py fails" in record
        assert await session.undo(fold) == fold
        assert await shown(session) == ["Why is CI red?", "I look at 40 files."]
        assert [(one.is_open, one.is_folded) for one in await session.branches()] == [(False, False)]
        with pytest.raises(UnknownHandle, match="no branch is open"):
            await session.end_branch()


@run
async def test_an_error_folds_the_branch_and_is_raised() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await opened(store)

        async def fail() -> None:
            async with session.branch("Build it.") as branch:
                branch.result("half of it is built")
                raise RuntimeError("the disk is full")

        with pytest.raises(RuntimeError, match="the disk is full"):
            await fail()
        [record] = await shown(session)
        assert "It failed: RuntimeError: the disk is full\nUntil then: half of it is built" in record


@run
async def test_a_fork_comes_back_as_a_branch() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await opened(store)
        await session.append(UserSaid(content="Why is CI red?"))
        child, before = await session.fork("child"), await shown(session)
        await child.append(UserSaid(content="Read the log."), ModelSaid(content="The disk was full."))
        assert (await shown(child))[: len(before)] == before
        fold = await session.join(child, task="Read the log.")
        assert "Result (the last text of the model in it): The disk was full." in (await shown(session))[-1]
        await session.undo(fold)
        assert await shown(session) == ["Why is CI red?", "Read the log.", "The disk was full."]
        again = await Session.open(session.store, "demo", model="gpt-4.1", tokenizer="estimate")
        with pytest.raises(BadSetting, match=r"not joined yet; this one was, as e\d+: fork again"):
            await again.join(child, task="Read the log.")


@run
async def test_a_rewind_to_before_a_branch_takes_it_back() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await opened(store)
        (said,) = await session.append(UserSaid(content="Why is CI red?"))
        async with session.branch("Find the failing test.") as branch:
            await session.append(ModelSaid(content="I look."))
            await session.rewind(said.handle)
        assert branch.fold == ""
        assert await session.branches() == ()
        assert await shown(session) == ["Why is CI red?"]


@run
async def test_a_branch_without_a_word_adds_nothing_and_a_wrong_handle_is_an_error() -> None:
    async with foveal.stores.MemoryStore() as store:
        session = await opened(store)
        await session.append(UserSaid(content="Why is CI red?"))
        async with session.branch("Look.") as empty:
            pass
        assert (empty.fold, await shown(session)) == ("", ["Why is CI red?"])
        block = session.branch("Look again.")
        branch = await block.__aenter__()
        await session.append(ModelSaid(content="It is test_dates.py."))
        branch.keep("e99")
        with pytest.raises(UnknownHandle, match="e99 is no event of the branch e4"):
            await block.__aexit__(None, None, None)
        assert [one.fold for one in await session.branches()] == ["", branch.fold]


@run
async def test_a_join_is_stored_whole_or_not_at_all() -> None:
    async with foveal.stores.MemoryStore() as store:
        stored: list[int] = []
        options = SessionOptions(on_stored=lambda events: stored.append(len(events)))
        session = await Session.open(store, "demo", model="gpt-4.1", tokenizer="estimate", options=options)
        await session.append(UserSaid(content="Why is CI red?"))
        child = await session.fork("child")
        call = Call(id="c1", name="read_log", arguments="{}")
        await child.append(ModelSaid(content=(call,)))
        (result,) = await child.append(
            ToolReturned(call_id="c1", name="read_log", content="The disk was full.")
        )
        before, stored[:] = await session.pick(range(99)), []
        with pytest.raises(BadSetting, match="result"):
            await session.join(child, 3, task="Read the log.")  # type: ignore[arg-type]
        assert await session.pick(range(99)) == before
        fold = await session.join(child, "It was full.", task="Read the log.", keep=[result.handle])
        assert stored == [5]  # the beginning, the call, its result, the end and the fold
        assert [status.fold for status in await session.branches()] == [fold]
        assert await shown(session) == [
            "Why is CI red?",
            "",
            "The disk was full.",
            (await shown(session))[-1],
        ]
