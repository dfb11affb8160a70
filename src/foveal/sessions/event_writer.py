"""Appends and reads the events of one session; keeps its engine up to date.

1. The engine in memory is valid only while all of its events are known to be stored: `commit` returns after that.
2. Memory holds only the events that the view needs, and opening reads only those. Without a checkpoint, opening
   reads the log in parts and stores one.
3. When another process appended first, the writer reads what it missed and appends its facts after that.
4. After a store error or a cancellation, the engine is discarded and read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import EventStatus, find_caller, hidden_event_status
from foveal.core.engine.operations import unknown_handle
from foveal.core.engine.prefix import may_move_prefix
from foveal.core.engine.settings import EngineSettings
from foveal.core.engine.state import EngineState
from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Call,
    Event,
    ToolReturned,
    parse_handle,
)
from foveal.core.models.spending import SpendingLimit
from foveal.core.view.checkpoint import needed_seqs
from foveal.core.view.fold import always_refolds, needs_refold
from foveal.core.view.view import View
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.ports import Checkpoint, Store
from foveal.sessions.log_reader import (
    LIGHT_PER_FOLDED,
    MAX_SLICE_EVENTS,
    apply_all,
    find_effective,
    fold_log,
    read_slices,
)
from foveal.sessions.offload import offload

T = TypeVar("T")

MAX_CONFLICTS: Final = 50
"""Conflicts in a row with other writers that are resolved by reading again."""
EVENTS_PER_CHECKPOINT: Final = 64
"""A checkpoint is stored after this many events, and after every reduction."""
MAX_WHOLE_EVENTS: Final = 1_000
"""A log without a checkpoint and with at most so many events is read as a whole and stays in memory: reports list
all of its events."""
RESTORED_PER_COUNTED: Final = 8
"""Events that a checkpoint restores in the time in which one new event is counted and folded, about."""
MAX_CHECKPOINT_EVENTS: Final = 4_000
"""A view that needs more events has no checkpoint, which would save little: the next request reduces it."""
FACTS_PER_SLICE: Final = 16
"""Facts that are processed before other tasks of the event loop can run."""


def _always() -> bool:
    return True


class SessionOptions(NamedTuple):
    """Options of a session that have nothing to do with its window.

    Examples:
        ```python
        from collections.abc import Sequence

        import foveal
        from foveal.sessions.event_writer import SessionOptions

        stored: list[foveal.Event] = []


        def add(events: Sequence[foveal.Event]) -> None:
            stored.extend(events)


        async with foveal.stores.MemoryStore() as store:
            options = SessionOptions(on_stored=add)
            session = await foveal.Session.open(store, "demo", model="gpt-4.1", options=options)
        assert len(stored) == 1
        ```
    """

    redact: Callable[[AnyFact], AnyFact] | None = None
    """Removes what may not be stored; every fact goes through it before it is appended. Default: nothing is
    removed.
    """
    on_stored: Callable[[Sequence[Event]], None] | None = None
    """Receives all events that this process stores. Default: none."""
    prepares_summaries: Callable[[], bool] = _always
    """Returns whether `fit` starts a summary that will be needed soon; otherwise the application calls `prepare`.
    Default: always.
    """


DEFAULT_OPTIONS: Final = SessionOptions()


class EventWriter:
    """The only appender of a session. The caller holds the session's lock."""

    def __init__(
        self,
        store: Store,
        id: str,
        settings: EngineSettings,
        clock: Callable[[], float],
        *,
        max_events_in_memory: int,
        options: SessionOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.store = store
        self.id = id
        self.settings: EngineSettings = settings
        self._clock = clock
        self._options = options
        self._max_events_in_memory = max_events_in_memory
        self._engine: Engine | None = None
        self._checkpointed = -1
        """About the seq up to which the last checkpoint goes; -1 before the first."""
        self._erased = False
        """Whether the session is known to be erased: nothing is appended to it."""

    @property
    def is_erased(self) -> bool:
        """Whether the session is known to be erased."""
        return self._erased

    @property
    def engine(self) -> Engine | None:
        """The engine as of the last event that is known to be stored; None when that is not known."""
        return self._engine

    def set_reserve(self, tokens: int | None) -> None:
        """Keep this many tokens free for the next answers; None: as many as the model may write."""
        self.settings = self.settings._replace(caps=replace(self.settings.caps, reserve=tokens))
        if self._engine is not None:
            self._engine.set_reserve(tokens)

    def set_limit(self, limits: tuple[SpendingLimit, ...]) -> None:
        """Allow the next requests to spend this much."""
        self.settings = self.settings._replace(caps=replace(self.settings.caps, limit=limits))
        if self._engine is not None:
            self._engine.set_limit(limits)

    def discard_engine(self) -> None:
        """Discard the engine: what it holds is not stored, or was erased."""
        self._engine = None

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Engine:
        """Return the engine of a session that does not exist yet. If it does, the first commit finds out."""
        self._engine = Engine(self.settings)
        return self._engine

    async def load(self) -> Engine:
        """Return the engine as of the last event that this process knows to be stored."""
        if self._engine is None:
            self._engine = await self._read_engine()
        return self._engine

    async def refresh(self) -> Engine:
        """Return the engine with the events that other processes have appended since."""
        engine = await self.load()
        if not engine.next_seq:
            return engine
        missed, erased = await self.store.read_new(self.id, first=engine.next_seq)
        if self._erased is not erased:  # another process erased what is still in memory here
            self._engine, self._erased = None, erased
            return await self.load()
        if any(needs_refold(event.fact, engine.view) for event in missed):
            mover = engine.prefix_mover or next(e for e in missed if _moves_prefix(e.fact, engine.view))
            before, self._engine = engine, None
            engine = await self.load()
            engine.take_over_request(before, mover)
            return engine
        if missed:
            self._engine = None  # a thread may be half-way through when this task is cancelled
            await offload(partial(apply_all, engine, missed), events=len(missed))
            self._engine = engine
        return engine

    async def erase(self) -> None:
        """Erase the session in the store, and append nothing to it any more."""
        await self.store.erase(self.id)
        self._engine, self._erased = None, True

    async def event(self, name: str | int) -> Event:
        """Return the event with this handle; raises `UnknownHandle`. Does not need the lock."""
        seq = parse_handle(name)
        found = await self.store.pick(self.id, [seq]) if seq is not None else []
        if not found:
            raise unknown_handle(name, count=(await self.store.end(self.id)).next_seq)
        return found[0]

    async def fold(self, *ahead: AnyFact, expects_changes: bool = False) -> Engine:
        """Return another engine, folded from the whole log. The facts `ahead` count as appended when it is decided
        which stored events of a long log are effective; they are not applied. `expects_changes` is for a log that
        probably has events that change earlier ones."""
        count = (await self.store.end(self.id)).next_seq
        if count <= MAX_WHOLE_EVENTS:
            log = await self.whole_log()
            return await offload(lambda: Engine(self.settings, log=log), events=count)
        events = [Event(seq, fact) for seq, fact in enumerate(ahead, count)]
        return await fold_log(
            self.store, self.id, self.settings, ahead=events, expects_changes=expects_changes
        )

    async def whole_log(self) -> list[Event]:
        """Return all events; only `undo`, `expand` and `supersede` need them in memory, to try what the request
        would be."""
        end = (await self.store.end(self.id)).next_seq
        return [event async for events in read_slices(self.store, self.id, end=end) for event in events]

    async def hidden_status(self, event: Event) -> EventStatus:
        """Return the status of an event that the view does not show, from the events after it."""
        end, fact = (await self.store.end(self.id)).next_seq, event.fact
        first = max(0, event.seq - MAX_SLICE_EVENTS) if isinstance(fact, ToolReturned) else event.seq
        log = await find_effective(self.store, self.id, first=first, end=end)
        is_orphan = False
        if isinstance(fact, ToolReturned):
            effective = {other.seq for other in log.events}
            before = await self.store.read(self.id, first=first, last=event.seq - 1)
            caller = find_caller([other for other in before if other.seq in effective], fact)
            if caller is None:  # its call is far away, or does not exist
                is_orphan = event.seq in (await self.fold()).view.orphan_results
        work = partial(hidden_event_status, event, log, is_orphan=is_orphan)
        return await offload(work, events=len(log.events) // LIGHT_PER_FOLDED)

    async def load_kept(self) -> Engine:
        """Return the engine as `load` does; raises `UnknownSession` if the session was erased."""
        return self._kept(await self.load())

    async def refresh_kept(self) -> Engine:
        """Return the engine as `refresh` does; raises `UnknownSession` if the session was erased."""
        return self._kept(await self.refresh())

    def _kept(self, engine: Engine) -> Engine:
        if self._erased:
            raise UnknownSession(self.id)
        return engine

    async def _read_engine(self) -> Engine:
        try:
            checkpoint = await self.store.checkpoint(self.id)
            if checkpoint is None:  # erasing a session deletes its checkpoint
                self._erased = (await self.store.end(self.id)).erased
        except UnknownSession:
            return Engine(self.settings)
        if checkpoint is not None:
            engine = await self._resume(checkpoint)
            if engine is not None:
                return engine
        engine = await self.fold(expects_changes=checkpoint is not None)
        if engine.next_seq > MAX_WHOLE_EVENTS:
            await self._store_checkpoint(engine)
        return engine

    async def _resume(self, checkpoint: Checkpoint) -> Engine | None:
        """Return the engine from a checkpoint on, or None when the whole log must be folded instead."""
        try:
            state = msgspec.json.decode(checkpoint.state, type=EngineState)
        except msgspec.DecodeError:  # written by another version
            return None
        if state.calibration.model not in ("", self.settings.model.name):
            return None  # it knows nothing of what this model's provider has reported
        older = await self.store.pick(self.id, checkpoint.needed)
        if len(older) != len(checkpoint.needed):
            return None
        engine = await offload(
            lambda: Engine(self.settings, log=older, state=state), events=len(older) // RESTORED_PER_COUNTED
        )
        while True:
            first = engine.next_seq
            newer = await self.store.read(self.id, first=first, last=first + MAX_SLICE_EVENTS - 1)
            if any(always_refolds(event.fact) for event in newer):
                return None
            await offload(partial(apply_all, engine, newer), events=len(newer))
            if len(newer) < MAX_SLICE_EVENTS:
                break
        engine.budget()  # limits of new results are taken from the budget after the newest event
        self._checkpointed = checkpoint.seq
        return engine

    # ── Appending ────────────────────────────────────────────────────────────────────────────────────

    def redact(self, fact: AnyFact) -> AnyFact:
        """Return a fact as it will be stored."""
        return fact if self._options.redact is None else self._options.redact(fact)

    async def commit(
        self, facts: Sequence[AnyFact], *, end: Callable[[View, Sequence[Event]], AnyFact] | None = None
    ) -> list[Event]:
        """Store facts after the newest event; try again, up to `MAX_CONFLICTS` times, when another writer was
        faster. `end` returns a last fact, stored together with them, from the view and the events of `facts`; none
        of these may be one that changes which earlier events count."""
        facts = await _each(self.redact, facts)
        await self.load_kept()
        if any(map(always_refolds, facts)):
            return await self._commit_refolding(facts)
        for _ in range(MAX_CONFLICTS):
            engine = before = await self.load()
            ends_expansion = any(needs_refold(fact, engine.view) for fact in facts)
            if ends_expansion:
                engine = await self.fold(*facts)
            first = engine.next_seq
            now = self._clock()
            self._engine = None  # from here until everything is stored, memory is ahead of the store
            events = await _each(partial(engine.append, at=now), facts)
            for event in events if len(engine.log) < engine.next_seq else ():
                if (call := engine.unchanged_call(event)) is not None:
                    await self._show_again(engine, event, call, first=first)
            if end is not None:
                events.append(engine.append(self.redact(end(engine.view, events)), at=now))
            if ends_expansion:
                engine.take_over_request(before, before.prefix_mover or events[0])
            if await self.store_appended(engine, first):
                return events
        raise self.conflict_error()

    async def _show_again(self, engine: Engine, answer: Event, call: Call, *, first: int) -> None:
        """Show the result that an answer refers to. It may only be in the store, which ends before `first`."""
        effective = {event.seq for event in (await find_effective(self.store, self.id, end=first)).events}
        newer = [event for event in engine.events_from(first) if event.seq < answer.seq]
        if engine.show_again(answer, call, reversed(newer)):
            return
        for last in range(first - 1, -1, -MAX_SLICE_EVENTS):
            read = await self.store.read(self.id, first=max(0, last - MAX_SLICE_EVENTS + 1), last=last)
            events = [event for event in read if event.seq in effective]
            # With one slice more, because a call may be in another one than its result.
            if engine.show_again(answer, call, reversed([*events, *newer])):
                return
            newer = events

    async def _commit_refolding(self, facts: Sequence[AnyFact]) -> list[Event]:
        """Store facts that change which earlier ones count; the whole log is folded again afterwards."""
        for _ in range(MAX_CONFLICTS):
            before = await self.refresh()
            now = self._clock()
            events = [Event(seq, fact, now) for seq, fact in enumerate(facts, before.next_seq)]
            self._engine = None
            try:
                await self.store.append(self.id, events)
            except Conflict:
                continue
            self._notify(events)
            engine = await self.load()
            engine.take_over_request(before, before.prefix_mover or events[0])
            await self._checkpoint(engine, events)
            return events
        raise self.conflict_error()

    def conflict_error(self) -> StoreError:
        """Return the error for a writer that lost too many conflicts."""
        return StoreError(
            f"session {self.id!r}: {MAX_CONFLICTS} conflicts in a row with other writers; try again"
        )

    async def store_appended(self, engine: Engine, first: int) -> bool:
        """Store what the engine has appended since `first`; return False if another writer was faster."""
        new = engine.events_from(first)
        self._engine = None
        try:
            if new:
                await self.store.append(self.id, new)
        except Conflict:
            return False
        self._engine = engine
        if new:
            self._notify(new)
            await self._checkpoint(engine, new)
        return True

    def _notify(self, events: Sequence[Event]) -> None:
        if self._options.on_stored is not None:
            self._options.on_stored(events)

    async def _checkpoint(self, engine: Engine, new: Sequence[Event]) -> None:
        """Store a checkpoint if one is due, and keep only what the view needs in memory. There is none while a
        range is expanded for one turn: at the end of that turn the log is folded again."""
        reduced = any(isinstance(event.fact, REDUCTIONS) or always_refolds(event.fact) for event in new)
        due = engine.next_seq - self._checkpointed > EVENTS_PER_CHECKPOINT
        if reduced or due or len(engine.log) > self._max_events_in_memory:
            await self._store_checkpoint(engine)

    async def _store_checkpoint(self, engine: Engine) -> None:
        if engine.view.expansions or not 0 < len(engine.view.seqs) <= MAX_CHECKPOINT_EVENTS:
            return
        needed = needed_seqs(engine.view) | {engine.opened_seq}
        state = replace(engine.state(), counts=engine.view.meter.counts())
        checkpoint = Checkpoint(seq=state.seq, needed=tuple(sorted(needed)), state=msgspec.json.encode(state))
        with suppress(StoreError):  # a checkpoint is a cache: without it, opening takes longer
            await self.store.keep_checkpoint(self.id, checkpoint)
            self._checkpointed = engine.next_seq
        engine.keep_in_memory(needed)


def _moves_prefix(fact: AnyFact, view: View) -> bool:
    return may_move_prefix(fact) or needs_refold(fact, view)


async def _each(function: Callable[[AnyFact], T], facts: Sequence[AnyFact]) -> list[T]:
    """Return the results for all facts; let other tasks run after each slice of a long list."""
    found = [function(fact) for fact in facts[:FACTS_PER_SLICE]]
    for start in range(FACTS_PER_SLICE, len(facts), FACTS_PER_SLICE):
        await asyncio.sleep(0)
        found += [function(fact) for fact in facts[start : start + FACTS_PER_SLICE]]
    return found
