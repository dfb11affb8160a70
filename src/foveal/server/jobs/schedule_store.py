"""Schedule store: the schedules of all tenants and when each is due next.

1. A due time and its job are written in one transaction, so each time runs at most once and none is lost.
2. The next due time only increases. If the clock goes back, nothing runs again until the clock has caught up.
3. A schedule that is created, changed or enabled counts from that moment; earlier times do not run.
4. While a job of a schedule is open, its further times make no job, so jobs do not accumulate.
5. Schedules of the configuration are in the same table and replace those with the same name.
6. A schedule of a chat follows the chat: its job is for the session that the chat is in when it is due.

Several processes may share the database. In the table, `following` is the next due time and `due` the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from foveal.config import ScheduleSetting
from foveal.errors import BadSetting, FovealError
from foveal.server.chat_records import current_session
from foveal.server.databases import Database, Transaction
from foveal.server.inbox import schedule_key
from foveal.server.jobs.queue import Job, delete_job, has_open_job, insert_job

# ── Cron expressions ──────────────────────────────────────────────────────────────────────────────
# They have five fields (minute, hour, day of the month, month, weekday) and a time zone:
#
# 1. A time is a number of seconds since 1970, so it is the same everywhere and occurs once.
# 2. When the clocks go forward, a fixed time in the skipped hour runs right after it (02:30 at 03:00).
# 3. When the clocks go back, a fixed time in the repeated hour runs once, at its first occurrence.
# 4. An expression with `*` for its minutes or hours follows elapsed time: it runs in both of the repeated hours and
#    not in the skipped one. (This is the behaviour of Debian's cron, and of cronsim.)

MAX_CRON_CHARS: Final = 256
_MAX_CLOCK_CHANGE: Final = timedelta(hours=4)
"""More than any clock change: cronsim's times may lie this far on the wrong side of its start."""
_YEARS: Final = range(1971, 9000)
CRON_HELP: Final = (
    'five fields: minute, hour, day of the month, month, day of the week, such as "0 9 * * MON-FRI"'
)
ZONE_HELP: Final = "a name such as UTC, Europe/Berlin or America/New_York"
_REFUSED_ZONES: Final = re.compile(r"(localtime|posixrules|Factory)\Z|(posix|right)/")
"""Zones that differ between machines, or that count leap seconds."""


def check_cron(cron: str, *, zone: str) -> None:
    """Raise `BadSetting` for an invalid expression or an unknown zone."""
    where = _zone(zone)
    if len(cron) > MAX_CRON_CHARS or len(cron.split()) != 5 or not cron.isprintable():
        raise BadSetting("cron", cron[:MAX_CRON_CHARS], CRON_HELP)
    try:
        next(CronSim(cron, datetime(2024, 1, 1, tzinfo=where)))
    except (CronSimError, ValueError, AssertionError, TypeError) as problem:
        raise BadSetting("cron", cron, f"{CRON_HELP} ({problem})") from None
    except StopIteration:
        raise BadSetting("cron", cron, "an expression that matches some day") from None


def next_time(cron: str, *, zone: str, after: float) -> float:
    """Return the first time after this one."""
    begin = _moment(after, zone) - _clock_change(cron, zone)
    return _first_or_raise(time for time in _times(CronSim(cron, begin)) if time > after)


def latest_time(cron: str, *, zone: str, until: float) -> float:
    """Return the last time that is not after this one."""
    begin = _moment(until, zone) + _clock_change(cron, zone) + timedelta(seconds=1)
    return _first_or_raise(time for time in _times(CronSim(cron, begin, reverse=True)) if time <= until)


def _times(sim: CronSim) -> Iterator[float]:
    for moment in sim:
        yield moment.timestamp()


def _first_or_raise(times: Iterator[float]) -> float:
    found = next(times, None)
    if found is None:
        raise BadSetting("cron", "an expression", "one that matches within fifty years")
    return found


def _clock_change(cron: str, zone: str) -> timedelta:
    minute, hour = cron.split()[:2]
    fixed = not minute.startswith("*") and not hour.startswith("*")
    return _MAX_CLOCK_CHANGE if fixed and _zone(zone) is not UTC else timedelta()


def _moment(time: float, zone: str) -> datetime:
    moment = datetime.fromtimestamp(time, UTC)
    if moment.year not in _YEARS:
        raise BadSetting("time", time, f"a year from {_YEARS.start} to {_YEARS.stop - 1}")
    return moment.astimezone(_zone(zone))


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        if not _REFUSED_ZONES.match(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise BadSetting("zone", name, ZONE_HELP)


# ── Schedules ─────────────────────────────────────────────────────────────────────────────────────
# A time is missed if it is noticed more than `MISSED_AFTER_S` seconds later: no server ran, or the machine slept.
# Then the schedule's rule applies:
#
#     once    any number of missed times make one run, for the newest of them, as soon as a server runs
#     skip    missed times make no run

MissedRule = Literal["once", "skip"]

MISSED_AFTER_S: Final = 60.0
MAX_PROMPT_CHARS: Final = 100_000
SCHEDULE_NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Unique within its tenant."""
    session: str
    cron: str
    prompt: str
    zone: str = "UTC"
    missed: MissedRule = "once"
    enabled: bool = True
    tenant: str = "default"
    source: Literal["api", "config"] = "api"
    """A schedule of the configuration can only be changed there."""
    agent: str = ""
    """The agent of the configuration with which its session is created; a session that exists keeps its own."""


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule asks for at a moment."""

    due: float | None
    """The time that the run is for; None: no run."""
    next_due: float
    """When to check the schedule again."""


def check_schedule(schedule: Schedule) -> Schedule:
    """Return the schedule if it is valid; raises `BadSetting`."""
    if not re.fullmatch(SCHEDULE_NAME_PATTERN, schedule.name):
        raise BadSetting("name", schedule.name[:64], "1 to 64 letters, digits, dots, dashes or underscores")
    if not schedule.session:
        raise BadSetting("session", schedule.session, "the id of a session")
    if not schedule.prompt.strip() or len(schedule.prompt) > MAX_PROMPT_CHARS:
        what = f"{len(schedule.prompt):,} characters"
        raise BadSetting("prompt", what, f"text of at most {MAX_PROMPT_CHARS:,} characters")
    if any("\ud800" <= character <= "\udfff" for character in schedule.prompt):
        raise BadSetting("prompt", "half a surrogate pair", "text that can be encoded as UTF-8")
    if schedule.missed not in get_args(MissedRule):
        raise BadSetting("missed", schedule.missed, '"once" or "skip"')
    check_cron(schedule.cron, zone=schedule.zone)
    return schedule


def schedule_from_config(schedule: ScheduleSetting) -> Schedule:
    """Return the schedule of a `[[schedule]]` table."""
    return check_schedule(Schedule(**schedule._asdict(), source="config"))


def next_run(schedule: Schedule, *, after: float) -> float:
    return next_time(schedule.cron, zone=schedule.zone, after=after)


def due_run(schedule: Schedule, *, now: float) -> DueRun:
    """Return what a schedule asks for, now that one or more of its times have come."""
    due = latest_time(schedule.cron, zone=schedule.zone, until=now)
    missed = now - due > MISSED_AFTER_S
    return DueRun(
        due=None if missed and schedule.missed == "skip" else due, next_due=next_run(schedule, after=now)
    )


def format_time(time: float) -> str:
    """Return a time as ISO 8601 text: `2026-03-29T01:00:00Z`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


MAX_SCHEDULES_PER_TENANT: Final = 1_000

_FIELDS: Final = (
    "tenant, name, session, cron, zone, prompt, missed, enabled, source, following, due, result, agent"
)
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
        self._database = database

    async def list(self, tenant: str) -> list[ScheduleState]:
        """Return a tenant's schedules, sorted by name."""
        where = "WHERE tenant = ? ORDER BY name"
        return await self._database.read(lambda db: _select(db, where, tenant), tenant=tenant)

    async def get(self, tenant: str, name: str) -> ScheduleState:
        return await self._database.read(lambda db: _select_one(db, tenant, name), tenant=tenant)

    async def create(self, schedule: Schedule, *, now: float) -> ScheduleState:
        state = ScheduleState(schedule=check_schedule(schedule), next_due=next_run(schedule, after=now))

        async def act(db: Transaction) -> ScheduleState:
            await db.lock(_CHANGING)
            if await _select(db, "WHERE tenant = ? AND name = ?", *_key(schedule)):
                await _select_changeable(db, *_key(schedule))
                raise ScheduleExists(schedule.name)
            sql = "SELECT count(*) FROM schedules WHERE tenant = ?"
            count = (await db.fetch(sql, schedule.tenant))[0][0]
            if count >= MAX_SCHEDULES_PER_TENANT:
                raise BadSetting(
                    "schedules", count + 1, f"at most {MAX_SCHEDULES_PER_TENANT:,}; delete some first"
                )
            await _write(db, state)
            return state

        return await self._database.write(act, tenant=schedule.tenant)

    async def update(self, tenant: str, name: str, changes: dict[str, Any], *, now: float) -> ScheduleState:
        """Change fields of a schedule; raises `ScheduleIsConfigured` for one of the configuration."""

        async def act(db: Transaction) -> ScheduleState:
            await db.lock(_CHANGING)
            state = await _select_changeable(db, tenant, name)
            changed = check_schedule(msgspec.structs.replace(state.schedule, **changes))
            moved = any(getattr(changed, field) != getattr(state.schedule, field) for field in _TIME_FIELDS)
            next_due = next_run(changed, after=now) if moved else state.next_due
            state = msgspec.structs.replace(state, schedule=changed, next_due=next_due)
            await _write(db, state)
            return state

        return await self._database.write(act, tenant=tenant)

    async def delete(self, tenant: str, name: str) -> None:
        async def act(db: Transaction) -> None:
            await db.lock(_CHANGING)
            await _select_changeable(db, tenant, name)
            await db.execute("DELETE FROM schedules WHERE tenant = ? AND name = ?", tenant, name)

        await self._database.write(act, tenant=tenant)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the schedules of a session, except those of the configuration."""

        async def act(db: Transaction) -> None:
            await db.lock(_CHANGING)
            sql = "DELETE FROM schedules WHERE tenant = ? AND session = ? AND source = 'api'"
            await db.execute(sql, tenant, session)

        await self._database.write(act, tenant=tenant)

    async def set_configured(self, configured: Sequence[Schedule], *, now: float) -> None:
        """Replace the schedules of the configuration by these."""

        async def act(db: Transaction) -> None:
            await db.lock(_CHANGING)
            before = {_key(state.schedule): state for state in await _select(db, "")}
            names = {_key(schedule) for schedule in configured}
            for name, state in before.items():
                if state.schedule.source == "config" and name not in names:
                    await db.execute("DELETE FROM schedules WHERE tenant = ? AND name = ?", *name)
            for schedule in configured:
                await _write(db, _configured_state(schedule, before.get(_key(schedule)), now=now))

        await self._database.write(act, repeatable=True)

    # ── Runs ─────────────────────────────────────────────────────────────────────────────────────────────

    async def queue_due_runs(self, *, now: float) -> int:
        """Queue a job for each schedule that is due; return the number of jobs."""

        async def act(db: Transaction) -> int:
            await db.lock(_CHANGING)
            return sum([await _run_due(db, state, now=now) for state in await _select(db, _DUE, now)])

        if not await self._database.read(lambda db: _select(db, f"{_DUE} LIMIT 1", now)):
            return 0
        return await self._database.write(act, repeatable=True)

    async def queue_run_now(self, tenant: str, name: str, *, now: float) -> str:
        """Queue a job outside of the schedule's times; return its key."""
        schedule = (await self.get(tenant, name)).schedule
        # Only transactions of the whole service see the chats.
        session = await self._database.read(lambda db: current_session(db, tenant, schedule.session))

        async def act(db: Transaction) -> str:
            await db.lock(_CHANGING)
            state = await _select_one(db, tenant, name)
            job = _new_run(state.schedule, session, f"now/{now:.6f}", now=now)
            await insert_job(db, job)
            sql = "UPDATE schedules SET due = ?, result = 'waiting' WHERE tenant = ? AND name = ?"
            await db.execute(sql, now, tenant, name)
            return job.key

        return await self._database.write(act, tenant=tenant)

    async def next_due(self) -> float | None:
        """Return the earliest time at which a schedule is due."""
        sql = "SELECT min(following) FROM schedules WHERE enabled = 1"
        due: float | None = (await self._database.read(lambda db: db.fetch(sql)))[0][0]
        return due

    async def mark_retrying(self, job: Job) -> None:
        """Set the state of a job's schedule, unless another executor has ended the job."""
        sql = """UPDATE schedules SET result = 'retrying' WHERE tenant = ? AND name = ?
            AND EXISTS (SELECT 1 FROM errands WHERE id = ?)"""
        values = job.tenant, job.schedule, job.id
        await self._database.write(lambda db: db.execute(sql, *values), tenant=job.tenant, repeatable=True)

    async def end_job(self, job: Job, result: RunResult) -> None:
        """Delete a job and set the state of its schedule, unless another executor has done so."""

        async def act(db: Transaction) -> None:
            if await delete_job(db, job.id):
                sql = "UPDATE schedules SET result = ? WHERE tenant = ? AND name = ?"
                await db.execute(sql, result, job.tenant, job.schedule)

        await self._database.write(act, tenant=job.tenant, repeatable=True)


_CHANGING: Final = "schedules"
"""The lock of transactions that read schedules and then change them."""
_DUE: Final = "WHERE enabled = 1 AND following <= ?"


async def _run_due(db: Transaction, state: ScheduleState, *, now: float) -> bool:
    schedule = state.schedule
    try:
        run = due_run(schedule, now=now)
    except BadSetting:  # a zone that the system no longer has must not block all other schedules
        sql = "UPDATE schedules SET enabled = 0, result = 'failed' WHERE tenant = ? AND name = ?"
        await db.execute(sql, *_key(schedule))
        return False
    if run.due is None or await has_open_job(db, *_key(schedule)):
        sql = "UPDATE schedules SET following = ? WHERE tenant = ? AND name = ?"
        await db.execute(sql, run.next_due, *_key(schedule))
        return False
    sql = "UPDATE schedules SET following = ?, due = ?, result = 'waiting' WHERE tenant = ? AND name = ?"
    await db.execute(sql, run.next_due, run.due, *_key(schedule))
    session = await current_session(db, schedule.tenant, schedule.session)
    return await insert_job(db, _new_run(schedule, session, format_time(run.due), now=now))


def _new_run(schedule: Schedule, session: str, when: str, *, now: float) -> Job:
    return Job(
        tenant=schedule.tenant,
        session=session,
        key=schedule_key(schedule.name, when),
        kind="run",
        prompt=schedule.prompt,
        schedule=schedule.name,
        agent=schedule.agent,
        at=now,
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


async def _select(db: Transaction, where: str, *values: Any) -> list[ScheduleState]:
    return list(_read(await db.fetch(f"SELECT {_FIELDS} FROM schedules {where}", *values)))


async def _select_one(db: Transaction, tenant: str, name: str) -> ScheduleState:
    found = await _select(db, "WHERE tenant = ? AND name = ?", tenant, name)
    if not found:
        raise UnknownSchedule(name)
    return found[0]


async def _select_changeable(db: Transaction, tenant: str, name: str) -> ScheduleState:
    state = await _select_one(db, tenant, name)
    if state.schedule.source == "config":
        raise ScheduleIsConfigured(name)
    return state


def _read(rows: Iterable[tuple[Any, ...]]) -> Iterable[ScheduleState]:
    for row in rows:
        values = dict(zip(_FIELDS.split(", "), row, strict=True))
        next_due, last_due, result = (values.pop(field) for field in ("following", "due", "result"))
        values["enabled"] = bool(values["enabled"])
        yield ScheduleState(schedule=Schedule(**values), next_due=next_due, last_due=last_due, result=result)


async def _write(db: Transaction, state: ScheduleState) -> None:
    values = msgspec.structs.asdict(state.schedule)
    values["enabled"] = int(state.schedule.enabled)
    values |= {"following": state.next_due, "due": state.last_due, "result": state.result}
    fields = _FIELDS.split(", ")
    marks = ", ".join("?" * len(fields))
    changes = ", ".join(f"{field} = excluded.{field}" for field in fields)
    sql = f"""INSERT INTO schedules ({_FIELDS}) VALUES ({marks})
        ON CONFLICT (tenant, name) DO UPDATE SET {changes}"""
    await db.execute(sql, *(values[field] for field in fields))
