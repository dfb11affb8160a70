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
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self
from uuid import uuid4

from foveal.config import Config
from foveal.core.log.events import Noted
from foveal.core.redaction.redact import scrub
from foveal.errors import TRANSIENT_CODES, BadSetting, FovealError, NothingToAsk, StoreError, UnknownSession
from foveal.server.databases import Database, Transaction
from foveal.server.jobs.queue import AttemptResult, EngineJob, Job, JobQueue, check_engine_file, engine_file
from foveal.server.jobs.schedule_store import RunResult, Schedule, ScheduleStore, schedule_from_config
from foveal.server.live_session import LiveSession
from foveal.server.service import Service
from foveal.server.tenants import check_session_id
from foveal.server.turns import STOPPING_CODE, Turn, TurnOutcome
from foveal.stores.session_locks import HeldLock, Locks

if TYPE_CHECKING:
    from foveal.server.jobs.dbos_backend import BegunJob, DbosEngine

# ── One job ──────────────────────────────────────────────────────────────────────────────────────────────
# A run submits its prompt once: the message has the job's key. If the model could not be reached, a later attempt
# asks it again. After the last attempt, or an error that a retry cannot fix, a note in the session says so.

RETRYABLE_CODES: Final = frozenset((*TRANSIENT_CODES, "StoreError", "StoreUnusable", "Conflict", "LeaseLost"))
"""Codes of failures that a retry may fix."""
RETRY_DELAYS_S: Final = (60.0, 300.0, 900.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0, 3_600.0)
"""Seconds before each retry; a job has one attempt more than there are delays."""


SCHEDULE_NOTE_TOPIC: Final = "schedule"


class JobRunner:
    def __init__(
        self, service: Service, queue: JobQueue, schedules: ScheduleStore, *, max_attempts: int
    ) -> None:
        self._service = service
        self._queue = queue
        self._schedules = schedules
        self._max_attempts = max_attempts
        self._submitted: set[str] = set()
        """Ids of jobs whose prompts this process has submitted."""

    async def attempt(self, id: str, number: int) -> AttemptResult:
        """Run an attempt; `number` counts from 0. Returns a result for every error, unless the server stops."""
        try:
            return await self._attempt(id, number)
        except StoreError as problem:
            # The server's own database failed: giving up could not be recorded, so the job is retried.
            _log.error("a job has to wait: %s", problem)
            return "later"

    async def give_up(self, id: str) -> None:
        """Give up a job that the engine has given up because processes died while running it."""
        job = await self._queue.get(id)
        if job is not None:
            await self._give_up(job, "the server broke off each time", attempts=0)

    # ── An attempt ───────────────────────────────────────────────────────────────────────────────────────

    async def _attempt(self, id: str, number: int) -> AttemptResult:
        job = await self._queue.get(id)
        if job is None:
            return "done"
        if job.kind == "prepare":
            await self._prepare(job)
            return await self._end(job)
        outcome = await self._run(job, number)
        if outcome.why == "stopped" and self._service.runtime.is_closing:
            raise asyncio.CancelledError  # the server stops: the job stays open
        if outcome.why in ("answered", "stopped"):
            return await self._end(job, result=outcome.why)
        if outcome.code in RETRYABLE_CODES and number + 1 < self._max_attempts:
            await self._schedules.mark_retrying(job)
            return "later"
        await self._give_up(job, outcome.problem or outcome.code, attempts=number + 1)
        return "done"

    async def _prepare(self, job: Job) -> None:
        try:
            live = await self._service.tenant(job.tenant).session(job.session)
            await live.prepare()
        except UnknownSession:
            pass  # the session was deleted meanwhile
        except Exception as problem:  # noqa: BLE001 (the next turn asks again or writes it itself)
            _log.warning("a summary was not written: %s", type(problem).__name__)

    async def _run(self, job: Job, number: int) -> TurnOutcome:
        try:
            tenant = self._service.tenant(job.tenant)
            live = await tenant.ensure(job.session, title=job.schedule, agent=job.agent)
            if job.agent not in ("", live.agent_name):
                raise BadSetting("agent", job.agent, _agent_text(live))
            outcome = await self._outcome(live, job, number)
            while outcome.code == STOPPING_CODE and not self._service.runtime.is_closing:
                # Another process answered in this session and was stopped: this one asks again.
                outcome = await self._outcome(live, job, max(number, 1))
            return outcome
        except StoreError as problem:
            is_unknown = isinstance(problem, UnknownSession)
            return TurnOutcome(
                why="failed", problem=str(problem), code="UnknownSession" if is_unknown else "StoreError"
            )
        except Exception as problem:  # noqa: BLE001 (a job must never end the worker)
            text = str(problem) if isinstance(problem, FovealError) else ""
            return TurnOutcome(why="failed", problem=text, code=type(problem).__name__)

    async def _outcome(self, live: LiveSession, job: Job, number: int) -> TurnOutcome:
        turn = await self._turn(live, job, number)
        return TurnOutcome(why="answered") if turn is None else await turn.outcome()

    async def _turn(self, live: LiveSession, job: Job, number: int) -> Turn | None:
        """Submit the prompt unless that was done. If its turn failed, ask the model again, or return the turn that
        already does; None if the session has continued without an answer to the prompt."""
        turn = await self._submit(live, job)
        while True:
            newest = await self._service.runtime.inbox.newest(live.tenant, live.id)
            if newest is None:
                return None
            # A stopped server left the turn "stopped"; a turn that a user stops ends the job and never gets here.
            is_own = newest.key == job.key or newest.kind == "again"
            was_interrupted = is_own and newest.why == "stopped"
            if not number and not was_interrupted:
                return turn
            if newest.state != "done":
                return await live.submit("", key=newest.key, checks_text=False)
            if not was_interrupted and newest.why != "failed":
                return None
            with suppress(NothingToAsk):  # another request was faster: look again
                return await live.retry()

    async def _submit(self, live: LiveSession, job: Job) -> Turn:
        """Submit the prompt after those of earlier jobs of the session: the engine may start jobs in any order."""
        for earlier in await self._queue.open_runs_up_to(job):
            if earlier.id not in self._submitted and earlier.id != job.id:
                await live.submit(earlier.prompt, key=earlier.key, checks_text=False)
                self._submitted.add(earlier.id)
        turn = await live.submit(job.prompt, key=job.key, checks_text=False)
        self._submitted.add(job.id)
        return turn

    # ── The end of a job ─────────────────────────────────────────────────────────────────────────────────

    async def _end(self, job: Job, *, result: RunResult = "answered") -> AttemptResult:
        await self._schedules.end_job(job, result)
        self._submitted.discard(job.id)
        return "done"

    async def _give_up(self, job: Job, problem: str, *, attempts: int) -> None:
        if await self._queue.get(job.id) is None:
            return  # another executor has ended it
        count = "" if attempts < 2 else f" after {attempts} attempts"
        what = f"schedule {job.schedule!r}" if job.schedule else "background run"
        text = f"{what} ({job.key}): no answer{count}: {problem}"
        _log.warning("%s of tenant %s was given up%s", what, job.tenant, count)
        with suppress(FovealError):  # the session was deleted or cannot be written
            await _note(await self._service.tenant(job.tenant).session(job.session), text)
        await self._end(job, result="failed")


def _agent_text(live: LiveSession) -> str:
    own = f"has the agent {live.agent_name!r}" if live.agent_name else "has no agent"
    return f"session {live.id!r} exists and {own}"


async def _note(live: LiveSession, text: str) -> None:
    """Append a note to the session, unless one of its newest 50 events is the same note."""
    note = Noted(text=text, topic=SCHEDULE_NOTE_TOPIC)
    count = (await live.end()).next_seq
    if any(event.fact == note for event in await live.events(first=max(0, count - 50))):
        return
    await live.add_note(text, topic=SCHEDULE_NOTE_TOPIC)


# ── Executors ────────────────────────────────────────────────────────────────────────────────────────────
# 1. In a folder one process at a time is the executor. It holds a lock that ends with the process.
# 2. On PostgreSQL every process is an executor, with a new id at each start. It writes the database's time into
#    its row every `heartbeat_s` seconds. An executor without a row has stopped; one that was silent for
#    `silent_s` counts as dead.
# 3. An executor that was only paused may still run a job that another has begun again. The key of the message and
#    the lease of the session let one of them answer.

FOLDER_EXECUTOR_ID: Final = "foveal"
"""The id of every executor of a folder: DBOS continues the jobs of the one before."""
EXECUTOR_ROW_TTL_S: Final = 86_400.0
"""For which the row of a dead executor is kept: it may only be paused."""


class ExecutorTiming(NamedTuple):
    """Intervals of executors in seconds; the same in all processes of a database."""

    heartbeat_s: float = 5.0
    silent_s: float = 30.0
    """After which an executor without a heartbeat counts as dead."""


class Executor(Protocol):
    @property
    def id(self) -> str:
        """The executor's id in the job engine."""
        ...

    @property
    def clock_correction_s(self) -> float:
        """What to add to this machine's clock to get the time that all executors share."""
        ...

    async def enter(self) -> bool:
        """Become an executor unless this process is one; return whether it is one."""
        ...

    async def dead(self, ids: Collection[str]) -> list[str]:
        """Return which of these executors have stopped or died."""
        ...

    async def leave(self) -> None:
        """Stop being an executor; the engine has stopped."""
        ...


class FolderExecutor:
    """The one executor of a folder."""

    id: str = FOLDER_EXECUTOR_ID
    clock_correction_s: float = 0.0

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._lock: HeldLock | None = None

    async def enter(self) -> bool:
        if self._lock is None:
            self._lock = await self._locks.try_lock("", "work")
        return self._lock is not None

    async def dead(self, ids: Collection[str]) -> list[str]:
        """Return nothing: a new executor continues the jobs of the one before under the same id."""
        return []

    async def leave(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class DatabaseExecutor:
    """One of the executors of a PostgreSQL database."""

    def __init__(
        self, database: Database, timing: ExecutorTiming, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock`: the clock of this machine."""
        self.id: str = uuid4().hex
        self._clock = clock
        self.clock_correction_s: float = 0.0
        self._database = database
        self._timing = timing
        self._heartbeat: asyncio.Task[None] | None = None
        self._last_beat = self._beating_since = float("-inf")
        """Monotonic times of the last heartbeat, and of the first one of the unbroken series that it ends."""

    async def enter(self) -> bool:
        if self._heartbeat is None:
            await self._beat()
            self._heartbeat = asyncio.create_task(self._beat_forever())
        return True

    async def dead(self, ids: Collection[str]) -> list[str]:
        others = [id for id in ids if id != self.id]
        if not others:
            return []
        silence = await self._database.read(_read_silence)
        dead = [id for id in others if silence.get(id, self._timing.silent_s) >= self._timing.silent_s]
        # After an outage of the database all executors are silent for a moment: those with a row get time to write.
        has_waited = self._last_beat - self._beating_since >= 2 * self._timing.heartbeat_s
        return [id for id in dead if id not in silence or has_waited]

    async def leave(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is None:
            return
        heartbeat.cancel()
        with suppress(asyncio.CancelledError):
            await heartbeat
        sql = "DELETE FROM executors WHERE id = ?"
        with suppress(Exception):  # without this the others wait until the executor counts as dead
            await self._database.write(lambda db: db.execute(sql, self.id), repeatable=True)

    async def _beat_forever(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(self._timing.heartbeat_s)
            try:
                await self._beat()
                is_failing = False
            except Exception as problem:  # noqa: BLE001 (the next heartbeat may succeed)
                if not is_failing:
                    _log.error("the heartbeat of this server cannot be written: %s", problem)
                is_failing = True

    async def _beat(self) -> None:
        name, before = f"{socket.gethostname()}:{os.getpid()}", self._clock()
        now = await self._database.write(
            lambda db: _write_beat(db, self.id, name), durable=False, repeatable=True
        )
        self.clock_correction_s = now - (before + self._clock()) / 2
        monotonic = time.monotonic()
        if monotonic - self._last_beat > 2 * self._timing.heartbeat_s:
            self._beating_since = monotonic
        self._last_beat = monotonic


async def _write_beat(db: Transaction, id: str, name: str) -> float:
    """Write a heartbeat and return the database's time."""
    # Two executors that delete the same rows could wait for each other, so one of them is enough.
    if await db.try_lock("executors/deleting"):
        await db.execute(
            "DELETE FROM executors WHERE seen < clock_timestamp() - make_interval(secs => ?)",
            EXECUTOR_ROW_TTL_S,
        )
    rows = await db.fetch(
        """INSERT INTO executors (id, name, seen) VALUES (?, ?, clock_timestamp())
        ON CONFLICT (id) DO UPDATE SET seen = excluded.seen RETURNING extract(epoch FROM seen)::float8""",
        id,
        name,
    )
    return float(rows[0][0])


async def _read_silence(db: Transaction) -> dict[str, float]:
    """Return the seconds since the last heartbeat of each executor."""
    rows = await db.fetch("SELECT id, extract(epoch FROM clock_timestamp() - seen)::float8 FROM executors")
    return {id: float(seconds) for id, seconds in rows}


# ── The worker ───────────────────────────────────────────────────────────────────────────────────────────

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
        await worker.set_schedules(runtime.config)
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

    async def set_schedules(self, config: Config) -> None:
        """Store the schedules of a configuration in place of those of the one before. Raises `BadSetting`."""
        configured = _configured_schedules(self._service, config)
        await self.schedules.set_configured(configured, now=self._service.runtime.clock())
        self.wake()

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


def _configured_schedules(service: Service, config: Config) -> list[Schedule]:
    found = []
    for table in config.schedules:
        try:
            service.tenant(table.tenant)
            check_session_id(table.session)
            found.append(schedule_from_config(table))
        except BadSetting as problem:
            where = f"schedule {table.name!r}: {problem.field}"
            raise BadSetting(where, problem.value, problem.allowed) from None
    return found
