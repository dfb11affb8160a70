"""A durable session: the same engine as `Context`, its log in a store.

    async with foveal.open_store("chats.db") as store:
        session = await foveal.Session.open(store, "demo", model="anthropic/claude-sonnet-4-5")
        await session.append(foveal.UserSaid(content="…"))
        messages = (await session.fit()).to_anthropic()

1. What `append` returned is stored; nothing is shown to a model that is not.
2. When another process appended first, the session reads what it missed and tries again: a user's message is
   never lost to a conflict, and a reduction is decided anew.
3. Messages can be appended while a summary is written; the next request waits for it only when it must.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, Unpack

from msgspec.structs import replace

from foveal.core import wire
from foveal.core.compaction.summariser import Summarise, SummaryProgress, chain
from foveal.core.engine.engine import Engine
from foveal.core.engine.report import EventStatus, Report, event_status, report
from foveal.core.engine.settings import EngineSettings, GivenSettings, engine_settings
from foveal.core.log.events import (
    AnyFact,
    Call,
    Compacted,
    Dialect,
    Equipped,
    Event,
    Fact,
    Instructed,
    Opened,
    Pinned,
    Reverted,
    Rewound,
    SnapshotTaken,
    Unknown,
    UserSaid,
    parse_handle,
    text_of,
)
from foveal.core.models.budget import Caps
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model
from foveal.core.policies import Moment
from foveal.core.reduction.undo import check_undo, expansion, no_room
from foveal.core.tokens.counter import Counter
from foveal.core.view.fold import effective
from foveal.core.view.request import Fitted, ReducedCounts
from foveal.errors import BadSetting, Conflict, ContextOverflow, UnknownHandle
from foveal.ports import Hit, SessionInfo, Store
from foveal.project.prompt_file import prompt_text
from foveal.sessions.background_compaction import BackgroundCompaction
from foveal.sessions.event_writer import ORDINARY, EventWriter, SessionOptions
from foveal.sessions.fitter import ManualCompaction, RequestFitter

# ── inherit ───────────────────────────────────────────────────────────────────────────────────────
# What a new session takes over from an earlier one: its pinned rules, and a summary of it.

MOST_TOKENS: Final = 2_000
"""Of what the user asked in a session that was never summarised, so much is taken over."""


def inheritance(log: Sequence[Event], origin: str, counter: Counter) -> Iterator[AnyFact]:
    """Facts for the beginning of the new session."""
    counting = [event.fact for event in effective(log)]
    for fact in counting:
        if isinstance(fact, Pinned) and fact.text:
            yield Pinned(text=fact.text)
    summaries = [fact.summary for fact in counting if isinstance(fact, Compacted)]
    summary = summaries[-1] if summaries else _requests(counting, counter)
    if summary:
        text = f"This conversation continues session {origin!r}. What happened there:\n\n{summary}"
        yield Instructed(content=text, source=f"session {origin}")


def _requests(facts: Sequence[AnyFact], counter: Counter) -> str:
    """What the user asked for, newest first, as far as the room goes; then in its order."""
    room = MOST_TOKENS
    lines: list[str] = []
    for fact in reversed(facts):
        if isinstance(fact, UserSaid):
            words = " ".join(text_of(fact.content).split())
            line = f"- {words[: counter.head(words, 400)]}"
            room -= counter.count(line)
            if room < 0:
                break
            lines.append(line)
    return "The user asked:\n" + "\n".join(reversed(lines)) if lines else ""


# ── session ───────────────────────────────────────────────────────────────────────────────────────


def events_in_memory(model: Model, caps: Caps | None = None) -> int:
    """How many events a session keeps in memory: twice what fits into the window, if each has 200 tokens."""
    most = model.max_input
    if caps is not None and caps.max_input_tokens is not None:
        most = min(most, caps.max_input_tokens)
    return min(2_000, max(100, most // 200 * 2))


class Session:
    """One session, to be used from one event loop; calls are served one after the other."""

    def __init__(
        self,
        store: Store,
        id: str,
        made: EngineSettings,
        clock: Callable[[], float],
        coordinator: BackgroundCompaction,
        *,
        terms: SessionOptions = ORDINARY,
    ) -> None:
        self.store = store
        self.id = id
        in_memory = events_in_memory(made.model, made.caps)
        if not made.caps.max_messages:
            made = made._replace(caps=replace(made.caps, max_messages=in_memory * 3 // 4))
        self._terms = terms
        self._keeper = EventWriter(store, id, made, clock, in_memory=in_memory, terms=terms)
        self._coordinator = coordinator
        self._clock = clock
        self._lock = asyncio.Lock()
        self._fitting = RequestFitter(self._keeper, coordinator, clock, foresee=terms.foresee)
        self._by_hand = ManualCompaction(self._keeper, self._fitting, coordinator, self._lock)

    @classmethod
    async def open(
        cls,
        store: Store,
        id: str,
        *,
        model: str | Model,
        origin: str = "",
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        clock: Callable[[], float] | None = None,
        terms: SessionOptions = ORDINARY,
        begin: Sequence[AnyFact] = (),
        **settings: Unpack[GivenSettings],
    ) -> Self:
        """Open a session, or begin one. A change of model or policy is recorded. `summarise` writes summaries: an
        async callable that is given a request, or several to fall back on; without it, they are written from the
        log alone. `prompt` is a text, or `file://…`, in place of ours. `terms` say what may be stored, and who is
        told; a new session begins with the facts in `begin`, or not at all."""
        clock = clock or time.time
        coordinator = BackgroundCompaction(
            chain(summarise), prompt=prompt_text(prompt), clock=time.monotonic, progress=progress
        )
        session = cls(store, id, engine_settings(model, **settings), clock, coordinator, terms=terms)
        async with session._lock:
            engine = await session._keeper.ready()
            opened = Opened(model=engine.model.name, policy=engine.policy.name, origin=origin)
            if origin or (opened.model, opened.policy) != (engine.opened.model, engine.opened.policy):
                session._fitting.calls.switched = (
                    bool(engine.opened.model) and engine.opened.model != opened.model
                )
                await session._keeper.commit([opened, *(() if engine.next_seq else begin)])
        return session

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────

    async def append(self, *facts: AnyFact) -> tuple[Event, ...]:
        """Store facts; they are durable when this returns."""
        for fact in facts:
            if not isinstance(fact, Fact | Unknown):
                raise BadSetting(
                    "fact", fact, "a fact of `foveal.core.log.events`; messages of a provider go to `take`"
                )
        async with self._lock:
            return tuple(await self._keeper.commit(facts))

    async def take(self, *messages: Any, dialect: Dialect = "") -> tuple[Event, ...]:
        """Store messages as a provider has them, dicts or objects of its library; the dialect is recognised."""
        reader = wire.wire(dialect or wire.detect(messages))
        return await self.append(*(fact for chunk in reader.read(messages) for fact in chunk.facts))

    async def equip(self, tools: Sequence[Any]) -> None:
        """The tools on offer from here on; they are counted. Nothing is stored when they are the same as before."""
        async with self._lock:
            offered = self._keeper.redacted(Equipped(tools=wire.opaque(wire.plain(tools), "tools")))
            held = (await self._keeper.caught_up()).view.tools
            if (held is None and tools) or (held is not None and held[1] != offered):
                self._fitting.calls.broken |= held is not None
                await self._keeper.commit([offered])

    async def fit(self) -> Fitted:
        """What the next request should send: legal, and within the budget, or `ContextOverflow`. Waits for a
        summary only when the request would not fit without it; messages can be appended meanwhile."""
        asked = False
        while True:
            async with self._lock:
                fitted = await self._fitting.fit(ask=not asked)
            if fitted is not None:
                return fitted
            asked = True
            await self._coordinator.wait()

    async def observe(self, reported: Any) -> None:
        """Record the usage that a provider reported for the request of the last `fit`."""
        async with self._lock:
            facts = self._fitting.calls.report(reported, await self._keeper.ready())
            if facts:
                await self._keeper.commit(facts)

    async def overflowed(self, error: object) -> bool:
        """Whether a provider's error says that the request was too large. If so, its limit is learned and the next
        `fit` is smaller (or `max_tokens` is): send again. Raises `ContextOverflow` when that has not helped."""
        async with self._lock:
            fact = self._fitting.calls.refusal(error, await self._keeper.caught_up())
            if fact is not None:
                await self._keeper.commit([fact])
            return fact is not None

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    async def usage(self) -> UsageTotals:
        """What this session has used and cost so far."""
        async with self._lock:
            return (await self._keeper.caught_up()).accounts

    async def max_tokens(self) -> int:
        """What the answer to the next request may take at the most."""
        async with self._lock:
            return (await self._keeper.caught_up()).max_tokens

    async def report(self) -> Report:
        """What fills the window and why; lists the events that the view needs, not the whole log."""
        async with self._lock:
            return report(
                await self._keeper.caught_up(),
                calls=self._fitting.calls.count,
                breaks=self._fitting.calls.breaks,
            )

    async def why(self, name: str | int) -> EventStatus:
        """How one event stands in the next request, and which event is behind that."""
        async with self._lock:
            event = await self._keeper.event(name)
            engine = await self._keeper.caught_up()
            if engine.view.find(event.seq) is not None:
                return event_status(engine, event, counts=True)
            whole = await self._keeper.whole()  # it is hidden, or was taken back: by what, only the log knows
            counts = any(event.seq == other.seq for other in effective(whole.log))
            return event_status(whole, event, counts=counts)

    async def original(self, name: str | int) -> str:
        """The whole text of an event, whatever is shown of it."""
        return wire.original((await self._keeper.event(name)).fact)

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        return await self.store.read(self.id, first=first, last=last)

    async def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Events whose text has words of the query, best first."""
        return await self.store.search(self.id, query, limit=limit)

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        return await self.store.pick(self.id, seqs)

    def visible(self, seq: int) -> bool:
        """The event is shown whole in the request as it stands now."""
        found = self._keeper.engine.view.find(seq) if self._keeper.engine is not None else None
        return found is not None and found[1].level == "full"

    async def looks_back(self) -> bool:
        """Something is not shown as it was said, or tools are on offer: then those that look back are of use, and
        must not come and go."""
        async with self._lock:
            view = (await self._keeper.caught_up()).view
            return bool(ReducedCounts.of(view)) or (
                view.tools is not None and bytes(view.tools[1].tools) != b"[]"
            )

    async def open_calls(self) -> list[Call]:
        """The calls of the newest answers that have no result yet."""
        async with self._lock:
            view = (await self._keeper.caught_up()).view
            return [slot.call for step in view.steps if step.open for slot in step.slots if not slot.result]

    @property
    def last(self) -> int:
        return self._keeper.engine.next_seq - 1 if self._keeper.engine is not None else -1

    async def info(self) -> SessionInfo:
        return await self.store.info(self.id)

    # ── steering ─────────────────────────────────────────────────────────────────────────────────────

    def redacted(self, fact: AnyFact) -> AnyFact:
        """A fact as it would be stored."""
        return self._keeper.redacted(fact)

    async def pin(self, text: str = "", *, event: str | int | None = None) -> str:
        """Keep a rule in every request, or the step of an event as it is now. Returns the pin's handle."""
        if not text and event is None:
            raise BadSetting("pin", text, "a text, or the handle of an event")
        async with self._lock:
            target = None
            if event is not None:
                target = (await self._keeper.event(event)).seq
                if (await self._keeper.caught_up()).view.find(target) is None:
                    raise UnknownHandle(f"{event!r} is not shown any more, so it cannot be pinned")
            return (await self._keeper.commit([Pinned(text=text, target=target)]))[0].handle

    async def snapshot(self, data: Any, *, label: str = "") -> str:
        """Record an application's own state; it is never sent. Returns its handle."""
        return (await self.append(SnapshotTaken(data=wire.opaque(data, "data"), label=label)))[0].handle

    async def undo(self, name: str | int | None = None) -> Event:
        """Take back one reduction (the newest, if none is named), whatever came after it. Returns what was taken
        back."""
        async with self._lock:
            await self._keeper.caught_up()
            event = await self._keeper.newest_reduction() if name is None else await self._keeper.event(name)
            check_undo(event, effective(await self.store.read(self.id)))
            await self._keeper.commit([Reverted(target=event.seq)])
            return event

    async def compact(self, focus: str = "") -> Event:
        """Summarise old turns now; `focus` says what to keep above all. Returns the event that records it; raises
        `NotCompacted` when there is nothing to summarise or nothing came of it."""
        return await self._by_hand.compact(focus)

    async def prepare(self) -> Event | None:
        """Write the summary that will be needed soon, for whoever opened this with `foresee=False`; None when none
        will be."""
        return await self._by_hand.prepare()

    async def due(self) -> bool:
        """A summary will be needed soon, and none is being written."""
        async with self._lock:
            return self._fitting.foreseen(await self._keeper.caught_up()) is not None

    async def expand(self, name: str | int) -> None:
        """Show a range as it was said until the user speaks again: that of a reduction, or the step of an event.
        Raises `ContextOverflow` when there is no room for it."""
        async with self._lock:
            await self._keeper.caught_up()
            log = await self.store.read(self.id)
            facts = expansion(effective(log), (await self._keeper.event(name)).seq)
            shown = [*log, *(Event(len(log) + i, fact) for i, fact in enumerate(facts))]
            try:
                Engine(*self._keeper.setup, log=shown).settle(Moment())
            except ContextOverflow as problem:
                raise no_room(problem, name) from None
            await self._keeper.commit(facts)

    async def close(self) -> None:
        """Stop what is being written in the background; what is stored stays."""
        await self._coordinator.close()

    async def rewind(self, to: str | int) -> None:
        """Go back to how the session was after event `to`; what came later stays in the log, and is not shown."""
        async with self._lock:
            await self._keeper.commit([Rewound(to=_within(await self._keeper.caught_up(), to))])

    async def fork(self, id: str, *, at: str | int | None = None) -> Session:
        """A new session that begins with this one's events up to `at` (all of them, if not given)."""
        async with self._lock:
            engine = await self._keeper.caught_up()
            last = engine.next_seq - 1 if at is None else _within(engine, at)
            await self.store.fork(self.id, id, at=last)
        other = self._coordinator.another()
        forked = type(self)(self.store, id, self._keeper.setup, self._clock, other, terms=self._terms)
        await forked.append(replace(engine.opened, origin=f"{self.id}@{last}"))
        return forked

    @classmethod
    async def continue_from(
        cls,
        store: Store,
        origin: str,
        id: str,
        *,
        model: str | Model,
        summarise: Summarise | Sequence[Summarise] | None = None,
        prompt: str = "",
        progress: Callable[[SummaryProgress], None] | None = None,
        **settings: Unpack[GivenSettings],
    ) -> Self:
        """Begin a session with the summary and the pinned rules of an earlier one."""
        earlier = await store.read(origin)
        if any(info.id == id for info in await store.sessions()):
            raise Conflict(id, given=0, next_seq=(await store.info(id)).events)
        session = await cls.open(
            store,
            id,
            model=model,
            origin=origin,
            summarise=summarise,
            prompt=prompt,
            progress=progress,
            **settings,
        )
        await session.append(*inheritance(earlier, origin, session._keeper.setup.counter))
        return session

    async def rename(self, title: str) -> None:
        await self.store.rename(self.id, title)

    async def delete(self) -> None:
        """Erase the text of this session for good; its log stays gapless, with nothing in it."""
        async with self._lock:
            await self.store.erase(self.id)
            self._keeper.engine = None


def _within(engine: Engine, name: str | int) -> int:
    """The seq of an event that is there."""
    seq = parse_handle(name)
    if seq is None or seq >= engine.next_seq:
        raise UnknownHandle(f"there is no event {name}; the log has 0 to {engine.next_seq - 1}")
    return seq
