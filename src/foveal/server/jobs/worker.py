"""The job worker: queues due schedules and hands jobs to the job engine.

1. Of all processes that share a folder, one is the executor. When it dies, another takes over within seconds. On
   PostgreSQL every process is an executor, and the others run the jobs of one that dies.
2. Every request is first a job in the service's database, so nothing is lost between request and execution, and a
   process that is no executor only needs to write the job.
3. Several executors may hand over the same job or queue the same due time: the engine and the schedule store accept
   the first and ignore the others.
4. The engine is loaded with the first open job.
5. Errors never end the server: they are logged, and the worker tries again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from foveal.core.redaction.redact import scrub
from foveal.errors import BadSetting
from foveal.server.jobs.backend import EngineJob, check_engine_file, engine_file
from foveal.server.jobs.executor import DatabaseExecutor, Executor, ExecutorTiming, FolderExecutor
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.runner import RETRY_DELAYS_S, JobRunner
from foveal.server.jobs.schedule import Schedule, schedule_from_config
from foveal.server.jobs.schedule_store import ScheduleStore
from foveal.server.service import Service
from foveal.server.tenants import check_session_id

if TYPE_CHECKING:
    from foveal.server.jobs.dbos_backend import BegunJob, DbosEngine

_log = logging.getLogger("foveal.work")


class WorkerTiming(NamedTuple):
    """Intervals of a worker in seconds."""

    poll_s: float = 1.0
    """Between two checks for jobs of other processes, and for the lock of a folder's executor."""
    engine_poll_s: float = 0.5
    """Between two polls of the engine's queue."""
    retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S
    """Before each retry; the number of attempts is one more than the number of delays."""
    ended_job_ttl_s: float = 6 * 3_600
    """For which the engine keeps ended jobs."""
    cleanup_interval_s: float = 600
    """Between two clean-ups of ended jobs."""
    recovery_interval_s: float = 5.0
    """Between two checks for jobs that no executor runs."""
    executor: ExecutorTiming = ExecutorTiming()


DEFAULT_TIMING: Final = WorkerTiming()


class JobWorker:
    """Background work of a service: prompts, summaries, schedules."""

    def __init__(self, service: Service, *, timing: WorkerTiming) -> None:
        self.queue: JobQueue = JobQueue(service.runtime.database)
        self.schedules: ScheduleStore = ScheduleStore(service.runtime.database)
        self._service = service
        self._timing = timing
        self._clock = service.runtime.clock
        self._runner = JobRunner(
            service, self.queue, self.schedules, max_attempts=len(timing.retry_delays_s) + 1
        )
        self._executor = _executor(service, timing.executor)
        self._is_executor = False
        self._engine: DbosEngine | None = None
        self._cleaned_up_at = 0.0
        self._recovered_at = float("-inf")
        self._lost_since: dict[BegunJob, float] = {}
        """Since when (monotonic) jobs that this executor has begun do not run."""
        self._woken = asyncio.Event()
        self._polling = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, service: Service, *, timing: WorkerTiming = DEFAULT_TIMING) -> AsyncIterator[Self]:
        """Open the worker before any session: from then on sessions delegate their summaries to it. The engine
        starts later, when there is a job."""
        worker = cls(service, timing=timing)
        runtime = service.runtime
        check_engine_file(runtime.storage.jobs_database_url)
        await worker.schedules.set_configured(_configured_schedules(service), now=runtime.clock())
        previous = runtime.request_summary
        runtime.delegate_summaries(worker.request_summary)
        runtime.add_delete_hook(worker.delete_session)
        task: asyncio.Task[None] | None = None
        try:
            worker._is_executor = await worker._executor.enter()
            worker.wake()
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
        """Whether this process runs jobs."""
        return self._is_executor

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────

    async def request_summary(self, tenant: str, session: str, seq: int) -> None:
        """Queue the summary that a session will need soon, as of its event `seq`. Does nothing while such a job is
        open: the session asks again after its next turn."""
        await self._add(Job(tenant=tenant, session=session, key="prepare", kind="prepare", at=self._clock()))

    async def run(self, tenant: str, session: str, prompt: str, *, key: str) -> None:
        """Queue a prompt for a session, which is created on first use; durable when this returns. Raises
        `KeyReused`."""
        runtime = self._service.runtime
        prompt, key = prompt if runtime.redact is None else scrub(prompt), runtime.storable_key(key)
        await self._add(
            Job(
                tenant=tenant,
                session=check_session_id(session),
                key=key,
                kind="run",
                prompt=prompt,
                at=self._clock(),
            )
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

    # ── The executor ─────────────────────────────────────────────────────────────────────────────────────

    async def poll(self) -> None:
        """Become an executor if possible; as an executor, queue due schedules, start jobs and recover lost ones."""
        async with self._polling:
            await self._poll()

    async def _poll(self) -> None:
        self._is_executor = await self._executor.enter()
        if not self._is_executor:
            return
        await self.schedules.queue_due_runs(now=self._now())
        if self._engine is None and await self.queue.count():
            self._engine = await self._start_engine()
        if self._engine is None:
            return
        await self._hand_over(self._engine)
        if time.monotonic() - self._recovered_at >= self._timing.recovery_interval_s:
            self._recovered_at = time.monotonic()
            await self._maintain(self._engine)

    async def _start_engine(self) -> DbosEngine | None:
        engine_class = await asyncio.to_thread(_load_engine)
        if engine_class.is_running():
            await self._executor.leave()
            return None  # another service of this process has the engine
        engine = engine_class(
            self._runner.attempt,
            retry_delays_s=self._timing.retry_delays_s,
            poll_s=self._timing.engine_poll_s,
        )
        await self.queue.clear_taken()
        await engine.start(self._service.runtime.storage.jobs_database_url, executor_id=self._executor.id)
        return engine

    async def _hand_over(self, engine: DbosEngine) -> None:
        if untaken := await self.queue.untaken():
            await engine.add([_engine_job(job) for job in untaken])
            await self.queue.mark_taken(job.id for job in untaken)
            self.wake()  # there may be more

    async def _maintain(self, engine: DbosEngine) -> None:
        """Recover lost jobs and clean up, in one process at a time."""
        lock = await self._service.runtime.locks.try_lock("", "reaper")
        if lock is None:
            return
        try:
            await self._recover_jobs(engine)
            now = self._now()
            if abs(now - self._cleaned_up_at) >= self._timing.cleanup_interval_s:
                self._cleaned_up_at = now
                await engine.clean_up(before=now - self._timing.ended_job_ttl_s, give_up=self._runner.give_up)
        finally:
            lock.release()

    async def _recover_jobs(self, engine: DbosEngine) -> None:
        """Return the jobs of dead executors to the queue, and those that this one has begun and does not run: the
        reply to the statement that began them was lost."""
        begun = await engine.begun_jobs()
        dead = await self._executor.dead({job.executor_id for job in begun})
        now, before = time.monotonic(), self._lost_since
        self._lost_since = {
            job: before.get(job, now) for job in begun if job.executor_id == self._executor.id
        }
        limit = now - self._timing.executor.silent_s
        lost = [job for job, since in self._lost_since.items() if since <= limit]
        if jobs := [*lost, *(job for job in begun if job.executor_id in dead)]:
            count = await engine.release(jobs)
            _log.warning("%d jobs that a server had begun and not ended start again", count)

    async def _deactivate(self) -> None:
        engine, self._engine = self._engine, None
        self._is_executor = False
        try:
            if engine is not None:
                await engine.stop()
        finally:
            await self._executor.leave()

    def _now(self) -> float:
        return self._clock() + self._executor.clock_correction_s

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
        if self._is_executor:
            with suppress(Exception):  # the poll that follows fails the same way and logs it
                if (due := await self.schedules.next_due()) is not None:
                    delay = min(delay, max(0.0, due - self._now()))
        with suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it loses a cancellation that arrives together with the event.
            async with asyncio.timeout(delay):
                await self._woken.wait()
        self._woken.clear()


def _executor(service: Service, timing: ExecutorTiming) -> Executor:
    runtime = service.runtime
    if engine_file(runtime.storage.jobs_database_url) is not None:
        return FolderExecutor(runtime.locks)
    return DatabaseExecutor(runtime.database, timing)


def _load_engine() -> type[DbosEngine]:
    from foveal.server.jobs.dbos_backend import DbosEngine

    return DbosEngine


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
