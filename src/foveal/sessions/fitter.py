"""Fits the next request of a stored session, with summaries from the background.

The caller holds the session's lock, except while it waits for a summary: what arrives meanwhile is stored and
becomes part of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.health import CompactionOutcome, is_by_model
from foveal.core.compaction.plan import NoPlan, Plan, has_requested_drops
from foveal.core.engine.beside_range import summaries_in
from foveal.core.engine.engine import Engine
from foveal.core.engine.operations import (
    check_agreement,
    compaction_handle,
    newest_reduction,
    plan_manual_compaction,
)
from foveal.core.engine.reviews import ProposedCut, Wish
from foveal.core.engine.sent_requests import SentRequests
from foveal.core.engine.summary_job import SummaryJob, failed_compaction
from foveal.core.log.events import AnyFact, Compacted, CompactionFailed, Event
from foveal.core.models.budget import Budget
from foveal.core.policies import Moment, foresee
from foveal.core.view.request import Fitted
from foveal.errors import ContextOverflow, FovealError, NotCompacted, StoreError
from foveal.sessions.background_compaction import BackgroundCompaction
from foveal.sessions.event_writer import MAX_CONFLICTS, EventWriter
from foveal.sessions.log_reader import MAX_SLICE_EVENTS, effective_slices, read_slices
from foveal.sessions.offload import offload


class RequestFitter:
    """Reduces the view of one session until its next request fits, and records the reductions."""

    def __init__(
        self,
        writer: EventWriter,
        background: BackgroundCompaction,
        clock: Callable[[], float],
        *,
        prepares_summaries: Callable[[], bool],
        review: Callable[[ProposedCut, int], Awaitable[Wish]] | None = None,
    ) -> None:
        self.requests: SentRequests = SentRequests()
        self._writer = writer
        self._background = background
        self._clock = clock
        self._prepares_summaries = prepares_summaries
        self._review = review
        self._fitted: tuple[Engine, int] | None = None
        """The engine of the last request, and its next seq then."""

    async def fit(self, *, may_start_summary: bool, may_exceed: bool = False) -> Fitted | None:
        """Return the next request, or None if the caller must wait for a summary first. Raises `ContextOverflow`
        if it does not fit; with `may_exceed`, return the smallest request instead. Raises `BudgetExceeded`."""
        engine = await self._reduced(may_start_summary=may_start_summary, may_exceed=may_exceed)
        if engine is None:
            return None
        engine.check_spending(at=self._clock())
        fitted = await offload(partial(self._make_request, engine), events=self._unfitted(engine))
        self._fitted = (engine, engine.next_seq)
        if self._prepares_summaries():
            await self._start_upcoming_summary(engine)
        return fitted

    async def agree(self, *, may_start_summary: bool) -> str | None:
        """Reduce as the user has agreed to, and return the handle of the newest reduction, or None if the caller
        must wait for a summary first. Raises `NotCompacted` when there was no question or nothing to reduce."""
        engine = await self._writer.refresh()
        check_agreement(engine)
        first = engine.next_seq
        if await self._reduced(may_start_summary=may_start_summary, agreed=True) is None:
            return None
        return newest_reduction(await self._writer.store.read(self._writer.id, first=first))

    async def _reduced(
        self, *, may_start_summary: bool, may_exceed: bool = False, agreed: bool = False
    ) -> Engine | None:
        """Reduce and store what was reduced; return None if the caller must wait for a summary first."""
        engine = await self._writer.refresh_kept()
        now = self._clock()
        engine.check_spending(at=now, sends=False)  # a summary has its price too
        for _ in range(MAX_CONFLICTS):
            first = engine.next_seq
            try:
                moment = replace(self.requests.moment(engine), agreed=agreed, may_exceed=may_exceed)
                fits = await self._reduce(engine, moment, now, may_start_summary=may_start_summary)
            except ContextOverflow:
                if not may_exceed:
                    await self._store_paid(engine, first)
                    raise
                fits = True
            except BaseException:  # also a cancellation: the engine is ahead of the store
                self._writer.discard_engine()
                raise
            if await self._writer.store_appended(engine, first):
                return engine if fits else None
            self._background.give_back()
            engine = await self._writer.load()
        raise self._writer.conflict_error()

    async def turn_finished(self) -> None:
        """Start the summary that a finished turn makes due, so that it is ready for the user's next message."""
        with suppress(StoreError):  # the answer is stored; the next `fit` starts the summary
            engine = await self._writer.load()
            if engine.policy.every_turns and self._prepares_summaries():
                await self._start_upcoming_summary(engine)

    async def _start_upcoming_summary(self, engine: Engine) -> None:
        plan = self.upcoming_summary(engine)
        if plan is not None:
            self._background.start(await self.job(engine, plan))

    async def record_summary(
        self, *, only_outdated: bool = False, discard: Callable[[Engine, Compacted], str] | None = None
    ) -> Event | None:
        """Record the outcome of the background summary, if there is one that is not recorded yet; with
        `only_outdated`, only that its range has changed. A summary for which `discard` returns a reason is recorded
        as failed for that reason, with its cost."""
        for _ in range(MAX_CONFLICTS):
            engine = await self._writer.refresh()
            take = self._background.take_outdated if only_outdated else self._background.take
            outcome = take(engine.view)
            if outcome is None:
                return None
            if discard is not None and isinstance(outcome, Compacted) and (why := discard(engine, outcome)):
                outcome = failed_compaction(outcome, why, outcome)
            event = engine.append(outcome, at=self._clock())
            if await self._writer.store_appended(engine, event.seq):
                return event
            self._background.give_back()
        raise self._writer.conflict_error()

    async def job(self, engine: Engine, plan: Plan) -> SummaryJob:
        """Return the job for a summary, with the events that it needs from the store: those of the range, at any
        level, and those of the last summary before it, some of which may be read again."""
        first = min([plan.first, *(low for low, _ in plan.overlap_ranges)])
        events = [event async for part in self._slices(first, engine) for event in part]
        return await offload(partial(SummaryJob.of, engine, plan, events), events=len(events))

    def upcoming_summary(self, engine: Engine) -> Plan | None:
        """Return the plan of a summary that will be needed soon: written now, no request has to wait for it."""
        health = engine.compaction_health
        if not self._background.is_idle or not self._background.may_ask_model(health) or health.is_paused:
            return None
        plan = foresee(engine.view, engine.budget(), self.requests.moment(engine), engine.policy)
        return None if plan is None else replace(plan, focus=health.focus)

    async def _reduce(self, engine: Engine, moment: Moment, now: float, *, may_start_summary: bool) -> bool:
        """Reduce until the request fits, or as far as the user has agreed to; return False if a summary is being
        written that it must wait for."""
        outdated = self._background.take_outdated(engine.view)
        if outdated is not None:
            engine.append(outdated, at=now)
        steps = engine.reduction_steps(moment, at=now, is_reviewed=self._review is not None)
        outcome: CompactionOutcome | Wish | None = None
        wished: Wish | None = None
        while True:
            work = partial(_next_plan, steps, outcome)
            plan = await offload(work, events=self._unfitted(engine))
            if plan is None:
                return True
            if not isinstance(plan, Plan):
                assert self._review is not None
                outcome = wished = await self._review(plan, engine.next_seq)
                continue
            outcome = self._take_summary(engine, plan, wished)
            may_ask = may_start_summary and plan.ask
            if outcome is None and may_ask and self._background.may_ask_model(engine.compaction_health):
                is_forced = moment.agreed or engine.view.units > engine.budget().hard
                if self._background.is_idle and (is_forced or self._prepares_summaries()):
                    self._background.start(await self.job(engine, plan))
                if is_forced:
                    return False
            elif outcome is None:
                outcome = await self.write_ledger(engine, plan)

    def _unfitted(self, engine: Engine) -> int:
        """Return how many events were not part of the last request of this engine."""
        first = self._fitted[1] if self._fitted is not None and self._fitted[0] is engine else 0
        return min(engine.next_seq - first, len(engine.log))

    def _take_summary(self, engine: Engine, plan: Plan, wished: Wish | None) -> Compacted | None:
        """Return the finished background summary if it can be used; if it cannot, record that."""
        outcome = self._background.take(engine.view)
        if isinstance(outcome, Compacted):
            keep = () if wished is None else wished.keep
            hides = any(outcome.first <= seq <= outcome.last and seq not in outcome.keep for seq in keep)
            if hides or plan.focus != self._background.taken_focus:
                outcome = failed_compaction(outcome, REPLACED, outcome)
        if isinstance(outcome, CompactionFailed):
            engine.append(outcome, at=self._clock())
            return None
        return outcome

    async def write_ledger(self, engine: Engine, plan: Plan) -> CompactionOutcome:
        """Return the summary of a range without a model. What an earlier ledger of the range has read is not read
        again, so that the work is proportional to what is new in it."""
        index = engine.ledger_index
        reuses_parts = any(fact.chunks for fact in summaries_in(engine.view, engine.log, plan))
        if plan.overlap_ranges or reuses_parts:  # other events than those of the ledger are read too
            source = (await self.job(engine, plan)).source
            events = [*source.events, *source.after]
            return await offload(partial(engine.write_ledger, plan, events), events=len(events))
        inside = index.known_events(plan.first, plan.last, keep=frozenset(plan.keep))
        new, after = 0, list[Event]()
        async for part in self._slices(inside[-1].seq + 1 if inside else plan.first, engine):
            read = [event for event in part if event.seq <= plan.last]
            after += part[len(read) :]
            new += len(part)
            if read:
                start = inside[0].seq if inside else read[0].seq
                inside = await offload(partial(index.extend_range, start, read), events=len(read))
        events = [*inside, *after]
        if has_requested_drops(events):
            # Those of the index without the dropped ones would have to be read again.
            source = (await self.job(engine, plan)).source
            events = [*source.events, *source.after]
            new = len(events)
        return await offload(partial(engine.write_ledger, plan, events), events=new)

    async def _slices(self, first: int, engine: Engine) -> AsyncIterator[Sequence[Event]]:
        """Yield the effective events from `first` on, in parts, without what the engine has not stored yet."""
        store, id, end = self._writer.store, self._writer.id, engine.next_seq
        held = {event.seq: event for event in engine.events_from(first)} if engine.all_effective else {}
        if 2 * len(held) > end - first:  # a log without reductions: only what the view does not show is read
            end = min(end, (await store.end(id)).next_seq)
            for start in range(first, end, MAX_SLICE_EVENTS):
                seqs = range(start, min(start + MAX_SLICE_EVENTS, end))
                missing = [seq for seq in seqs if seq not in held]
                read = {event.seq: event for event in await store.pick(id, missing)} if missing else {}
                yield [found for seq in seqs if (found := held.get(seq) or read.get(seq)) is not None]
            return
        slices = read_slices if engine.all_effective else effective_slices
        async for part in slices(store, id, first=first, end=end):
            yield part

    async def _store_paid(self, engine: Engine, first: int) -> None:
        """Store only the reductions up to the last summary that a model was paid for: no request will be sent."""
        paid = engine.paid_facts(first)
        self._writer.discard_engine()
        if paid:
            await self._writer.commit(paid)

    def _make_request(self, engine: Engine) -> Fitted:
        fitted = Fitted.of(
            engine.view,
            tokens=engine.calibration.tokens(engine.total_units),
            limit=engine.available_tokens(engine.budget()),
            whole=engine.calibration.tokens(engine.unreduced_units + engine.fixed_units),
        )
        facts = iter(fitted.facts)
        by_step = [tuple(islice(facts, 1 + len(step.all_slots))) for step in engine.view.steps]
        self.requests.add(engine, by_step)
        return fitted


def _next_plan(
    steps: Generator[Plan | ProposedCut, CompactionOutcome | Wish | None, Budget],
    outcome: CompactionOutcome | Wish | None,
) -> Plan | ProposedCut | None:
    """Return the next plan of a generator, None at its end: a thread cannot raise `StopIteration`."""
    try:
        return steps.send(outcome)
    except StopIteration:
        return None


# ── Compaction on request ────────────────────────────────────────────────────────────────────────────────

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
