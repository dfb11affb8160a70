"""The table of operations: every product offers what it has, and a typed line does what the method does."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, get_args

import pytest

from foveal import Context, FovealError, Session
from foveal.agent.terminal.commands import SLASH_COMMANDS_BY_NAME
from foveal.core.engine.operations import OPERATIONS, Operation, OperationName, OperationRequest
from foveal.core.log import AnyFact, ModelSaid, UserSaid
from foveal.server.api.session_operations import SESSION_OPERATIONS
from foveal.sessions.perform import perform
from foveal.stores.memory import MemoryStore

ENTRIES = [pytest.param(entry, id=entry.name) for entry in OPERATIONS.values()]
NOT_IN_THE_API = {"expand"}
WITH_OWN_COMMAND = {"expand"}
"""The chat's /expand prints an event."""


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("face", [Context, Session])
def test_an_operation_is_a_method_with_these_arguments(face: type, entry: Operation) -> None:
    method = inspect.signature(getattr(face, entry.name))
    given = {argument.parameter: "" for argument in entry.arguments}
    assert set(method.bind(None, **given).arguments) == {"self", *given}
    needed = {argument.parameter: "" for argument in entry.arguments if argument.is_required}
    method.bind(None, **needed)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_product_offers_an_operation(entry: Operation) -> None:
    command = SLASH_COMMANDS_BY_NAME[f"/{entry.name}"]
    assert (command.description == entry.help) == (entry.name not in WITH_OWN_COMMAND)
    offered = [row.id for row in SESSION_OPERATIONS if row.summary == entry.summary]
    assert len(offered) == (entry.name not in NOT_IN_THE_API)


def test_the_names_of_the_table_are_those_of_its_type() -> None:
    assert set(OPERATIONS) == set(get_args(OperationName))


# ── Typed lines ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("pin", "Keep the API.", {"text": "Keep the API."}),
        ("pin", "#e4", {"event": "e4"}),
        ("pin", "4", {"text": "4"}),
        ("pin", "e4 is wrong", {"text": "e4 is wrong"}),
        ("supersede", "#e1 e3", {"event": "e1", "by": "e3"}),
        ("drop", "#e2", {"event": "e2"}),
        ("undo", "", {"event": ""}),
        ("undo", "e7", {"event": "e7"}),
        ("compact", "e7", {"focus": "e7"}),
        ("compact", "", {"focus": ""}),
    ],
)
def test_a_line_is_read(name: OperationName, line: str, expected: dict[str, Any]) -> None:
    assert OPERATIONS[name].read_line(line) == OperationRequest(operation=name, **expected)


@pytest.mark.parametrize(
    ("name", "line"), [("pin", ""), ("drop", ""), ("supersede", "e1"), ("supersede", "e1 e2 e3")]
)
def test_a_line_that_lacks_arguments_says_what_is_needed(name: OperationName, line: str) -> None:
    with pytest.raises(FovealError, match=f"^/{name} needs "):
        OPERATIONS[name].read_line(line)


def facts_of_methods() -> list[AnyFact]:
    ctx = Context("gpt-4.1")
    ctx.append(
        *({"role": role, "content": f"{role} {n}"} for n in range(2) for role in ("user", "assistant"))
    )
    ctx.append({"role": "user", "content": "and now"})
    first = len(ctx.log)
    ctx.pin("Never push.")
    ctx.pin(event="e2")
    ctx.undo(f"e{first + 1}")
    ctx.supersede("e1", by="e3")
    ctx.drop("e2")
    ctx.expand("e2")
    ctx.undo()
    return [event.fact for event in ctx.log[first:]]


def test_typed_lines_record_what_the_methods_do() -> None:
    async def run() -> list[AnyFact]:
        session = await Session.open(MemoryStore(), "demo", model="gpt-4.1")
        for n in range(2):
            await session.append(UserSaid(content=f"user {n}"), ModelSaid(content=f"assistant {n}"))
        await session.append(UserSaid(content="and now"))
        first = session.last + 1
        lines = [
            "pin Never push.",
            "pin e2",
            f"undo e{first + 1}",
            "supersede e1 #e3",
            "drop #e2",
            "expand e2",
        ]
        for line in (*lines, "undo "):
            name, _, rest = line.partition(" ")
            done = await perform(session, OPERATIONS[name].read_line(rest))  # type: ignore[index]
            assert done.recorded == f"e{session.last}"
        return [event.fact for event in await session.events(first=first)]

    assert asyncio.run(run()) == facts_of_methods()
