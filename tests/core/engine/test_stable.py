"""A repeated `fit` is not a request: it changes neither the log nor any later request."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import ContextOverflow, Report, Session
from foveal.core.engine import Engine
from foveal.core.engine.settings import resolve_settings
from foveal.core.engine.state import PastCalls
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Masked,
    ModelSaid,
    Noted,
    Opened,
    ToolReturned,
    Used,
    UserSaid,
    raw,
)
from foveal.core.log.events import Pinned, text_of
from foveal.core.view.request import Fitted
from foveal.stores.memory import MemoryStore
from support.effort import examples
from support.histories import (
    TOOLS,
    ManualClock,
    ScriptedHistory,
    context,
    events_of,
    logs,
    result,
    scripted_histories,
    session,
    user,
    wire_bytes,
)

POLICY: Final = {"preset": "economy", "keep_last": 1, "target": 0.5}


def run_context(
    history: ScriptedHistory, window: int, repeats: Random | None
) -> tuple[list[Any], tuple[Event, ...], Report]:
    """Return the requests, the log and the report of a loop that calls `fit` again at random places."""
    clock = ManualClock()
    ctx = context(window, POLICY, clock=clock, dialect=history.dialect)
    sent: list[Any] = []
    for number, size in enumerate(history.calls):
        clock.now = start = 1_000.0 + 200 * number * (number % 4)
        tools = TOOLS[history.dialect] if number > 3 else ()
        try:
            request = wire_bytes(ctx.fit(history.messages[:size], tools=tools))
            for _ in range(repeats.choice((0, 1, 3)) if repeats is not None else 0):
                assert repeats is not None
                clock.now += repeats.choice((0, 1, 10_000))
                ctx.append()
                again = repeats.choice((None, history.messages[:size]))
                assert wire_bytes(ctx.fit(again, tools=tools)) == request
            clock.now = start
            ctx.observe({"prompt_tokens": 100 + 12 * ctx.report().used // 10, "completion_tokens": 1})
        except ContextOverflow as overflow:
            request = str(overflow).encode()
        sent.append(request)
    return sent, ctx.log, ctx.report()


@examples(10)
@given(
    scripted_histories(turns=6, steps=5, max_lines=60),
    st.sampled_from((1_500, 3_000, 8_000)),
    st.integers(0, 9_999),
)
def test_repeated_fits_of_a_context_change_nothing(history: ScriptedHistory, window: int, seed: int) -> None:
    assert run_context(history, window, Random(seed)) == run_context(history, window, None)


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────

SESSION: Final[dict[str, Any]] = {
    "model": "gpt-4.1",
    "window": 4_000,
    "reserve": 400,
    "tokenizer": "estimate",
    "policy": POLICY,
}


def turn_facts(rng: Random, number: int) -> list[AnyFact]:
    """Return the answer to the last request and what follows it."""
    calls = raw({"path": f"/src/module_{rng.randint(0, 5)}.py"})
    said = ModelSaid(content=(_call(f"c{number}", bytes(calls).decode()),))
    found = ToolReturned(call_id=f"c{number}", content=result(number, rng.choice((40, 200, 500))))
    if rng.random() < 0.2:
        return [ModelSaid(content=f"done {number}"), UserSaid(content=f"next {number}")]
    return [said, found, *([Equipped(tools=raw([{"name": f"t{number}"}]))] if rng.random() < 0.1 else [])]


def _call(call_id: str, arguments: str) -> Any:
    return Call(id=call_id, name="read_file", arguments=arguments)


def reported_usage(request: Fitted) -> dict[str, int]:
    text = "".join(text_of(fact.content) for fact in request.facts if not isinstance(fact, Pinned))  # type: ignore[union-attr]
    return {"prompt_tokens": 300 + len(text) // 3, "completion_tokens": 1}


async def run_session(seed: int, repeats: Random | None) -> tuple[list[Fitted], list[Event]]:
    """Return the requests and the log of a session that is fitted again, and reopened, at random places."""
    rng, clock, store = Random(seed), ManualClock(), MemoryStore()
    opened = await Session.open(store, "demo", clock=clock, **SESSION)
    await opened.append(UserSaid(content="Find the bug, please."))
    sent: list[Fitted] = []
    for number in range(30):
        clock.now = start = 1_000.0 + 90 * number * (number % 5)
        sent.append(await opened.fit())
        for _ in range(repeats.choice((0, 1, 2)) if repeats is not None else 0):
            assert repeats is not None
            clock.now += repeats.choice((0, 10_000))
            if repeats.random() < 0.4:
                opened = await Session.open(store, "demo", clock=clock, **SESSION)
            assert await opened.fit() == sent[-1]
        clock.now = start
        await opened.observe(reported_usage(sent[-1]))
        await opened.append(*turn_facts(rng, number))
    return sent, await opened.events()


@pytest.mark.long
@examples(10)
@given(st.integers(0, 9_999), st.integers(0, 9_999))
def test_repeated_fits_and_reopened_sessions_change_nothing(seed: int, repeats: int) -> None:
    plain = asyncio.run(run_session(seed, None))
    assert asyncio.run(run_session(seed, Random(repeats))) == plain
    assert any(isinstance(event.fact, Masked | Compacted | Dropped) for event in plain[1])


def test_a_reopened_session_has_the_same_budget_and_calibration() -> None:
    async def work() -> None:
        clock, store, wider = ManualClock(), MemoryStore(), {**SESSION, "window": 16_000}
        live = await Session.open(store, "demo", clock=clock, **wider)
        await live.append(UserSaid(content="Find the bug, please."))
        margins = set()
        for number in range(30):
            fitted = await live.fit()
            await live.observe(reported_usage(fitted))
            await live.append(*turn_facts(Random(number), number))
            engine = await live._writer.load()
            folded = Engine(live._writer.settings, log=await live.events())
            again = await Session.open(store, "demo", clock=clock, **wider)
            resumed = await again._writer.load()
            for other in (folded, resumed):
                assert (other.budget(), other.calibration, other.past_calls) == (
                    engine.budget(),
                    engine.calibration,
                    engine.past_calls,
                )
            margins.add(engine.budget().margin)
        assert len(margins) > 3, "the margin follows the reports"

    asyncio.run(work())


@given(logs())
def test_a_log_taken_over_event_by_event_gives_the_engine_of_the_whole_log(
    made: tuple[str, list[Event]],
) -> None:
    settings = resolve_settings("gpt-4.1", policy="economy", window=9_000)
    grown = Engine(settings)
    for event in made[1]:
        grown.take_over(event)
    whole = Engine(settings, log=made[1])
    assert grown.state() == whole.state()
    assert (grown.budget(), grown.opened_seq) == (whole.budget(), whole.opened_seq)
    assert list(grown.effective_log) == list(whole.effective_log)


def test_usage_of_another_model_does_not_change_the_margin() -> None:
    used = Used(input=9_000, units=4_000, model="claude-sonnet-4-5", until=3, predicted=4_000)
    log = [Event(0, Opened(model="gpt-5")), Event(1, UserSaid(content="hi")), Event(2, used)]
    given_settings = resolve_settings("gpt-5", window=64_000)
    assert Engine(given_settings, log=log).budget() == Engine(given_settings, log=log[:2]).budget()


# ── Past calls ───────────────────────────────────────────────────────────────────────────────────────────


def past_calls(*facts: tuple[AnyFact, float]) -> PastCalls:
    calls = PastCalls()
    for seq, (fact, at) in enumerate(facts):
        calls = calls.after(Event(seq, fact, at))
    return calls


def test_calls_and_idle_time_are_those_of_the_log() -> None:
    said = (UserSaid(content="a"), 10.0), (ModelSaid(content="b"), 15.0), (UserSaid(content="c"), 400.0)
    calls = past_calls(*said)
    assert calls == PastCalls(count=1, news_at=400.0, sent_at=10.0, earlier_turns=(0,), newest_message=2)
    assert calls.idle == 390.0
    assert past_calls(*said[:2], (Used(input=5), 14.0), said[2]).idle == 386.0
    assert past_calls(said[0]).idle is None


@pytest.mark.parametrize(
    "change", [Equipped(tools=raw([])), Instructed(content="x", aside=True), Opened(model="other")]
)
def test_the_prefix_is_lost_until_the_next_answer(change: AnyFact) -> None:
    model = resolve_settings("gpt-5").model
    before = (Opened(model="gpt-5"), 0.0), (UserSaid(content="a"), 1.0), (ModelSaid(content="b"), 2.0)
    changed = past_calls(*before, (change, 3.0), (UserSaid(content="c"), 4.0))
    assert changed.moment(model).prefix_lost
    assert changed.moment(model).model_switched is isinstance(change, Opened)
    assert not changed.after(Event(5, ModelSaid(content="d"))).moment(model).prefix_lost
    assert not past_calls(before[0], (change, 1.0)).moment(model).prefix_lost, "nothing was sent yet"


def test_only_reductions_of_a_policy_say_that_the_request_was_fitted() -> None:
    masked, by_hand = Masked(masks=()), Compacted(first=0, last=0, summary="s", reason="hand")
    assert past_calls((UserSaid(content="a"), 0.0), (masked, 1.0), (Noted(text="n"), 2.0)).is_reduced
    for news in (UserSaid(content="b"), by_hand, Used(input=1)):
        assert not past_calls((masked, 1.0), (news, 2.0)).is_reduced


def test_another_model_is_recorded_after_the_answer_of_the_one_before() -> None:
    ctx = context(8_000)
    history = session(2)
    ctx.fit(history)
    ctx.use("gpt-4o", window=8_000)
    ctx.fit([*history, {"role": "assistant", "content": "done"}, user("thanks")])
    assert [event.fact.model for event in events_of(ctx.log, Opened)] == ["somebody/unheard-of", "gpt-4o"]  # type: ignore[union-attr]
    assert isinstance(ctx.log[-1].fact, Opened)
    assert ctx._engine.past_calls.is_switched
