"""The job engine: DBOS as a durable queue with delays and crash recovery.

1. Its database (`work.db`) holds ids of jobs, attempt numbers and names of tenants, never text of a conversation.
2. Data is read and written as JSON. A row that is marked as a pickle is refused.
3. A job that is interrupted stays open; the next engine that starts continues it.
4. Jobs of different partitions do not wait for each other, however many a partition has.

DBOS is global to a process, so a process has one engine at a time. DBOS uses its own threads; the work of a job
runs in the event loop that started the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, EnqueueOptions
from dbos import _serialization as dbos_serialization
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from foveal.errors import StoreUnusable

AttemptResult = Literal["done", "later"]
RunAttempt = Callable[[str, int], Awaitable[AttemptResult]]
"""Runs one attempt of a job: its id, and the number of attempts before."""

JOB_FORMAT_VERSION: Final = "foveal-1"
"""Version of the job arguments: DBOS does not run jobs of another version."""
MAX_RUNNING_WORKFLOWS: Final = 64
MAX_RUNNING_WORKFLOWS_PER_PARTITION: Final = 4
"""Jobs that run at once: in total, and in one partition. A job is one workflow of DBOS."""
# Names in existing databases: the queue and the workflow keep them.
_QUEUE: Final = "errands"
_WORKFLOW: Final = "errand"
_FAILED_STATES: Final = ("ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


class EngineJob(NamedTuple):
    partition: str
    """At most `MAX_RUNNING_WORKFLOWS_PER_PARTITION` jobs of a partition run at once."""
    job_id: str
    delay_s: float = 0.0


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

    @classmethod
    def is_running(cls) -> bool:
        """Return whether this process has an engine."""
        return cls._instance is not None

    async def start(self, path: Path) -> None:
        """Start DBOS and continue the open jobs."""
        assert DbosEngine._instance is None, "a process has one engine at a time"
        DbosEngine._instance = self
        try:
            await asyncio.to_thread(self._launch, path)
        except BaseException:
            await self.stop()
            raise

    async def add(self, jobs: Sequence[EngineJob]) -> None:
        """Add jobs, durable when this returns. A job that already exists is left unchanged."""

        def enqueue() -> None:
            for job in jobs:
                _enqueue(job, 0)

        await asyncio.to_thread(enqueue)

    async def clean_up(self, *, before: float) -> list[str]:
        """Delete jobs that ended before a time, and all that failed; return the ids of those that failed."""
        return await asyncio.to_thread(_clean_up, datetime.fromtimestamp(before, UTC).isoformat())

    async def stop(self) -> None:
        """Interrupt running jobs; the next start continues them."""
        with self._lock:
            self._stopping = True
            running = list(self._running)
        for job in running:
            job.cancel()
        # DBOS checks only once a second whether jobs have ended, so do not wait if none runs.
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=5 if running else 0)
        DbosEngine._instance = None

    # ── Runs in threads of DBOS ──────────────────────────────────────────────────────────────────────────

    def _launch(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        _silence_console()
        _refuse_pickles()
        config: DBOSConfig = {
            "name": "foveal",
            "system_database_url": URL.create("sqlite", database=str(path)).render_as_string(),
            "serializer": DBOSPortableJSONSerializer(),
            "application_version": JOB_FORMAT_VERSION,
            "executor_id": "foveal",
            "enable_otlp": False,
            "use_listen_notify": False,
            "log_level": "WARNING",
            "sys_db_pool_size": 4,
            "notification_listener_polling_interval_sec": 2 * self._poll_s,
        }
        try:
            DBOS(config=config)
            DBOS.launch()
            DBOS.register_queue(
                _QUEUE,
                worker_concurrency=MAX_RUNNING_WORKFLOWS,
                partition_worker_concurrency=MAX_RUNNING_WORKFLOWS_PER_PARTITION,
                polling_interval_sec=self._poll_s,
                on_conflict="always_update",
            )
        except SQLAlchemyError as problem:
            raise StoreUnusable(
                f"{path} cannot be used ({type(problem).__name__}): check that the disk has space and the file is "
                "writable; you may move it away, open jobs are kept in service.db"
            ) from problem

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


def _clean_up(before: str) -> list[str]:
    ended = DBOS.list_workflows(
        status=["SUCCESS"], completed_before=before, load_input=False, load_output=False, limit=10_000
    )
    failed = DBOS.list_workflows(
        status=list(_FAILED_STATES), load_input=False, load_output=False, limit=10_000
    )
    if ids := [job.workflow_id for job in (*ended, *failed)]:
        DBOS.delete_workflows(ids)
    return [job.workflow_id.rpartition("-")[0] for job in failed]


def _silence_console() -> None:
    """Give DBOS's logger a handler: without one it prints to the console. Records still reach the root logger."""
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _refuse_pickles() -> None:
    """Make DBOS's pickle serialiser refuse to load and write text instead: stored data never becomes code."""

    def refuse(_: str) -> Any:
        raise TypeError("work.db has a pickled row; Foveal neither writes nor reads pickles")

    pickles = dbos_serialization.DBOSDefaultSerializer
    setattr(pickles, "deserialize", refuse)  # noqa: B010 (mypy forbids assigning to a method)
    setattr(pickles, "serialize", lambda value: json.dumps(str(value)))  # noqa: B010
