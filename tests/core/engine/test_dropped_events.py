"""`drop`: hides what the user names, keeps requests legal, and is taken back without a trace."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import Context, ContextOverflow
from foveal.core.log import Compacted, Dropped, ModelSaid, ToolReturned, UserSaid
from foveal.errors import NotDropped, UnknownHandle
from foveal.sessions import Session
from foveal.stores.memory import MemoryStore
from support.effort import examples
from support.histories import (
    CHECKS,
    DIALECTS,
    ESTIMATE,
    POLICIES,
    TOOLS,
    WINDOWS,
    Json,
    ScriptedHistory,
    call_message,
    context,
    plain_model,
    render_log,
    result_message,
    scripted_histories,
    strings,
    user,
)

MAX_DROPS = 4
"""Drops of one story, spread over it: each one compares whole requests, so all of them would take O(n²)."""
MAX_ASKED = 30
"""Messages of one log that are asked about; each answer takes O(n)."""

HISTORY: list[Json] = [
    {"role": "system", "content": "You are careful."},
    user("first question"),
    call_message("c1", "read", path="a.py"),
    result_message("c1", "the text of a.py"),
    {"role": "assistant", "content": "a.py is correct"},
    user("second question"),
]


def fitted(*messages: Json) -> Context:
    """Return a context whose events are e0 (opened) and one for each message."""
    ctx = Context(plain_model(8_000), tokenizer=ESTIMATE, dialect="openai_chat")
    ctx.fit([*HISTORY, *messages])
    return ctx


@pytest.mark.parametrize("name", ["e3", "e4"])
def test_a_step_goes_with_its_results_and_the_notice_names_it(name: str) -> None:
    ctx = fitted()
    assert ctx.drop(name) == "e7"
    assert ctx.log[-1].fact == Dropped(
        ranges=((3, 4),), reason="hand", rule="dropped on request", names_ranges=True
    )
    shown = ctx.fit(HISTORY)
    notice = (
        "[foveal: 2 older messages are not shown here: 2 of e3–e4. They are kept; recall_read, where offered, "
        "reads them by handle.]"
    )
    assert shown == [*HISTORY[:2], user(notice), *HISTORY[4:]]
    assert [(ctx.why(seq).level, ctx.why(seq).by) for seq in (3, 4)] == [("dropped", "e7")] * 2


def test_a_user_message_is_named_in_the_notice() -> None:
    ctx = fitted()
    ctx.drop("e2")
    assert ctx.log[-1].fact == Dropped(
        ranges=((2, 2),), reason="hand", rule="dropped on request", names_ranges=True, users=(2,)
    )


def test_a_drop_taken_back_leaves_the_request_as_it_was() -> None:
    ctx = fitted()
    before = ctx.fit(HISTORY)
    ctx.drop("e3")
    assert ctx.undo() == "e7"
    assert ctx.fit(HISTORY) == before


def test_a_dropped_summary_takes_all_that_it_stands_for_along() -> None:
    ctx = Context(plain_model(8_000), tokenizer=ESTIMATE, dialect="openai_chat", policy="handoff")
    turns = [message for turn in range(6) for message in (user(f"ask {turn}"), *_turn(turn))]
    ctx.fit(turns)
    summary = ctx.compact()
    compacted = ctx.log[int(summary[1:])].fact
    assert isinstance(compacted, Compacted)
    ctx.drop(summary)
    shown = ctx.fit(turns)
    assert compacted.summary not in set(strings(shown))
    assert ctx.why(compacted.first + 1).by == ctx.log[-1].handle
    ctx.undo()
    assert compacted.summary in set(strings(ctx.fit(turns)))


def _turn(turn: int) -> list[Json]:
    return [
        call_message(f"c{turn}", "read", path=f"file_{turn}.py"),
        result_message(f"c{turn}", "\n".join(f"line {n} of file_{turn}.py" for n in range(30))),
        {"role": "assistant", "content": f"file_{turn}.py is correct"},
    ]


@pytest.mark.parametrize("asks", [False, True])
def test_a_later_summary_does_not_bring_back_what_was_dropped(*, asks: bool) -> None:
    asked: list[str] = []

    def summarise(request: Any) -> str:
        asked.append(str(request.messages))
        return "## Summary\nThe files are correct."

    ctx = Context(
        plain_model(8_000),
        tokenizer=ESTIMATE,
        dialect="openai_chat",
        policy="handoff",
        summarise=summarise if asks else None,
    )
    ctx.fit([message for turn in range(6) for message in (user(f"ask {turn}"), *_turn(turn))])
    for name in ("e9", "e11", "e12"):
        ctx.drop(name)
    ctx.compact()
    compacted = next(event.fact for event in reversed(ctx.log) if isinstance(event.fact, Compacted))
    assert compacted.first < 9 < 12 < compacted.last
    written = "\n".join((compacted.summary, *asked))
    assert "file_3.py" in written
    assert "file_2.py" not in written
    assert "ask 2" not in written
    assert bool(asked) is asks


def test_a_later_summary_of_a_session_does_not_bring_back_what_was_dropped() -> None:
    async def summary() -> Compacted:
        session = await Session.open(
            MemoryStore(), "demo", model=plain_model(8_000), tokenizer=ESTIMATE, policy="handoff"
        )
        for turn in range(6):
            await session.take(user(f"ask {turn}"), *_turn(turn), dialect="openai_chat")
        await session.undo(
            await session.compact()
        )  # the ledger has read the messages before they are dropped
        for name in ("e9", "e11", "e12"):
            await session.drop(name)
        fact = (await session.event(await session.compact())).fact
        assert isinstance(fact, Compacted)
        return fact

    compacted = asyncio.run(summary())
    assert compacted.first < 9 < 12 < compacted.last
    assert "file_3.py" in compacted.summary
    assert "file_2.py" not in compacted.summary


def test_what_every_request_contains_stays() -> None:
    ctx = fitted(call_message("c2", "read", path="b.py"))
    rule = ctx.pin("Keep the API.")
    pin = ctx.pin(event="e5")
    refused = {}
    for name in ("e1", "e6", "e7", rule, "e5"):
        with pytest.raises(NotDropped) as problem:
            ctx.drop(name)
        refused[name] = str(problem.value)
    assert refused == {
        "e1": "e1 is an instruction, which every request contains: change its source",
        "e6": "e6 is the latest message of the user, which every request contains: send another one first",
        "e7": "e7 belongs to a call that has no result yet: wait for it",
        "e8": 'e8 is kept in every request by e8: take that back first, with `undo("e8")`',
        "e5": 'e5 is kept in every request by e9: take that back first, with `undo("e9")`',
    }
    assert (rule, pin) == ("e8", "e9")
    assert len(ctx.log) == 10


def test_system_text_beside_the_messages_stays() -> None:
    ctx = Context(plain_model(8_000), tokenizer=ESTIMATE, dialect="anthropic")
    ctx.fit([user("hello")], system="You are careful.")
    with pytest.raises(NotDropped, match="e1 is an instruction"):
        ctx.drop("e1")


def test_what_is_not_shown_cannot_be_dropped() -> None:
    ctx = fitted()
    ctx.drop("e3")
    for name in ("e0", "e3", "e4", "e7"):
        with pytest.raises(UnknownHandle, match=f"{name} is not shown, so it cannot be dropped"):
            ctx.drop(name)
    with pytest.raises(UnknownHandle, match="no event has the handle 'n3'"):
        ctx.drop("n3")


@examples(60)
@given(
    scripted_histories(),
    st.sampled_from(POLICIES),
    st.sampled_from(WINDOWS),
    st.integers(0, 2**16),
    st.sampled_from(DIALECTS),
)
def test_any_drop_keeps_requests_legal_and_undo_restores_them(
    story: ScriptedHistory, policy: Any, window: int, choice: int, other: Any
) -> None:
    ctx = context(window, policy)
    every = math.ceil(len(story.calls) / MAX_DROPS) or 1
    for number, taken in enumerate(story.calls):
        try:
            ctx.fit(story.messages[:taken], tools=TOOLS[story.dialect])
        except ContextOverflow:
            continue
        if number % every == choice % every:
            _drop_and_undo(ctx, story.dialect, other, choice)


def _drop_and_undo(ctx: Context, own: Any, other: Any, choice: int) -> None:
    facts = (UserSaid, ModelSaid, ToolReturned, Compacted)
    events = [event for event in ctx.log if isinstance(event.fact, facts)]
    if not events:
        return
    chosen = events[choice % len(events)]
    before = {dialect: repr(render_log(ctx.log, dialect)) for dialect in (own, other)}
    try:
        dropped = ctx.drop(chosen.handle)
    except (NotDropped, UnknownHandle):
        return
    shown = {dialect: render_log(ctx.log, dialect) for dialect in before}
    assert [CHECKS[dialect](request) for dialect, request in shown.items()] == [[]] * len(shown)
    assert all(repr(request) != before[dialect] for dialect, request in shown.items())
    _check_accounted_for(ctx, choice)
    try:
        ctx.undo(dropped)
    except ContextOverflow:
        return
    assert {dialect: repr(render_log(ctx.log, dialect)) for dialect in before} == before


def _check_accounted_for(ctx: Context, choice: int) -> None:
    """Some messages: each is shown, or hidden by an event that covers it, or a result that no call waits for."""
    messages = [event for event in ctx.log if isinstance(event.fact, UserSaid | ModelSaid | ToolReturned)]
    every = math.ceil(len(messages) / MAX_ASKED) or 1
    for event in messages[choice % every :: every]:
        status = ctx.why(event.seq)
        is_shown = status.level in ("full", "clipped", "masked", "-")
        assert is_shown or status.by or status.rule.startswith("repair"), status
