"""Durable queue of background jobs, in `service.db`.

1. A job stays in the queue until it is done or given up, so no crash loses one.
2. A session has at most one open job of a kind and key; adding it again changes nothing.
3. The prompt of a job is stored only here, never in the engine's database, and is deleted with the job or its
   session.

The table is named `errands` for compatibility with existing databases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal
from uuid import uuid4

import apsw
import msgspec

from foveal.server.database import Database

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS errands (
        place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
        session TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, prompt TEXT NOT NULL, schedule TEXT NOT NULL,
        at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT 0, UNIQUE (tenant, session, kind, key))""",
    "CREATE INDEX IF NOT EXISTS errands_open ON errands (taken, place)",
)

JobKind = Literal["run", "prepare"]
_FIELDS: Final = "id, tenant, session, key, kind, prompt, schedule, at"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: str
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


def new_job(
    tenant: str, session: str, *, key: str, kind: JobKind, now: float, prompt: str = "", schedule: str = ""
) -> Job:
    return Job(
        id=uuid4().hex,
        tenant=tenant,
        session=session,
        key=key,
        kind=kind,
        prompt=prompt,
        schedule=schedule,
        at=now,
    )


def insert_job(connection: apsw.Connection, job: Job) -> bool:
    """Insert a job in the caller's transaction; return False if its key is taken."""
    connection.execute(
        f"INSERT OR IGNORE INTO errands ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        msgspec.structs.astuple(job),
    )
    return connection.changes() == 1


def has_open_job(connection: apsw.Connection, tenant: str, schedule: str) -> bool:
    """Return whether a schedule has an open job, in the caller's transaction."""
    sql = "SELECT 1 FROM errands WHERE tenant = ? AND schedule = ? LIMIT 1"
    return connection.execute(sql, (tenant, schedule)).get is not None


class JobQueue:
    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def add(self, job: Job) -> bool:
        """Add a job, durable when this returns; return False if its key is taken."""
        return await self._database.write(lambda connection: insert_job(connection, job))

    async def untaken(self, limit: int = 256) -> list[Job]:
        """Return the jobs that no worker has taken, oldest first."""
        sql = f"SELECT {_FIELDS} FROM errands WHERE taken = 0 ORDER BY place LIMIT ?"
        return await self._database.read(lambda connection: _read(connection.execute(sql, (limit,))))

    async def get(self, id: str) -> Job | None:
        """Return a job; None if it is done or its session was deleted."""
        sql = f"SELECT {_FIELDS} FROM errands WHERE id = ?"
        found = await self._database.read(lambda connection: _read(connection.execute(sql, (id,))))
        return found[0] if found else None

    async def open_runs_up_to(self, job: Job) -> list[Job]:
        """Return the open runs of a session up to this job, in the order in which they were requested."""
        sql = f"""SELECT {_FIELDS} FROM errands WHERE tenant = ? AND session = ? AND kind = 'run'
            AND place <= (SELECT place FROM errands WHERE id = ?) ORDER BY place"""
        values = job.tenant, job.session, job.id
        return await self._database.read(lambda connection: _read(connection.execute(sql, values)))

    async def mark_taken(self, ids: Iterable[str]) -> None:
        """Mark jobs as taken: the engine has them in its own database."""
        rows = [(id,) for id in ids]
        await self._database.write(
            lambda connection: connection.executemany("UPDATE errands SET taken = 1 WHERE id = ?", rows)
        )

    async def clear_taken(self) -> None:
        """Mark all jobs as not taken: a new worker starts and takes them again."""
        await self._database.write(lambda connection: connection.execute("UPDATE errands SET taken = 0"))

    async def remove(self, id: str) -> None:
        await self._database.write(
            lambda connection: connection.execute("DELETE FROM errands WHERE id = ?", (id,))
        )

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the jobs of a session."""
        sql = "DELETE FROM errands WHERE tenant = ? AND session = ?"
        await self._database.write(lambda connection: connection.execute(sql, (tenant, session)))

    async def count(self) -> int:
        """Return the number of open jobs."""
        sql = "SELECT count(*) FROM errands"
        return await self._database.read(lambda connection: int(connection.execute(sql).get))


def _read(rows: Iterable[tuple[Any, ...]]) -> list[Job]:
    return [Job(**dict(zip(Job.__struct_fields__, row, strict=True))) for row in rows]
