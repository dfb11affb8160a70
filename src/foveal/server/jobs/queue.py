"""What is to be done in the background: written down here first, then done by whoever has the worker.

1. An errand is kept until it is done or given up, so a crash at any moment loses none.
2. There is one errand of a kind and key at a time; asking again while it is open changes nothing.
3. The words of an errand are only here, never in the worker's own database, and go with the errand or its session.
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

Kind = Literal["run", "prepare"]
_FIELDS: Final = "id, tenant, session, key, kind, prompt, schedule, at"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Names the errand in the worker's database; says nothing."""
    tenant: str
    session: str
    key: str
    """The key of the message, so that it is said once."""
    kind: Kind
    prompt: str = ""
    schedule: str = ""
    """The schedule that it comes from, if any."""
    at: float = 0.0
    """When it was asked for."""


def new_job(
    tenant: str, session: str, *, key: str, kind: Kind, now: float, prompt: str = "", schedule: str = ""
) -> Job:
    """A new one."""
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


def write_down(connection: apsw.Connection, errand: Job) -> bool:
    """Keep an errand, in a transaction of the caller's; False when there is one of its key."""
    connection.execute(
        f"INSERT OR IGNORE INTO errands ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        msgspec.structs.astuple(errand),
    )
    return connection.changes() == 1


def is_open(connection: apsw.Connection, tenant: str, schedule: str) -> bool:
    """A run of a schedule is still to be done, in a transaction of the caller's."""
    sql = "SELECT 1 FROM errands WHERE tenant = ? AND schedule = ? LIMIT 1"
    return connection.execute(sql, (tenant, schedule)).get is not None


class JobQueue:
    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def add(self, errand: Job) -> bool:
        """Durable when it returns; False when there is one of its key."""
        return await self._database.do(lambda connection: write_down(connection, errand))

    async def waiting(self, limit: int = 256) -> list[Job]:
        """Those that no worker has taken, oldest first."""
        sql = f"SELECT {_FIELDS} FROM errands WHERE taken = 0 ORDER BY place LIMIT ?"
        return await self._database.look(lambda connection: _read(connection.execute(sql, (limit,))))

    async def get(self, id: str) -> Job | None:
        """None when it is done, or its session has been deleted."""
        sql = f"SELECT {_FIELDS} FROM errands WHERE id = ?"
        found = await self._database.look(lambda connection: _read(connection.execute(sql, (id,))))
        return found[0] if found else None

    async def queue(self, errand: Job) -> list[Job]:
        """The open runs of a session up to this one, in the order in which they were asked for."""
        sql = f"""SELECT {_FIELDS} FROM errands WHERE tenant = ? AND session = ? AND kind = 'run'
            AND place <= (SELECT place FROM errands WHERE id = ?) ORDER BY place"""
        values = errand.tenant, errand.session, errand.id
        return await self._database.look(lambda connection: _read(connection.execute(sql, values)))

    async def take(self, ids: Iterable[str]) -> None:
        """The worker has them in its own database."""
        rows = [(id,) for id in ids]
        await self._database.do(
            lambda connection: connection.executemany("UPDATE errands SET taken = 1 WHERE id = ?", rows)
        )

    async def take_back(self) -> None:
        """A new worker begins: it takes whatever is open."""
        await self._database.do(lambda connection: connection.execute("UPDATE errands SET taken = 0"))

    async def done(self, id: str) -> None:
        await self._database.do(
            lambda connection: connection.execute("DELETE FROM errands WHERE id = ?", (id,))
        )

    async def forget(self, tenant: str, session: str) -> None:
        """A session was deleted."""
        sql = "DELETE FROM errands WHERE tenant = ? AND session = ?"
        await self._database.do(lambda connection: connection.execute(sql, (tenant, session)))

    async def count(self) -> int:
        """How many are open."""
        sql = "SELECT count(*) FROM errands"
        return await self._database.look(lambda connection: int(connection.execute(sql).get))


def _read(rows: Iterable[tuple[Any, ...]]) -> list[Job]:
    return [Job(**dict(zip(Job.__struct_fields__, row, strict=True))) for row in rows]
