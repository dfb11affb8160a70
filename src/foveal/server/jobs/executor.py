"""Executors: the processes that run jobs, and how they notice that one of them has died.

1. In a folder one process at a time is the executor. It holds a lock that ends with the process.
2. On PostgreSQL every process is an executor, with a new id at each start. It writes the database's time into its
   row every `heartbeat_s` seconds. An executor without a row has stopped; one that was silent for `silent_s` counts
   as dead.
3. An executor that was only paused may still run a job that another has begun again. The key of the message and the
   lease of the session let one of them answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple, Protocol
from uuid import uuid4

from foveal.server.databases import Database, Transaction
from foveal.stores.session_locks import HeldLock, Locks

FOLDER_EXECUTOR_ID: Final = "foveal"
"""The id of every executor of a folder: DBOS continues the jobs of the one before."""
EXECUTOR_ROW_TTL_S: Final = 86_400.0
"""For which the row of a dead executor is kept: it may only be paused."""
_log = logging.getLogger("foveal.work")


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
