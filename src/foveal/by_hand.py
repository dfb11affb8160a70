"""Summaries that somebody asks for: at once, or because one will be needed soon."""

from __future__ import annotations

import asyncio

from foveal.compaction.plan import Plan, Refused
from foveal.coordinator import Coordinator
from foveal.errors import NotCompacted
from foveal.events import AnyFact, Compacted, CompactionFailed, Event
from foveal.fitting import Fitting
from foveal.keeper import Keeper


class ByHand:
    """Beside the requests of one session, under its lock except while a model writes."""

    def __init__(
        self, keeper: Keeper, fitting: Fitting, coordinator: Coordinator, lock: asyncio.Lock
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
            if isinstance(plan, Refused):
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
