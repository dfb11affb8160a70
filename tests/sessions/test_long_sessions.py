"""Long sessions: work and memory follow what is new, never the length of the log."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest

from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.ledger import likely_reused, range_facts
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import Plan, read_range
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import DraftRequest
from foveal.core.compaction.summary import SummarySource, ledger_summary
from foveal.core.engine import Engine
from foveal.core.engine.beside_range import likely_names_outside, summaries_in
from foveal.core.engine.event_status import event_status
from foveal.core.engine.summary_job import SummaryJob
from foveal.core.log import (
    AnyFact,
    Call,
    Compacted,
    Event,
    ModelSaid,
    Noted,
    Opened,
    Text,
    ToolReturned,
    UserSaid,
)
from foveal.core.tokens import message_tokens
from foveal.core.view import effective_events
from foveal.core.view.view import View
from foveal.sessions import Session, event_writer
from foveal.sessions.fitter import RequestFitter
from foveal.sessions.log_reader import MAX_SLICE_EVENTS, SLICE_CHARS, fold_log, last_opened, read_slices
from foveal.sessions.offload import MAX_LOOP_EVENTS, SWITCH_INTERVAL_S, offload
from foveal.stores.memory import MemoryStore

SMALL: dict[str, Any] = {"model": "gpt-4.1", "window": 6_000, "reserve": 500, "tokenizer": "estimate"}


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapped


class CountingStore(MemoryStore):
    """A store that counts the events it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        return self._counted(await super().read(session, first=first, last=last))

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        return self._counted(await super().pick(session, seqs))

    def _counted(self, events: list[Event]) -> list[Event]:
        self.reads.append(len(events))
        return events

    def forget_checkpoint(self, session: str) -> None:
        self._sessions[session].checkpoint = None


def turn(number: int) -> list[AnyFact]:
    call = Call(id=f"c{number}", name="bash", arguments=f'{{"command": "cat src/part_{number % 40}.py"}}')
    failed = "\nValueError: value_{number} is wrong\nexit 1" if number % 7 == 0 else ""
    lines = "\n".join(f"line {n} of part_{number}.py says value_{number}_{n}" for n in range(12))
    return [
        UserSaid(content=f"request {number}: look at src/part_{number % 40}.py please"),
        ModelSaid(content=(Text(text=f"I read part {number}."), call)),
        ToolReturned(call_id=call.id, content=lines + failed),
        ModelSaid(content=f"part_{number}.py is fine."),
    ]


async def run_turns(session: Session, turns: range) -> None:
    for number in turns:
        await session.append(*turn(number))
        await session.fit()


async def full_engine(session: Session) -> Engine:
    return Engine(session._writer.settings, log=await session.store.read(session.id))


def shown(engine: Engine) -> list[Any]:
    return [fact for step in engine.view.steps for fact in step.facts()]


# ── Cuts ─────────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_a_cut_reads_what_it_cuts_and_not_the_history() -> None:
    store = CountingStore()
    session = await Session.open(store, "demo", **SMALL)
    await run_turns(session, range(40))
    read: list[int] = []
    for start in (40, 140):
        store.reads.clear()
        await run_turns(session, range(start, start + 60))
        read.append(sum(store.reads))
    assert any(isinstance(event.fact, Compacted) for event in await store.read("demo", first=600))
    assert read[1] <= 1.2 * read[0] + 20
    assert max(store.reads[:-1]) < 120, "the view and what is new"


@pytest.mark.long
@run
async def test_a_continued_ledger_equals_one_of_the_whole_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (range_facts, likely_reused):
        monkeypatch.setattr(module, "MAX_EVENTS_QUOTED", 10)
    write, cuts = RequestFitter.write_ledger, list[int]()

    async def write_and_compare(self: RequestFitter, engine: Engine, plan: Plan) -> CompactionOutcome:
        written = await write(self, engine, plan)
        events = effective_events(await self._writer.store.read(self._writer.id, first=plan.first))
        resolved, inside, after = read_range(plan, events)
        source = SummarySource(
            plan=resolved,
            events=inside,
            after=after,
            counter=engine.view.meter.counter,
            ratio=engine.calibration.ratio,
            earlier=summaries_in(engine.view, engine.log, plan),
            elsewhere=likely_names_outside(engine.view, plan, LedgerIndex()),
        )
        assert written == ledger_summary(source)
        cuts.append(plan.last)
        return written

    monkeypatch.setattr(RequestFitter, "write_ledger", write_and_compare)
    store = MemoryStore()
    session = await Session.open(store, "demo", **SMALL)
    await run_turns(session, range(80))
    await session.rewind(session.last - 6)
    await run_turns(session, range(80, 130))
    again = await Session.open(store, "demo", **SMALL)
    await run_turns(again, range(130, 150))
    assert len(cuts) > 10
    facts = session._writer.engine.ledger_index._ranges  # type: ignore[union-attr]
    assert any(len(known.by_result) < 30 < len(known.events) for known in facts.values()), (
        "texts were released"
    )


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────────────


async def import_turns(store: MemoryStore, count: int) -> None:
    facts = [Opened(model="gpt-4.1"), *(fact for number in range(count) for fact in turn(number))]
    await store.append("demo", [Event(seq, fact) for seq, fact in enumerate(facts)])


@run
async def test_an_imported_session_is_opened_in_parts_and_then_has_a_checkpoint() -> None:
    store = CountingStore()
    await import_turns(store, 500)
    session = await Session.open(store, "demo", **SMALL)
    assert max(store.reads) <= MAX_SLICE_EVENTS
    await session.fit()
    checkpoint = await store.checkpoint("demo")
    assert checkpoint is not None
    assert len(checkpoint.needed) < 200
    store.reads.clear()
    again = await Session.open(store, "demo", **SMALL)
    assert sum(store.reads) < 200
    assert (await again.fit()).facts == (await session.fit()).facts


@run
async def test_a_log_folded_in_parts_equals_the_whole_fold() -> None:
    store = CountingStore()
    session = await Session.open(store, "demo", **SMALL)
    await session.pin("Never touch main.py")
    await run_turns(session, range(60))
    await session.rewind(session.last - 9)
    await run_turns(session, range(60, 100))
    await session.undo()
    await session.append(UserSaid(content="again"))
    whole = await full_engine(session)
    folded = await fold_log(store, "demo", session._writer.settings)
    assert shown(folded) == shown(whole)
    assert folded.state() == whole.state()
    assert len(folded.log) < len(whole.log)


@run
async def test_an_imported_log_is_read_once_to_fold_it_and_not_again_to_summarise_it() -> None:
    store, facts = CountingStore(), [fact for number in range(500) for fact in turn(number)]
    facts[100:100] = [Noted(text="not shown")] * 10
    await store.append(
        "demo", [Event(seq, fact) for seq, fact in enumerate((Opened(model="gpt-4.1"), *facts))]
    )
    session = await Session.open(store, "demo", **SMALL)
    opened = sum(store.reads)
    assert opened < len(facts) * 1.1
    await session.append(UserSaid(content="go on"))
    store.reads.clear()
    await session.fit()
    assert sum(store.reads) < 20, "only the events that the view does not show"
    engine = await session._writer.load()
    assert engine.all_effective
    await session.rewind(session.last - 2)
    assert not (await session._writer.load()).all_effective
    assert shown(await session._writer.load()) == shown(await full_engine(session))


@run
async def test_an_expanded_range_of_a_long_log_is_shown_for_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "MAX_WHOLE_EVENTS", 50)
    store = CountingStore()
    session = await Session.open(store, "demo", **SMALL)
    await run_turns(session, range(40))
    await session.expand(3)
    again = await Session.open(store, "demo", **SMALL)
    assert shown(await again._writer.load()) == shown(await full_engine(session))
    await again.append(UserSaid(content="go on"))
    assert shown(await again._writer.load()) == shown(await full_engine(again))


@pytest.mark.long
@run
async def test_a_checkpoint_does_not_grow_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_tokens, "MAX_STORED_COUNTS", 100)
    store = CountingStore()
    session = await Session.open(store, "demo", **SMALL)
    sizes: list[int] = []
    for start in range(0, 160, 16):
        await run_turns(session, range(start, start + 16))
        found = await store.checkpoint("demo")
        assert found is not None
        sizes.append(len(found.state) + len(found.needed))
    # The size changes with the state between two cuts; the first drops of user messages are new in it.
    assert max(sizes[-4:]) <= 1.3 * max(sizes[2:6])


@run
async def test_the_last_model_is_found_without_reading_the_log() -> None:
    store = CountingStore()
    session = await Session.open(store, "demo", **SMALL)
    await run_turns(session, range(100))
    await Session.open(store, "demo", **{**SMALL, "model": "gpt-4o"})
    store.reads.clear()
    opened = await last_opened(store, "demo")
    assert opened is not None
    assert opened.model == "gpt-4o"
    assert sum(store.reads) < 200


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_why_is_answered_from_the_events_after_the_event() -> None:
    store = CountingStore()
    session = await Session.open(store, "demo", **SMALL)
    await session.append(ToolReturned(call_id="nobody", content="a result without a call"))
    await run_turns(session, range(30))
    await session.rewind(session.last - 5)
    await run_turns(session, range(30, 40))
    whole = await full_engine(session)
    for event in await session.events():
        assert await session.why(event.seq) == event_status(whole, event), event
    newest = session.last - 60
    store.reads.clear()
    await session.why(newest)
    assert sum(store.reads) <= 60 + 2 * MAX_SLICE_EVENTS


@run
async def test_large_events_are_read_in_small_slices() -> None:
    store = CountingStore()
    facts = [UserSaid(content="x" * (SLICE_CHARS // 2 if seq >= 20 else 10)) for seq in range(100)]
    await store.append("demo", [Event(seq, fact) for seq, fact in enumerate(facts)])
    read = [event async for events in read_slices(store, "demo", end=100) for event in events]
    assert [event.fact for event in read] == facts
    assert max(store.reads[2:]) <= 2


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────────────


@run
async def test_only_much_work_leaves_the_event_loop() -> None:
    here = threading.get_ident()
    assert await offload(threading.get_ident, events=MAX_LOOP_EVENTS) == here
    assert await offload(threading.get_ident, events=MAX_LOOP_EVENTS + 1) != here


@run
async def test_threads_take_short_turns_only_during_offloaded_work() -> None:
    usual = sys.getswitchinterval()
    assert await offload(sys.getswitchinterval, events=1_000) == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == usual


class ObservingStore(MemoryStore):
    """A store that notes how long the turns of threads are while it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: set[float] = set()

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        self.turns.add(sys.getswitchinterval())
        return await super().read(session, first=first, last=last)


@run
async def test_threads_take_short_turns_while_a_log_is_read() -> None:
    store = ObservingStore()
    await store.append("demo", [Event(seq, UserSaid(content="hello")) for seq in range(100)])
    usual = sys.getswitchinterval()
    assert [len(events) async for events in read_slices(store, "demo", end=100)] == [16, 32, 52]
    assert [*store.turns] == [pytest.approx(SWITCH_INTERVAL_S)]
    assert sys.getswitchinterval() == usual


@run
async def test_the_dialogue_for_a_large_summary_begins_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, dialogue = threading.get_ident(), SummaryJob.dialogue
    threads: list[int] = []

    def observed(job: SummaryJob, *args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return dialogue(job, *args, **kwargs)

    monkeypatch.setattr(SummaryJob, "dialogue", observed)
    store = CountingStore()
    await import_turns(store, 500)
    session = await Session.open(store, "demo", summarise=lambda request: "a summary", **SMALL)
    await session.append(UserSaid(content="go on"))
    await session.fit()
    assert threads
    assert here not in threads


@run
async def test_a_long_log_is_folded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    here, advance = threading.get_ident(), View.advance
    on_loop: list[int] = []

    def observed(view: View, event: Event) -> None:
        if threading.get_ident() == here:
            on_loop.append(event.seq)
        advance(view, event)

    monkeypatch.setattr(View, "advance", observed)
    store = CountingStore()
    await import_turns(store, 500)
    session = await Session.open(store, "demo", **SMALL)
    await session.fit()
    await session.expand(3)
    await session.append(UserSaid(content="go on"))
    assert max(store.reads) <= MAX_SLICE_EVENTS
    assert len(on_loop) < sum(store.reads) / 20  # the first slices, which are short


@run
async def test_the_request_for_a_long_summary_is_built_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = SummaryJob.request
    threads: list[int] = []

    def observed(job: SummaryJob, draft: DraftRequest) -> SummaryRequest:
        threads.append(threading.get_ident())
        return request(job, draft)

    async def summarise(_: SummaryRequest) -> str:
        return "The user asked about the parts."

    monkeypatch.setattr(SummaryJob, "request", observed)
    store = CountingStore()
    await import_turns(store, 100)
    session = await Session.open(store, "demo", summarise=summarise, **SMALL)
    await session.fit()
    await session.close()
    assert threads
    assert threading.get_ident() not in threads
