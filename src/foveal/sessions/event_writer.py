"""An engine in step with a store: the only appender of a session.

1. What `commit` returned is stored; until then, what is in memory is not taken to be true.
2. Only what the view needs is in memory, and opening reads only that.
3. When another process appended first, what was missed is read and the facts are appended after it.
4. After an error in the store, or a cancellation, everything is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from foveal.core.engine.engine import Engine, EngineState
from foveal.core.engine.settings import EngineSettings
from foveal.core.log.events import REDUCTIONS, AnyFact, Event, Expanded, Reverted, Rewound, parse_handle
from foveal.core.view.checkpoint import needed
from foveal.core.view.fold import effective, refolds
from foveal.errors import Conflict, StoreError, UnknownHandle, UnknownSession
from foveal.ports import Checkpoint, Store

TRIES: Final = 50
"""How often a conflict with other writers is resolved by reading again before giving up."""
KEEP_EVERY: Final = 64
"""A checkpoint is kept after so many events, and after every reduction."""
AT_ONCE: Final = 16
"""Facts that are worked on before others get their turn."""
HISTORY: Final = (Reverted, Rewound, Expanded)
"""Facts that change which earlier ones count."""


def _always() -> bool:
    return True


class SessionOptions(NamedTuple):
    """What whoever opens a session may ask for, beside what fills its window."""

    redact: Callable[[AnyFact], AnyFact] | None = None
    """Takes out of a fact what may not be stored; nothing is appended that did not go through it."""
    watch: Callable[[Sequence[Event]], None] | None = None
    """Is told of all that this process stores."""
    foresee: Callable[[], bool] = _always
    """Whether to begin a summary that will be needed soon beside a request; otherwise `prepare` is for that."""


ORDINARY: Final = SessionOptions()


class EventWriter:
    """Who calls this holds the session's lock."""

    def __init__(
        self,
        store: Store,
        id: str,
        made: EngineSettings,
        clock: Callable[[], float],
        *,
        in_memory: int,
        terms: SessionOptions = ORDINARY,
    ) -> None:
        self.store = store
        self.id = id
        self.setup = made
        self.engine: Engine | None = None
        """As of the last thing that is known to be stored; None when that is not known."""
        self._clock = clock
        self._terms = terms
        self._limit = in_memory
        self._kept = -1
        self._erased = False

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────

    async def ready(self) -> Engine:
        """The engine as of the last thing that this process knows to be stored."""
        if self.engine is None:
            self.engine = await self._loaded()
        return self.engine

    async def caught_up(self) -> Engine:
        """The engine with what other processes have appended meanwhile."""
        engine = await self.ready()
        if not engine.next_seq:
            return engine
        missed, erased = await self.store.news(self.id, first=engine.next_seq)
        if self._erased is not erased:
            self.engine, self._erased = None, erased  # somebody erased what is still in memory here
            return await self.ready()
        if any(refolds(event.fact, engine.view) for event in missed):
            self.engine = None
            return await self.ready()
        for event in missed:
            engine.take(event)
        return engine

    async def event(self, name: str | int) -> Event:
        """The event with this handle; raises `UnknownHandle`."""
        seq = parse_handle(name)
        found = await self.store.pick(self.id, [seq]) if seq is not None else []
        if not found:
            raise UnknownHandle(f"no event of session {self.id!r} has the handle {name!r}")
        return found[0]

    async def newest_reduction(self) -> Event:
        for event in reversed(effective(await self.store.read(self.id))):
            if isinstance(event.fact, REDUCTIONS):
                return event
        raise UnknownHandle(f"nothing in session {self.id!r} has been reduced, so there is nothing to undo")

    async def whole(self) -> Engine:
        """Another engine, with the whole log in memory."""
        return Engine(*self.setup, log=await self.store.read(self.id))

    async def _loaded(self) -> Engine:
        try:
            checkpoint = await self.store.checkpoint(self.id)
        except UnknownSession:
            return Engine(*self.setup)
        if checkpoint is not None:
            engine = await self._resumed(checkpoint)
            if engine is not None:
                return engine
        return await self.whole()

    async def _resumed(self, checkpoint: Checkpoint) -> Engine | None:
        """From the checkpoint on; None when it cannot be used and the whole log must be folded."""
        try:
            state = msgspec.json.decode(checkpoint.state, type=EngineState)
        except msgspec.DecodeError:
            return None
        newer = await self.store.read(self.id, first=checkpoint.seq + 1)
        if any(isinstance(event.fact, HISTORY) for event in newer):
            return None
        older = await self.store.pick(self.id, checkpoint.needed)
        if len(older) != len(checkpoint.needed):
            return None
        self._kept = checkpoint.seq
        return Engine(*self.setup, log=[*older, *newer], state=state)

    # ── the only appender ────────────────────────────────────────────────────────────────────────────

    def redacted(self, fact: AnyFact) -> AnyFact:
        """A fact as it will be stored."""
        return fact if self._terms.redact is None else self._terms.redact(fact)

    async def commit(self, facts: Sequence[AnyFact]) -> list[Event]:
        """Store facts after whatever is there, trying again when somebody else was first."""
        facts = [self.redacted(fact) async for fact in _one_by_one(facts)]
        if any(isinstance(fact, HISTORY) for fact in facts):
            return await self._commit_history(facts)
        for _ in range(TRIES):
            engine = await self.ready()
            if any(
                refolds(fact, engine.view) for fact in facts
            ):  # a range was shown whole for the turn that ends
                engine = await self.whole()
            first = engine.next_seq
            now = self._clock()
            self.engine = None  # until all of it is stored, what is in memory is not true
            events = [engine.append(fact, at=now) async for fact in _one_by_one(facts)]
            if await self.stored(engine, first):
                return events
        raise self.outrun()

    async def _commit_history(self, facts: Sequence[AnyFact]) -> list[Event]:
        """Store facts that change which earlier ones count; the whole log is folded again afterwards."""
        for _ in range(TRIES):
            first = (await self.caught_up()).next_seq
            now = self._clock()
            events = [Event(seq, fact, now) for seq, fact in enumerate(facts, first)]
            self.engine = None
            try:
                await self.store.append(self.id, events)
            except Conflict:
                continue
            self._told(events)
            await self._tidy(await self.ready(), events)
            return events
        raise self.outrun()

    def outrun(self) -> StoreError:
        return StoreError(f"session {self.id!r}: {TRIES} conflicts in a row with other writers; try again")

    async def stored(self, engine: Engine, first: int) -> bool:
        """Store what the engine has appended since `first`; False when somebody else was first."""
        new = engine.since(first)
        self.engine = None
        try:
            if new:
                await self.store.append(self.id, new)
        except Conflict:
            return False
        self.engine = engine
        if new:
            self._told(new)
            await self._tidy(engine, new)
        return True

    def _told(self, events: Sequence[Event]) -> None:
        if self._terms.watch is not None:
            self._terms.watch(events)

    async def _tidy(self, engine: Engine, new: Sequence[Event]) -> None:
        """Keep a checkpoint now and then, and only what the view needs in memory. While a range is shown whole for
        one turn there is none: the end of that turn needs the whole log."""
        reduced = any(isinstance(event.fact, (*REDUCTIONS, *HISTORY)) for event in new)
        due = engine.next_seq - self._kept > KEEP_EVERY
        if engine.view.expanded or not (reduced or due or len(engine.log) > self._limit):
            return
        wanted = needed(engine.view) | {engine.opened_seq}
        state = engine.state()
        checkpoint = Checkpoint(seq=state.seq, needed=tuple(sorted(wanted)), state=msgspec.json.encode(state))
        with suppress(StoreError):  # a checkpoint is a cache: without it, opening takes longer
            await self.store.keep_checkpoint(self.id, checkpoint)
            self._kept = engine.next_seq
        engine.forget(wanted)


async def _one_by_one(facts: Sequence[AnyFact]) -> AsyncIterator[AnyFact]:
    """Facts of a long list, in such a way that others get their turn in between."""
    for at, fact in enumerate(facts, 1):
        yield fact
        if at % AT_ONCE == 0:
            await asyncio.sleep(0)
