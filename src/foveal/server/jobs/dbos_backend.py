"""The job engine: DBOS as a durable queue with delays and crash recovery.

1. Its database (`work.db`, or the schema `foveal_jobs` of a PostgreSQL database) holds ids of jobs, attempt numbers
   and names of tenants, never text of a conversation.
2. Data is read and written as JSON. A row that is marked as a pickle is refused.
3. A job that is interrupted stays open. An engine that starts continues the jobs of its executor id; `release`
   returns jobs of other executors, and those that no executor runs, to the queue.
4. Jobs of different partitions do not wait for each other, however many a partition has. On PostgreSQL the limit of
   a partition holds over all executors.
5. An executor that was declared dead while it was only paused cannot change the state of its jobs any more: DBOS
   checks the owner of a job on each write.

DBOS is global to a process, so a process has one engine at a time. DBOS uses its own threads; the work of a job
runs in the event loop that started the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, EnqueueOptions
from dbos import _dbos as dbos_internals
from dbos import _serialization as dbos_serialization
from dbos._migration import get_dbos_schema_permissions_sql, get_migration_versions
from dbos._sys_db import SystemDatabase
from psycopg.waiting import Ready
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from foveal.errors import StoreUnusable
from foveal.server.jobs.queue import AttemptResult, EngineJob, RunAttempt, engine_file, unusable_file

JOB_FORMAT_VERSION: Final = "foveal-1"
"""Version of the job arguments: DBOS does not run jobs of another version. It is the same in every release that can
read the arguments, so a release continues the jobs of the one before."""
ENGINE_SCHEMA: Final = "foveal_jobs"
"""Schema of DBOS's tables in a PostgreSQL database."""
MAX_RUNNING_WORKFLOWS: Final = 64
MAX_RUNNING_WORKFLOWS_PER_PARTITION: Final = 4
"""Jobs that run at once: of one executor, and in one partition. A job is one workflow of DBOS."""
# Names in existing databases: the queue and the workflow keep them.
_QUEUE: Final = "errands"
_WORKFLOW: Final = "errand"
_FAILED_STATES: Final = ("ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


class BegunJob(NamedTuple):
    """A job that an executor has taken from the queue and not ended."""

    workflow_id: str
    executor_id: str


class EngineStopped(BaseException):
    """The engine stops while a job runs. Not an `Exception`, which DBOS would record as a failure of the job."""


class DbosEngine:
    """Call `start` once, then `stop`."""

    _instance: DbosEngine | None = None

    def __init__(self, attempt: RunAttempt, *, retry_delays_s: Sequence[float], poll_s: float) -> None:
        """`retry_delays_s`: seconds before each retry; `poll_s`: seconds between two polls of the queue."""
        self._attempt = attempt
        self._retry_delays_s = tuple(retry_delays_s)
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._running: set[Future[AttemptResult]] = set()
        self._stopping = False
        self._connections: EngineConnections | None = None

    @classmethod
    def is_running(cls) -> bool:
        """Return whether this process has an engine."""
        return cls._instance is not None

    async def start(self, url: str, *, executor_id: str) -> None:
        """Start DBOS and continue the open jobs of this executor."""
        assert DbosEngine._instance is None, "a process has one engine at a time"
        DbosEngine._instance = self
        launch = asyncio.ensure_future(asyncio.to_thread(self._launch, url, executor_id))
        try:
            await asyncio.shield(launch)
        except BaseException:
            await asyncio.wait([launch])  # cancelling the caller does not end the thread
            await self.stop()
            raise

    async def add(self, jobs: Sequence[EngineJob]) -> None:
        """Add jobs, durable when this returns. A job that already exists is left unchanged."""

        def enqueue() -> None:
            for job in jobs:
                _enqueue(job, 0)

        await asyncio.to_thread(enqueue)

    async def begun_jobs(self) -> list[BegunJob]:
        """Return the jobs that the executors have begun, without those that this process runs now."""
        return await asyncio.to_thread(_begun_jobs)

    async def release(self, jobs: Iterable[BegunJob]) -> int:
        """Return jobs to the queue unless another executor has begun them meanwhile; return their number."""
        return await asyncio.to_thread(_release, list(jobs))

    async def clean_up(self, *, before: float, give_up: Callable[[str], Awaitable[None]]) -> None:
        """Give up the jobs that DBOS has given up, then delete them and those that ended before a time."""
        failed = await asyncio.to_thread(_failed_workflows)
        for workflow_id in failed:
            await give_up(workflow_id.rpartition("-")[0])
        await asyncio.to_thread(_delete_ended, failed, datetime.fromtimestamp(before, UTC).isoformat())

    async def stop(self) -> None:
        """Interrupt running jobs; they stay open."""
        with self._lock:
            self._stopping = True
            running = list(self._running)
        for job in running:
            job.cancel()
        # DBOS checks only once a second whether jobs have ended, so do not wait if none runs.
        await asyncio.to_thread(self._destroy, 5 if running else 0)
        DbosEngine._instance = None

    # ── Runs in threads of DBOS ──────────────────────────────────────────────────────────────────────────

    def _launch(self, url: str, executor_id: str) -> None:
        silence_console()
        _refuse_pickles()
        path = engine_file(url)
        try:
            if path is not None:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
                place: DBOSConfig = {
                    "system_database_url": URL.create("sqlite", database=str(path)).render_as_string()
                }
            else:
                self._connections = EngineConnections(url)
                place = {
                    "system_database_engine": self._connections.engine,
                    "dbos_system_schema": ENGINE_SCHEMA,
                }
            DBOS(config=self._config(place, executor_id))
            DBOS.launch()
            DBOS.register_queue(
                _QUEUE,
                worker_concurrency=MAX_RUNNING_WORKFLOWS,
                # In a file only one executor runs, so its own count is enough.
                partition_concurrency=None if path else MAX_RUNNING_WORKFLOWS_PER_PARTITION,
                partition_worker_concurrency=MAX_RUNNING_WORKFLOWS_PER_PARTITION if path else None,
                polling_interval_sec=self._poll_s,
                on_conflict="always_update",
            )
        except (SQLAlchemyError, psycopg.Error) as problem:
            raise unusable_file(path, problem) if path else unusable_tables(problem) from problem

    def _config(self, place: DBOSConfig, executor_id: str) -> DBOSConfig:
        common: DBOSConfig = {
            "name": "foveal",
            "serializer": DBOSPortableJSONSerializer(),
            "application_version": JOB_FORMAT_VERSION,
            "executor_id": executor_id,
            "enable_otlp": False,
            "use_listen_notify": False,
            "log_level": "ERROR",  # as `log_to_stderr`, whose level this would replace: a line for every attempt
            "sys_db_pool_size": 4,
            "notification_listener_polling_interval_sec": 2 * self._poll_s,
        }
        return {**common, **place}

    def _destroy(self, wait_s: int) -> None:
        if self._connections is not None:
            self._connections.refuse()
        DBOS.destroy(workflow_completion_timeout_sec=wait_s)
        if self._connections is not None:
            self._connections.close()

    def run_attempt(self, job_id: str, number: int) -> AttemptResult:
        """Run one attempt in the event loop and wait for its result."""
        with self._lock:
            if self._stopping:
                raise EngineStopped
            running = asyncio.run_coroutine_threadsafe(self._try(job_id, number), self._loop)
            self._running.add(running)
        try:
            return running.result()
        except CancelledError:
            raise EngineStopped from None
        finally:
            with self._lock:
                self._running.discard(running)

    async def _try(self, job_id: str, number: int) -> AttemptResult:
        return await self._attempt(job_id, number)

    def retry_delay(self, number: int) -> float:
        """Return the seconds before attempt `number`."""
        return (
            self._retry_delays_s[min(number, len(self._retry_delays_s)) - 1] if self._retry_delays_s else 0.0
        )


@DBOS.workflow(name=_WORKFLOW)
def _run_job(partition: str, job_id: str, number: int) -> AttemptResult:
    engine = DbosEngine._instance
    if engine is None:
        raise EngineStopped
    result = DBOS.run_step({"name": "try"}, engine.run_attempt, job_id, number)
    if result == "later":
        _enqueue(EngineJob(partition, job_id, delay_s=engine.retry_delay(number + 1)), number + 1)
    return result


def _enqueue(job: EngineJob, number: int) -> None:
    options: EnqueueOptions = {
        "workflow_name": _WORKFLOW,
        "queue_name": _QUEUE,
        "workflow_id": f"{job.job_id}-{number}",
        "queue_partition_key": job.partition,
    }
    if job.delay_s:
        options["delay_seconds"] = job.delay_s
    DBOS.enqueue_workflow_with_options(options, job.partition, job.job_id, number)


def _begun_jobs() -> list[BegunJob]:
    # Read before the rows: a job that ends in between is then not in the rows.
    running = set(_dbos()._active_workflows_set.activeList())
    found = DBOS.list_workflows(status="PENDING", queue_name=_QUEUE, load_input=False, load_output=False)
    return [
        BegunJob(job.workflow_id, job.executor_id or "") for job in found if job.workflow_id not in running
    ]


def _release(jobs: Sequence[BegunJob]) -> int:
    database = _dbos()._sys_db
    return sum(database.reenqueue_for_recovery(job.workflow_id, [job.executor_id], _QUEUE) for job in jobs)


def _dbos() -> DBOS:
    """Return DBOS's instance. The public interface recovers only the jobs of the executor's own id."""
    return dbos_internals._get_dbos_instance()


def _failed_workflows() -> list[str]:
    found = DBOS.list_workflows(
        status=list(_FAILED_STATES), load_input=False, load_output=False, limit=10_000
    )
    return [job.workflow_id for job in found]


def _delete_ended(failed: Sequence[str], before: str) -> None:
    ended = DBOS.list_workflows(
        status=["SUCCESS"], completed_before=before, load_input=False, load_output=False, limit=10_000
    )
    if ids := [*failed, *(job.workflow_id for job in ended)]:
        DBOS.delete_workflows(ids)


def unusable_tables(problem: Exception) -> StoreUnusable:
    # The message of the error may contain the address and user of the database.
    return StoreUnusable(
        f"the tables of the job engine cannot be used ({type(problem).__name__}): check that the database can be "
        "reached; `foveal database migrate` creates them for a role that may not"
    )


def silence_console() -> None:
    """Give DBOS's logger a handler: without one it prints to the console. Records still reach the root logger."""
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _refuse_pickles() -> None:
    """Make DBOS's pickle serialiser refuse to load and write text instead: stored data never becomes code."""

    def refuse(_: str) -> Any:
        raise TypeError(
            "the job engine's database has a pickled row; Foveal neither writes nor reads pickles"
        )

    pickles = dbos_serialization.DBOSDefaultSerializer
    setattr(pickles, "deserialize", refuse)  # noqa: B010 (mypy forbids assigning to a method)
    setattr(pickles, "serialize", lambda value: json.dumps(str(value)))  # noqa: B010


# ── Tables in PostgreSQL ─────────────────────────────────────────────────────────────────────────────
# A server creates them itself if its role may. DBOS writes and versions them; Foveal only names their schema.


class EngineTables(NamedTuple):
    """Versions of the tables before and after a migration."""

    before: int
    after: int


def migrate_engine_tables(url: str, *, role: str | None = None) -> EngineTables:
    """Create the engine's tables or bring them to the installed version of DBOS, and let `role` use them."""
    silence_console()
    connections = EngineConnections(url)
    try:
        before, after = get_migration_versions(connections.engine, ENGINE_SCHEMA, use_listen_notify=False)
        tables = SystemDatabase.create(
            system_database_url="postgresql://",
            engine_kwargs={},
            engine=connections.engine,
            schema=ENGINE_SCHEMA,
            serializer=DBOSPortableJSONSerializer(),
            executor_id=None,
            use_listen_notify=False,
        )
        tables.run_migrations()
        if role is not None:
            with connections.engine.begin() as connection:
                for statement in get_dbos_schema_permissions_sql(ENGINE_SCHEMA, role):
                    connection.execute(sqlalchemy.text(statement))
    except (SQLAlchemyError, psycopg.Error) as problem:
        raise unusable_tables(problem) from problem
    finally:
        connections.close()
    return EngineTables(before, after)


# ── Connections to PostgreSQL ────────────────────────────────────────────────────────────────────────
# DBOS takes any SQLAlchemy engine. This one adds what a lost network or a paused process needs:
#
# 1. A connection on which no reply arrives for `MAX_ENGINE_REPLY_S` is closed, and DBOS tries again on another.
# 2. The server ends a transaction that is idle for `MAX_ENGINE_IDLE_S`: a paused process keeps no rows locked.
# 3. After `refuse`, no connection is made. Threads of DBOS that wait for the database end with an error.
#
# The URL with its password stays in this module: DBOS and SQLAlchemy never see it.

T = TypeVar("T")

MAX_ENGINE_CONNECTIONS: Final = 6
"""Connections of the engine of one process."""
MAX_ENGINE_REPLY_S: Final = 30.0
MAX_ENGINE_IDLE_S: Final = 10


class EngineClosed(Exception):
    """The engine has stopped and makes no connections any more."""


class EngineConnections:
    """The SQLAlchemy engine of one process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._refused = False
        self.engine = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_size=MAX_ENGINE_CONNECTIONS,
            max_overflow=0,
            pool_timeout=30,
            pool_pre_ping=True,
            use_native_hstore=False,
        )

    def refuse(self) -> None:
        """Make no new connections."""
        self._refused = True

    def close(self) -> None:
        self.refuse()
        self.engine.dispose()

    def _connect(self) -> WatchedEngineConnection:
        if self._refused:
            raise EngineClosed
        connection = WatchedEngineConnection.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=5,
            tcp_user_timeout=10_000,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            application_name="foveal jobs",
        )
        connection.execute(f"SET idle_in_transaction_session_timeout = '{MAX_ENGINE_IDLE_S}s'".encode())
        connection.autocommit = False
        return connection


class WatchedEngineConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when the server does not reply."""

    def __del__(self, *arguments: Any) -> None:
        # A thread of DBOS may hold a connection while the engine is disposed of: it ends with its last reference.
        if hasattr(self, "pgconn"):
            self.close()

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        try:
            return super().wait(_bounded(gen, time.monotonic() + MAX_ENGINE_REPLY_S), *arguments, **options)
        except _NoReply:
            self.close()
            # DBOS tries again after an error with these words.
            raise psycopg.OperationalError(
                f"server closed the connection unexpectedly: no reply for {MAX_ENGINE_REPLY_S:g} s"
            ) from None


class _NoReply(Exception):
    pass


def _bounded(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Yield what `gen` yields until the deadline. While nothing arrives, psycopg sends `Ready.NONE` regularly."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready == Ready.NONE and time.monotonic() > deadline:
                raise _NoReply
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
