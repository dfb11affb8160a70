"""A durable session: the same engine as `Context`, its log in a store.

    async with foveal.open_store("chats.db") as store:
        session = await foveal.Session.open(store, "demo", model="anthropic/claude-sonnet-4-5")
        await session.append(foveal.UserSaid(content="…"))
        messages = (await session.fit()).to_anthropic()

1. What `append` returned is stored; nothing is shown to a model that is not.
2. Only what the view needs is in memory, and opening reads only that.
3. When another process appended first, the session reads what it missed and tries again: a user's message is
   never lost to a conflict, and a reduction is decided anew.
4. After an error in the store, or a cancellation, the next call reads the session again from the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self, Unpack

import msgspec
from msgspec.structs import replace

from foveal import wire
from foveal.accounts import Accounts
from foveal.budget import Caps
from foveal.calls import Calls
from foveal.carry import needed
from foveal.engine import Engine, State
from foveal.errors import BadSetting, Conflict, ContextOverflow, StoreError, UnknownHandle, UnknownSession
from foveal.events import (
    REDUCTIONS,
    AnyFact,
    Dialect,
    Equipped,
    Event,
    Fact,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
    Unknown,
    parse_handle,
)
from foveal.fitted import Fitted
from foveal.fold import effective
from foveal.inherit import inheritance
from foveal.models import Model
from foveal.ports import Checkpoint, Hit, SessionInfo, Store
from foveal.report import Line, Report, line, report
from foveal.setup import Settings, Setup, setup

TRIES: Final = 50
"""How often a conflict with other writers is resolved by reading again before giving up."""
KEEP_EVERY: Final = 64
"""A checkpoint is kept after so many events, and after every reduction."""


def events_in_memory(model: Model, caps: Caps | None = None) -> int:
    """How many events a session keeps in memory: twice what fits into the window, if each has 200 tokens."""
    most = model.max_input
    if caps is not None and caps.max_input_tokens is not None:
        most = min(most, caps.max_input_tokens)
    return min(2_000, max(100, most // 200 * 2))


class Session:
    """One session, to be used from one event loop; calls are served one after the other."""

    def __init__(self, store: Store, id: str, made: Setup, clock: Callable[[], float]) -> None:
        self.store = store
        self.id = id
        self._limit = events_in_memory(made.model, made.caps)
        caps = made.caps
        if not caps.max_messages:
            caps = replace(caps, max_messages=self._limit * 3 // 4)
        self._setup = made._replace(caps=caps)
        self._engine: Engine | None = None
        self._clock = clock
        self._lock = asyncio.Lock()
        self._calls = Calls()
        self._kept = -1
        self._erased = False
        self._before: tuple[AnyFact, ...] = ()

    @classmethod
    async def open(
        cls,
        store: Store,
        id: str,
        *,
        model: str | Model,
        origin: str = "",
        clock: Callable[[], float] | None = None,
        **settings: Unpack[Settings],
    ) -> Self:
        """Open a session, or begin one. A change of model or policy is recorded."""
        session = cls(store, id, setup(model, **settings), clock or time.time)
        async with session._lock:
            engine = await session._ready()
            opened = Opened(model=engine.model.name, policy=engine.policy.name, origin=origin)
            if origin or (opened.model, opened.policy) != (engine.opened.model, engine.opened.policy):
                await session._commit([opened])
        return session

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────

    async def append(self, *facts: AnyFact) -> tuple[Event, ...]:
        """Store facts; they are durable when this returns."""
        for fact in facts:
            if not isinstance(fact, Fact | Unknown):
                raise BadSetting(
                    "fact", fact, "a fact of `foveal.events`; messages of a provider go to `take`"
                )
        async with self._lock:
            return tuple(await self._commit(facts))

    async def take(self, *messages: Any, dialect: Dialect = "") -> tuple[Event, ...]:
        """Store messages as a provider has them, dicts or objects of its library; the dialect is recognised."""
        reader = wire.wire(dialect or wire.detect(messages))
        return await self.append(*(fact for chunk in reader.read(messages) for fact in chunk.facts))

    async def equip(self, tools: Sequence[Any]) -> None:
        """The tools on offer from here on; they are counted. Nothing is stored when they are the same as before."""
        async with self._lock:
            offered = Equipped(tools=wire.opaque(wire.plain(tools), "tools"))
            held = (await self._caught_up()).view.tools
            if held is None or held[1] != offered:
                self._calls.broken |= held is not None
                await self._commit([offered])

    async def fit(self) -> Fitted:
        """What the next request should send: legal, and within the budget, or `ContextOverflow`."""
        async with self._lock:
            engine = await self._caught_up()
            now = self._clock()
            for _ in range(TRIES):
                first = engine.next_seq
                try:
                    engine.settle(self._calls.moment(engine, now), at=now)
                except ContextOverflow:
                    self._engine = None  # nothing will be sent, so nothing that was cut for it is stored
                    raise
                if await self._stored(engine, first):
                    break
                engine = await self._ready()
            else:
                raise self._outrun()
            return self._fitted(engine, now)

    async def observe(self, reported: Any) -> None:
        """Record the usage that a provider reported for the request of the last `fit`."""
        async with self._lock:
            fact = self._calls.report(reported, await self._ready())
            if fact is not None:
                await self._commit([fact])

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    async def usage(self) -> Accounts:
        """What this session has used and cost so far."""
        async with self._lock:
            return (await self._caught_up()).accounts

    async def report(self) -> Report:
        """What fills the window and why; lists the events that the view needs, not the whole log."""
        async with self._lock:
            return report(await self._caught_up(), calls=self._calls.count, breaks=self._calls.breaks)

    async def why(self, name: str | int) -> Line:
        """How one event stands in the next request, and which event is behind that."""
        async with self._lock:
            event = await self._event(name)
            whole = Engine(*self._setup, log=await self.store.read(self.id))
            counts = any(event.seq == other.seq for other in effective(whole.log))
            return line(whole, event, counts=counts)

    async def original(self, name: str | int) -> str:
        """The whole text of an event, whatever is shown of it."""
        return wire.original((await self._event(name)).fact)

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        return await self.store.read(self.id, first=first, last=last)

    async def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Events whose text has words of the query, best first."""
        return await self.store.search(self.id, query, limit=limit)

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        return await self.store.pick(self.id, seqs)

    def visible(self, seq: int) -> bool:
        """The event is shown whole in the request as it stands now."""
        found = self._engine.view.find(seq) if self._engine is not None else None
        return found is not None and found[1].level == "full"

    @property
    def last(self) -> int:
        return self._engine.next_seq - 1 if self._engine is not None else -1

    async def info(self) -> SessionInfo:
        return await self.store.info(self.id)

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────

    async def pin(self, text: str = "", *, event: str | int | None = None) -> str:
        """Keep a rule in every request, or the step of an event as it is now. Returns the pin's handle."""
        if not text and event is None:
            raise BadSetting("pin", text, "a text, or the handle of an event")
        async with self._lock:
            target = None
            if event is not None:
                target = (await self._event(event)).seq
                if (await self._ready()).view.find(target) is None:
                    raise UnknownHandle(f"{event!r} is not shown any more, so it cannot be pinned")
            return (await self._commit([Pinned(text=text, target=target)]))[0].handle

    async def snapshot(self, data: Any, *, label: str = "") -> str:
        """Record an application's own state; it is never sent. Returns its handle."""
        return (await self.append(SnapshotTaken(data=wire.opaque(data, "data"), label=label)))[0].handle

    async def undo(self, name: str | int | None = None) -> Event:
        """Take back one reduction (the newest, if none is named), whatever came after it. Returns what was taken
        back."""
        async with self._lock:
            await self._caught_up()
            event = await self._newest_reduction() if name is None else await self._event(name)
            if not isinstance(event.fact, (*REDUCTIONS, Pinned)):
                raise UnknownHandle(
                    f"{event.handle} is not a reduction or a pin, so there is nothing to undo"
                )
            await self._commit([Reverted(target=event.seq)])
            return event

    async def rewind(self, to: str | int) -> None:
        """Go back to how the session was after event `to`; what came later stays in the log, and is not shown."""
        async with self._lock:
            await self._commit([Rewound(to=_within(await self._caught_up(), to))])

    async def fork(self, id: str, *, at: str | int | None = None) -> Session:
        """A new session that begins with this one's events up to `at` (all of them, if not given)."""
        async with self._lock:
            engine = await self._caught_up()
            last = engine.next_seq - 1 if at is None else _within(engine, at)
            await self.store.fork(self.id, id, at=last)
        forked = type(self)(self.store, id, self._setup, self._clock)
        await forked.append(replace(engine.opened, origin=f"{self.id}@{last}"))
        return forked

    @classmethod
    async def continue_from(
        cls, store: Store, origin: str, id: str, *, model: str | Model, **settings: Unpack[Settings]
    ) -> Self:
        """Begin a session with the summary and the pinned rules of an earlier one."""
        earlier = await store.read(origin)
        if any(info.id == id for info in await store.sessions()):
            raise Conflict(id, given=0, next_seq=(await store.info(id)).events)
        session = await cls.open(store, id, model=model, origin=origin, **settings)
        await session.append(*inheritance(earlier, origin, session._setup.counter))
        return session

    async def rename(self, title: str) -> None:
        await self.store.rename(self.id, title)

    async def delete(self) -> None:
        """Erase the text of this session for good; its log stays gapless, with nothing in it."""
        async with self._lock:
            await self.store.erase(self.id)
            self._engine = None

    # ── the only appender ────────────────────────────────────────────────────────────────────────────

    async def _commit(self, facts: Sequence[AnyFact]) -> list[Event]:
        """Store facts after whatever is there, trying again when somebody else was first."""
        if any(isinstance(fact, Reverted | Rewound) for fact in facts):
            return await self._commit_history(facts)
        for _ in range(TRIES):
            engine = await self._ready()
            first = engine.next_seq
            now = self._clock()
            self._engine = None  # until all of it is stored, what is in memory is not true
            events = [engine.append(fact, at=now) for fact in facts]
            if await self._stored(engine, first):
                return events
        raise self._outrun()

    async def _commit_history(self, facts: Sequence[AnyFact]) -> list[Event]:
        """Store facts that change which earlier ones count; the whole log is folded again afterwards."""
        for _ in range(TRIES):
            first = (await self._caught_up()).next_seq
            now = self._clock()
            events = [Event(seq, fact, now) for seq, fact in enumerate(facts, first)]
            self._engine = None
            try:
                await self.store.append(self.id, events)
            except Conflict:
                continue
            await self._tidy(await self._ready(), events)
            return events
        raise self._outrun()

    def _outrun(self) -> StoreError:
        return StoreError(f"session {self.id!r}: {TRIES} conflicts in a row with other writers; try again")

    async def _stored(self, engine: Engine, first: int) -> bool:
        """Store what the engine has appended since `first`; False when somebody else was first."""
        new = engine.since(first)
        self._engine = None
        try:
            if new:
                await self.store.append(self.id, new)
        except Conflict:
            return False
        self._engine = engine
        if new:
            await self._tidy(engine, new)
        return True

    async def _tidy(self, engine: Engine, new: Sequence[Event]) -> None:
        """Keep a checkpoint now and then, and only what the view needs in memory."""
        reduced = any(isinstance(event.fact, (*REDUCTIONS, Reverted, Rewound)) for event in new)
        due = engine.next_seq - self._kept > KEEP_EVERY
        if not (reduced or due or len(engine.log) > self._limit):
            return
        wanted = needed(engine.view) | {engine.opened_seq}
        state = engine.state()
        checkpoint = Checkpoint(seq=state.seq, needed=tuple(sorted(wanted)), state=msgspec.json.encode(state))
        with suppress(StoreError):  # a checkpoint is a cache: without it, opening takes longer
            await self.store.keep_checkpoint(self.id, checkpoint)
            self._kept = engine.next_seq
        engine.forget(wanted)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────

    async def _ready(self) -> Engine:
        """The engine as of the last thing that this session knows to be stored."""
        if self._engine is None:
            self._engine = await self._loaded()
        return self._engine

    async def _caught_up(self) -> Engine:
        """The engine with what other processes have appended meanwhile."""
        engine = await self._ready()
        if not engine.next_seq:
            return engine
        missed = await self.store.read(self.id, first=engine.next_seq)
        if self._erased is not (erased := (await self.store.info(self.id)).erased):
            self._engine, self._erased = None, erased  # somebody erased what is still in memory here
            return await self._ready()
        if any(isinstance(event.fact, Reverted | Rewound) for event in missed):
            self._engine = None
            return await self._ready()
        for event in missed:
            engine.take(event)
        return engine

    async def _loaded(self) -> Engine:
        try:
            checkpoint = await self.store.checkpoint(self.id)
        except UnknownSession:
            return Engine(*self._setup)
        if checkpoint is not None:
            engine = await self._resumed(checkpoint)
            if engine is not None:
                return engine
        return Engine(*self._setup, log=await self.store.read(self.id))

    async def _resumed(self, checkpoint: Checkpoint) -> Engine | None:
        """From the checkpoint on; None when it cannot be used and the whole log must be folded."""
        try:
            state = msgspec.json.decode(checkpoint.state, type=State)
        except msgspec.DecodeError:
            return None
        newer = await self.store.read(self.id, first=checkpoint.seq + 1)
        if any(isinstance(event.fact, Reverted | Rewound) for event in newer):
            return None
        older = await self.store.pick(self.id, checkpoint.needed)
        if len(older) != len(checkpoint.needed):
            return None
        self._kept = checkpoint.seq
        return Engine(*self._setup, log=[*older, *newer], state=state)

    async def _event(self, name: str | int) -> Event:
        seq = parse_handle(name)
        found = await self.store.pick(self.id, [seq]) if seq is not None else []
        if not found:
            raise UnknownHandle(f"no event of session {self.id!r} has the handle {name!r}")
        return found[0]

    async def _newest_reduction(self) -> Event:
        log = await self.store.read(self.id)
        for event in reversed(effective(log)):
            if isinstance(event.fact, REDUCTIONS):
                return event
        raise UnknownHandle(f"nothing in session {self.id!r} has been reduced, so there is nothing to undo")

    def _fitted(self, engine: Engine, now: float) -> Fitted:
        fitted = Fitted.of(
            engine.view,
            tokens=engine.calibration.tokens(engine.total_units),
            limit=engine.available(engine.budget()),
        )
        self._calls.made(engine, now, fitted.moved(engine.view, self._before))
        self._before = fitted.facts
        return fitted


def _within(engine: Engine, name: str | int) -> int:
    """The seq of an event that is there."""
    seq = parse_handle(name)
    if seq is None or seq >= engine.next_seq:
        raise UnknownHandle(f"there is no event {name}; the log has 0 to {engine.next_seq - 1}")
    return seq
