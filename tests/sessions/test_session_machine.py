"""A state machine of sessions: random operations, compared with a plain list of facts.

After every step the log is gapless and equals the list, and four views are equal: that of the session, that of a
session opened just now, the fold of the stored log, and the fold of the list.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from foveal.core.log import (
    REDUCTIONS,
    AnyFact,
    Call,
    Clipped,
    Compacted,
    Dropped,
    Event,
    Instructed,
    Mask,
    Masked,
    ModelSaid,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    Superseded,
    Text,
    ToolReturned,
    UserSaid,
    handle,
    raw,
)
from foveal.core.tokens import MessageTokens
from foveal.core.tokens.counter import counter
from foveal.core.view import effective_events
from foveal.core.view.fold import effective_rewinds, fold
from foveal.core.view.view import View
from foveal.errors import Conflict, ContextOverflow, StoreError, UnknownHandle, UnknownSession
from foveal.ports import Checkpoint, Store
from foveal.sessions import Session
from foveal.stores import SqliteStore
from foveal.stores.memory import MemoryStore
from foveal.stores.sqlite.threads import CallQueue, WorkerThreads
from support.effort import examples, rest_in_soak

T = TypeVar("T")
SMALL: Final[dict[str, Any]] = {
    "model": "gpt-4.1",
    "window": 3_000,
    "reserve": 300,
    "tokenizer": "estimate",
    "policy": {"preset": "economy", "clip": {"tokens": 400}},
}
MAX_SESSIONS: Final = 3
"""Including forks."""
LOOP_ROUNDS: Final = 20
"""Rounds of the event loop after which every task waits for a result or for a lock."""


class Clock:
    """A clock that advances by one second with every call."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


class Results:
    """The order in which the results of a store's threads arrive, chosen by the test: a failure can be repeated."""

    def __init__(self) -> None:
        self._held: list[asyncio.Future[None]] = []
        self._holds = False

    async def arrive(self) -> None:
        """Return at once, or in `interleave` when this result is chosen."""
        if self._holds:
            self._held.append(asyncio.get_running_loop().create_future())
            await self._held[-1]

    async def interleave(self, works: Sequence[Coroutine[Any, Any, Any]], choices: Sequence[int]) -> None:
        """Run coroutines at once; the next result is always the one at the next of `choices`."""
        tasks = [asyncio.ensure_future(work) for work in works]
        self._holds = True
        waiting = list(choices)
        while not all(task.done() for task in tasks):
            for _ in range(LOOP_ROUNDS):
                await asyncio.sleep(0)
            if self._held:
                self._held.pop(waiting.pop(0) % len(self._held) if waiting else 0).set_result(None)
        self._holds = False
        await asyncio.gather(*tasks)


class SteppedQueue(CallQueue):
    """A queue that carries out a call before `run` yields to the loop."""

    def __init__(self, name: str, results: Results) -> None:
        super().__init__(WorkerThreads(name))
        self._results = results

    async def run(self, function: Callable[[], T]) -> T:
        task = self.submit(function)
        task.done.acquire()
        await self._results.arrive()
        return task.outcome()


def seen(view: View) -> tuple[Any, ...]:
    """Return everything of a view that a model sees or that a later reduction depends on."""
    return (
        [(s.seq, s.kind, s.is_pinned, s.message_count, s.covers, list(s.facts())) for s in view.steps],
        {source: (shown.seq, shown.fact) for source, shown in view.asides.items()},
        (view.superseded, view.superseded_since),
        view.units,
        view.tools,
        (view.result_count, view.turn_count, view.dropped.messages, sorted(view.reverted_masks)),
        sorted(step.seq for step in view.permanent_steps),
        [(seq, slot.ordinal) for seq, slot in sorted(view.unmasked_results.items())],
    )


def folded(log: list[Event]) -> View:
    return fold(log, MessageTokens(counter("estimate")))


def words(start: str, size: int) -> str:
    return "\n".join(f"line {n} of {start} says value_{start}_{n}" for n in range(size))


class SessionMachine(RuleBasedStateMachine):
    """Each rule does one thing; `facts` is the reference list, from which nothing is removed.

    Call ids are unique here; a test below covers repeated ids."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="foveal-machine-"))
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.results = Results()
        self.crashes = 0
        self.number = 0
        self.retired: list[SqliteStore] = []
        self.facts: dict[str, list[AnyFact]] = {}
        self.live: dict[str, Session] = {}
        self.others: dict[str, Session] = {}
        self.titles: dict[str, str] = {}
        self.touched = ""
        self.store = self._opened()

    def teardown(self) -> None:
        for store in (*self.retired, self.store):
            self.run(store.close())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    # ── Helpers ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def path(self) -> Path:
        return self.folder / f"{self.crashes}.db"

    def _opened(self) -> SqliteStore:
        store = SqliteStore(self.path, durability="normal", clock=self.clock)
        store._writer = SteppedQueue("write", self.results)
        store._readers = SteppedQueue("read", self.results)
        return store

    def session(self, name: str) -> Session:
        self.touched = name
        if name not in self.live:
            self.live[name] = self.open_again(name)
        return self.live[name]

    def open_again(self, name: str) -> Session:
        return self.run(Session.open(self.store, name, clock=self.clock, **SMALL))

    def log(self, name: str) -> list[Event]:
        return [Event(seq, fact) for seq, fact in enumerate(self.facts[name])]

    def view(self, name: str) -> View:
        return folded(self.log(name))

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def expect_recorded(self, name: str, *given: AnyFact, also: tuple[type, ...] = (Clipped,)) -> None:
        """Check that these facts were recorded in this order, with none between them but `also`."""
        known = self.facts[name]
        stored = [event.fact for event in self.run(self.store.read(name))]
        assert stored[: len(known)] == known
        waiting = list(given)
        for fact in stored[len(known) :]:
            if waiting and fact == waiting[0]:
                waiting.pop(0)
            else:
                assert isinstance(fact, also), fact
        assert waiting == []
        self.facts[name] = stored

    def append(self, name: str, *facts: AnyFact) -> None:
        session = self.session(name)
        before = len(self.facts[name])
        events = self.run(session.append(*facts))
        assert [event.fact for event in events] == list(facts)
        self.expect_recorded(name, *facts)
        assert all(self.facts[name][event.seq] == event.fact and event.seq >= before for event in events)

    def seq(self, name: str, share: float) -> int:
        return int(share * len(self.facts[name]))

    # ── Appending ──────────────────────────────────────────────────────────────────────────────────────

    @initialize(target=names)
    def begin(self) -> str:
        self.facts["first"] = [
            Opened(model="gpt-4.1", policy="economy", settings=raw({"window": 3_000, "reserve": 300}))
        ]
        self.session("first")
        for size in (3, 12, 12):
            self.user_speaks("first", 2)
            self.model_calls_tools("first", 2, 2, size)
        return "first"

    @rule(name=names, size=st.integers(1, 6))
    def user_speaks(self, name: str, size: int) -> None:
        self.append(name, UserSaid(content=words(f"request_{self.fresh()}", size)))

    @rule(name=names, aside=st.booleans())
    def an_instruction_is_added(self, name: str, aside: bool) -> None:
        self.append(name, Instructed(content=f"Rule {self.fresh()}.", aside=aside, source="AGENTS.md"))

    @rule(name=names, share=st.floats(0, 0.999))
    def an_instruction_is_edited(self, name: str, share: float) -> None:
        steps = [step for step in self.view(name).steps if step.kind == "instructed"]
        if steps:
            step = steps[int(share * len(steps))]
            self.append(name, Instructed(content=f"New rule {self.fresh()}.", replaces=step.utterance.seq))

    @rule(
        name=names, calls=st.integers(1, 3), answered=st.integers(0, 3), size=st.sampled_from((0, 3, 12, 60))
    )
    def model_calls_tools(self, name: str, calls: int, answered: int, size: int) -> None:
        ids = [f"c{self.fresh()}" for _ in range(calls)]
        parts = tuple(Call(id=id, name="read", arguments=f'{{"path": "{id}.py"}}') for id in ids)
        said = ModelSaid(content=(Text(text="I look."), *parts))
        results = [ToolReturned(call_id=id, content=words(id, size)) for id in reversed(ids[:answered])]
        self.append(name, said, *results)

    @rule(name=names)
    def model_answers(self, name: str) -> None:
        self.append(name, ModelSaid(content=f"Answer {self.fresh()}."))

    @rule(name=names, share=st.floats(0, 0.999), size=st.sampled_from((2, 20)))
    def a_result_comes_late(self, name: str, share: float, size: int) -> None:
        waiting = [c.id for e in self.log(name) for c in _calls(e.fact)]
        if waiting:
            id = waiting[int(share * len(waiting))]
            self.append(name, ToolReturned(call_id=id, content=words(f"late_{id}", size)))

    @rule(name=names)
    def a_result_without_a_call_arrives(self, name: str) -> None:
        self.append(name, ToolReturned(call_id="nobody", content="who asked?"))

    @rule(name=names)
    def a_request_is_fitted(self, name: str) -> None:
        session = self.session(name)
        try:
            shown = self.run(session.fit()).facts
        except ContextOverflow:
            shown = None
        self.expect_recorded(name, also=REDUCTIONS)
        if shown is not None:
            assert list(shown) == [fact for step in self.view(name).steps for fact in step.facts()]

    # ── Changing what is shown
    # ─────────────────────────────────────────────────────────────────────────────────────

    @rule(name=names)
    def a_rule_is_pinned(self, name: str) -> None:
        text = f"Never touch file {self.fresh()}"
        assert self.run(self.session(name).pin(text)) == handle(len(self.facts[name]))
        self.expect_recorded(name, Pinned(text=text))

    @rule(name=names, share=st.floats(0, 0.999))
    def a_step_is_pinned(self, name: str, share: float) -> None:
        shown = sorted(self.view(name).seqs)
        if shown:
            target = shown[int(share * len(shown))]
            self.run(self.session(name).pin(event=target))
            self.expect_recorded(name, Pinned(target=target))

    @rule(name=names, old=st.floats(0, 0.999), new=st.floats(0, 0.999))
    def a_message_is_superseded(self, name: str, old: float, new: float) -> None:
        said = [e for e in effective_events(self.log(name)) if isinstance(e.fact, UserSaid)]
        if len(said) < 2:
            return
        target = said[int(old * (len(said) - 1))]
        later = [event for event in said if event.seq > target.seq]
        by = later[int(new * len(later))]
        try:
            self.run(self.session(name).supersede(target.handle, by=by.handle))
        except ContextOverflow:
            self.expect_recorded(name)
        else:
            self.expect_recorded(name, Superseded(target=target.seq, by=by.seq))

    @rule(name=names, share=st.floats(0, 0.999))
    def a_hidden_step_is_pinned(self, name: str, share: float) -> None:
        target = self.seq(name, share)
        if target in self.view(name).seqs:
            return
        try:
            self.run(self.session(name).pin(event=target))
        except (UnknownHandle, ContextOverflow):  # no message, or no room
            self.expect_recorded(name)
        else:
            pinned = self.run(self.store.read(name, first=len(self.facts[name])))
            assert [event.fact for event in pinned] == [Pinned(target=pinned[0].fact.target, whole=True)]
            self.expect_recorded(name, pinned[0].fact)
            assert self.view(name).find(target) is not None

    @rule(name=names, share=st.floats(0, 0.999), several=st.booleans())
    def results_are_masked(self, name: str, share: float, several: bool) -> None:
        results = [e.seq for e in self.log(name) if isinstance(e.fact, ToolReturned)]
        if results:
            at = int(share * len(results))
            chosen = results[at:] if several else results[at : at + 1]
            masks = tuple(Mask(target=seq, text=f"[masked {handle(seq)}]") for seq in chosen)
            self.append(name, Masked(masks=masks, reason="asked", rule="test"))

    @rule(name=names, first=st.floats(0, 0.999), last=st.floats(0, 0.999))
    def a_range_is_compacted(self, name: str, first: float, last: float) -> None:
        low, high = sorted((self.seq(name, first), self.seq(name, last)))
        self.append(name, Compacted(first=low, last=high, summary=f"Summary {self.fresh()}.", by="test"))

    @rule(name=names, first=st.floats(0, 0.999), last=st.floats(0, 0.999))
    def a_range_is_dropped(self, name: str, first: float, last: float) -> None:
        low, high = sorted((self.seq(name, first), self.seq(name, last)))
        self.append(name, Dropped(ranges=((low, high),), reason="asked", rule="test"))

    @rule(name=names)
    def the_newest_reduction_or_rewind_is_undone(self, name: str) -> None:
        self._undo(name, self.session(name))

    def _undo(self, name: str, session: Session) -> None:
        log = self.log(name)
        reductions = [e for e in effective_events(log) if isinstance(e.fact, (*REDUCTIONS, Superseded))]
        found = sorted([*reductions, *effective_rewinds(log)], key=lambda event: event.seq)
        if not found:
            with pytest.raises(UnknownHandle):
                self.run(session.undo())
            return
        try:
            assert self.run(session.undo()) == found[-1].handle
        except ContextOverflow:
            self.expect_recorded(name)
        else:
            self.expect_recorded(name, Reverted(target=found[-1].seq))

    @rule(name=names, share=st.floats(0, 0.999))
    def any_reduction_pin_or_rewind_is_undone(self, name: str, share: float) -> None:
        log = self.log(name)
        found = [e for e in effective_events(log) if isinstance(e.fact, (*REDUCTIONS, Pinned, Superseded))]
        found += effective_rewinds(log)
        if found:
            target = found[int(share * len(found))]
            try:
                self.run(self.session(name).undo(target.handle))
            except ContextOverflow:
                self.expect_recorded(name)
            else:
                self.expect_recorded(name, Reverted(target=target.seq))

    @rule(name=names, share=st.floats(0, 0.999), recent=st.booleans())
    def the_session_is_rewound(self, name: str, share: float, recent: bool) -> None:
        end = len(self.facts[name])
        to = max(0, end - 1 - int(share * 6)) if recent else self.seq(name, share)
        self.run(self.session(name).rewind(to))
        self.expect_recorded(name, Rewound(to=to))

    @precondition(lambda self: len(self.facts) < MAX_SESSIONS)
    @rule(target=names, name=names, share=st.floats(0, 0.999))
    def the_session_is_forked(self, name: str, share: float) -> str:
        at = self.seq(name, share)
        new = f"fork {len(self.facts)}"
        self.live[new] = self.run(self.session(name).fork(new, at=at))
        opened = [fact for fact in self.facts[name] if isinstance(fact, Opened)][-1]
        self.facts[new] = self.facts[name][: at + 1]
        self.expect_recorded(new, replace(opened, origin=f"{name}@{at}"))
        self.touched = new
        return new

    @rule(name=names)
    def the_session_is_renamed(self, name: str) -> None:
        self.titles[name] = f"title {self.fresh()}"
        self.run(self.session(name).rename(self.titles[name]))

    # ── Faults ───────────────────────────────────────────────────────────────────────────────────

    @rule()
    def the_process_is_killed(self) -> None:
        """Copy the files as they are now, as a killed process leaves them; nothing is closed."""
        old = self.path
        self.crashes += 1
        for end in ("", "-wal"):
            if Path(f"{old}{end}").exists():
                shutil.copyfile(f"{old}{end}", f"{self.path}{end}")
        self.retired.append(self.store)
        self.store = self._opened()
        self.live.clear()
        self.others.clear()

    @rule()
    def the_store_is_closed_and_opened(self) -> None:
        self.run(self.store.close())
        self.store = self._opened()
        self.live.clear()
        self.others.clear()

    @rule(name=names)
    def only_the_session_is_opened_again(self, name: str) -> None:
        self.live.pop(name, None)
        self.session(name)

    @rule(name=names, does=st.sampled_from(("speaks", "fits", "compacts", "undoes", "rewinds", "pins")))
    def another_session_appends_first(self, name: str, does: str) -> None:
        """Let another session on the same log, as in another process, append without the first one knowing."""
        self.session(name)
        if name not in self.others:
            self.others[name] = self.open_again(name)
        other = self.others[name]
        end = len(self.facts[name])
        match does:
            case "speaks":
                self._does(name, other.append, UserSaid(content=f"me too {self.fresh()}"))
            case "compacts":
                fact = Compacted(first=end // 3, last=2 * end // 3, summary=f"Theirs {self.fresh()}.")
                self._does(name, other.append, fact)
            case "pins":
                text = f"Their rule {self.fresh()}"
                self.run(other.pin(text))
                self.expect_recorded(name, Pinned(text=text))
            case "rewinds":
                self.run(other.rewind(max(0, end - 3)))
                self.expect_recorded(name, Rewound(to=max(0, end - 3)))
            case "undoes":
                self._undo(name, other)
            case _:
                with suppress(ContextOverflow):
                    self.run(other.fit())
                self.expect_recorded(name, also=REDUCTIONS)

    def _does(self, name: str, append: Callable[..., Coroutine[Any, Any, Any]], fact: AnyFact) -> None:
        self.run(append(fact))
        self.expect_recorded(name, fact)

    @rule(
        name=names,
        sizes=st.lists(st.integers(1, 2), min_size=4, max_size=4),
        choices=st.lists(st.integers(0, 1), max_size=16),
    )
    def two_sessions_append_at_once(self, name: str, sizes: list[int], choices: list[int]) -> None:
        """Append one fact, which the store can write at once, or two, for which it uses a thread."""
        ours = self.session(name)
        if name not in self.others:
            self.others[name] = self.open_again(name)
        groups = [[UserSaid(content=f"at once {self.fresh()}") for _ in range(size)] for size in sizes]
        sessions = (ours, self.others[name]) * 2
        appends = [session.append(*facts) for session, facts in zip(sessions, groups, strict=True)]
        self.run(self.results.interleave(appends, choices))
        stored = [event.fact for event in self.run(self.store.read(name))]
        added = sorted(map(str, stored[len(self.facts[name]) :]))
        assert added == sorted(str(fact) for facts in groups for fact in facts)
        self.facts[name] = stored

    # ── Invariants ────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_view_is_the_fold_of_the_log(self) -> None:
        name = self.touched
        if not name:
            return
        events = self.run(self.store.read(name))
        assert [event.seq for event in events] == list(range(len(self.facts[name])))
        assert [event.fact for event in events] == self.facts[name]
        expected = seen(self.view(name))
        assert seen(folded(events)) == expected
        if name in self.live:
            assert seen(self.run(self.live[name]._writer.refresh()).view) == expected
        again = self.open_again(name)
        assert seen(self.run(again._writer.load()).view) == expected
        assert again.last == len(events) - 1

    @invariant()
    def the_session_list_is_correct(self) -> None:
        if self.touched:
            listed = {info.id: (info.events, info.title) for info in self.run(self.store.sessions())}
            assert listed == {
                name: (len(facts), self.titles.get(name, "")) for name, facts in self.facts.items()
            }


def _calls(fact: AnyFact) -> list[Call]:
    if not isinstance(fact, ModelSaid) or isinstance(fact.content, str):
        return []
    return [part for part in fact.content if isinstance(part, Call)]


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(examples(25), stateful_step_count=25)


# ── Cases that the machine leaves out ─────────────────────────────────────────────────────────────


class BrokenStore:
    """A store whose methods can be made to fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.no_checkpoints = False
        self.always_late = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        if self.no_checkpoints:
            raise StoreError("the disk is full")
        await self.store.keep_checkpoint(session, checkpoint)

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if self.always_late:
            raise Conflict(session, given=events[0].seq, next_seq=events[0].seq + 1)
        await self.store.append(session, events)


def calls(id: str) -> ModelSaid:
    return ModelSaid(content=(Call(id=id, name="read", arguments="{}"),))


async def shown_by(session: Session) -> list[Any]:
    return [fact for step in (await session._writer.refresh()).view.steps for fact in step.facts()]


async def check(store: Store, session: Session) -> None:
    """Check that the session, one opened now, and the fold of the log show the same."""
    expected = [fact for step in folded(await store.read(session.id)).steps for fact in step.facts()]
    again = await Session.open(store, session.id, **SMALL)
    assert await shown_by(again) == expected
    assert await shown_by(session) == expected


def test_a_result_of_a_hidden_call_stays_hidden_with_reused_ids() -> None:
    async def act() -> None:
        store = MemoryStore()
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="a"), calls("call_0"), UserSaid(content="b"), calls("call_0"))
        await session.append(UserSaid(content="c"), Dropped(ranges=((4, 4),)))
        again = await Session.open(store, "demo", **SMALL)
        await again.append(ToolReturned(call_id="call_0", content="for the second call"))
        await check(store, again)

    asyncio.run(act())


@pytest.mark.parametrize("fact", [Reverted(target=4), Rewound(to=3)])
def test_an_appended_revert_or_rewind_refolds_the_whole_log(fact: AnyFact) -> None:
    async def act() -> None:
        store = MemoryStore()
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="1"), UserSaid(content="2"), ModelSaid(content="3"))
        await session.append(Compacted(first=1, last=2, summary="In short."))
        await session.append(fact)
        await check(store, session)

    asyncio.run(act())


def test_a_failed_checkpoint_does_not_fail_the_append() -> None:
    async def act() -> None:
        store = BrokenStore(MemoryStore())
        session = await Session.open(store, "demo", **SMALL)
        await session.append(UserSaid(content="1"))
        store.no_checkpoints = True
        await session.append(Compacted(first=1, last=1, summary="In short."))
        await check(store, session)

    asyncio.run(act())


def test_if_one_fact_is_refused_none_is_shown() -> None:
    async def act() -> None:
        store = MemoryStore()
        session = await Session.open(store, "demo", **SMALL)
        await session.append(calls("c"), ToolReturned(call_id="c", content=(Text(text="r"),)))
        with suppress(Exception):
            await session.append(UserSaid(content="half"), Clipped(target=2, part=9, pieces=()))
        await check(store, session)

    asyncio.run(act())


@pytest.mark.parametrize(
    "fact", [Masked(masks=(Mask(target=2, part=9, text="x"),)), Clipped(target=2, part=9, pieces=())]
)
def test_a_reduction_of_a_part_that_does_not_exist_changes_nothing(fact: AnyFact) -> None:
    async def act() -> None:
        store = MemoryStore()
        session = await Session.open(store, "demo", **SMALL)
        await session.append(calls("c"), ToolReturned(call_id="c", content=(Text(text="r"),)))
        before = await shown_by(session)
        await session.append(fact)
        assert await shown_by(session) == before
        await check(store, session)

    asyncio.run(act())


def test_what_another_process_erased_is_not_shown() -> None:
    async def act() -> None:
        store = MemoryStore()
        one, two = [await Session.open(store, "demo", **SMALL) for _ in range(2)]
        await one.append(UserSaid(content="a secret"))
        await two.fit()
        await one.delete()
        with pytest.raises(UnknownSession):
            await two.fit()
        with pytest.raises(UnknownSession):
            await two.append(UserSaid(content="more"))

    asyncio.run(act())


def test_what_was_erased_before_an_append_is_not_shown_after_it(tmp_path: Path) -> None:
    async def act() -> None:
        async with SqliteStore(tmp_path / "store.db") as store:
            one, two = [await Session.open(store, "demo", **SMALL) for _ in range(2)]
            await one.append(UserSaid(content="a secret"))
            await two.fit()
            await one.delete()
            await two.append(UserSaid(content="more"))
            with pytest.raises(UnknownSession):
                await two.fit()

    asyncio.run(act())


def test_an_append_that_loses_every_conflict_raises() -> None:
    async def act() -> None:
        store = BrokenStore(MemoryStore())
        session = await Session.open(store, "demo", **SMALL)
        store.always_late = True
        with pytest.raises(StoreError, match="conflicts in a row"):
            await session.append(UserSaid(content="1"))

    asyncio.run(act())


@pytest.mark.long
@pytest.mark.parametrize(
    "act_on",
    rest_in_soak(
        [lambda session: session.undo(session.last), lambda session: session.rewind(1), Session.fit], kept=2
    ),
    ids=["undo", "rewind", "fit"],
)
def test_a_fit_that_loses_every_conflict_raises(act_on: Any) -> None:
    async def act() -> None:
        store = BrokenStore(MemoryStore())
        session = await Session.open(store, "demo", **SMALL)
        await session.append(*(UserSaid(content=words(f"request_{n}", 20)) for n in range(30)))
        await session.append(Compacted(first=1, last=1, summary="In short."))
        store.always_late = True
        with pytest.raises(StoreError, match="conflicts in a row"):
            await act_on(session)

    asyncio.run(act())
