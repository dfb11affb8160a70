"""The job worker: queues due schedules and hands jobs to the job engine.

1. Of all processes that share a folder, one is the active worker. When it dies, another takes over within seconds.
2. Every request is first a job in `service.db`, so nothing is lost between request and execution, and a process
   that is not the active worker only needs to write the job.
3. Errors never end the server: they are logged, and the worker tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, Self

from foveal.core.redaction.redact import scrub
from foveal.errors import BadSetting
from foveal.server.jobs.dbos_engine import DbosEngine, EngineJob
from foveal.server.jobs.job_runner import JobRunner
from foveal.server.jobs.queue import Job, JobQueue, new_job
from foveal.server.jobs.retries import RETRY_DELAYS_S
from foveal.server.jobs.schedule import Schedule, schedule_from_config
from foveal.server.jobs.schedule_store import ScheduleStore
from foveal.server.service import Service
from foveal.server.tenants import check_session_id
from foveal.stores.session_locks import SessionLock

_log = logging.getLogger("foveal.work")


class WorkerTiming(NamedTuple):
    """Intervals of a worker in seconds."""

    poll_s: float = 1.0
    """Between two checks for jobs of other processes, and for the active worker's lock."""
    engine_poll_s: float = 0.5
    """Between two polls of the engine's queue."""
    retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S
    """Before each retry; the number of attempts is one more than the number of delays."""
    ended_job_ttl_s: float = 6 * 3_600
    """For which the engine keeps ended jobs."""
    cleanup_interval_s: float = 600
    """Between two clean-ups of ended jobs."""


DEFAULT_TIMING: Final = WorkerTiming()


class JobWorker:
    """Background work of a service: prompts, summaries, schedules."""

    def __init__(self, service: Service, *, timing: WorkerTiming) -> None:
        self.queue = JobQueue(service.runtime.database)
        self.schedules = ScheduleStore(service.runtime.database)
        self._service = service
        self._timing = timing
        self._clock = service.runtime.clock
        self._runner = JobRunner(
            service, self.queue, self.schedules, max_attempts=len(timing.retry_delays_s) + 1
        )
        self._engine: DbosEngine | None = None
        self._lock: SessionLock | None = None
        self._cleaned_up_at = 0.0
        self._woken = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, service: Service, *, timing: WorkerTiming = DEFAULT_TIMING) -> AsyncIterator[Self]:
        """Open the worker before any session: from then on sessions delegate their summaries to it."""
        worker = cls(service, timing=timing)
        runtime = service.runtime
        await worker.schedules.set_configured(_configured_schedules(service), now=runtime.clock())
        previous = runtime.request_summary
        runtime.delegate_summaries(worker.request_summary)
        runtime.add_delete_hook(worker.delete_session)
        task: asyncio.Task[None] | None = None
        try:
            await worker.poll()
            task = asyncio.create_task(worker._poll_forever())
            yield worker
        finally:
            runtime.delegate_summaries(previous)
            runtime.remove_delete_hook(worker.delete_session)
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await worker._deactivate()

    @property
    def is_active(self) -> bool:
        """Whether this process is the active worker of its folder."""
        return self._engine is not None

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────

    async def request_summary(self, tenant: str, session: str, seq: int) -> None:
        """Queue the summary that a session will need soon, as of its event `seq`. Does nothing while such a job is
        open: the session asks again after its next turn."""
        await self._add(new_job(tenant, session, key="prepare", kind="prepare", now=self._clock()))

    async def run(self, tenant: str, session: str, prompt: str, *, key: str) -> None:
        """Queue a prompt for a session, which is created on first use; durable when this returns."""
        runtime = self._service.runtime
        prompt, key = prompt if runtime.redact is None else scrub(prompt), runtime.storable_key(key)
        await self._add(
            new_job(tenant, check_session_id(session), key=key, kind="run", prompt=prompt, now=self._clock())
        )

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the jobs and schedules of a session."""
        await self.queue.delete_session(tenant, session)
        await self.schedules.delete_session(tenant, session)

    def wake(self) -> None:
        """Poll now instead of at the next interval."""
        self._woken.set()

    async def _add(self, job: Job) -> None:
        await self.queue.add(job)
        self.wake()

    # ── The active worker ────────────────────────────────────────────────────────────────────────────────

    async def poll(self) -> None:
        """Become the active worker if there is none; as the active worker, queue due schedules and start jobs."""
        if self._engine is None:
            await self._activate()
        if self._engine is None:
            return
        now = self._clock()
        await self.schedules.queue_due_runs(now=now)
        if untaken := await self.queue.untaken():
            await self._engine.add([_engine_job(job) for job in untaken])
            await self.queue.mark_taken(job.id for job in untaken)
        if abs(now - self._cleaned_up_at) >= self._timing.cleanup_interval_s:
            self._cleaned_up_at = now
            for id in await self._engine.clean_up(before=now - self._timing.ended_job_ttl_s):
                await self._runner.give_up(id)

    async def _activate(self) -> None:
        if DbosEngine.is_running():
            return  # another service of this process is the active worker
        lock = await self._service.runtime.locks.try_lock("", "work")
        if lock is None:
            return
        engine = DbosEngine(
            self._runner.attempt,
            retry_delays_s=self._timing.retry_delays_s,
            poll_s=self._timing.engine_poll_s,
        )
        try:
            await self.queue.clear_taken()
            await engine.start(self._service.runtime.data_folder.jobs_file)
        except BaseException:
            lock.release()
            raise
        self._engine, self._lock = engine, lock

    async def _deactivate(self) -> None:
        engine, lock = self._engine, self._lock
        self._engine = self._lock = None
        if engine is not None:
            await engine.stop()
        if lock is not None:
            lock.release()

    async def _poll_forever(self) -> None:
        last_error = ""
        while True:
            await self._wait()
            try:
                await self.poll()
                last_error = ""
            except Exception as problem:  # noqa: BLE001 (a full disk now must not stop the work for good)
                if str(problem) != last_error:
                    _log.error("background work is paused: %s", problem)
                last_error = str(problem)
                await asyncio.sleep(self._timing.poll_s)

    async def _wait(self) -> None:
        """Wait until a schedule is due, `wake` is called, or the poll interval has passed."""
        delay = self._timing.poll_s
        if self._engine is not None:
            with suppress(Exception):  # the poll that follows fails the same way and logs it
                if (due := await self.schedules.next_due()) is not None:
                    delay = min(delay, max(0.0, due - self._clock()))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), delay)
        self._woken.clear()


def _engine_job(job: Job) -> EngineJob:
    """Each tenant has two partitions of the queue, one for prompts and one for summaries."""
    return EngineJob(f"{job.tenant}/{job.kind}", job.id)


def _configured_schedules(service: Service) -> list[Schedule]:
    found = []
    for table in service.runtime.config.schedules:
        try:
            service.tenant(table.tenant)
            check_session_id(table.session)
            found.append(schedule_from_config(table))
        except BadSetting as problem:
            where = f"schedule {table.name!r}: {problem.field}"
            raise BadSetting(where, problem.value, problem.allowed) from None
    return found
