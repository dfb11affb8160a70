"""Durable queue of background jobs, in `service.db`.

1. A job stays in the queue until it is done or given up, so no crash loses one.
2. A session has at most one open job of a kind and key; adding it again changes nothing.
3. The prompt of a job is stored only here, never in the engine's database, and is deleted with the job or its
   session.

The table is named `errands` for compatibility with existing databases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

import msgspec

from foveal.errors import StoreUnusable
from foveal.server.databases import Database, Transaction
from foveal.server.inbox import check_key

# ── What the job engine gets ─────────────────────────────────────────────────────────────────────────────
# DBOS takes 0.6 seconds of CPU to import and wakes several times a second, so a process loads it with its first
# job.

AttemptResult = Literal["done", "later"]
RunAttempt = Callable[[str, int], Awaitable[AttemptResult]]
"""Runs one attempt of a job: its id, and the number of attempts before."""

SQLITE_URL: Final = "sqlite:///"
_SQLITE_HEADER: Final = b"SQLite format 3\0"


class EngineJob(NamedTuple):
    partition: str
    """A limited number of jobs of a partition run at once."""
    job_id: str
    delay_s: float = 0.0


def engine_file(url: str) -> Path | None:
    """Return the engine's SQLite file; None if its database is PostgreSQL."""
    return Path(url.removeprefix(SQLITE_URL)) if url.startswith(SQLITE_URL) else None


def check_engine_file(url: str) -> None:
    """Raise `StoreUnusable` if the engine's file is no database, before the first job needs it."""
    path = engine_file(url)
    if path is None or not path.exists():
        return
    try:
        with path.open("rb") as file:
            begin = file.read(len(_SQLITE_HEADER))
    except OSError as problem:
        raise unusable_file(path, problem) from problem
    if begin and begin != _SQLITE_HEADER:
        raise unusable_file(path, ValueError("no SQLite database"))


def unusable_file(path: Path, problem: Exception) -> StoreUnusable:
    return StoreUnusable(
        f"{path} cannot be used ({type(problem).__name__}): check that the disk has space and the file is "
        "writable; you may move it away, open jobs are kept in service.db"
    )


# ── The queue ────────────────────────────────────────────────────────────────────────────────────────────

JobKind = Literal["run", "prepare"]
_FIELDS: Final = "id, tenant, session, key, kind, prompt, schedule, at, agent"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: str = msgspec.field(default_factory=lambda: uuid4().hex)
    """Identifies the job in the engine's database; random."""
    tenant: str
    session: str
    key: str
    """The key of the message, so that it is submitted once."""
    kind: JobKind
    prompt: str = ""
    schedule: str = ""
    """The name of the schedule that created the job, or ""."""
    at: float = 0.0
    """When the job was requested."""
    agent: str = ""
    """The agent with which its session is created, if that does not exist."""


async def insert_job(db: Transaction, job: Job) -> bool:
    """Insert a job in the caller's transaction; return False if its key is taken."""
    sql = f"INSERT INTO errands ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    return await db.execute(sql, *msgspec.structs.astuple(job)) == 1


async def has_open_job(db: Transaction, tenant: str, schedule: str) -> bool:
    """Return whether a schedule has an open job, in the caller's transaction."""
    sql = "SELECT 1 FROM errands WHERE tenant = ? AND schedule = ? LIMIT 1"
    return bool(await db.fetch(sql, tenant, schedule))


async def delete_job(db: Transaction, id: str) -> bool:
    """Delete a job in the caller's transaction; return False if it is no longer open."""
    return await db.execute("DELETE FROM errands WHERE id = ?", id) == 1


class JobQueue:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, job: Job) -> bool:
        """Add a job, durable when this returns; return False if its key is taken. Raises `KeyReused` if the key of
        a run is that of another text."""

        async def act(db: Transaction) -> bool:
            await db.lock(f"jobs/{job.tenant}/{job.session}")  # places rise in the order of commits
            if job.kind == "run":
                await check_key(db, job.tenant, job.session, key=job.key, text=job.prompt)
            # After a lost reply, the job may be there from the attempt before.
            return await insert_job(db, job) or bool(
                await db.fetch("SELECT 1 FROM errands WHERE id = ?", job.id)
            )

        return await self._database.write(act, tenant=job.tenant, repeatable=True)

    async def untaken(self, limit: int = 64) -> list[Job]:
        """Return jobs that no worker has taken: the oldest of each tenant, then the second oldest, and so on."""
        sql = f"""SELECT {_FIELDS} FROM errands WHERE taken = 0
            ORDER BY row_number() OVER (PARTITION BY tenant ORDER BY place), place LIMIT ?"""
        return _read(await self._database.read(lambda db: db.fetch(sql, limit)))

    async def get(self, id: str) -> Job | None:
        """Return a job; None if it is done or its session was deleted."""
        sql = f"SELECT {_FIELDS} FROM errands WHERE id = ?"
        found = _read(await self._database.read(lambda db: db.fetch(sql, id)))
        return found[0] if found else None

    async def open_runs_up_to(self, job: Job) -> list[Job]:
        """Return the open runs of a session up to this job, in the order in which they were requested."""
        sql = f"""SELECT {_FIELDS} FROM errands WHERE tenant = ? AND session = ? AND kind = 'run'
            AND place <= (SELECT place FROM errands WHERE id = ?) ORDER BY place"""
        values = job.tenant, job.session, job.id
        return _read(await self._database.read(lambda db: db.fetch(sql, *values), tenant=job.tenant))

    async def mark_taken(self, ids: Iterable[str]) -> None:
        """Mark jobs as taken: the engine has them in its own database."""
        rows = [(id,) for id in ids]
        sql = "UPDATE errands SET taken = 1 WHERE id = ?"
        await self._database.write(lambda db: db.execute_many(sql, rows), repeatable=True)

    async def clear_taken(self) -> None:
        """Mark all jobs as not taken: a new worker starts and takes them again."""
        sql = "UPDATE errands SET taken = 0 WHERE taken = 1"
        await self._database.write(lambda db: db.execute(sql), repeatable=True)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the jobs of a session."""
        sql = "DELETE FROM errands WHERE tenant = ? AND session = ?"
        values = tenant, session
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant, repeatable=True)

    async def count(self) -> int:
        """Return the number of open jobs."""
        sql = "SELECT count(*) FROM errands"
        return int((await self._database.read(lambda db: db.fetch(sql)))[0][0])


def _read(rows: Iterable[tuple[Any, ...]]) -> list[Job]:
    return [Job(**dict(zip(Job.__struct_fields__, row, strict=True))) for row in rows]
