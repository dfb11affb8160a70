"""Summaries in the background of a real session: who waits, what is dropped, and what the log says about it.

Summarisers are scripted: one waits until the test lets it go, so that everything that can happen meanwhile does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveal.core.compaction import FAILURES, CompactionHealth, Summariser, SummaryRequest, measures
from foveal.core.engine import Engine
from foveal.core.log import (
    REDUCTIONS,
    Call,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Instructed,
    Masked,
    Media,
    ModelSaid,
    Noted,
    Opened,
    Text,
    ToolReturned,
    UserSaid,
    raw,
    text_of,
)
from foveal.errors import ContextOverflow, NotCompacted, UnknownHandle
from foveal.ports import Store
from foveal.sessions import CHANGED, Session
from foveal.stores import open_store
from foveal.stores.memory import MemoryStore
from support.histories import plain_model
from support.legality import check_anthropic, check_chat, check_responses

GOOD = """<summary>
## Goal
Do what was asked.
## Decisions
- none
## State
Half of it is done.
## Next
The other half.
## Dead ends
-
</summary>"""
WINDOW = 8_000
BIG = replace(plain_model(200_000), name="somebody/big")


def settings(policy: Any = "handoff", *, window: int = WINDOW, **how: Any) -> dict[str, Any]:
    return {
        "model": plain_model(window),
        "policy": policy,
        "reserve": window // 10,
        "tokenizer": "estimate",
        "clock": lambda: 1_000.0,
        **how,
    }


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), timeout=30))

    return wrapped


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    if request.param == "sqlite":
        return lambda: open_store(tmp_path / "chats.db", durability="normal")
    return _one(MemoryStore())


def _one(kept: Any) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield kept

    return opened


class Scribe:
    """A summariser that writes when it is let go."""

    def __init__(self, *answers: Any, held: bool = True) -> None:
        self.answers = list(answers)
        self.requests: list[SummaryRequest] = []
        self.at_once = self.most_at_once = 0
        self.cancelled = 0
        self._free = asyncio.Event()
        if not held:
            self._free.set()

    @property
    def summariser(self) -> Summariser:
        """With a model of its own that reads everything at once."""
        return Summariser(self.write, model=BIG)

    def let_go(self) -> None:
        self._free.set()

    async def write(self, request: SummaryRequest) -> Any:
        self.requests.append(request)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self._free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_once -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else (self.answers or [GOOD])[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def asked(self, times: int = 1) -> None:
        while len(self.requests) < times:
            await asyncio.sleep(0.001)


async def idle(session: Session) -> None:
    """Until nothing is written in the background."""
    while session._coordinator.busy:
        await asyncio.sleep(0.001)


async def say(session: Session, turn: int, *, lines: int = 50) -> None:
    """One turn: a request, a call with its result, an answer."""
    call = Call(id=f"c{turn}", name="read", arguments=f'{{"path": "file_{turn}.py"}}')
    body = "\n".join(f"line {n} of file_{turn}.py" for n in range(lines))
    await session.append(
        UserSaid(content=f"request {turn}: look at file_{turn}.py"),
        ModelSaid(content=(call,)),
        ToolReturned(call_id=call.id, content=body),
        ModelSaid(content=f"file_{turn}.py is fine"),
    )


async def filled(session: Session, state: str, *, start: int = 0) -> int:
    """Talk until the report says so; returns the next turn's number."""
    order = ["ok", "warn", "act", "over"]
    turn = start
    while order.index((await session.report()).state) < order.index(state):
        await say(session, turn)
        turn += 1
    return turn


async def of(session: Session, *kinds: type) -> list[Any]:
    return [event.fact for event in await session.events() if isinstance(event.fact, kinds)]


async def shown(session: Session) -> tuple[Any, ...]:
    """The request as it stands, without anything done about it."""
    view = (await session._keeper.caught_up()).view
    return tuple(fact for step in view.steps for fact in step.facts())


async def replayed(session: Session) -> None:
    """The view in memory is the fold of what is stored."""
    live = await session._keeper.caught_up()
    whole = Engine(*session._keeper.setup, log=await session.events())
    assert [list(step.facts()) for step in live.view.steps] == [list(s.facts()) for s in whole.view.steps]
    assert live.record == whole.record
    assert live.view.units == whole.view.units


# ── in the background ────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_summary_is_begun_at_the_warning_and_the_request_does_not_wait_for_it(
    stores: Callable[[], Any],
) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        await say(session, 0)
        await session.fit()
        assert session._coordinator.idle, "below the warning nobody is asked"
        await filled(session, "warn")
        before = (await session.fit()).facts
        await scribe.asked()
        assert not await of(session, Compacted), "nothing is recorded yet"
        await say(session, 90, lines=1)
        assert (await session.fit()).facts[: len(before)] == before, "nor is anything shown differently"
        scribe.let_go()
        await idle(session)
        assert not await of(session, Compacted), "what nobody needs yet is not used yet"
        await filled(session, "act", start=91)
        await session.fit()
        (made,) = await of(session, Compacted)
        assert made.by == "somebody/big"
        assert len(scribe.requests) == 1
        await replayed(session)
        await session.close()


@run
async def test_above_the_trigger_but_below_the_hard_limit_the_next_turn_does_not_wait(
    stores: Callable[[], Any],
) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        turn = await filled(session, "act")
        for later in range(turn, turn + 2):
            await asyncio.wait_for(session.fit(), timeout=5)
            await say(session, later, lines=1)
        await scribe.asked()
        assert await of(session, Compacted, Masked, Dropped) == []
        assert len(scribe.requests) == 1, "one at a time"
        scribe.let_go()
        await idle(session)
        await session.fit()
        assert len(await of(session, Compacted)) == 1
        await session.close()


@run
async def test_at_the_hard_limit_the_request_waits_and_what_is_appended_meanwhile_is_stored_and_answered(
    stores: Callable[[], Any],
) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        await filled(session, "over")
        waiting = asyncio.create_task(session.fit())
        await scribe.asked()
        await asyncio.sleep(0.02)
        assert not waiting.done()
        (event,) = await asyncio.wait_for(session.append(UserSaid(content="while you write")), timeout=5)
        assert (await store.read("demo"))[-1] == event, "stored before anything else happens"
        scribe.let_go()
        fitted = await waiting
        assert fitted.facts[-1] == UserSaid(content="while you write")
        assert "Half of it is done." in str(fitted.facts)
        assert fitted.tokens <= fitted.limit
        assert len(await of(session, Compacted)) == 1
        await replayed(session)
        await session.close()


@run
async def test_who_gives_up_waiting_does_not_stop_the_writing(stores: Callable[[], Any]) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        await filled(session, "over")
        waiting = asyncio.create_task(session.fit())
        await scribe.asked()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert await of(session, Compacted, CompactionFailed) == []
        scribe.let_go()
        fitted = await session.fit()
        assert (len(scribe.requests), scribe.cancelled) == (1, 0)
        assert fitted.tokens <= fitted.limit
        await session.close()


@run
async def test_closing_stops_the_writing_and_leaves_nothing(stores: Callable[[], Any]) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        await filled(session, "act")
        await session.fit()
        await scribe.asked()
        log = await session.events()
        await session.close()
        await session.close()
        assert scribe.cancelled == 1
        assert await session.events() == log
        assert session._coordinator.idle


@run
async def test_cancelling_a_summary_by_hand_leaves_nothing_half_done(stores: Callable[[], Any]) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        for turn in range(5):
            await say(session, turn)
        before = (await session.fit()).facts
        log = await session.events()
        work = asyncio.create_task(session.compact())
        await scribe.asked()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        assert await session.events() == log
        assert (await session.fit()).facts == before
        scribe.let_go()
        assert isinstance((await session.compact()).fact, Compacted)
        await session.close()


@run
async def test_a_summary_by_hand_takes_messages_in_while_it_is_written(stores: Callable[[], Any]) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        for turn in range(5):
            await say(session, turn)
        work = asyncio.create_task(session.compact("the ports"))
        await scribe.asked()
        await asyncio.wait_for(say(session, 6), timeout=5)
        assert "request 6" in str((await asyncio.wait_for(session.fit(), timeout=5)).facts)
        scribe.let_go()
        made = await work
        assert isinstance(made.fact, Compacted)
        fitted = await session.fit()
        assert "Half of it is done." in str(fitted.facts)
        assert "request 6" in str(fitted.facts)
        assert str(scribe.requests[0].messages).count("the ports") == 1
        await replayed(session)
        await session.close()


# ── what changes meanwhile ───────────────────────────────────────────────────────────────────────────────


async def _undone(session: Session, _: Session) -> None:
    made = next(e for e in await session.events() if isinstance(e.fact, Compacted))
    await session.undo(made.handle)


async def _rewound(session: Session, _: Session) -> None:
    first = next(e for e in await session.events() if "request 2" in str(e.fact))
    await session.rewind(first.seq - 1)


async def _compacted(session: Session, _: Session) -> None:
    seqs = [e.seq for e in await session.events() if isinstance(e.fact, UserSaid)]
    await session.append(Compacted(first=seqs[0], last=seqs[-1] - 1, summary="another"))


async def _dropped_elsewhere(_: Session, other: Session) -> None:
    seqs = [e.seq for e in await other.events() if isinstance(e.fact, UserSaid)]
    await other.append(Dropped(ranges=((seqs[0], seqs[-1] - 1),)))


async def _pinned(session: Session, _: Session) -> None:
    asked = next(e for e in await session.events() if isinstance(e.fact, ToolReturned))
    await session.pin(event=asked.seq)


@pytest.mark.parametrize("change", [_rewound, _compacted, _dropped_elsewhere, _pinned])
@run
async def test_a_result_is_dropped_and_recorded_as_failed_when_its_source_has_changed(
    change: Callable[[Session, Session], Awaitable[None]],
) -> None:
    scribe = Scribe()
    store = MemoryStore()
    session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
    other = await Session.open(store, "demo", **settings())
    turn = await filled(session, "act")
    await session.fit()
    await scribe.asked()
    await change(session, other)
    scribe.let_go()
    await idle(session)
    await filled(session, "act", start=turn)
    await say(session, 99, lines=1)
    await session.fit()
    failed = await of(session, CompactionFailed)
    assert [fact.problem for fact in failed] == [CHANGED]
    assert measures(failed[0]).asked == 1, "what it cost is not forgotten"
    assert "Half of it is done." not in str((await session.fit()).facts)
    await replayed(session)
    await session.close()


@run
async def test_new_messages_behind_the_range_do_not_spoil_a_summary() -> None:
    scribe = Scribe()
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings())
    turn = await filled(session, "act")
    await session.fit()
    await scribe.asked()
    await say(session, turn)
    await session.pin("a new rule")
    scribe.let_go()
    await idle(session)
    await session.fit()
    assert len(await of(session, Compacted)) == 1
    assert await of(session, CompactionFailed) == []
    await session.close()


@run
async def test_a_summary_by_hand_is_dropped_when_its_source_has_changed(stores: Callable[[], Any]) -> None:
    scribe = Scribe()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        for turn in range(6):
            await say(session, turn)
        work = asyncio.create_task(session.compact())
        await scribe.asked()
        await _rewound(session, session)
        scribe.let_go()
        with pytest.raises(NotCompacted, match="changed meanwhile"):
            await work
        assert [fact.problem for fact in await of(session, CompactionFailed)] == [CHANGED]
        assert await of(session, Compacted) == []
        await session.close()


@run
async def test_a_model_whose_summaries_were_only_outrun_is_not_taken_for_a_broken_one() -> None:
    scribe = Scribe(held=False)
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    engine = await session._keeper.caught_up()
    for number in range(FAILURES):
        scribe._free.clear()
        work = asyncio.create_task(session.compact())
        await scribe.asked(number + 1)
        target = [e.seq for e in await session.events() if isinstance(e.fact, ToolReturned)][number]
        await session.pin(event=target)
        scribe.let_go()
        with pytest.raises(NotCompacted, match="changed meanwhile"):
            await work
    engine = await session._keeper.caught_up()
    assert not engine.record.broken
    await session.close()


@pytest.mark.parametrize("policy", ["handoff", "confirm"])
@run
async def test_many_short_messages_are_summarised_before_any_is_dropped(policy: str) -> None:
    session = await Session.open(MemoryStore(), "demo", **settings(policy))
    for turn in range(40):
        await say(session, turn, lines=4)
        await session.fit()
        assert (await session.report()).state == "ok"
    assert await of(session, Dropped) == []


# ── one at a time, and every outcome is recorded ─────────────────────────────────────────────────────────


@run
async def test_two_summaries_by_hand_at_once_are_written_one_after_the_other() -> None:
    scribe = Scribe()
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    both = asyncio.gather(session.compact(), session.compact(), return_exceptions=True)
    await scribe.asked()
    await asyncio.sleep(0.02)
    scribe.let_go()
    done = await both
    assert scribe.most_at_once == 1
    assert sorted(type(one).__name__ for one in done) == ["Event", "NotCompacted"]
    await session.close()


@run
async def test_three_summaries_by_hand_at_once_and_new_messages_meanwhile_are_no_trouble() -> None:
    scribe = Scribe()
    session = await Session.open(
        MemoryStore(), "demo", summarise=scribe.summariser, **settings(window=40_000)
    )
    for turn in range(6):
        await say(session, turn)
    all_three = asyncio.gather(*(session.compact() for _ in range(3)), return_exceptions=True)
    await scribe.asked()
    for turn in range(6, 12):
        await say(session, turn)
    scribe.let_go()
    done = await all_three
    assert all(isinstance(outcome, Event | NotCompacted) for outcome in done), done
    assert scribe.most_at_once == 1
    assert (await session.report()).summaries
    await replayed(session)
    await session.close()


@run
async def test_while_one_is_written_by_hand_none_is_begun_in_the_background() -> None:
    scribe = Scribe()
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings())
    turn = await filled(session, "act")
    work = asyncio.create_task(session.compact())
    await scribe.asked()
    await say(session, turn, lines=1)
    await session.fit()
    await asyncio.sleep(0.02)
    scribe.let_go()
    await work
    await idle(session)
    assert scribe.most_at_once == 1
    await session.close()


@run
async def test_what_was_written_in_the_background_is_not_thrown_away_by_a_summary_by_hand() -> None:
    scribe = Scribe(held=False)
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings())
    await filled(session, "warn")
    await session.fit()
    await scribe.asked()
    await idle(session)
    with suppress(NotCompacted):
        await session.compact()
    outcomes = await of(session, Compacted, CompactionFailed)
    assert sum(measures(fact).asked for fact in outcomes) == len(scribe.requests)
    await session.close()


@run
async def test_that_a_background_summary_was_outrun_is_recorded_by_a_summary_by_hand_too() -> None:
    scribe = Scribe()
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings())
    await filled(session, "act")
    await session.fit()
    await scribe.asked()
    await _pinned(session, session)
    scribe.let_go()
    await idle(session)
    await session.compact()
    assert [fact.problem for fact in await of(session, CompactionFailed)] == [CHANGED]
    assert len(await of(session, Compacted)) == 1
    await replayed(session)
    await session.close()


# ── when it goes wrong ───────────────────────────────────────────────────────────────────────────────────


async def went_on(session: Session, turns: int, *, start: int) -> int:
    for turn in range(start, start + turns):
        await say(session, turn)
        fitted = await session.fit()
        assert fitted.tokens <= fitted.limit
    return start + turns


@run
async def test_after_three_failures_no_model_is_asked_and_the_ledger_keeps_the_session_alive(
    stores: Callable[[], Any],
) -> None:
    scribe = Scribe(ValueError("no such model"), held=False)
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings(window=5_000))
        await went_on(session, 60, start=0)
        made = await of(session, Compacted)
        assert [bool(measures(fact).asked) for fact in made] == [True] * FAILURES + [False] * (
            len(made) - FAILURES
        )
        assert len(made) > FAILURES + 1
        assert {fact.by for fact in made} == {"ledger"}
        assert all("no such model" in measures(fact).checks[0] for fact in made[:FAILURES])
        asked = len(scribe.requests)
        assert asked == FAILURES
        assert (await session._keeper.caught_up()).record.broken
        await replayed(session)
        again = await Session.open(store, "demo", summarise=scribe.summariser, **settings(window=5_000))
        await went_on(again, 10, start=60)
        assert len(scribe.requests) == asked, "the breaker is remembered"


@run
async def test_by_hand_a_broken_model_is_asked_anyway_and_success_closes_the_matter() -> None:
    scribe = Scribe(ValueError("busy"), ValueError("busy"), ValueError("busy"), GOOD, held=False)
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings(window=5_000))
    turn = 0
    while not (await session._keeper.caught_up()).record.broken:
        turn = await went_on(session, 1, start=turn)
    turn = await went_on(session, 2, start=turn)
    made = await session.compact()
    assert isinstance(made.fact, Compacted)
    assert made.fact.by == "somebody/big"
    assert not (await session._keeper.caught_up()).record.broken
    asked = len(scribe.requests)
    await went_on(session, 20, start=turn)
    assert len(scribe.requests) > asked, "it is asked by itself again"
    await session.close()


@run
async def test_one_success_between_failures_starts_the_count_again() -> None:
    scribe = Scribe(
        ValueError("a"), ValueError("b"), GOOD, ValueError("c"), ValueError("d"), GOOD, held=False
    )
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings(window=5_000))
    turn = 0
    while len(scribe.requests) < 7:
        turn = await went_on(session, 1, start=turn)
        await idle(session)
    assert not (await session._keeper.caught_up()).record.broken
    await session.close()


@run
async def test_the_next_in_the_chain_is_asked_when_the_first_fails() -> None:
    first, second = Scribe(ValueError("gone"), held=False), Scribe(held=False)
    small = replace(plain_model(20_000), name="small")
    chain = [first.summariser, Summariser(second.write, model=small)]
    session = await Session.open(MemoryStore(), "demo", summarise=chain, **settings())
    for turn in range(5):
        await say(session, turn)
    made = (await session.compact()).fact
    assert isinstance(made, Compacted)
    assert made.by == "small"
    assert measures(made).asked == 2
    await session.close()


@run
async def test_a_window_that_refills_three_times_in_a_turn_stops_summaries_and_says_why() -> None:
    session = await Session.open(MemoryStore(), "demo", **settings(window=4_000))
    await session.append(UserSaid(content="the task"))
    for n in range(40):
        call = Call(id=f"c{n}", name="read", arguments=f'{{"path": "f_{n}.py"}}')
        body = "\n".join(f"line {k} of f_{n}.py again" for k in range(70))
        await session.append(ModelSaid(content=(call,)), ToolReturned(call_id=call.id, content=body))
        fitted = await session.fit()
        assert fitted.tokens <= fitted.limit
    engine = await session._keeper.caught_up()
    assert engine.record.paused
    notes = await of(session, Noted)
    assert len(notes) == 1, "said once"
    assert "refilled 3 times" in notes[0].text
    assert "Read less at a time" in notes[0].text
    before = len(await of(session, Compacted))
    await session.append(UserSaid(content="go on"))
    assert not (await session._keeper.caught_up()).record.paused, "when the user speaks it is tried again"
    assert before >= 3
    await replayed(session)


@run
async def test_a_window_that_refills_never_asks_a_model_more_than_a_few_times_in_a_turn() -> None:
    scribe = Scribe(held=False)
    session = await Session.open(MemoryStore(), "demo", summarise=scribe.summariser, **settings(window=4_000))
    await session.append(UserSaid(content="the task"))
    for n in range(40):
        call = Call(id=f"c{n}", name="read", arguments=f'{{"path": "f_{n}.py"}}')
        body = "\n".join(f"line {k} of f_{n}.py again" for k in range(70))
        await session.append(ModelSaid(content=(call,)), ToolReturned(call_id=call.id, content=body))
        await session.fit()
        await idle(session)
    summaries = await of(session, Compacted, CompactionFailed)
    assert sum(bool(measures(fact).asked) for fact in summaries) <= 5
    await session.close()


class Failing:
    """A store whose disk is full at times."""

    def __init__(self, store: Store) -> None:
        self.store, self.fail = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if self.fail:
            raise OSError("disk full")
        await self.store.append(session, events)


@run
async def test_a_summary_that_could_not_be_stored_is_not_reported_as_made(stores: Callable[[], Any]) -> None:
    async with stores() as inner:
        store = Failing(inner)
        session = await Session.open(store, "demo", summarise=Scribe(held=False).summariser, **settings())
        for turn in range(6):
            await say(session, turn)
        before, log = (await session.fit()).facts, await session.events()
        store.fail = True
        with pytest.raises(OSError, match="disk full"):
            await session.compact()
        store.fail = False
        assert (await session.fit()).facts == before
        assert await session.events() == log
        assert (await session.report()).summaries == ()
        assert isinstance((await session.compact()).fact, Compacted)
        await session.close()


@run
async def test_a_background_summary_that_could_not_be_stored_leaves_the_request_as_it_was() -> None:
    store = Failing(MemoryStore())
    session = await Session.open(store, "demo", summarise=Scribe(held=False).summariser, **settings())
    turn = await filled(session, "act")
    await session.fit()
    await idle(session)
    await say(session, turn, lines=1)
    store.fail = True
    with pytest.raises(OSError, match="disk full"):
        await session.fit()
    store.fail = False
    fitted = await session.fit()
    assert fitted.tokens <= fitted.limit
    await replayed(session)
    await session.close()


@run
async def test_a_summary_that_was_paid_for_is_kept_when_the_request_does_not_fit_for_another_reason() -> None:
    scribe = Scribe(held=False)
    session = await Session.open(
        MemoryStore(), "demo", summarise=scribe.summariser, max_images=0, **settings()
    )
    await filled(session, "over")
    picture = Media(
        native=raw({"type": "image_url", "image_url": {"url": "data:,"}}), mime="image/png", size=10
    )
    await session.append(UserSaid(content=(Text(text="what is this?"), picture)))
    for _ in range(3):
        with pytest.raises(ContextOverflow, match="images"):
            await session.fit()
    assert len(scribe.requests) == 1
    assert len(await of(session, Compacted)) == 1
    await session.close()


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_with_confirm_nothing_happens_without_consent_and_the_question_returns_after_each_answer(
    stores: Callable[[], Any],
) -> None:
    scribe = Scribe(held=False)
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings("confirm"))
        assert (await session.report()).question == ""
        turn = await filled(session, "act")
        for later in range(turn, turn + 2):
            await session.fit()
            report = await session.report()
            assert report.question.startswith("Context usage at ")
            assert (
                f"({report.used:,}/{report.limit:,} tokens). Compact conversation? [y/N]" in report.question
            )
            await session.append(UserSaid(content="no"), ModelSaid(content=f"as you wish {later}"))
        assert scribe.requests == []
        assert await of(session, Compacted, Masked, Dropped) == []
        assert (await session.report()).question
        await session.compact()
        assert (await session.report()).question == ""
        assert len(scribe.requests) == 1
        await filled(session, "act", start=turn)
        assert (await session.report()).question, "and returns when it is full again"
        await session.close()


@run
async def test_the_question_is_worded_as_people_know_it() -> None:
    session = await Session.open(MemoryStore(), "demo", **settings("confirm", window=8_000))
    await filled(session, "act")
    report = await session.report()
    percent = round(100 * report.used / report.limit)
    assert percent > 90
    assert report.question == (
        f"Context usage at {percent} % ({report.used:,}/{report.limit:,} tokens). Compact conversation? [y/N]"
    )


@run
async def test_without_consent_the_hard_limit_is_kept_by_masks_and_drops_that_say_so(
    stores: Callable[[], Any],
) -> None:
    scribe = Scribe(held=False)
    async with stores() as store:
        session = await Session.open(
            store, "demo", summarise=scribe.summariser, **settings("confirm", window=4_000)
        )
        await session.append(Instructed(content="You are careful."))
        await session.pin("never delete the archive")
        for turn in range(40):
            await say(session, turn)
            fitted = await session.fit()
            assert fitted.tokens <= fitted.limit
            assert "never delete the archive" in str(fitted.facts)
        assert scribe.requests == []
        assert await of(session, Compacted) == []
        masks = await of(session, Masked)
        assert masks
        assert {fact.reason for fact in masks} == {"hard limit, no consent"}
        assert check_chat(fitted.to_openai()) == []
        assert check_anthropic(fitted.to_anthropic()) == []
        assert check_responses(fitted.to_responses()) == []


@run
async def test_with_mode_off_an_overflow_names_the_choices_and_by_hand_it_goes_on() -> None:
    off = {"preset": "handoff", "mode": "off"}
    session = await Session.open(MemoryStore(), "demo", **settings(off, window=4_000))
    await filled(session, "over")
    log = await session.events()
    with pytest.raises(ContextOverflow) as problem:
        await session.fit()
    for choice in ("compact()", 'mode "auto"', "another policy", "a model that holds more", "a new session"):
        assert choice in str(problem.value)
    assert await session.events() == log
    await session.compact()
    fitted = await session.fit()
    assert fitted.tokens <= fitted.limit


# ── several sessions ─────────────────────────────────────────────────────────────────────────────────────


@run
async def test_two_sessions_on_one_log_that_compact_at_once_agree_on_one_view(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        one_scribe, two_scribe = Scribe(), Scribe()
        one = await Session.open(store, "demo", summarise=one_scribe.summariser, **settings())
        for turn in range(6):
            await say(one, turn)
        two = await Session.open(store, "demo", summarise=two_scribe.summariser, **settings())
        both = asyncio.gather(one.compact(), two.compact(), return_exceptions=True)
        await one_scribe.asked()
        await two_scribe.asked()
        one_scribe.let_go()
        two_scribe.let_go()
        done = await both
        assert sorted(type(outcome).__name__ for outcome in done) == ["Event", "NotCompacted"]
        assert len(await of(one, Compacted)) == len(await of(one, CompactionFailed)) == 1
        assert len((await one.report()).summaries) == 1
        assert (await one.fit()).facts == (await two.fit()).facts
        await replayed(one)
        await replayed(two)


class Meddling:
    """A store on which somebody else appends, once: just before a summary does, or just after."""

    def __init__(
        self,
        store: Store,
        first: Callable[[], Awaitable[Any]] | None = None,
        *,
        then: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.store, self.first, self.then = store, first, then
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if not self.done and any(isinstance(event.fact, Compacted) for event in events):
            self.done = True
            if self.first is not None:
                await self.first()
            await self.store.append(session, events)
            if self.then is not None:
                await self.then()
            return
        await self.store.append(session, events)


@run
async def test_whose_summary_was_recorded_is_told_so_whatever_another_session_recorded_after_it() -> None:
    inner = MemoryStore()
    other = await Session.open(inner, "demo", **settings())
    failed = CompactionFailed(first=1, last=2, problem="theirs")
    store = Meddling(inner, then=lambda: other.append(failed))
    session = await Session.open(store, "demo", summarise=Scribe(held=False).summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    made = await session.compact()
    assert isinstance(made.fact, Compacted)
    assert made in await session.events()


@run
async def test_a_message_that_another_session_appended_can_be_pinned() -> None:
    store = MemoryStore()
    one, two = [await Session.open(store, "demo", **settings()) for _ in range(2)]
    (event,) = await two.append(UserSaid(content="remember this"))
    await one.pin(event=event.seq)


@run
async def test_a_summary_is_not_recorded_when_its_source_changes_at_the_very_last_moment() -> None:
    inner = MemoryStore()
    other = await Session.open(inner, "demo", **settings())
    store = Meddling(inner, lambda: _rewound(other, other))
    session = await Session.open(store, "demo", summarise=Scribe(held=False).summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    with pytest.raises(NotCompacted, match="changed meanwhile"):
        await session.compact()
    assert [fact.problem for fact in await of(session, CompactionFailed)] == [CHANGED]
    assert await of(session, Compacted) == []
    await replayed(session)


@run
async def test_a_summary_is_recorded_although_somebody_else_spoke_at_the_very_last_moment() -> None:
    inner = MemoryStore()
    other = await Session.open(inner, "demo", **settings())
    scribe = Scribe(held=False)
    store = Meddling(inner, lambda: other.append(ModelSaid(content="me too")))
    session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
    turn = await filled(session, "act")
    await session.fit()
    await idle(session)
    await say(session, turn, lines=1)
    await session.fit()
    await asyncio.sleep(0.01)
    assert store.done
    assert len(scribe.requests) == 1
    (made,) = await of(session, Compacted)
    assert made.by == "somebody/big"
    await replayed(session)
    await session.close()


@run
async def test_two_sessions_on_one_log_that_both_run_full_agree_on_one_view(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        one = await Session.open(
            store, "demo", summarise=Scribe(held=False).summariser, **settings(window=5_000)
        )
        two = await Session.open(
            store, "demo", summarise=Scribe(held=False).summariser, **settings(window=5_000)
        )
        for turn in range(0, 30, 2):
            await say(one, turn)
            await say(two, turn + 1)
            fitted = await asyncio.gather(one.fit(), two.fit())
            assert all(each.tokens <= each.limit for each in fitted)
            assert check_chat(fitted[0].to_openai()) == []
        assert await of(one, Compacted)
        assert (await one.fit()).facts == (await two.fit()).facts
        seqs = [event.seq for event in await one.events()]
        assert seqs == list(range(len(seqs)))
        await replayed(one)
        await one.close()
        await two.close()


@run
async def test_the_settings_and_the_summaries_of_one_session_do_not_touch_another() -> None:
    store = MemoryStore()
    scribe = Scribe(held=False)
    one = await Session.open(store, "one", summarise=scribe.summariser, **settings(window=5_000))
    two = await Session.open(store, "two", **settings("recent-summary", window=50_000))
    for turn in range(25):
        await say(one, turn)
        await say(two, turn)
        await one.fit()
        await two.fit()
    assert await of(one, Compacted)
    assert await of(two, Compacted, Masked, Dropped) == []
    assert {fact.rule for fact in await of(one, Compacted)} == {"handoff"}
    assert (await two.report()).window == 50_000
    assert (await two.report()).policy == "recent-summary"
    await one.close()


@run
async def test_a_fork_is_summarised_apart_and_begins_with_the_same_view(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        scribe = Scribe(held=False)
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings(window=5_000))
        await went_on(session, 20, start=0)
        before = (await session.fit()).facts
        fork = await session.fork("other")
        assert (await fork.fit()).facts == before
        await replayed(fork)
        await say(fork, 77)
        await fork.compact()
        assert (await session.fit()).facts == before
        await replayed(session)
        await session.close()
        await fork.close()


# ── reopening ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["handoff", "sliding-summary", "recent-summary", "confirm", "economy"])
@run
async def test_the_view_after_reopening_is_the_view_before_after_every_summary(
    policy: str, tmp_path: Path
) -> None:
    path = tmp_path / "chats.db"
    how = settings(policy, window=5_000)
    seen = 0
    async with open_store(path, durability="normal") as store:
        session = await Session.open(store, "demo", summarise=Scribe(held=False).summariser, **how)
        for turn in range(40):
            await say(session, turn)
            before = (await session.fit()).facts
            made = len(await of(session, Compacted))
            if made > seen:
                seen = made
                again = await Session.open(store, "demo", **how)
                assert await shown(again) == before
                await replayed(again)
        if policy == "confirm":
            await session.compact()
            before = (await session.fit()).facts
        await session.close()
    assert seen >= 2 or policy in ("confirm", "economy")
    async with open_store(path, durability="normal") as store:
        again = await Session.open(store, "demo", **how)
        assert await shown(again) == before


@run
async def test_resume_then_compact(stores: Callable[[], Any]) -> None:
    async with stores() as store:
        session = await Session.open(
            store, "demo", summarise=Scribe(held=False).summariser, **settings(window=5_000)
        )
        await went_on(session, 30, start=0)
        await session.close()
    async with stores() as store:
        scribe = Scribe(held=False)
        again = await Session.open(store, "demo", summarise=scribe.summariser, **settings(window=5_000))
        for turn in range(30, 34):
            await say(again, turn)
        made = (await again.compact()).fact
        assert isinstance(made, Compacted)
        assert "Half of it is done." in made.summary
        assert len(scribe.requests) == 1
        fitted = await again.fit()
        assert made.summary in [text_of(f.content) for f in fitted.facts if isinstance(f, UserSaid)]
        await replayed(again)
        await again.close()


@run
async def test_a_process_that_ends_while_a_summary_is_written_loses_nothing_but_the_summary(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        scribe = Scribe()
        session = await Session.open(store, "demo", summarise=scribe.summariser, **settings())
        await filled(session, "act")
        before = (await session.fit()).facts
        await scribe.asked()
        log = await session.events()
        await session.close()
    async with stores() as store:
        again = await Session.open(store, "demo", **settings())
        assert await again.events() == log
        whole = Engine(*again._keeper.setup, log=log)
        assert tuple(fact for step in whole.view.steps for fact in step.facts()) == before


@run
async def test_an_expanded_range_survives_reopening_and_ends_when_the_user_speaks(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **settings(window=40_000))
        for turn in range(8):
            await say(session, turn)
        made = await session.compact()
        before = (await session.fit()).facts
        await session.expand(made.handle)
        shown = (await session.fit()).facts
        assert "line 3 of file_0.py" in str(shown)
        assert "line 3 of file_0.py" not in str(before)
        await replayed(session)
    async with stores() as store:
        again = await Session.open(store, "demo", **settings(window=40_000))
        assert (await again.fit()).facts == shown
        await again.append(ModelSaid(content="I see."))
        assert (await again.fit()).facts == (*shown, ModelSaid(content="I see."))
        await again.append(UserSaid(content="and now?"))
        assert (await again.fit()).facts == (
            *before,
            ModelSaid(content="I see."),
            UserSaid(content="and now?"),
        )
        await replayed(again)
        assert len(await of(again, Expanded)) >= 1


@run
async def test_a_summary_of_a_summary_is_taken_back_after_reopening(stores: Callable[[], Any]) -> None:
    how = settings({"preset": "handoff", "max_summaries": 1}, window=40_000)
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=Scribe(held=False).summariser, **how)
        for turn in range(6):
            await say(session, turn)
        first = await session.compact()
        for turn in range(6, 12):
            await say(session, turn)
        one = (await session.fit()).facts
        await session.compact()
        two = (await session.fit()).facts
        await session.close()
    async with stores() as store:
        again = await Session.open(store, "demo", **how)
        assert (await again.fit()).facts == two
        await again.undo()
        assert (await again.fit()).facts == one
        await again.undo(first.handle)
        assert not [f for f in (await again.fit()).facts if "[foveal: record" in str(f)]
        await replayed(again)


@run
async def test_going_on_with_a_smaller_model_reduces_before_the_next_call_and_says_why(
    stores: Callable[[], Any],
) -> None:
    async with stores() as store:
        session = await Session.open(store, "demo", **settings(window=40_000))
        for turn in range(20):
            await say(session, turn)
            await session.fit()
        assert await of(session, Compacted) == []
        smaller = replace(plain_model(6_000), name="somebody/small")
        again = await Session.open(
            store, "demo", model=smaller, policy="handoff", reserve=600, tokenizer="estimate"
        )
        fitted = await again.fit()
        assert fitted.tokens <= fitted.limit < 6_000
        (made,) = await of(again, Compacted)
        assert made.reason == "model"
        assert [fact.model for fact in await of(again, Opened)] == ["somebody/unheard-of", "somebody/small"]


OPS = (
    "say",
    "say",
    "say",
    "call",
    "late",
    "fit",
    "fit",
    "compact",
    "undo",
    "expand",
    "rewind",
    "pin",
    "reopen",
    "fork",
)


class Walk:
    """A session to which one thing after the other happens."""

    def __init__(self, seed: int, store: Store, how: dict[str, Any]) -> None:
        self.dice, self.store, self.how = Random(seed), store, how
        self.waiting: list[str] = []
        self.number = 0
        self.id = "walk"

    async def opened(self) -> Session:
        summarise = Scribe(held=False).summariser if self.dice.random() < 0.5 else None
        return await Session.open(self.store, self.id, summarise=summarise, **self.how)

    async def one(self, session: Session, op: str) -> Session:
        self.number += 1
        dice, number = self.dice, self.number
        some = [e for e in await session.events() if dice.random() < 0.2]
        match op:
            case "say":
                await say(session, number, lines=dice.randint(1, 60))
            case "call":
                call = Call(id=f"job{number}", name="run", arguments="{}")
                self.waiting.append(call.id)
                await session.append(UserSaid(content=f"start {number}"), ModelSaid(content=(call,)))
            case "late" if self.waiting:
                call_id = self.waiting.pop(dice.randrange(len(self.waiting)))
                await session.append(ToolReturned(call_id=call_id, content=f"late result of {call_id}"))
            case "fit":
                fitted = await session.fit()
                assert fitted.tokens <= fitted.limit
                assert check_chat(fitted.to_openai()) == []
                assert check_anthropic(fitted.to_anthropic()) == []
                assert check_responses(fitted.to_responses()) == []
            case "compact":
                await session.compact()
            case "undo":
                await session.undo(
                    dice.choice([None, *(e.handle for e in some if isinstance(e.fact, REDUCTIONS))])
                )
            case "expand" if some:
                await session.expand(dice.choice(some).handle)
            case "rewind" if some and dice.random() < 0.4:
                await session.rewind(dice.choice(some).seq)
            case "pin":
                await session.pin(f"rule {number}")
            case "fork" if dice.random() < 0.3:
                await session.close()
                session = await session.fork(f"{self.id}{number}")
                self.id = session.id
            case _:
                await session.close()
                session = await self.opened()
        return session


@given(st.integers(0, 2**32), st.sampled_from(["handoff", "sliding-summary", "recent-summary", "economy"]))
@hypothesis.settings(max_examples=25)
def test_whatever_happens_the_view_is_the_fold_of_the_log_and_the_same_after_reopening(
    seed: int, policy: str
) -> None:
    async def walked() -> None:
        walk = Walk(seed, MemoryStore(), settings(policy, window=5_000))
        session = await walk.opened()
        for _ in range(30):
            with suppress(ContextOverflow, NotCompacted, UnknownHandle):
                session = await walk.one(session, walk.dice.choice(OPS))
            await idle(session)
            await replayed(session)
            assert await shown(await walk.opened()) == await shown(session)
        await session.close()

    asyncio.run(asyncio.wait_for(walked(), timeout=30))


# ── the record, as a log tells it ────────────────────────────────────────────────────────────────────────


def test_the_record_counts_failures_in_a_row_and_forgets_them_after_a_success_or_another_model() -> None:
    failed = CompactionFailed(first=0, last=1, problem="no", metrics=raw({"asked": 1}))
    ledger = Compacted(first=0, last=1, summary="s", by="ledger", metrics=raw({"asked": 2}))
    record = CompactionHealth()
    for fact in (failed, ledger, failed):
        assert not record.broken
        record = record.after(fact)
    assert record.broken
    assert not record.after(Compacted(first=0, last=1, summary="s", by="gpt-4.1")).broken
    assert not record.after(Opened(model="another")).broken
    unasked = Compacted(first=0, last=1, summary="s", by="ledger")
    assert record.after(unasked).broken, "a ledger that asked nobody proves nothing"


def test_summaries_by_hand_and_by_turns_are_no_refills() -> None:
    record = CompactionHealth(said=0)
    for reason in ("hand", "turns"):
        record = record.after(Compacted(first=0, last=1, summary="s", reason=reason))
    assert record.refills == 0
    for _ in range(3):
        record = record.after(Compacted(first=0, last=1, summary="s", reason="tokens"))
    assert record.paused
    assert not record.after(UserSaid(content="go on")).paused
