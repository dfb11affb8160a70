"""The to-do list of the model: the tool, the list in the log, and every request of a long session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import product
from typing import Any, Final

import pytest

import foveal
from foveal.agent.tools import Toolbox
from foveal.agent.tools.todo import MAX_TODO_CHARS, MAX_TODO_ITEMS, TodoItem, current_todo, todo_tool
from foveal.core.log import Call, Compacted, ModelSaid, ToolReturned, UserSaid
from foveal.sessions.session import Session
from support.effort import rest_in_soak, some_cases

Items = Sequence[tuple[str, str]]


def arguments(items: Items) -> str:
    return json.dumps({"items": [{"text": text, "state": state} for text, state in items]})


def called(number: int, items: Items, *, error: bool = False) -> list[Any]:
    """A call of the tool with its result."""
    id = f"todo_{number}"
    call = Call(id=id, name="todo", arguments=arguments(items))
    return [ModelSaid(content=(call,)), ToolReturned(call_id=id, name="todo", content="Kept.", error=error)]


def in_session(test: Callable[[Session], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with foveal.stores.MemoryStore() as store:
            await test(await Session.open(store, "s", model="gpt-4.1", **settings))

    asyncio.run(run())


def test_a_list_that_is_too_long_is_refused_and_says_what_is_allowed() -> None:
    box = Toolbox([todo_tool()])
    many = [(f"step {number}", "pending") for number in range(MAX_TODO_ITEMS + 1)]
    refused = asyncio.run(box.call("todo", arguments(many)))
    assert refused.error
    assert "may have 20 items, not 21" in str(refused.content)
    long = asyncio.run(box.call("todo", arguments([("x" * (MAX_TODO_CHARS + 1), "pending")])))
    assert long.error
    kept = asyncio.run(box.call("todo", arguments([("read", "done"), ("write", "active")])))
    assert (kept.error, kept.content) == (False, "Kept: 1 of 2 done.")


def test_the_newest_successful_call_is_the_list() -> None:
    async def steps(session: Session) -> None:
        assert await current_todo(session) == ()
        await session.append(UserSaid(content="go"), *called(1, [("read", "active"), ("write", "pending")]))
        await session.append(*called(2, [("read", "done"), ("write", "active")]))
        await session.append(*called(3, [("wrong", "active")], error=True))
        assert await current_todo(session) == (TodoItem("read", "done"), TodoItem("write", "active"))

    in_session(steps)


def test_a_rewind_takes_the_list_back_and_its_undo_brings_it_again() -> None:
    async def steps(session: Session) -> None:
        await session.append(UserSaid(content="go"), *called(1, [("read", "active")]), ModelSaid(content="a"))
        end = session.last
        await session.append(UserSaid(content="on"), *called(2, [("read", "done")]), ModelSaid(content="b"))
        await session.rewind(end)
        assert await current_todo(session) == (TodoItem("read", "active"),)
        await session.undo()
        assert await current_todo(session) == (TodoItem("read", "done"),)

    in_session(steps)


def test_an_empty_list_removes_it() -> None:
    async def steps(session: Session) -> None:
        await session.append(UserSaid(content="go"), *called(1, [("read", "active")]), *called(2, []))
        assert await current_todo(session) == ()

    in_session(steps)


# ── every request of a long session ──────────────────────────────────────────────────────────────────────


def output(turn: int, lines: int) -> str:
    return "\n".join(f"{turn}.{line} src/module_{turn}/part_{line}.py: checked ok" for line in range(lines))


def write_summary(request: Any) -> str:
    """A model that does not mention the list."""
    return "## Done\n\nThe files were checked one after the other, and all of them are in order.\n"


ITEMS = [
    ("read the parser and its tests", "done"),
    ("make the tokens frozen", "active"),
    ("move the error texts to one place", "pending"),
    ("write the page about errors", "pending"),
    ("ask about the public name", "pending"),
]


LIST_CASES: Final = [*product((None, write_summary), (9_000, 16_000, 32_000), (1, 3, 40))]


@pytest.mark.parametrize(("summarise", "window", "every"), some_cases(LIST_CASES, every=7))
def test_every_request_has_the_list_whatever_is_cut(summarise: Any, window: int, every: int) -> None:
    """Whatever the default policy hides or summarises, the next request has each item that is not done."""

    async def steps(session: Session) -> None:
        listed = ITEMS
        await session.append(UserSaid(content="Rework the parser."), *called(0, ITEMS))
        for turn in range(90):
            if turn % every == 0:
                await session.append(UserSaid(content=f"Go on with part {turn}."))
            call = Call(id=f"c{turn}", name="run", arguments=json.dumps({"command": f"check {turn}"}))
            await session.append(
                ModelSaid(content=(call,)),
                ToolReturned(call_id=call.id, name="run", content=output(turn, 60)),
            )
            if turn == 45:
                listed = [(text, "done" if place < 2 else state) for place, (text, state) in enumerate(ITEMS)]
                await session.append(*called(turn + 1, listed))
            request = json.dumps((await session.fit()).to_openai(), ensure_ascii=False)
            missing = [text for text, state in listed if state != "done" and text not in request]
            assert missing == [], f"turn {turn}"
        cuts = sum(isinstance(event.fact, Compacted) for event in await session.events())
        assert cuts > 1

    in_session(steps, window=window, summarise=summarise)


@pytest.mark.parametrize("summarise", [None, write_summary], ids=["without a model", "with a model"])
@pytest.mark.parametrize("window", rest_in_soak([6_000, 9_000]))
def test_the_longest_list_is_shortened_where_a_record_has_no_room_for_it(window: int, summarise: Any) -> None:
    """A record with little room has the beginning of the list, and says how many steps it leaves out."""
    words = "and keep the tests of all its callers green " * MAX_TODO_CHARS
    steps_of_list = [f"step number {n}: {words}"[:MAX_TODO_CHARS] for n in range(MAX_TODO_ITEMS)]
    items = [(text, "active" if n == 0 else "pending") for n, text in enumerate(steps_of_list)]

    async def steps(session: Session) -> None:
        await session.append(UserSaid(content="Rework the parser."), *called(0, items))
        for turn in range(40):
            await session.append(UserSaid(content=f"Look at part {turn}. {words[:400]}"))
            call = Call(id=f"c{turn}", name="run", arguments=json.dumps({"command": f"check {turn}"}))
            await session.append(
                ModelSaid(content=(call,)),
                ToolReturned(call_id=call.id, name="run", content=output(turn, 60)),
            )
            request = json.dumps((await session.fit()).to_openai(), ensure_ascii=False)
            shown = [text for text in steps_of_list if text[:14] in request]
            assert shown == steps_of_list[: len(shown)] != [], f"turn {turn}"
            assert len(shown) == MAX_TODO_ITEMS or f"~ … {MAX_TODO_ITEMS - len(shown)} more" in request

    in_session(steps, window=window, summarise=summarise)


def test_a_record_has_no_list_that_a_later_call_has_replaced() -> None:
    async def steps(session: Session) -> None:
        await session.append(UserSaid(content="Rework."), *called(0, ITEMS))
        for turn in range(60):
            call = Call(id=f"c{turn}", name="run", arguments=json.dumps({"command": f"check {turn}"}))
            await session.append(
                ModelSaid(content=(call,)),
                ToolReturned(call_id=call.id, name="run", content=output(turn, 60)),
            )
            if turn == 20:
                await session.append(*called(turn + 1, []))
            await session.fit()
        request = json.dumps((await session.fit()).to_openai(), ensure_ascii=False)
        assert "~ [ ] write the page about errors" not in request

    in_session(steps, window=9_000)
