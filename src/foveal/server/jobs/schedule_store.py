"""Schedule store: the schedules of all tenants and when each is due next.

1. A due time and its job are written in one transaction, so each time runs at most once and none is lost.
2. The next due time only increases. If the clock goes back, nothing runs again until the clock has caught up.
3. A schedule that is created, changed or enabled counts from that moment; earlier times do not run.
4. While a job of a schedule is open, its further times make no job, so jobs do not accumulate.
5. Schedules of the configuration are in the same table and replace those with the same name.

Several processes may share the database. In the table, `following` is the next due time and `due` the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import apsw
import msgspec

from foveal.errors import BadSetting, FovealError
from foveal.server.database import Database
from foveal.server.jobs import queue
from foveal.server.jobs.queue import Job, has_open_job, insert_job, new_job
from foveal.server.jobs.schedule import Schedule, check_schedule, due_run, format_time, next_run

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS schedules (
        tenant TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, cron TEXT NOT NULL, zone TEXT NOT NULL,
        prompt TEXT NOT NULL, missed TEXT NOT NULL, enabled INTEGER NOT NULL, source TEXT NOT NULL,
        following REAL NOT NULL, due REAL, result TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (tenant, name)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS schedules_following ON schedules (enabled, following)",
)
MAX_SCHEDULES_PER_TENANT: Final = 1_000

_FIELDS: Final = "tenant, name, session, cron, zone, prompt, missed, enabled, source, following, due, result"
_TIME_FIELDS: Final = ("cron", "zone", "enabled")
"""Fields that decide when a schedule is due."""

RunResult = Literal["", "waiting", "retrying", "answered", "stopped", "failed"]


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, when it is due next, and what came of its last run."""

    schedule: Schedule
    next_due: float
    """When the schedule is due next, if it is enabled."""
    last_due: float | None = None
    """The time of its last run: a scheduled time, or when the run was requested."""
    result: RunResult = ""
    """The state of its last run; "" before the first."""


class UnknownSchedule(FovealError, LookupError):
    """No schedule of the tenant has that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {name!r}; GET /api/schedules lists all schedules")
        self.name = name


class ScheduleExists(FovealError):
    """A schedule of that name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {name!r} exists; change it or choose another name")
        self.name = name


class ScheduleIsConfigured(FovealError):
    """The schedule belongs to the configuration and can only be changed there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {name!r} is in the configuration; change it in foveal.toml")
        self.name = name


class ScheduleStore:
    def __init__(self, database: Database) -> None:
        database.create_tables(queue.SCHEMA)
        database.create_tables(SCHEMA)
        self._database = database

    async def list(self, tenant: str) -> list[ScheduleState]:
        """Return a tenant's schedules, sorted by name."""
        return await self._database.read(
            lambda connection: _select(connection, "WHERE tenant = ? ORDER BY name", tenant)
        )

    async def get(self, tenant: str, name: str) -> ScheduleState:
        return await self._database.read(lambda connection: _select_one(connection, tenant, name))

    async def create(self, schedule: Schedule, *, now: float) -> ScheduleState:
        state = ScheduleState(schedule=check_schedule(schedule), next_due=next_run(schedule, after=now))

        def act(connection: apsw.Connection) -> ScheduleState:
            if _select(connection, "WHERE tenant = ? AND name = ?", *_key(schedule)):
                _select_changeable(connection, *_key(schedule))
                raise ScheduleExists(schedule.name)
            sql = "SELECT count(*) FROM schedules WHERE tenant = ?"
            if (count := connection.execute(sql, (schedule.tenant,)).get) >= MAX_SCHEDULES_PER_TENANT:
                raise BadSetting(
                    "schedules", count + 1, f"at most {MAX_SCHEDULES_PER_TENANT:,}; delete some first"
                )
            _write(connection, state)
            return state

        return await self._database.write(act)

    async def update(self, tenant: str, name: str, changes: dict[str, Any], *, now: float) -> ScheduleState:
        """Change fields of a schedule; raises `ScheduleIsConfigured` for one of the configuration."""

        def act(connection: apsw.Connection) -> ScheduleState:
            state = _select_changeable(connection, tenant, name)
            changed = check_schedule(msgspec.structs.replace(state.schedule, **changes))
            moved = any(getattr(changed, field) != getattr(state.schedule, field) for field in _TIME_FIELDS)
            next_due = next_run(changed, after=now) if moved else state.next_due
            state = msgspec.structs.replace(state, schedule=changed, next_due=next_due)
            _write(connection, state)
            return state

        return await self._database.write(act)

    async def delete(self, tenant: str, name: str) -> None:
        def act(connection: apsw.Connection) -> None:
            _select_changeable(connection, tenant, name)
            connection.execute("DELETE FROM schedules WHERE tenant = ? AND name = ?", (tenant, name))

        await self._database.write(act)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the schedules of a session, except those of the configuration."""
        sql = "DELETE FROM schedules WHERE tenant = ? AND session = ? AND source = 'api'"
        await self._database.write(lambda connection: connection.execute(sql, (tenant, session)))

    async def set_configured(self, configured: Sequence[Schedule], *, now: float) -> None:
        """Replace the schedules of the configuration by these."""

        def act(connection: apsw.Connection) -> None:
            before = {_key(state.schedule): state for state in _select(connection, "")}
            names = {_key(schedule) for schedule in configured}
            for name, state in before.items():
                if state.schedule.source == "config" and name not in names:
                    connection.execute("DELETE FROM schedules WHERE tenant = ? AND name = ?", name)
            for schedule in configured:
                _write(connection, _configured_state(schedule, before.get(_key(schedule)), now=now))

        await self._database.write(act)

    # ── Runs ─────────────────────────────────────────────────────────────────────────────────────────────

    async def queue_due_runs(self, *, now: float) -> int:
        """Queue a job for each schedule that is due; return the number of jobs."""

        def act(connection: apsw.Connection) -> int:
            return sum(_run_due(connection, state, now=now) for state in _select(connection, _DUE, now))

        if not await self._database.read(lambda connection: len(_select(connection, f"{_DUE} LIMIT 1", now))):
            return 0
        return await self._database.write(act)

    async def queue_run_now(self, tenant: str, name: str, *, now: float) -> str:
        """Queue a job outside of the schedule's times; return its key."""

        def act(connection: apsw.Connection) -> str:
            state = _select_one(connection, tenant, name)
            job = _new_run(state.schedule, f"now/{now:.6f}", now=now)
            insert_job(connection, job)
            sql = "UPDATE schedules SET due = ?, result = 'waiting' WHERE tenant = ? AND name = ?"
            connection.execute(sql, (now, tenant, name))
            return job.key

        return await self._database.write(act)

    async def next_due(self) -> float | None:
        """Return the earliest time at which a schedule is due."""
        sql = "SELECT min(following) FROM schedules WHERE enabled = 1"
        return await self._database.read(lambda connection: connection.execute(sql).get)

    async def set_result(self, tenant: str, name: str, result: RunResult) -> None:
        """Set the state of a schedule's last run."""
        await self._database.write(lambda connection: _set_result(connection, tenant, name, result))


_DUE: Final = "WHERE enabled = 1 AND following <= ?"


def _run_due(connection: apsw.Connection, state: ScheduleState, *, now: float) -> bool:
    schedule = state.schedule
    try:
        run = due_run(schedule, now=now)
    except BadSetting:  # a zone that the system no longer has must not block all other schedules
        sql = "UPDATE schedules SET enabled = 0, result = 'failed' WHERE tenant = ? AND name = ?"
        connection.execute(sql, _key(schedule))
        return False
    if run.due is None or has_open_job(connection, *_key(schedule)):
        sql = "UPDATE schedules SET following = ? WHERE tenant = ? AND name = ?"
        connection.execute(sql, (run.next_due, *_key(schedule)))
        return False
    sql = "UPDATE schedules SET following = ?, due = ?, result = 'waiting' WHERE tenant = ? AND name = ?"
    connection.execute(sql, (run.next_due, run.due, *_key(schedule)))
    return insert_job(connection, _new_run(schedule, format_time(run.due), now=now))


def _new_run(schedule: Schedule, when: str, *, now: float) -> Job:
    return new_job(
        schedule.tenant,
        schedule.session,
        key=f"schedule/{schedule.name}/{when}",
        kind="run",
        prompt=schedule.prompt,
        schedule=schedule.name,
        now=now,
    )


def _configured_state(schedule: Schedule, before: ScheduleState | None, *, now: float) -> ScheduleState:
    """Return the state of a configured schedule; its due time stays if its times are unchanged."""
    if before is not None and before.schedule.source == "config":
        same = all(getattr(schedule, field) == getattr(before.schedule, field) for field in _TIME_FIELDS)
        if same:
            return msgspec.structs.replace(before, schedule=schedule)
    return ScheduleState(schedule=schedule, next_due=next_run(schedule, after=now))


def _key(schedule: Schedule) -> tuple[str, str]:
    return schedule.tenant, schedule.name


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _select(connection: apsw.Connection, where: str, *values: Any) -> list[ScheduleState]:
    return list(_read(connection.execute(f"SELECT {_FIELDS} FROM schedules {where}", values)))


def _select_one(connection: apsw.Connection, tenant: str, name: str) -> ScheduleState:
    found = _select(connection, "WHERE tenant = ? AND name = ?", tenant, name)
    if not found:
        raise UnknownSchedule(name)
    return found[0]


def _select_changeable(connection: apsw.Connection, tenant: str, name: str) -> ScheduleState:
    state = _select_one(connection, tenant, name)
    if state.schedule.source == "config":
        raise ScheduleIsConfigured(name)
    return state


def _read(rows: Iterable[tuple[Any, ...]]) -> Iterable[ScheduleState]:
    for row in rows:
        values = dict(zip(_FIELDS.split(", "), row, strict=True))
        next_due, last_due, result = (values.pop(field) for field in ("following", "due", "result"))
        values["enabled"] = bool(values["enabled"])
        yield ScheduleState(schedule=Schedule(**values), next_due=next_due, last_due=last_due, result=result)


def _write(connection: apsw.Connection, state: ScheduleState) -> None:
    values = msgspec.structs.asdict(state.schedule)
    values |= {"following": state.next_due, "due": state.last_due, "result": state.result}
    fields = _FIELDS.split(", ")
    marks = ", ".join("?" * len(fields))
    connection.execute(
        f"INSERT OR REPLACE INTO schedules ({_FIELDS}) VALUES ({marks})", [values[field] for field in fields]
    )


def _set_result(connection: apsw.Connection, tenant: str, name: str, result: RunResult) -> None:
    sql = "UPDATE schedules SET result = ? WHERE tenant = ? AND name = ?"
    connection.execute(sql, (result, tenant, name))
