"""The worker's office: who has it notices what is due and hands out errands; all others only write them down.

1. Of all processes that share a folder one has the office. When it dies another has it within seconds.
2. Whatever is asked for is first an errand in `service.db`. So nothing is lost between asking and doing, and a
   process without the office needs no more than that.
3. Nothing that goes wrong in here ends the server: it is logged and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, Self

from foveal.core.redaction.redact import scrub
from foveal.errors import BadSetting
from foveal.server.jobs import schedule
from foveal.server.jobs.dbos_engine import DbosEngine, QueuedJob
from foveal.server.jobs.job_runner import JobRunner
from foveal.server.jobs.queue import Job as Errand
from foveal.server.jobs.queue import JobQueue, new_job
from foveal.server.jobs.schedule_store import ScheduleStore
from foveal.server.locks import SessionLock
from foveal.server.service import Service
from foveal.server.tenants import checked_id

_log = logging.getLogger("foveal.work")


class WorkerPace(NamedTuple):
    """How fast things go, in seconds."""

    look: float = 1.0
    """Between two looks at the errands of other processes, and at the office's door."""
    poll: float = 0.5
    """Between two looks for jobs."""
    pauses: tuple[float, ...] = (60, 300, 900, 3_600, 3_600, 3_600, 3_600, 3_600)
    """Before each further attempt; there is one attempt more than pauses."""
    kept: float = 6 * 3_600
    """For which jobs that have ended are remembered."""
    sweep: float = 600
    """Between two sweeps."""


PACE: Final = WorkerPace()


class JobWorker:
    """Background work of a service: runs, summaries, schedules."""

    def __init__(self, service: Service, *, pace: WorkerPace) -> None:
        self.errands = JobQueue(service.ground.database)
        self.timetable = ScheduleStore(service.ground.database)
        self._service = service
        self._pace = pace
        self._clock = service.ground.clock
        self._doing = JobRunner(service, self.errands, self.timetable, tries=len(pace.pauses) + 1)
        self._engine: DbosEngine | None = None
        self._hold: SessionLock | None = None
        self._swept = 0.0
        self._news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, service: Service, *, pace: WorkerPace = PACE) -> AsyncIterator[Self]:
        """Open it before any room: sessions leave their summaries to it."""
        work = cls(service, pace=pace)
        ground = service.ground
        await work.timetable.configure(_configured(service), now=ground.clock())
        ground.later, later = work.compact, ground.later
        ground.forgetting.append(work.forget)
        task: asyncio.Task[None] | None = None
        try:
            await work.step()
            task = asyncio.create_task(work._keep_on())
            yield work
        finally:
            ground.later = later
            ground.forgetting.remove(work.forget)
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await work._leave()

    @property
    def at_work(self) -> bool:
        """This process has the office."""
        return self._engine is not None

    # ── what can be asked for ────────────────────────────────────────────────────────────────────────────

    async def compact(self, tenant: str, session: str, seq: int) -> None:
        """Write the summary that a session will need soon, as of its event `seq`. While one is open, nobody needs
        another: what is missing then is asked for after the next turn."""
        await self._add(new_job(tenant, session, key="prepare", kind="prepare", now=self._clock()))

    async def run(self, tenant: str, session: str, prompt: str, *, key: str) -> None:
        """Have a prompt answered in a session, which is made if it is not there; durable when it returns."""
        ground = self._service.ground
        prompt, key = prompt if ground.redact is None else scrub(prompt), ground.harmless(key)
        await self._add(
            new_job(tenant, checked_id(session), key=key, kind="run", prompt=prompt, now=self._clock())
        )

    async def forget(self, tenant: str, session: str) -> None:
        """A session is deleted, and with it what was to be done there."""
        await self.errands.forget(tenant, session)
        await self.timetable.forget(tenant, session)

    def nudge(self) -> None:
        """There is something new to look at."""
        self._news.set()

    async def _add(self, wanted: Errand) -> None:
        await self.errands.add(wanted)
        self.nudge()

    # ── the office ───────────────────────────────────────────────────────────────────────────────────────

    async def step(self) -> None:
        """Look once: at the door, the timetable and the errands."""
        if self._engine is None:
            await self._enter()
        if self._engine is None:
            return
        now = self._clock()
        await self.timetable.run_due(now=now)
        if waiting := await self.errands.waiting():
            await self._engine.add([_job(wanted) for wanted in waiting])
            await self.errands.take(wanted.id for wanted in waiting)
        if abs(now - self._swept) >= self._pace.sweep:
            self._swept = now
            for id in await self._engine.sweep(before=now - self._pace.kept):
                await self._doing.abandon(id)

    async def _enter(self) -> None:
        if DbosEngine.taken():
            return  # another service of this process has it
        hold = await self._service.ground.turnstile.try_hold("", "work")
        if hold is None:
            return
        engine = DbosEngine(self._doing.attempt, pauses=self._pace.pauses, poll=self._pace.poll)
        try:
            await self.errands.take_back()
            await engine.start(self._service.ground.places.work)
        except BaseException:
            hold.release()
            raise
        self._engine, self._hold = engine, hold

    async def _leave(self) -> None:
        engine, hold = self._engine, self._hold
        self._engine = self._hold = None
        if engine is not None:
            await engine.stop()
        if hold is not None:
            hold.release()

    async def _keep_on(self) -> None:
        before = ""
        while True:
            await self._wait()
            try:
                await self.step()
                before = ""
            except Exception as problem:  # noqa: BLE001 (a full disk today must not stop the work of tomorrow)
                if str(problem) != before:
                    _log.error("background work stands still: %s", problem)
                before = str(problem)
                await asyncio.sleep(self._pace.look)

    async def _wait(self) -> None:
        """Until something is due, somebody nudges, or it is time to look."""
        pause = self._pace.look
        if self._engine is not None:
            with suppress(Exception):  # a failure comes again, and is logged, in the step that follows
                if (due := await self.timetable.following()) is not None:
                    pause = min(pause, max(0.0, due - self._clock()))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), pause)
        self._news.clear()


def _job(wanted: Errand) -> QueuedJob:
    """Each tenant has lanes of its own, one for runs and one for summaries."""
    return QueuedJob(f"{wanted.tenant}/{wanted.kind}", wanted.id)


def _configured(service: Service) -> list[schedule.Schedule]:
    found = []
    for table in service.ground.config.schedules:
        try:
            service.tenant(table.tenant)
            checked_id(table.session)
            found.append(schedule.configured(table))
        except BadSetting as problem:
            where = f"schedule {table.name!r}: {problem.field}"
            raise BadSetting(where, problem.value, problem.allowed) from None
    return found
