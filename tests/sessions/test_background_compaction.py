"""Background compaction of real sessions: waiting, discarded results, and what the log records.

Summarisers are scripted: one waits until the test releases it, so that a test decides what happens meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveal.core.compaction import Summariser, SummaryRequest
from foveal.core.compaction.health import MAX_FAILURES, CompactionHealth, read_metrics
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
from foveal.sessions import RANGE_CHANGED, Session, SessionOptions
from foveal.sessions.fitter import REPLACED
from foveal.stores import open_store
from foveal.stores.memory import MemoryStore
from support.effort import examples, rest_in_soak
from support.histories import plain_model
from support.legality import check_anthropic, check_chat, check_responses
from support.waiting import DEADLINE_S

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
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), timeout=DEADLINE_S))

    return wrapped


class PausedSummariser:
    """A summariser that answers once it is released."""

    def __init__(self, *answers: Any, held: bool = True) -> None:
        self.answers = list(answers)
        self.requests: list[SummaryRequest] = []
        self.at_once = self.most_at_once = 0
        self.cancelled = 0
        self._free = asyncio.Event()
        if not held:
            self._free.set()

    @property
    def as_summariser(self) -> Summariser:
        """The summariser, with a model that reads everything at once."""
        return Summariser(self.write, model=BIG)

    def release(self) -> None:
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

    async def wait_for_request(self, times: int = 1) -> None:
        while len(self.requests) < times:
            await asyncio.sleep(0.001)


async def wait_until_idle(session: Session) -> None:
    """Wait until nothing is written in the background."""
    await session._background.wait()


async def say(session: Session, turn: int, *, lines: int = 50) -> None:
    """Append one turn: a request, a call with its result, an answer."""
    call = Call(id=f"c{turn}", name="read", arguments=f'{{"path": "file_{turn}.py"}}')
    body = "\n".join(f"line {n} of file_{turn}.py" for n in range(lines))
    await session.append(
        UserSaid(content=f"request {turn}: look at file_{turn}.py"),
        ModelSaid(content=(call,)),
        ToolReturned(call_id=call.id, content=body),
        ModelSaid(content=f"file_{turn}.py is fine"),
    )


async def fill_until(session: Session, state: str, *, start: int = 0, lines: int = 50) -> int:
    """Append turns until the report has this state; return the number of the next turn."""
    order = ["ok", "warn", "act", "over"]
    turn = start
    while order.index((await session.report()).state) < order.index(state):
        await say(session, turn, lines=lines)
        turn += 1
    return turn


async def of(session: Session, *kinds: type) -> list[Any]:
    return [event.fact for event in await session.events() if isinstance(event.fact, kinds)]


async def shown(session: Session) -> tuple[Any, ...]:
    """Return the facts of the current view, without reducing it."""
    view = (await session._writer.refresh()).view
    return tuple(fact for step in view.steps for fact in step.facts())


async def check_view_is_fold(session: Session) -> None:
    """Check that the view in memory is the fold of the stored log."""
    live = await session._writer.refresh()
    whole = Engine(session._writer.settings, log=await session.events())
    assert [list(step.facts()) for step in live.view.steps] == [list(s.facts()) for s in whole.view.steps]
    assert live.compaction_health == whole.compaction_health
    assert live.provider_limits == whole.provider_limits
    assert live.view.units == whole.view.units


# ── Waiting ────────────────────────────────────────────────────────────────────────────────────


@run
async def test_at_the_warning_a_summary_starts_and_no_request_waits(
    stores: Callable[[], Any],
) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        await say(session, 0)
        await session.fit()
        assert session._background.is_idle, "below the warning no summary is started"
        await fill_until(session, "warn")
        before = (await session.fit()).facts
        await summariser.wait_for_request()
        assert not await of(session, Compacted), "nothing is recorded yet"
        await say(session, 90, lines=1)
        assert (await session.fit()).facts[: len(before)] == before, "and the request is unchanged"
        summariser.release()
        await wait_until_idle(session)
        assert not await of(session, Compacted), "a summary is not used before it is needed"
        await fill_until(session, "act", start=91)
        await session.fit()
        (made,) = await of(session, Compacted)
        assert made.by == "somebody/big"
        assert len(summariser.requests) == 1
        await check_view_is_fold(session)
        await session.close()


@run
async def test_below_the_hard_limit_the_next_turn_does_not_wait(
    stores: Callable[[], Any],
) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        turn = await fill_until(session, "act")
        for later in range(turn, turn + 2):
            await asyncio.wait_for(session.fit(), timeout=DEADLINE_S)
            await say(session, later, lines=1)
        await summariser.wait_for_request()
        assert await of(session, Compacted, Masked, Dropped) == []
        assert len(summariser.requests) == 1, "one at a time"
        summariser.release()
        await wait_until_idle(session)
        await session.fit()
        assert len(await of(session, Compacted)) == 1
        await session.close()


@run
async def test_at_the_hard_limit_fit_waits_and_appends_are_stored(
    stores: Callable[[], Any],
) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        await fill_until(session, "over")
        waiting = asyncio.create_task(session.fit())
        await summariser.wait_for_request()
        done, _ = await asyncio.wait([waiting], timeout=0.02)
        assert not done
        (event,) = await asyncio.wait_for(
            session.append(UserSaid(content="while you write")), timeout=DEADLINE_S
        )
        assert (await store.read("demo"))[-1] == event, "stored before anything else happens"
        summariser.release()
        fitted = await waiting
        assert fitted.facts[-1] == UserSaid(content="while you write")
        assert "Half of it is done." in str(fitted.facts)
        assert fitted.tokens <= fitted.limit
        assert len(await of(session, Compacted)) == 1
        await check_view_is_fold(session)
        await session.close()


@run
async def test_cancelling_the_wait_does_not_cancel_the_summary(stores: Callable[[], Any]) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        await fill_until(session, "over")
        waiting = asyncio.create_task(session.fit())
        await summariser.wait_for_request()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert await of(session, Compacted, CompactionFailed) == []
        summariser.release()
        fitted = await session.fit()
        assert (len(summariser.requests), summariser.cancelled) == (1, 0)
        assert fitted.tokens <= fitted.limit
        await session.close()


@run
async def test_close_cancels_the_summary_and_records_nothing(stores: Callable[[], Any]) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        await fill_until(session, "act")
        await session.fit()
        await summariser.wait_for_request()
        log = await session.events()
        await session.close()
        await session.close()
        assert summariser.cancelled == 1
        assert await session.events() == log
        assert session._background.is_idle


@run
async def test_cancelling_compact_records_nothing(stores: Callable[[], Any]) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        for turn in range(5):
            await say(session, turn)
        before = (await session.fit()).facts
        log = await session.events()
        work = asyncio.create_task(session.compact())
        await summariser.wait_for_request()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        assert await session.events() == log
        assert (await session.fit()).facts == before
        summariser.release()
        assert isinstance((await session.event(await session.compact())).fact, Compacted)
        await session.close()


@run
async def test_messages_can_be_appended_during_compact(stores: Callable[[], Any]) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        for turn in range(5):
            await say(session, turn)
        work = asyncio.create_task(session.compact("the ports"))
        await summariser.wait_for_request()
        await asyncio.wait_for(say(session, 6), timeout=DEADLINE_S)
        assert "request 6" in str((await asyncio.wait_for(session.fit(), timeout=DEADLINE_S)).facts)
        summariser.release()
        made = await session.event(await work)
        assert isinstance(made.fact, Compacted)
        fitted = await session.fit()
        assert "Half of it is done." in str(fitted.facts)
        assert "request 6" in str(fitted.facts)
        assert str(summariser.requests[0].messages).count("the ports") == 1
        await check_view_is_fold(session)
        await session.close()


# ── Changes meanwhile ───────────────────────────────────────────────────────────────────────────────


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
async def test_a_summary_of_a_changed_range_is_recorded_as_failed(
    change: Callable[[Session, Session], Awaitable[None]],
) -> None:
    summariser = PausedSummariser()
    store = MemoryStore()
    session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
    other = await Session.open(store, "demo", **settings())
    turn = await fill_until(session, "act")
    await session.fit()
    await summariser.wait_for_request()
    await change(session, other)
    summariser.release()
    await wait_until_idle(session)
    await fill_until(session, "act", start=turn)
    await say(session, 99, lines=1)
    await session.fit()
    failed = await of(session, CompactionFailed)
    assert [fact.problem for fact in failed] == [RANGE_CHANGED]
    assert read_metrics(failed[0]).asked == 1, "its cost is recorded"
    assert "Half of it is done." not in str((await session.fit()).facts)
    await check_view_is_fold(session)
    await session.close()


async def _undone_drop(session: Session, _: Session) -> None:
    await session.undo()


@pytest.mark.parametrize("change", [_undone_drop, _rewound, _pinned])
@run
async def test_a_changed_range_is_recorded_when_the_summary_is_written_without_another_request(
    change: Callable[[Session, Session], Awaitable[None]],
) -> None:
    summariser = PausedSummariser()
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    await say(session, 0, lines=1)
    await say(session, 1, lines=1)
    seqs = [e.seq for e in await session.events() if isinstance(e.fact, UserSaid)]
    await fill_until(session, "warn", start=2)
    await session.append(Dropped(ranges=((seqs[1] + 1, seqs[1] + 1),)))
    await session.fit()
    await summariser.wait_for_request()
    await change(session, session)
    assert await of(session, CompactionFailed) == []
    summariser.release()
    assert session._discarding is not None
    await session._discarding
    (failed,) = await of(session, CompactionFailed)
    assert (failed.problem, read_metrics(failed).asked) == (RANGE_CHANGED, 1)
    assert await of(session, Compacted) == []
    assert session._background.is_idle
    await check_view_is_fold(session)
    await session.close()


@run
async def test_closing_and_deleting_stop_a_summary_whose_range_changed() -> None:
    for ending in (Session.close, Session.delete):
        summariser = PausedSummariser()
        session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
        await fill_until(session, "act")
        await session.fit()
        await summariser.wait_for_request()
        await _pinned(session, session)
        await ending(session)
        assert (summariser.cancelled, session._background.is_idle) == (1, True)
        assert await of(session, Compacted, CompactionFailed) == []


@run
async def test_deleting_a_session_ends_a_compaction_that_waits_for_its_model() -> None:
    summariser = PausedSummariser()
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    work = asyncio.create_task(session.compact())
    await summariser.wait_for_request()
    await session.delete()
    with pytest.raises(NotCompacted, match="closed or deleted"):
        await work


# ── Summaries after a number of turns ────────────────────────────────────────────────────────────────────


@run
async def test_the_fifth_answer_starts_a_summary_of_the_five_turns() -> None:
    summariser = PausedSummariser(held=False)
    how = settings("sliding-summary", window=60_000)
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **how)
    for turn in range(4):
        await say(session, turn)
        await session.fit()
    assert session._background.is_idle
    await session.append(UserSaid(content="request 4"))
    await session.fit()
    assert session._background.is_idle, "the fifth turn is not finished"
    (answer,) = await session.append(ModelSaid(content="done"))
    assert not session._background.is_idle, "its answer is stored"
    await wait_until_idle(session)
    await session.append(UserSaid(content="request 5"))
    fitted = await session.fit()
    (made,) = await of(session, Compacted)
    assert (made.reason, made.last) == ("turns", answer.seq)
    assert [text_of(f.content) for f in fitted.facts if isinstance(f, UserSaid)][-1] == "request 5"
    assert "request 4" in str(fitted.facts), "the latest request of the range stays"
    assert check_chat(fitted.to_openai()) == []
    for turn in range(6, 9):
        await say(session, turn)
        await session.fit()
    await session.append(ModelSaid(content="that was request 5"))
    assert session._background.is_idle, "four turns since"
    await say(session, 9)
    assert not session._background.is_idle
    await session.close()


@run
async def test_an_application_that_prepares_summaries_itself_gets_one_after_the_fifth_turn() -> None:
    summariser = PausedSummariser(held=False)
    options = SessionOptions(prepares_summaries=lambda: False)
    how = settings("sliding-summary", window=60_000, options=options)
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **how)
    for turn in range(5):
        assert not await session.needs_summary_soon()
        await say(session, turn)
    assert await session.needs_summary_soon()
    made = await session.prepare()
    assert made is not None
    assert isinstance(made.fact, Compacted)
    assert made.fact.reason == "turns"
    await session.close()


@run
async def test_new_messages_after_the_range_do_not_invalidate_a_summary() -> None:
    summariser = PausedSummariser()
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    turn = await fill_until(session, "act")
    await session.fit()
    await summariser.wait_for_request()
    await say(session, turn)
    await session.pin("a new rule")
    summariser.release()
    await wait_until_idle(session)
    await session.fit()
    assert len(await of(session, Compacted)) == 1
    assert await of(session, CompactionFailed) == []
    await session.close()


@run
async def test_compact_fails_when_its_range_has_changed(stores: Callable[[], Any]) -> None:
    summariser = PausedSummariser()
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        for turn in range(6):
            await say(session, turn)
        work = asyncio.create_task(session.compact())
        await summariser.wait_for_request()
        await _rewound(session, session)
        summariser.release()
        with pytest.raises(NotCompacted, match="changed meanwhile"):
            await work
        assert [fact.problem for fact in await of(session, CompactionFailed)] == [RANGE_CHANGED]
        assert await of(session, Compacted) == []
        await session.close()


@run
async def test_summaries_of_changed_ranges_do_not_count_as_model_failures() -> None:
    summariser = PausedSummariser(held=False)
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    engine = await session._writer.refresh()
    for number in range(MAX_FAILURES):
        summariser._free.clear()
        work = asyncio.create_task(session.compact())
        await summariser.wait_for_request(number + 1)
        target = [e.seq for e in await session.events() if isinstance(e.fact, ToolReturned)][number]
        await session.pin(event=target)
        summariser.release()
        with pytest.raises(NotCompacted, match="changed meanwhile"):
            await work
    engine = await session._writer.refresh()
    assert not engine.compaction_health.is_broken
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


# ── One at a time, and every outcome is recorded ─────────────────────────────────────────────────────────


@run
async def test_two_compactions_at_once_run_one_after_the_other() -> None:
    summariser = PausedSummariser()
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    for turn in range(6):
        await say(session, turn)
    both = asyncio.gather(session.compact(), session.compact(), return_exceptions=True)
    await summariser.wait_for_request()
    await asyncio.wait([both], timeout=0.02)  # a second summary would start now
    summariser.release()
    done = await both
    assert summariser.most_at_once == 1
    assert sorted(type(one).__name__ for one in done) == ["NotCompacted", "str"]
    await session.close()


@run
async def test_three_compactions_at_once_with_new_messages() -> None:
    summariser = PausedSummariser()
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, **settings(window=40_000)
    )
    for turn in range(6):
        await say(session, turn)
    all_three = asyncio.gather(*(session.compact() for _ in range(3)), return_exceptions=True)
    await summariser.wait_for_request()
    for turn in range(6, 12):
        await say(session, turn)
    summariser.release()
    done = await all_three
    assert all(isinstance(outcome, str | NotCompacted) for outcome in done), done
    assert summariser.most_at_once == 1
    assert (await session.report()).summaries
    await check_view_is_fold(session)
    await session.close()


@run
async def test_no_background_summary_starts_during_compact() -> None:
    summariser = PausedSummariser()
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    turn = await fill_until(session, "act")
    work = asyncio.create_task(session.compact())
    await summariser.wait_for_request()
    await say(session, turn, lines=1)
    await session.fit()
    await asyncio.wait([work], timeout=0.02)  # a background summary would start now
    summariser.release()
    await work
    await wait_until_idle(session)
    assert summariser.most_at_once == 1
    await session.close()


@run
async def test_compact_records_a_finished_background_summary() -> None:
    summariser = PausedSummariser(held=False)
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    await fill_until(session, "warn")
    await session.fit()
    await summariser.wait_for_request()
    await wait_until_idle(session)
    with suppress(NotCompacted):
        await session.compact()
    outcomes = await of(session, Compacted, CompactionFailed)
    assert sum(read_metrics(fact).asked for fact in outcomes) == len(summariser.requests)
    await session.close()


@run
@pytest.mark.parametrize("focus", ["", "the ports"])
@pytest.mark.parametrize("more", [0, 3])
async def test_compact_with_a_ready_summary_is_one_reduction_and_one_undo(focus: str, more: int) -> None:
    summariser = PausedSummariser(held=False)
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, **settings(window=40_000)
    )
    turn = await fill_until(session, "warn")
    await session.fit()
    await summariser.wait_for_request()
    await wait_until_idle(session)
    for later in range(turn, turn + more):
        await say(session, later)
    before = await shown(session)
    made = await session.compact(focus)
    reductions = [event for event in await session.events() if isinstance(event.fact, REDUCTIONS)]
    assert [event.handle for event in reductions] == [made]
    assert await session.undo() == made
    assert await shown(session) == before
    outcomes = await of(session, Compacted, CompactionFailed)
    assert sum(read_metrics(fact).asked for fact in outcomes) == len(summariser.requests), "all costs count"
    assert len(summariser.requests) == (2 if focus else 1)
    await check_view_is_fold(session)
    await session.close()


@run
async def test_compact_does_not_use_a_ready_record_of_a_model_that_failed() -> None:
    summariser = PausedSummariser(ValueError("busy"), ValueError("busy"), GOOD, held=False)
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, **settings(window=40_000)
    )
    await fill_until(session, "warn")
    await session.fit()
    await summariser.wait_for_request()
    await wait_until_idle(session)
    summariser.answers = [GOOD]
    made = (await session.event(await session.compact())).fact
    assert isinstance(made, Compacted)
    assert made.by == "somebody/big"
    assert await of(session, Compacted) == [made]
    assert [fact.problem for fact in await of(session, CompactionFailed)] == [REPLACED]
    await session.close()


@run
async def test_compact_records_a_failed_background_summary() -> None:
    summariser = PausedSummariser()
    session = await Session.open(MemoryStore(), "demo", summarise=summariser.as_summariser, **settings())
    await fill_until(session, "act")
    await session.fit()
    await summariser.wait_for_request()
    await _pinned(session, session)
    summariser.release()
    await wait_until_idle(session)
    await session.compact()
    assert [fact.problem for fact in await of(session, CompactionFailed)] == [RANGE_CHANGED]
    assert len(await of(session, Compacted)) == 1
    await check_view_is_fold(session)
    await session.close()


# ── Failures ───────────────────────────────────────────────────────────────────────────────────


async def run_turns(session: Session, turns: int, *, start: int) -> int:
    for turn in range(start, start + turns):
        await say(session, turn)
        fitted = await session.fit()
        assert fitted.tokens <= fitted.limit
    return start + turns


@run
async def test_after_three_failures_only_the_ledger_writes_summaries(
    stores: Callable[[], Any],
) -> None:
    summariser = PausedSummariser(ValueError("no such model"), held=False)
    async with stores() as store:
        session = await Session.open(
            store, "demo", summarise=summariser.as_summariser, **settings(window=5_000)
        )
        await run_turns(session, 60, start=0)
        made = await of(session, Compacted)
        assert [bool(read_metrics(fact).asked) for fact in made] == [True] * MAX_FAILURES + [False] * (
            len(made) - MAX_FAILURES
        )
        assert len(made) > MAX_FAILURES + 1
        assert {fact.by for fact in made} == {"ledger"}
        assert all("no such model" in read_metrics(fact).checks[0] for fact in made[:MAX_FAILURES])
        asked = len(summariser.requests)
        assert asked == MAX_FAILURES
        assert (await session._writer.refresh()).compaction_health.is_broken
        await check_view_is_fold(session)
        again = await Session.open(
            store, "demo", summarise=summariser.as_summariser, **settings(window=5_000)
        )
        await run_turns(again, 10, start=60)
        assert len(summariser.requests) == asked, "the failures are remembered after reopening"


@run
async def test_compact_asks_a_failed_model_again_and_success_resets_it() -> None:
    summariser = PausedSummariser(
        ValueError("busy"), ValueError("busy"), ValueError("busy"), GOOD, held=False
    )
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, **settings(window=5_000)
    )
    turn = 0
    while not (await session._writer.refresh()).compaction_health.is_broken:
        turn = await run_turns(session, 1, start=turn)
    turn = await run_turns(session, 6, start=turn)
    made = await session.event(await session.compact())
    assert isinstance(made.fact, Compacted)
    assert made.fact.by == "somebody/big"
    assert not (await session._writer.refresh()).compaction_health.is_broken
    asked = len(summariser.requests)
    await run_turns(session, 20, start=turn)
    assert len(summariser.requests) > asked, "background summaries ask the model again"
    await session.close()


@run
async def test_a_success_resets_the_count_of_failures() -> None:
    summariser = PausedSummariser(
        ValueError("a"), ValueError("b"), GOOD, ValueError("c"), ValueError("d"), GOOD, held=False
    )
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, **settings(window=5_000)
    )
    turn = 0
    while len(summariser.requests) < 7:
        turn = await run_turns(session, 1, start=turn)
        await wait_until_idle(session)
    assert not (await session._writer.refresh()).compaction_health.is_broken
    await session.close()


@run
async def test_the_next_summariser_is_called_when_the_first_fails() -> None:
    first, second = PausedSummariser(ValueError("gone"), held=False), PausedSummariser(held=False)
    small = replace(plain_model(20_000), name="small")
    chain = [first.as_summariser, Summariser(second.write, model=small)]
    session = await Session.open(MemoryStore(), "demo", summarise=chain, **settings())
    for turn in range(5):
        await say(session, turn)
    made = (await session.event(await session.compact())).fact
    assert isinstance(made, Compacted)
    assert made.by == "small"
    assert read_metrics(made).asked == 2
    await session.close()


@run
async def test_three_refills_in_a_turn_pause_summaries_with_a_note() -> None:
    session = await Session.open(MemoryStore(), "demo", **settings(window=4_000))
    await session.append(UserSaid(content="the task"))
    for n in range(40):
        call = Call(id=f"c{n}", name="read", arguments=f'{{"path": "f_{n}.py"}}')
        body = "\n".join(f"line {k} of f_{n}.py again" for k in range(70))
        await session.append(ModelSaid(content=(call,)), ToolReturned(call_id=call.id, content=body))
        fitted = await session.fit()
        assert fitted.tokens <= fitted.limit
    engine = await session._writer.refresh()
    assert engine.compaction_health.is_paused
    notes = await of(session, Noted)
    assert len(notes) == 1, "the note is recorded once"
    assert "refilled 3 times" in notes[0].text
    assert "Read less at a time" in notes[0].text
    before = len(await of(session, Compacted))
    await session.append(UserSaid(content="go on"))
    assert not (await session._writer.refresh()).compaction_health.is_paused, (
        "the user's message ends the pause"
    )
    assert before >= 3
    await check_view_is_fold(session)


@run
async def test_a_refilling_window_calls_a_model_only_a_few_times_per_turn() -> None:
    summariser = PausedSummariser(held=False)
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, **settings(window=4_000)
    )
    await session.append(UserSaid(content="the task"))
    for n in range(40):
        call = Call(id=f"c{n}", name="read", arguments=f'{{"path": "f_{n}.py"}}')
        body = "\n".join(f"line {k} of f_{n}.py again" for k in range(70))
        await session.append(ModelSaid(content=(call,)), ToolReturned(call_id=call.id, content=body))
        await session.fit()
        await wait_until_idle(session)
    summaries = await of(session, Compacted, CompactionFailed)
    assert sum(bool(read_metrics(fact).asked) for fact in summaries) <= 5
    await session.close()


class FailingStore:
    """A store whose disk can be full."""

    def __init__(self, store: Store) -> None:
        self.store, self.fail = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if self.fail:
            raise OSError("disk full")
        await self.store.append(session, events)


@run
async def test_a_summary_that_could_not_be_stored_is_not_reported(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as inner:
        store = FailingStore(inner)
        session = await Session.open(
            store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings()
        )
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
        assert isinstance((await session.event(await session.compact())).fact, Compacted)
        await session.close()


@run
async def test_an_unstored_background_summary_does_not_change_the_request() -> None:
    store = FailingStore(MemoryStore())
    session = await Session.open(
        store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings()
    )
    turn = await fill_until(session, "act")
    await session.fit()
    await wait_until_idle(session)
    await say(session, turn, lines=1)
    store.fail = True
    with pytest.raises(OSError, match="disk full"):
        await session.fit()
    store.fail = False
    fitted = await session.fit()
    assert fitted.tokens <= fitted.limit
    await check_view_is_fold(session)
    await session.close()


@run
async def test_a_paid_summary_is_kept_when_the_request_does_not_fit() -> None:
    summariser = PausedSummariser(held=False)
    session = await Session.open(
        MemoryStore(), "demo", summarise=summariser.as_summariser, max_images=0, **settings()
    )
    await fill_until(session, "over")
    picture = Media(
        native=raw({"type": "image_url", "image_url": {"url": "data:,"}}), mime="image/png", size=10
    )
    await session.append(UserSaid(content=(Text(text="what is this?"), picture)))
    for _ in range(3):
        with pytest.raises(ContextOverflow, match="images"):
            await session.fit()
    assert len(summariser.requests) == 1
    assert len(await of(session, Compacted)) == 1
    await session.close()


# ── Modes ────────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_mode_confirm_asks_before_every_compaction(
    stores: Callable[[], Any],
) -> None:
    summariser = PausedSummariser(held=False)
    async with stores() as store:
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings("confirm"))
        assert (await session.report()).question == ""
        turn = await fill_until(session, "act", lines=5)
        for later in range(turn, turn + 2):
            await session.fit()
            report = await session.report()
            assert report.question.startswith("Context usage at ")
            assert (
                f"({report.used:,}/{report.window:,} tokens). Compact conversation? [y/N]" in report.question
            )
            await session.append(UserSaid(content="no"), ModelSaid(content=f"as you wish {later}"))
        assert summariser.requests == []
        assert await of(session, Compacted, Masked, Dropped) == []
        assert (await session.report()).question
        agreed = await session.agree()
        assert (await session.report()).question == ""
        assert len(summariser.requests) == 1
        (summary,) = await of(session, Compacted)
        assert summary.rule == "confirm: agreed"
        assert (await session.event(agreed)).fact == summary
        with pytest.raises(NotCompacted, match="the question comes above"):
            await session.agree()
        await fill_until(session, "act", start=turn)
        assert (await session.report()).question, "the question returns when the window is full again"
        await session.close()


@run
async def test_the_question_of_mode_confirm_has_the_numbers_of_the_usage_line() -> None:
    session = await Session.open(MemoryStore(), "demo", **settings("confirm", window=8_000))
    await fill_until(session, "act", lines=5)
    report = await session.report()
    usage = f"{100 * report.used / 8_000:.1f} %"
    assert report.question == (
        f"Context usage at {usage} of the window ({report.used:,}/8,000 tokens). Compact conversation? [y/N]"
    )
    assert str(report).startswith(f"ctx {report.used:,}/8,000 {usage} ")
    assert f"act {report.act:,} ({100 * report.act / 8_000:.1f} %)" in str(report)


@run
async def test_without_consent_records_keep_the_hard_limit(
    stores: Callable[[], Any],
) -> None:
    summariser = PausedSummariser(held=False)
    async with stores() as store:
        session = await Session.open(
            store, "demo", summarise=summariser.as_summariser, **settings("confirm", window=4_000)
        )
        await session.append(Instructed(content="You are careful."))
        await session.pin("never delete the archive")
        for turn in range(40):
            await say(session, turn)
            fitted = await session.fit()
            assert fitted.tokens <= fitted.limit
            assert "never delete the archive" in str(fitted.facts)
        assert summariser.requests == []
        records = await of(session, Compacted)
        assert {(fact.by, fact.rule) for fact in records} == {("ledger", "confirm: no consent")}
        assert check_chat(fitted.to_openai()) == []
        assert check_anthropic(fitted.to_anthropic()) == []
        assert check_responses(fitted.to_responses()) == []


@run
async def test_with_mode_off_an_overflow_names_the_choices() -> None:
    off = {"preset": "handoff", "mode": "off"}
    session = await Session.open(MemoryStore(), "demo", **settings(off, window=4_000))
    await fill_until(session, "over")
    log = await session.events()
    with pytest.raises(ContextOverflow) as problem:
        await session.fit()
    for choice in ("compact()", 'mode "auto"', "another policy", "a larger window", "a new session"):
        assert choice in str(problem.value)
    assert await session.events() == log
    await session.compact()
    fitted = await session.fit()
    assert fitted.tokens <= fitted.limit


# ── Several sessions ─────────────────────────────────────────────────────────────────────────────────────


@run
async def test_two_sessions_on_one_log_that_compact_at_once_agree_on_one_view(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        first_summariser, second_summariser = PausedSummariser(), PausedSummariser()
        one = await Session.open(store, "demo", summarise=first_summariser.as_summariser, **settings())
        for turn in range(6):
            await say(one, turn)
        two = await Session.open(store, "demo", summarise=second_summariser.as_summariser, **settings())
        both = asyncio.gather(one.compact(), two.compact(), return_exceptions=True)
        await first_summariser.wait_for_request()
        await second_summariser.wait_for_request()
        first_summariser.release()
        second_summariser.release()
        done = await both
        assert sorted(type(outcome).__name__ for outcome in done) == ["NotCompacted", "str"]
        assert len(await of(one, Compacted)) == len(await of(one, CompactionFailed)) == 1
        assert len((await one.report()).summaries) == 1
        assert (await one.fit()).facts == (await two.fit()).facts
        await check_view_is_fold(one)
        await check_view_is_fold(two)


class InterferingStore:
    """A store on which another session appends once, just before or just after a summary is stored."""

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
async def test_compact_returns_its_own_summary_not_a_later_outcome() -> None:
    inner = MemoryStore()
    other = await Session.open(inner, "demo", **settings())
    failed = CompactionFailed(first=1, last=2, problem="theirs")
    store = InterferingStore(inner, then=lambda: other.append(failed))
    session = await Session.open(
        store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings()
    )
    for turn in range(6):
        await say(session, turn)
    made = await session.event(await session.compact())
    assert isinstance(made.fact, Compacted)
    assert made in await session.events()


@run
async def test_a_message_that_another_session_appended_can_be_pinned() -> None:
    store = MemoryStore()
    one, two = [await Session.open(store, "demo", **settings()) for _ in range(2)]
    (event,) = await two.append(UserSaid(content="remember this"))
    await one.pin(event=event.seq)


@run
async def test_a_change_just_before_recording_fails_the_summary() -> None:
    inner = MemoryStore()
    other = await Session.open(inner, "demo", **settings())
    store = InterferingStore(inner, lambda: _rewound(other, other))
    session = await Session.open(
        store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings()
    )
    for turn in range(6):
        await say(session, turn)
    with pytest.raises(NotCompacted, match="changed meanwhile"):
        await session.compact()
    assert [fact.problem for fact in await of(session, CompactionFailed)] == [RANGE_CHANGED]
    assert await of(session, Compacted) == []
    await check_view_is_fold(session)


@run
async def test_a_new_message_just_before_recording_keeps_the_summary() -> None:
    inner = MemoryStore()
    other = await Session.open(inner, "demo", **settings())
    summariser = PausedSummariser(held=False)
    store = InterferingStore(inner, lambda: other.append(ModelSaid(content="me too")))
    session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
    turn = await fill_until(session, "act")
    await session.fit()
    await wait_until_idle(session)
    await say(session, turn, lines=1)
    await session.fit()
    await wait_until_idle(session)
    assert store.done
    assert len(summariser.requests) == 1
    (made,) = await of(session, Compacted)
    assert made.by == "somebody/big"
    await check_view_is_fold(session)
    await session.close()


@run
async def test_two_full_sessions_on_one_log_agree_on_one_view(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        one = await Session.open(
            store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings(window=5_000)
        )
        two = await Session.open(
            store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings(window=5_000)
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
        await check_view_is_fold(one)
        await one.close()
        await two.close()


@run
async def test_sessions_do_not_share_settings_or_summaries() -> None:
    store = MemoryStore()
    summariser = PausedSummariser(held=False)
    one = await Session.open(store, "one", summarise=summariser.as_summariser, **settings(window=5_000))
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
async def test_a_fork_starts_with_the_same_view_and_compacts_separately(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        summariser = PausedSummariser(held=False)
        session = await Session.open(
            store, "demo", summarise=summariser.as_summariser, **settings(window=5_000)
        )
        await run_turns(session, 20, start=0)
        before = (await session.fit()).facts
        fork = await session.fork("other")
        assert (await fork.fit()).facts == before
        await check_view_is_fold(fork)
        await say(fork, 77)
        await fork.compact()
        assert (await session.fit()).facts == before
        await check_view_is_fold(session)
        await session.close()
        await fork.close()


# ── Reopening ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "policy", rest_in_soak(["handoff", "economy", "confirm", "sliding-summary", "recent-summary"], kept=3)
)
@run
async def test_reopening_after_every_summary_shows_the_same_view(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    how = settings(policy, window=5_000)
    seen = 0
    async with open_store(path, durability="normal") as store:
        session = await Session.open(
            store, "demo", summarise=PausedSummariser(held=False).as_summariser, **how
        )
        for turn in range(40):
            await say(session, turn)
            before = (await session.fit()).facts
            made = len(await of(session, Compacted))
            if made > seen:
                seen = made
                again = await Session.open(store, "demo", **how)
                assert await shown(again) == before
                await check_view_is_fold(again)
        if policy == "confirm":
            await session.compact()
            before = (await session.fit()).facts
        await session.close()
    assert seen >= 2 or policy in ("confirm", "economy")
    async with open_store(path, durability="normal") as store:
        again = await Session.open(store, "demo", **how)
        assert await shown(again) == before


@run
async def test_a_resumed_session_can_be_compacted(lasting_stores: Callable[[], Any]) -> None:
    async with lasting_stores() as store:
        session = await Session.open(
            store, "demo", summarise=PausedSummariser(held=False).as_summariser, **settings(window=5_000)
        )
        await run_turns(session, 30, start=0)
        await session.close()
    async with lasting_stores() as store:
        summariser = PausedSummariser(held=False)
        again = await Session.open(
            store, "demo", summarise=summariser.as_summariser, **settings(window=5_000)
        )
        for turn in range(30, 34):
            await say(again, turn)
        made = (await again.event(await again.compact())).fact
        assert isinstance(made, Compacted)
        assert "Half of it is done." in made.summary
        assert len(summariser.requests) == 1
        fitted = await again.fit()
        assert made.summary in [text_of(f.content) for f in fitted.facts if isinstance(f, UserSaid)]
        await check_view_is_fold(again)
        await again.close()


@run
async def test_a_process_exit_during_a_summary_loses_only_the_summary(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        summariser = PausedSummariser()
        session = await Session.open(store, "demo", summarise=summariser.as_summariser, **settings())
        await fill_until(session, "act")
        before = (await session.fit()).facts
        await summariser.wait_for_request()
        log = await session.events()
        await session.close()
    async with lasting_stores() as store:
        again = await Session.open(store, "demo", **settings())
        assert await again.events() == log
        whole = Engine(again._writer.settings, log=log)
        assert tuple(fact for step in whole.view.steps for fact in step.facts()) == before


@run
async def test_an_expanded_range_survives_reopening_until_the_next_message(
    lasting_stores: Callable[[], Any],
) -> None:
    async with lasting_stores() as store:
        session = await Session.open(store, "demo", **settings(window=40_000))
        for turn in range(8):
            await say(session, turn)
        made = await session.compact()
        before = (await session.fit()).facts
        expanded = await session.event(await session.expand(made))
        assert isinstance(expanded.fact, Expanded)
        shown = (await session.fit()).facts
        assert "line 3 of file_0.py" in str(shown)
        assert "line 3 of file_0.py" not in str(before)
        await check_view_is_fold(session)
    async with lasting_stores() as store:
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
        await check_view_is_fold(again)
        assert len(await of(again, Expanded)) >= 1


@run
async def test_a_merged_summary_is_undone_after_reopening(lasting_stores: Callable[[], Any]) -> None:
    how = settings({"preset": "handoff", "max_summaries": 1}, window=40_000)
    async with lasting_stores() as store:
        session = await Session.open(
            store, "demo", summarise=PausedSummariser(held=False).as_summariser, **how
        )
        for turn in range(6):
            await say(session, turn)
        first = await session.compact()
        for turn in range(6, 12):
            await say(session, turn)
        one = (await session.fit()).facts
        await session.compact()
        two = (await session.fit()).facts
        await session.close()
    async with lasting_stores() as store:
        again = await Session.open(store, "demo", **how)
        assert (await again.fit()).facts == two
        await again.undo()
        assert (await again.fit()).facts == one
        await again.undo(first)
        assert not [f for f in (await again.fit()).facts if "[foveal: record" in str(f)]
        await check_view_is_fold(again)


@run
async def test_a_smaller_model_reduces_before_the_next_call(
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


OPERATIONS = (
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


class RandomWalk:
    """A session that undergoes random operations."""

    def __init__(self, seed: int, store: Store, how: dict[str, Any]) -> None:
        self.dice, self.store, self.how = Random(seed), store, how
        self.waiting: list[str] = []
        self.number = 0
        self.id = "walk"

    async def opened(self) -> Session:
        summarise = PausedSummariser(held=False).as_summariser if self.dice.random() < 0.5 else None
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
@examples(12)
def test_random_operations_keep_the_view_equal_to_the_fold(seed: int, policy: str) -> None:
    async def walked() -> None:
        walk = RandomWalk(seed, MemoryStore(), settings(policy, window=5_000))
        session = await walk.opened()
        for _ in range(30):
            with suppress(ContextOverflow, NotCompacted, UnknownHandle):
                session = await walk.one(session, walk.dice.choice(OPERATIONS))
            await wait_until_idle(session)
            await check_view_is_fold(session)
            assert await shown(await walk.opened()) == await shown(session)
        await session.close()

    asyncio.run(asyncio.wait_for(walked(), timeout=DEADLINE_S))


# ── Compaction health ────────────────────────────────────────────────────────────────────────


def test_failures_in_a_row_are_reset_by_success_or_another_model() -> None:
    failed = CompactionFailed(first=0, last=1, problem="no", metrics=raw({"asked": 1}))
    ledger = Compacted(first=0, last=1, summary="s", by="ledger", metrics=raw({"asked": 2}))
    record = CompactionHealth()
    for fact in (failed, ledger, failed):
        assert not record.is_broken
        record = record.after(fact)
    assert record.is_broken
    assert not record.after(Compacted(first=0, last=1, summary="s", by="gpt-4.1")).is_broken
    assert not record.after(Opened(model="another")).is_broken
    unasked = Compacted(first=0, last=1, summary="s", by="ledger")
    assert record.after(unasked).is_broken, "a ledger without a model call does not reset failures"


def test_manual_and_per_turn_summaries_are_not_refills() -> None:
    record = CompactionHealth(said=0)
    for reason in ("hand", "turns"):
        record = record.after(Compacted(first=0, last=1, summary="s", reason=reason))
    assert record.refills == 0
    for _ in range(3):
        record = record.after(Compacted(first=0, last=1, summary="s", reason="tokens"))
    assert record.is_paused
    assert not record.after(UserSaid(content="go on")).is_paused
