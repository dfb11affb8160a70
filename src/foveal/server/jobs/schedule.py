"""Schedules: a prompt for a session at times given by a cron expression.

Cron expressions have five fields (minute, hour, day of the month, month, weekday) and a time zone:

1. A time is a number of seconds since 1970, so it is the same everywhere and occurs once.
2. When the clocks go forward, a fixed time in the skipped hour runs right after it (02:30 at 03:00).
3. When the clocks go back, a fixed time in the repeated hour runs once, at its first occurrence.
4. An expression with `*` for its minutes or hours follows elapsed time: it runs in both of the repeated hours and
   not in the skipped one. (This is the behaviour of Debian's cron, and of cronsim.)

A time is missed if it is noticed more than `MISSED_AFTER_S` seconds later: no server ran, or the machine slept.
Then the schedule's rule applies:

    once    any number of missed times make one run, for the newest of them, as soon as a server runs
    skip    missed times make no run
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from foveal.config import ScheduleSetting
from foveal.errors import BadSetting

# ── Cron expressions ──────────────────────────────────────────────────────────────────────────────

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
