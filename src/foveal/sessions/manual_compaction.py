"""Compaction on request: the user's `compact` and `agree`, and `prepare` for a summary needed soon."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from foveal.core.compaction.health import is_by_model
from foveal.core.compaction.plan import NoPlan, Plan
from foveal.core.engine.engine import Engine
from foveal.core.engine.operations import (
    compaction_handle,
    newest_reduction,
    plan_manual_compaction,
)
from foveal.core.log.events import AnyFact, Compacted, CompactionFailed, Event
from foveal.errors import FovealError, NotCompacted
from foveal.sessions.background_compaction import BackgroundCompaction
from foveal.sessions.event_writer import EventWriter
from foveal.sessions.fitter import RequestFitter

REPLACED: Final = "another summary was asked for before it was used"
"""The problem that is recorded for a summary from the background that `compact` does not use. The text enters the
log and must not change."""


class ManualCompaction:
    """Compacts one session. It holds the session's lock except while a model writes."""

    def __init__(
        self,
        writer: EventWriter,
        fitter: RequestFitter,
        background: BackgroundCompaction,
        lock: asyncio.Lock,
    ) -> None:
        self._writer = writer
        self._fitter = fitter
        self._background = background
        self._lock = lock

    async def compact(self, focus: str) -> str:
        """Summarise old turns now and return the handle of the recorded event; raises `NotCompacted`.

        A summary that the background has written already is the one asked for, or it is not used: the user gets
        one reduction, and one undo takes it back."""
        finished = await self._wait_and_record(focus)
        while not self._background.is_idle:
            finished = await self._wait_and_record(focus) or finished
        if finished is not None and _is_prepared(finished.fact):
            return finished.handle
        async with self._lock:
            engine = await self._writer.refresh()
            try:
                plan = plan_manual_compaction(engine, focus)
            except NotCompacted:
                if finished is not None and isinstance(finished.fact, Compacted):
                    return finished.handle  # of another `compact`, which has left nothing to summarise
                raise
            first = await self._start(plan)
        return compaction_handle(await self._outcome(plan, first))

    async def agree(self) -> str:
        """Reduce as mode `auto` would now, and return the handle of the newest reduction; raises `NotCompacted`."""
        has_waited, first = False, (await self._writer.load()).next_seq
        while True:
            async with self._lock:
                try:
                    handle = await self._fitter.agree(may_start_summary=not has_waited)
                except NotCompacted:
                    if not has_waited:
                        raise
                    # What was reduced before the wait is enough: there is no question any more.
                    handle = newest_reduction(await self._writer.store.read(self._writer.id, first=first))
            if handle is not None:
                return handle
            has_waited = True
            try:
                await self._background.wait()
            except asyncio.CancelledError:
                await self._background.close()
                raise

    async def prepare(self) -> Event | None:
        """Write the summary that will be needed soon; None when there is none, or one is being written."""
        async with self._lock:
            plan = self._fitter.upcoming_summary(await self._writer.refresh())
            if plan is None:
                return None
            first = await self._start(plan)
        return await self._outcome(plan, first)

    async def record_outdated(self) -> None:
        """Wait for a summary whose range has changed, and record that it is discarded."""
        await self._background.wait()
        with suppress(FovealError):  # the store is closed: there is no log to record it in
            async with self._lock:
                await self._fitter.record_summary(only_outdated=True)

    async def _start(self, plan: Plan) -> int:
        """Start a summary and return the seq from which on its outcome will be found. The lock is held."""
        engine = await self._writer.load()
        self._background.start(await self._fitter.job(engine, plan))
        return engine.next_seq

    async def _outcome(self, plan: Plan, first: int) -> Event:
        try:
            event = await self._wait_and_record()
        except asyncio.CancelledError:
            await self._background.close()
            raise
        if event is None:  # a request that was fitted meanwhile has recorded it
            newer = await self._writer.store.read(self._writer.id, first=first)
            event = next((event for event in newer if _is_outcome(plan, event.fact)), None)
        if event is None:
            raise NotCompacted("the session was closed or deleted while the summary was written")
        return event

    async def _wait_and_record(self, focus: str | None = None) -> Event | None:
        """Wait for the background summary, if any, and record its outcome; with the `focus` of a `compact`, record
        a summary that does not serve it as discarded."""
        await self._background.wait()
        discard = None if focus is None else partial(_why_discarded, focus=focus)
        async with self._lock:
            return await self._fitter.record_summary(discard=discard)


def _is_prepared(fact: AnyFact) -> bool:
    """Return whether a fact is a summary that the background has begun by itself."""
    return isinstance(fact, Compacted) and fact.reason != "hand"


def _why_discarded(engine: Engine, made: Compacted, *, focus: str) -> str:
    """Return why `compact` does not use a summary from the background; "" if it does."""
    if not _is_prepared(made) or (not focus and is_by_model(made)):
        return ""
    has_other = not isinstance(engine.plan_summary(reason="hand", focus=focus), NoPlan)
    return REPLACED if has_other else ""


def _is_outcome(plan: Plan, fact: AnyFact) -> bool:
    if not isinstance(fact, Compacted | CompactionFailed):
        return False
    return (fact.first, fact.last, fact.reason) == (plan.first, plan.last, plan.reason)
