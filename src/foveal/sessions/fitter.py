"""Making the next request of a stored session fit, with summaries that may have to be waited for.

Who calls this holds the session's lock, except while waiting: what arrives meanwhile is stored, and the request is
made of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from foveal.core.compaction.plan import NoPlan, Plan
from foveal.core.compaction.writing import CompactionOutcome, ledger_summary
from foveal.core.engine.engine import Engine
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.engine.summary_job import SummaryJob
from foveal.core.log.events import AnyFact, Compacted, CompactionFailed, Event
from foveal.core.policies import ladder
from foveal.core.view.fold import effective
from foveal.core.view.request import Fitted
from foveal.errors import ContextOverflow, NotCompacted
from foveal.sessions.background_compaction import BackgroundCompaction
from foveal.sessions.event_writer import TRIES, EventWriter


class RequestFitter:
    """The requests of one session."""

    def __init__(
        self,
        keeper: EventWriter,
        coordinator: BackgroundCompaction,
        clock: Callable[[], float],
        *,
        foresee: Callable[[], bool],
    ) -> None:
        """`foresee`: whether to begin a summary that will be needed soon; or somebody else asks for `foreseen`."""
        self.calls = SentRequests()
        self._foresees = foresee
        self._keeper = keeper
        self._coordinator = coordinator
        self._clock = clock
        self._before: tuple[AnyFact, ...] = ()

    async def fit(self, *, ask: bool) -> Fitted | None:
        """What to send; None when a summary must be waited for. A model is only asked if `ask`."""
        engine = await self._keeper.caught_up()
        now = self._clock()
        for _ in range(TRIES):
            first = engine.next_seq
            try:
                ready = await self._settled(engine, now, ask=ask)
            except ContextOverflow:
                await self._keep_paid(engine, first)
                raise
            if await self._keeper.stored(engine, first):
                break
            self._coordinator.give_back()
            engine = await self._keeper.ready()
        else:
            raise self._keeper.outrun()
        if not ready:
            return None
        fitted = self._sent(engine, now)
        if self._foresees() and (plan := self.foreseen(engine)) is not None:
            self._coordinator.begin(await self.job(engine, plan))
        return fitted

    async def record(self) -> Event | None:
        """Record what was written in the background, if it is done and nobody else has."""
        for _ in range(TRIES):
            engine = await self._keeper.caught_up()
            outcome = self._coordinator.take(engine.view)
            if outcome is None:
                return None
            event = engine.append(outcome, at=self._clock())
            if await self._keeper.stored(engine, event.seq):
                return event
            self._coordinator.give_back()  # to be compared again with what somebody else appended
        raise self._keeper.outrun()

    async def job(self, engine: Engine, plan: Plan) -> SummaryJob:
        """A summary to be written, with all that it needs from the store."""
        return SummaryJob.of(engine, plan, await self._source(plan))

    async def _settled(self, engine: Engine, now: float, *, ask: bool) -> bool:
        """Reduce until the request fits; False when a summary is being written that must be waited for."""
        work = engine.settling(self.calls.moment(engine, now), at=now)
        answer: CompactionOutcome | None = None
        try:
            while True:
                plan = work.send(answer)
                answer = self._written(engine)
                if answer is None and ask and plan.ask and self._coordinator.asks(engine.record):
                    if self._coordinator.idle:
                        self._coordinator.begin(await self.job(engine, plan))
                    if engine.view.units > engine.budget().hard:
                        return False
                elif answer is None:
                    answer = await self._unasked(engine, plan)
        except StopIteration:
            return True

    def _written(self, engine: Engine) -> Compacted | None:
        """The summary that was written in the background, if it can be used; that it cannot is recorded."""
        outcome = self._coordinator.take(engine.view)
        if isinstance(outcome, CompactionFailed):
            engine.append(outcome, at=self._clock())
            return None
        return outcome

    async def _unasked(self, engine: Engine, plan: Plan) -> CompactionOutcome:
        return ledger_summary(
            plan,
            await self._source(plan),
            counter=engine.view.meter.counter,
            ratio=engine.calibration.ratio,
            elsewhere=engine.elsewhere(plan),
        )

    async def _source(self, plan: Plan) -> list[Event]:
        """The events of a range that count, whatever is shown of them; with those of the last summary before it,
        some of which may be read again."""
        first = min([plan.first, *(low for low, _ in plan.before_it)])
        return effective(await self._keeper.store.read(self._keeper.id, first=first))

    def foreseen(self, engine: Engine) -> Plan | None:
        """The summary that will be needed soon: written now, nobody has to wait for it then."""
        if not self._coordinator.idle or not self._coordinator.asks(engine.record) or engine.record.paused:
            return None
        reason = ladder.foreseen(engine.view, engine.budget(), engine.policy)
        plan = engine.plan(reason=reason) if reason else None
        return plan if isinstance(plan, Plan) and not ladder.taken_back(engine.view, plan) else None

    async def _keep_paid(self, engine: Engine, first: int) -> None:
        """Nothing will be sent, so nothing that was cut for it is stored, except what a model was paid for."""
        paid = engine.paid(first)
        self._keeper.engine = None
        if paid:
            await self._keeper.commit(paid)

    def _sent(self, engine: Engine, now: float) -> Fitted:
        fitted = Fitted.of(
            engine.view,
            tokens=engine.calibration.tokens(engine.total_units),
            limit=engine.available(engine.budget()),
            whole=engine.calibration.tokens(engine.unreduced + engine.fixed_units),
        )
        self.calls.made(engine, now, fitted.moved(engine.view, self._before))
        self._before = fitted.facts
        return fitted


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────
# Summaries that somebody asks for: at once, or because one will be needed soon.


class ManualCompaction:
    """Beside the requests of one session, under its lock except while a model writes."""

    def __init__(
        self,
        keeper: EventWriter,
        fitting: RequestFitter,
        coordinator: BackgroundCompaction,
        lock: asyncio.Lock,
    ) -> None:
        self._keeper = keeper
        self._fitting = fitting
        self._coordinator = coordinator
        self._lock = lock

    async def compact(self, focus: str) -> Event:
        """Summarise old turns now; raises `NotCompacted`."""
        done = await self._between()
        while not self._coordinator.idle:
            done = await self._between() or done
        async with self._lock:
            engine = await self._keeper.caught_up()
            plan = engine.plan(reason="hand", focus=focus)
            if isinstance(plan, NoPlan):
                if done is not None and isinstance(done.fact, Compacted):
                    return done  # what was being written anyway is what was asked for
                ratio = engine.calibration.ratio
                raise NotCompacted(plan.told(ratio), floor=round(plan.floor * ratio))
            begun = await self._begin(plan)
        event = await self._outcome(plan, begun)
        if isinstance(event.fact, CompactionFailed):
            raise NotCompacted(event.fact.problem)
        return event

    async def prepare(self) -> Event | None:
        """Write the summary that will be needed soon; None when none will be, or one is being written."""
        async with self._lock:
            plan = self._fitting.foreseen(await self._keeper.caught_up())
            if plan is None:
                return None
            begun = await self._begin(plan)
        return await self._outcome(plan, begun)

    async def _begin(self, plan: Plan) -> int:
        """Have it written; the seq from which on its outcome will be found. The lock is held."""
        engine = await self._keeper.ready()
        self._coordinator.begin(await self._fitting.job(engine, plan))
        return engine.next_seq

    async def _outcome(self, plan: Plan, begun: int) -> Event:
        try:
            event = await self._between()
        except asyncio.CancelledError:
            await self._coordinator.close()
            raise
        if event is None:  # a request that was fitted meanwhile has recorded it
            made = await self._keeper.store.read(self._keeper.id, first=begun)
            event = next(e for e in made if _outcome_of(plan, e.fact))
        return event

    async def _between(self) -> Event | None:
        """Wait for what is being written, and record what came of it."""
        await self._coordinator.wait()
        async with self._lock:
            return await self._fitting.record()


def _outcome_of(plan: Plan, fact: AnyFact) -> bool:
    if not isinstance(fact, Compacted | CompactionFailed):
        return False
    return (fact.first, fact.last, fact.reason) == (plan.first, plan.last, plan.reason)
