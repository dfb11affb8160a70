"""Operations that `Context` and `Session` share: same handles, same facts, same errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import pytest

from foveal import Context, ContextOverflow, FovealError, UnknownHandle
from foveal.core.log import (
    AnyFact,
    Compacted,
    Dropped,
    Event,
    Expanded,
    Masked,
    Reverted,
    ToolReturned,
    UserSaid,
)
from foveal.sessions import Session
from foveal.stores.memory import MemoryStore
from support.effort import rest_in_soak
from support.histories import (
    ESTIMATE,
    Json,
    call_message,
    events_of,
    plain_model,
    recount,
    result_message,
    user,
)
from support.report_checks import figures

SETTINGS: Final[dict[str, Any]] = {"model": plain_model(8_000), "tokenizer": ESTIMATE, "policy": "handoff"}
Operation = tuple[str, tuple[Any, ...], dict[str, Any]]


def call(name: str, *args: Any, **kwargs: Any) -> Operation:
    return name, args, kwargs


def history(turns: int) -> list[Json]:
    messages: list[Json] = []
    for turn in range(turns):
        messages += [
            user(f"request {turn}"),
            call_message(f"c{turn}", "read", path=f"file_{turn}.py"),
            result_message(f"c{turn}", "\n".join(f"line {n} of file_{turn}.py" for n in range(30))),
            {"role": "assistant", "content": f"file_{turn}.py is correct"},
        ]
    return messages


def outcome(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return operation(*args, **kwargs)
    except FovealError as problem:
        return type(problem), str(problem)


async def outcome_async(operation: Awaitable[Any]) -> Any:
    try:
        return await operation
    except FovealError as problem:
        return type(problem), str(problem)


def run_in_context(operations: list[Operation], turns: int) -> tuple[list[Any], list[AnyFact]]:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(*history(turns))
    found = []
    for name, args, kwargs in operations:
        found.append(outcome(getattr(ctx, name), *args, **kwargs))
    return found, [event.fact for event in ctx.log]


async def run_in_session(operations: list[Operation], turns: int) -> tuple[list[Any], list[AnyFact]]:
    session = await Session.open(MemoryStore(), "demo", **SETTINGS)
    await session.take(*history(turns), dialect="openai_chat")
    found = []
    for name, args, kwargs in operations:
        found.append(await outcome_async(getattr(session, name)(*args, **kwargs)))
    return found, [event.fact for event in await session.events()]


@pytest.mark.parametrize(
    "operations",
    [
        [
            call("drop", "e3"),
            call("why", "e2"),
            call("drop", "e3"),
            call("drop", "e21"),
            call("drop", "e999"),
            call("undo"),
            call("why", "e2"),
        ],
        [
            call("compact"),
            call("drop", "e25"),
            call("why", "e25"),
            call("undo", "e26"),
            call("why", "e25"),
            call("undo"),
        ],
        [call("pin", "Keep the API."), call("undo", "e25"), call("undo", "e25")],
        [call("pin", event="e3"), call("compact"), call("pin", event="e6"), call("why", "e6")],
        [call("pin"), call("pin", event="e999"), call("original", "e999"), call("why", "no handle")],
        [call("snapshot", {"commit": "0123abc"}, label="git"), call("original", "e3")],
        [call("undo"), call("undo", "e1"), call("compact", "the ports"), call("undo"), call("undo")],
        [
            call("compact"),
            call("expand", "e25"),
            call("why", "e2"),
            call("expand", "e0"),
            call("expand", 999),
        ],
        [call("compact"), call("compact"), call("undo", "e25"), call("why", "e25")],
        [
            call("supersede", "e1", by="e21"),
            call("why", "e1"),
            call("supersede", "e1", by="e17"),
            call("why", "e1"),
            call("undo"),
            call("why", "e1"),
            call("undo", "e25"),
            call("why", "e1"),
            call("undo", "e25"),
        ],
        [
            call("compact"),
            call("supersede", "e5", by="e9"),
            call("why", "e5"),
            call("undo"),
            call("why", "e5"),
        ],
        [
            call("supersede", "e1", by="e999"),
            call("supersede", "no handle", by="e1"),
            call("supersede", "e2", by="e5"),
            call("supersede", "e1", by="e2"),
            call("supersede", "e5", by="e1"),
            call("supersede", "e5", by="e5"),
        ],
    ],
)
def test_context_and_session_return_and_record_the_same(operations: list[Operation]) -> None:
    in_context, context_facts = run_in_context(operations, 6)
    in_session, session_facts = asyncio.run(run_in_session(operations, 6))
    assert in_session == in_context
    assert session_facts == context_facts


def test_operations_return_handles() -> None:
    found, _ = run_in_context(
        [call("pin", "Keep the API."), call("compact"), call("expand", "e26"), call("undo", "e26")], 6
    )
    assert found == ["e25", "e26", "e27", "e26"]


LINE: Final = "[foveal: replaced by e2]"


def two_rules() -> Context:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(user("Never push to main."), user("You can push to main now."), user("Go on."))
    return ctx


def test_a_superseded_message_says_what_replaces_it_until_undo() -> None:
    ctx = two_rules()
    before = ctx.fit()
    recorded = ctx.supersede("e1", by="e2")
    assert ctx.fit() == [user(f"Never push to main.\n{LINE}"), *before[1:]]
    assert 0 <= ctx.report().used - recount(ctx.fit()) <= 1, "the line is counted apart from the text"
    status = ctx.why("e1")
    assert (status.level, status.replaced_by, status.replaced_since) == ("full", "e2", recorded)
    assert ctx.undo() == recorded
    assert ctx.fit() == before
    assert ctx.why("e1").replaced_by == ""


def test_a_message_with_parts_gets_the_line_as_its_last_part() -> None:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(user([{"type": "text", "text": "Use tabs."}]), user("Use spaces."))
    ctx.supersede("e1", by="e2")
    content = [{"type": "text", "text": "Use tabs."}, {"type": "text", "text": LINE}]
    assert ctx.fit() == [user(content), user("Use spaces.")]


def test_the_later_of_two_supersessions_counts_and_its_undo_shows_the_earlier() -> None:
    ctx = two_rules()
    ctx.supersede("e1", by="e2")
    second = ctx.supersede("e1", by="e3")
    assert ctx.why("e1").replaced_by == "e3"
    ctx.undo(second)
    assert ctx.fit()[0] == user(f"Never push to main.\n{LINE}")


def test_a_pinned_message_that_is_superseded_stays_pinned_and_says_so() -> None:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(user("Never push to main."), *history(1)[1:], *history(6))
    ctx.pin(event="e1")
    ctx.supersede("e1", by="e5")
    ctx.compact()
    assert user("Never push to main.\n[foveal: replaced by e5]") in ctx.fit()


def test_a_pinned_rule_can_be_superseded_and_a_pin_of_an_event_names_that_event() -> None:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(user("Hello."))
    rule, pin = ctx.pin("Answer in French."), ctx.pin(event="e1")
    ctx.append(user("Answer in English."))
    ctx.supersede(rule, by="e4")
    assert "Answer in French.\n[foveal: replaced by e4]" in str(ctx.fit()[1]["content"])
    with pytest.raises(UnknownHandle, match="e3 pins e1 and says nothing itself: supersede e1"):
        ctx.supersede(pin, by="e4")
    ctx.undo(rule)
    assert "replaced" not in str(ctx.fit())


def test_the_line_stays_on_a_hidden_message_that_is_expanded() -> None:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(*history(6))
    ctx.compact()
    ctx.supersede("e5", by="e21")
    assert "request 1\n" not in str([m for m in ctx.fit() if m["content"] == "request 1"])
    ctx.expand("e5")
    assert user("request 1\n[foveal: replaced by e21]") in ctx.fit()


def test_a_rewind_behind_the_later_message_takes_the_supersession_away() -> None:
    messages = [user("Never push to main."), user("You can push to main now."), user("Go on.")]
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.fit(messages)
    ctx.supersede("e1", by="e3")
    edited = [*messages[:2], user("Go on, please.")]
    assert ctx.fit(edited) == edited
    ctx.supersede("e1", by="e2")
    again = ctx.fit([*messages[:2], user("Go on.")])
    assert again[0] == user(f"Never push to main.\n{LINE}"), "the later message is still there"


def test_supersede_moves_the_prefix_and_the_report_says_so() -> None:
    ctx = two_rules()
    ctx.fit()
    recorded = ctx.supersede("e1", by="e2")
    ctx.fit()
    (moved,) = ctx.report().breaks
    assert (moved.at, moved.cause, moved.why) == ("e1", recorded, "superseded")


def test_expand_of_several_results_returns_the_first_of_its_events() -> None:
    ctx = Context(dialect="openai_chat", **{**SETTINGS, "policy": "rolling"})
    ctx.append(*history(12))
    ctx.fit()
    masked = next(
        e for e in events_of(ctx.log, Masked) if isinstance(e.fact, Masked) and len(e.fact.masks) > 1
    )
    count = len(ctx.log)
    assert ctx.expand(masked.handle) == ctx.log[count].handle
    assert len(ctx.log) - count > 1
    assert all(isinstance(event.fact, Expanded) for event in ctx.log[count:]), "only `fit` reduces"


def test_expand_without_room_raises_and_records_nothing() -> None:
    operations = [call("compact"), call("expand", "e141")]
    in_context, context_facts = run_in_context(operations, 35)
    in_session, session_facts = asyncio.run(run_in_session(operations, 35))
    assert in_session == in_context
    assert "cannot be shown whole" in in_context[-1][1]
    assert context_facts == session_facts
    assert not any(isinstance(fact, Expanded) for fact in context_facts)


def test_an_expansion_ends_when_a_later_step_of_the_turn_needs_the_room() -> None:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(user("Find the bug."), call_message("c0", "read", path="all.py"))
    ctx.append(result_message("c0", "\n".join(f"line {n} of all.py is long enough" for n in range(600))))
    for n in range(1, 60):
        ctx.append(call_message(f"c{n}", "read", path=f"file_{n}.py"))
        ctx.append(
            result_message(
                f"c{n}", "\n".join(f"line {k} of file_{n}.py" for k in range(30 if n < 12 else 150))
            )
        )
        request = ctx.fit()
        assert ctx.report().used <= ctx.report().limit
        if n == 12:
            ctx.expand("e2")
    ended = [event.fact.target for event in ctx.log if isinstance(event.fact, Reverted)]
    assert ended == [event.seq for event in events_of(ctx.log, Expanded)]
    assert "e2–" in str(request), "it is summarised again"


def _hidden_steps(log: Iterable[Event]) -> list[str]:
    return [event.handle for event in log if isinstance(event.fact, ToolReturned | Compacted | Dropped)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "window"),
    rest_in_soak(
        [
            ("economy", 6_000),
            ("handoff", 6_000),
            *((name, 6_000) for name in ("rolling", "recent", "confirm")),
            ("economy", 10_000),
        ]
    ),
)
def test_no_request_exceeds_the_limit_after_many_expansions(policy: Any, window: int) -> None:
    ctx = Context(plain_model(window), tokenizer=ESTIMATE, policy=policy)
    said = history(window // 150)
    for end in range(4, len(said) + 1, 4):
        ctx.fit(said[:end])
    ctx.fit([*said, user("and now?")])
    largest, expanded = 0, 0
    for name in _hidden_steps(ctx.log)[:: window // 2_500]:  # each expansion folds the whole log again
        with suppress(ContextOverflow, UnknownHandle):
            ctx.expand(name)
            expanded += 1
        largest = max(largest, figures(ctx).used)
    assert expanded > 3
    assert largest > ctx.report().limit, "the test needs expansions that do not fit together"
    fitted = ctx.fit()
    assert recount(fitted) <= ctx.report().limit
    assert ctx.report().used <= ctx.report().limit


@pytest.mark.long
def test_no_request_of_a_session_exceeds_the_limit_after_many_expansions() -> None:
    async def check() -> None:
        async with MemoryStore() as store:
            session = await Session.open(store, "demo", **SETTINGS)
            for start in range(0, 160, 4):
                await session.take(*history(40)[start : start + 4], dialect="openai_chat")
                await session.fit()
            await session.append(UserSaid(content="and now?"))
            largest = 0
            for name in _hidden_steps(await session.events())[::3]:
                with suppress(ContextOverflow, UnknownHandle):
                    await session.expand(name)
                largest = max(largest, (await session.report()).used)
            request = await session.fit()
            assert largest > request.limit, "the test needs expansions that do not fit together"
            assert request.tokens <= request.limit
            assert recount(request.to_openai()) <= request.limit

    asyncio.run(check())


def test_undo_takes_back_an_expansion_by_its_handle() -> None:
    ctx = Context(dialect="openai_chat", **SETTINGS)
    ctx.append(*history(6))
    made = ctx.compact()
    before = ctx.fit()
    expanded = ctx.expand(made)
    assert ctx.fit() != before
    assert ctx.undo(expanded) == expanded
    assert ctx.fit() == before
