"""DBOS, as little of it as is needed: a durable queue with delays, whose jobs are taken up again after a crash.

1. Its database (`work.db`) has ids and numbers of errands and names of tenants, never a word of anybody.
2. It is read and written as JSON. A row that says it is a pickle is refused.
3. A job that is stopped stays open, and whoever starts the engine next takes it up.
4. Jobs of different lanes do not wait for each other, however many there are in one of them.

DBOS is one for a process, so there is one engine at a time. It has threads of its own; what a job does is done in
the event loop that started the engine.
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

Verdict = Literal["done", "later"]
Attempt = Callable[[str, int], Awaitable[Verdict]]
"""Tries an errand: its id, and how often it was tried before."""

VERSION: Final = "foveal-1"
"""Of the jobs' arguments: jobs of another version are left alone."""
ALL: Final = 64
LANE: Final = 4
"""Jobs that are done at once: of all, and of one lane."""
_QUEUE: Final = "errands"
_JOB: Final = "errand"
_DEAD: Final = ("ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


class QueuedJob(NamedTuple):
    lane: str
    """Jobs of one lane wait for each other, at most `LANE` of them at once."""
    errand: str
    delay: float = 0.0


class Stopped(BaseException):
    """The engine stops in the middle of a job. Not an `Exception`: for DBOS the job would have failed."""


class DbosEngine:
    """Started with `start`, and to be stopped."""

    _only: DbosEngine | None = None

    def __init__(self, attempt: Attempt, *, pauses: Sequence[float], poll: float) -> None:
        """`pauses`: seconds before each further attempt; `poll`: seconds between two looks for jobs."""
        self._attempt = attempt
        self._pauses = tuple(pauses)
        self._poll = poll
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._running: set[Future[Verdict]] = set()
        self._stopping = False

    @classmethod
    def taken(cls) -> bool:
        """This process has one."""
        return cls._only is not None

    async def start(self, path: Path) -> None:
        """Take up what was left open, and begin."""
        assert DbosEngine._only is None, "one at a time"
        DbosEngine._only = self
        try:
            await asyncio.to_thread(self._launch, path)
        except BaseException:
            await self.stop()
            raise

    async def add(self, jobs: Sequence[QueuedJob]) -> None:
        """Durable when it returns. A job that is there already stays as it is."""

        def enqueue() -> None:
            for job in jobs:
                _enqueue(job, 0)

        await asyncio.to_thread(enqueue)

    async def sweep(self, *, before: float) -> list[str]:
        """Forget jobs that ended before a time; the errands of those that died, which will never be done."""
        return await asyncio.to_thread(_sweep, datetime.fromtimestamp(before, UTC).isoformat())

    async def stop(self) -> None:
        """Jobs that run are broken off, and taken up at the next start."""
        with self._lock:
            self._stopping = True
            running = list(self._running)
        for job in running:
            job.cancel()
        # DBOS looks only once a second whether they have ended.
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=5 if running else 0)
        DbosEngine._only = None

    # ── in threads of DBOS ───────────────────────────────────────────────────────────────────────────────

    def _launch(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        _be_quiet()
        _refuse_pickles()
        config: DBOSConfig = {
            "name": "foveal",
            "system_database_url": URL.create("sqlite", database=str(path)).render_as_string(),
            "serializer": DBOSPortableJSONSerializer(),
            "application_version": VERSION,
            "executor_id": "foveal",
            "enable_otlp": False,
            "use_listen_notify": False,
            "log_level": "WARNING",
            "sys_db_pool_size": 4,
            "notification_listener_polling_interval_sec": 2 * self._poll,
        }
        try:
            DBOS(config=config)
            DBOS.launch()
            DBOS.register_queue(
                _QUEUE,
                worker_concurrency=ALL,
                partition_worker_concurrency=LANE,
                polling_interval_sec=self._poll,
                on_conflict="always_update",
            )
        except SQLAlchemyError as problem:
            raise StoreUnusable(
                f"{path} cannot be used ({type(problem).__name__}): see that the disk has room and the file is "
                "writable; it may be moved away, open work is kept in service.db"
            ) from problem

    def tried(self, errand: str, number: int) -> Verdict:
        """Try an errand, and wait for what comes of it."""
        with self._lock:
            if self._stopping:
                raise Stopped
            running = asyncio.run_coroutine_threadsafe(self._try(errand, number), self._loop)
            self._running.add(running)
        try:
            return running.result()
        except CancelledError:
            raise Stopped from None
        finally:
            with self._lock:
                self._running.discard(running)

    async def _try(self, errand: str, number: int) -> Verdict:
        return await self._attempt(errand, number)

    def pause(self, number: int) -> float:
        """Seconds before an attempt."""
        return self._pauses[min(number, len(self._pauses)) - 1] if self._pauses else 0.0


@DBOS.workflow(name=_JOB)
def _carry_out(lane: str, errand: str, number: int) -> Verdict:
    engine = DbosEngine._only
    if engine is None:
        raise Stopped
    verdict = DBOS.run_step({"name": "try"}, engine.tried, errand, number)
    if verdict == "later":
        _enqueue(QueuedJob(lane, errand, delay=engine.pause(number + 1)), number + 1)
    return verdict


def _enqueue(job: QueuedJob, number: int) -> None:
    options: EnqueueOptions = {
        "workflow_name": _JOB,
        "queue_name": _QUEUE,
        "workflow_id": f"{job.errand}-{number}",
        "queue_partition_key": job.lane,
    }
    if job.delay:
        options["delay_seconds"] = job.delay
    DBOS.enqueue_workflow_with_options(options, job.lane, job.errand, number)


def _sweep(before: str) -> list[str]:
    ended = DBOS.list_workflows(
        status=["SUCCESS"], completed_before=before, load_input=False, load_output=False, limit=10_000
    )
    dead = DBOS.list_workflows(status=list(_DEAD), load_input=False, load_output=False, limit=10_000)
    if gone := [job.workflow_id for job in (*ended, *dead)]:
        DBOS.delete_workflows(gone)
    return [job.workflow_id.rpartition("-")[0] for job in dead]


def _be_quiet() -> None:
    """DBOS prints to the console unless its logger has a handler; what matters goes on to the program's own."""
    logger = logging.getLogger("dbos")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _refuse_pickles() -> None:
    """No code is ever built from stored data, whatever a row says it is; what DBOS writes of that is text."""

    def refuse(_: str) -> Any:
        raise TypeError("work.db has a row that is a pickle; Foveal writes none and reads none")

    pickles = dbos_serialization.DBOSDefaultSerializer
    setattr(pickles, "deserialize", refuse)  # noqa: B010 (mypy lets nobody assign to a method)
    setattr(pickles, "serialize", lambda value: json.dumps(str(value)))  # noqa: B010
