"""The schedules of all tenants, and when each is due next: durable, in a database that several processes share.

1. A time that is due and the errand that it makes are written in one transaction, so each runs at most once, and
   none that was noticed is lost.
2. What is due next only moves on. A clock that goes back runs nothing again: it waits until it has caught up.
3. A schedule that is made, changed or enabled counts from that moment; what was before is not made up for.
4. While a run of a schedule is open, further times of it make none: nothing piles up.
5. Schedules of the configuration are in the same table, and replace what has their name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import apsw
import msgspec

from foveal.errors import BadSetting, FovealError
from foveal.server.database import Database
from foveal.server.jobs import queue
from foveal.server.jobs import schedule as schedules
from foveal.server.jobs.queue import Job, is_open, new_job, write_down
from foveal.server.jobs.schedule import Schedule

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS schedules (
        tenant TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, cron TEXT NOT NULL, zone TEXT NOT NULL,
        prompt TEXT NOT NULL, missed TEXT NOT NULL, enabled INTEGER NOT NULL, source TEXT NOT NULL,
        following REAL NOT NULL, due REAL, result TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (tenant, name)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS schedules_following ON schedules (enabled, following)",
)
MOST: Final = 1_000
"""Schedules of one tenant."""

_FIELDS: Final = "tenant, name, session, cron, zone, prompt, missed, enabled, source, following, due, result"
_TIMES: Final = ("cron", "zone", "enabled")
"""What decides about the times of a schedule."""

Result = Literal["", "waiting", "retrying", "answered", "stopped", "failed"]


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands."""

    schedule: Schedule
    following: float
    """When it is due next, if it is enabled."""
    due: float | None = None
    """The time that it ran for last: one of its own, or when somebody asked for it."""
    result: Result = ""
    """What became of its last run."""


class UnknownSchedule(FovealError, LookupError):
    """No schedule of the tenant has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {name!r}; GET /api/schedules lists those that there are")
        self.name = name


class ScheduleExists(FovealError):
    """The name is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a schedule {name!r}; change that one, or choose another name")
        self.name = name


class ScheduleIsConfigured(FovealError):
    """The schedule is one of the configuration, and changed there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {name!r} is in the configuration; change it in foveal.toml")
        self.name = name


class ScheduleStore:
    def __init__(self, database: Database) -> None:
        database.create_tables(queue.SCHEMA)
        database.create_tables(SCHEMA)
        self._database = database

    async def lines(self, tenant: str) -> list[ScheduleState]:
        """A tenant's schedules by name."""
        return await self._database.look(
            lambda connection: _lines(connection, "WHERE tenant = ? ORDER BY name", tenant)
        )

    async def line(self, tenant: str, name: str) -> ScheduleState:
        return await self._database.look(lambda connection: _line(connection, tenant, name))

    async def create(self, schedule: Schedule, *, now: float) -> ScheduleState:
        line = ScheduleState(
            schedule=schedules.checked(schedule), following=schedules.next_run(schedule, after=now)
        )

        def act(connection: apsw.Connection) -> ScheduleState:
            if _lines(connection, "WHERE tenant = ? AND name = ?", *_name(schedule)):
                _own(connection, *_name(schedule))
                raise ScheduleExists(schedule.name)
            sql = "SELECT count(*) FROM schedules WHERE tenant = ?"
            if (count := connection.execute(sql, (schedule.tenant,)).get) >= MOST:
                raise BadSetting("schedules", count + 1, f"at most {MOST:,}; delete some first")
            _write(connection, line)
            return line

        return await self._database.do(act)

    async def change(self, tenant: str, name: str, changes: dict[str, Any], *, now: float) -> ScheduleState:
        """A schedule with other values; those of the configuration are changed there."""

        def act(connection: apsw.Connection) -> ScheduleState:
            line = _own(connection, tenant, name)
            changed = schedules.checked(msgspec.structs.replace(line.schedule, **changes))
            moved = any(getattr(changed, field) != getattr(line.schedule, field) for field in _TIMES)
            following = schedules.next_run(changed, after=now) if moved else line.following
            line = msgspec.structs.replace(line, schedule=changed, following=following)
            _write(connection, line)
            return line

        return await self._database.do(act)

    async def delete(self, tenant: str, name: str) -> None:
        def act(connection: apsw.Connection) -> None:
            _own(connection, tenant, name)
            connection.execute("DELETE FROM schedules WHERE tenant = ? AND name = ?", (tenant, name))

        await self._database.do(act)

    async def forget(self, tenant: str, session: str) -> None:
        """A session was deleted: so are the schedules for it, except those of the configuration."""
        sql = "DELETE FROM schedules WHERE tenant = ? AND session = ? AND source = 'api'"
        await self._database.do(lambda connection: connection.execute(sql, (tenant, session)))

    async def configure(self, configured: Sequence[Schedule], *, now: float) -> None:
        """Let the configuration's schedules be these."""

        def act(connection: apsw.Connection) -> None:
            before = {_name(line.schedule): line for line in _lines(connection, "")}
            names = {_name(schedule) for schedule in configured}
            for name, line in before.items():
                if line.schedule.source == "config" and name not in names:
                    connection.execute("DELETE FROM schedules WHERE tenant = ? AND name = ?", name)
            for schedule in configured:
                _write(connection, _settled(schedule, before.get(_name(schedule)), now=now))

        await self._database.do(act)

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────────────

    async def run_due(self, *, now: float) -> int:
        """Write down the errands of all times that have come; how many."""

        def act(connection: apsw.Connection) -> int:
            return sum(_run_due(connection, line, now=now) for line in _lines(connection, _DUE, now))

        if not await self._database.look(lambda connection: len(_lines(connection, f"{_DUE} LIMIT 1", now))):
            return 0
        return await self._database.do(act)

    async def run_now(self, tenant: str, name: str, *, now: float) -> str:
        """Write down an errand outside of the times; its key."""

        def act(connection: apsw.Connection) -> str:
            line = _line(connection, tenant, name)
            wanted = _errand(line.schedule, f"now/{now:.6f}", now=now)
            write_down(connection, wanted)
            sql = "UPDATE schedules SET due = ?, result = 'waiting' WHERE tenant = ? AND name = ?"
            connection.execute(sql, (now, tenant, name))
            return wanted.key

        return await self._database.do(act)

    async def following(self) -> float | None:
        """The next time that anything is due."""
        sql = "SELECT min(following) FROM schedules WHERE enabled = 1"
        return await self._database.look(lambda connection: connection.execute(sql).get)

    async def tell(self, tenant: str, name: str, result: Result) -> None:
        """What became of the last run."""
        await self._database.do(lambda connection: _tell(connection, tenant, name, result))


_DUE: Final = "WHERE enabled = 1 AND following <= ?"


def _run_due(connection: apsw.Connection, line: ScheduleState, *, now: float) -> bool:
    schedule = line.schedule
    try:
        run = schedules.at(schedule, now=now)
    except BadSetting:  # a zone that the system no longer has must not hold up all the others
        sql = "UPDATE schedules SET enabled = 0, result = 'failed' WHERE tenant = ? AND name = ?"
        connection.execute(sql, _name(schedule))
        return False
    if run.due is None or is_open(connection, *_name(schedule)):
        sql = "UPDATE schedules SET following = ? WHERE tenant = ? AND name = ?"
        connection.execute(sql, (run.following, *_name(schedule)))
        return False
    sql = "UPDATE schedules SET following = ?, due = ?, result = 'waiting' WHERE tenant = ? AND name = ?"
    connection.execute(sql, (run.following, run.due, *_name(schedule)))
    return write_down(connection, _errand(schedule, schedules.stamp(run.due), now=now))


def _errand(schedule: Schedule, when: str, *, now: float) -> Job:
    return new_job(
        schedule.tenant,
        schedule.session,
        key=f"schedule/{schedule.name}/{when}",
        kind="run",
        prompt=schedule.prompt,
        schedule=schedule.name,
        now=now,
    )


def _settled(schedule: Schedule, before: ScheduleState | None, *, now: float) -> ScheduleState:
    """A schedule of the configuration; its times go on if they are the same as before."""
    if before is not None and before.schedule.source == "config":
        same = all(getattr(schedule, field) == getattr(before.schedule, field) for field in _TIMES)
        if same:
            return msgspec.structs.replace(before, schedule=schedule)
    return ScheduleState(schedule=schedule, following=schedules.next_run(schedule, after=now))


def _name(schedule: Schedule) -> tuple[str, str]:
    return schedule.tenant, schedule.name


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(connection: apsw.Connection, where: str, *values: Any) -> list[ScheduleState]:
    return list(_read(connection.execute(f"SELECT {_FIELDS} FROM schedules {where}", values)))


def _line(connection: apsw.Connection, tenant: str, name: str) -> ScheduleState:
    found = _lines(connection, "WHERE tenant = ? AND name = ?", tenant, name)
    if not found:
        raise UnknownSchedule(name)
    return found[0]


def _own(connection: apsw.Connection, tenant: str, name: str) -> ScheduleState:
    line = _line(connection, tenant, name)
    if line.schedule.source == "config":
        raise ScheduleIsConfigured(name)
    return line


def _read(rows: Iterable[tuple[Any, ...]]) -> Iterable[ScheduleState]:
    for row in rows:
        values = dict(zip(_FIELDS.split(", "), row, strict=True))
        following, due, result = (values.pop(field) for field in ("following", "due", "result"))
        values["enabled"] = bool(values["enabled"])
        yield ScheduleState(schedule=Schedule(**values), following=following, due=due, result=result)


def _write(connection: apsw.Connection, line: ScheduleState) -> None:
    values = msgspec.structs.asdict(line.schedule)
    values |= {"following": line.following, "due": line.due, "result": line.result}
    fields = _FIELDS.split(", ")
    marks = ", ".join("?" * len(fields))
    connection.execute(
        f"INSERT OR REPLACE INTO schedules ({_FIELDS}) VALUES ({marks})", [values[field] for field in fields]
    )


def _tell(connection: apsw.Connection, tenant: str, name: str, result: Result) -> None:
    sql = "UPDATE schedules SET result = ? WHERE tenant = ? AND name = ?"
    connection.execute(sql, (result, tenant, name))
