"""A prompt that comes into a session at given times, and the rule for times that were missed.

    once    any number of missed times make one run, as soon as a server is there, for the newest of them
    skip    missed times make none

A time counts as missed when it is noticed more than `LATE` seconds afterwards: no server ran, or the machine slept.
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

from foveal.config import ScheduleSetting as ConfigSchedule
from foveal.errors import BadSetting

# ── cron ──────────────────────────────────────────────────────────────────────────────────────────
# Times by a cron line: five fields (minute, hour, day, month, weekday) in a zone; pure, and exact to the minute.
#
# 1. A time is a number of seconds since 1970, so that it is the same everywhere and each happens once.
# 2. When the clocks go forward, a fixed time in the hour that is left out comes right after it (02:30 at 03:00).
# 3. When they go back, a fixed time in the hour that comes twice happens once, the first time.
# 4. A line with `*` for its minutes or hours follows real time: it happens in both of the hours, and not in the one
# that is left out. (So says Debian's cron, and cronsim after it.)

LONGEST: Final = 256
"""Characters of a line."""
_TURN: Final = timedelta(hours=4)
"""More than clocks ever go back at once: so far cronsim's times may lie on the wrong side of where it began."""
_YEARS: Final = range(1971, 9000)
ALLOWED: Final = (
    'five fields: minute, hour, day of the month, month, day of the week, such as "0 9 * * MON-FRI"'
)
ZONES: Final = "a name such as UTC, Europe/Berlin or America/New_York"
_NO_ZONES: Final = re.compile(r"(localtime|posixrules|Factory)\Z|(posix|right)/")
"""Names that mean something else on another machine, or that count leap seconds."""


def check(cron: str, *, zone: str) -> None:
    """Raise `BadSetting` for a line that says nothing, or a zone that there is not."""
    where = _zone(zone)
    if len(cron) > LONGEST or len(cron.split()) != 5 or not cron.isprintable():
        raise BadSetting("cron", cron[:LONGEST], ALLOWED)
    try:
        next(CronSim(cron, datetime(2024, 1, 1, tzinfo=where)))
    except (CronSimError, ValueError, AssertionError, TypeError) as problem:
        raise BadSetting("cron", cron, f"{ALLOWED} ({problem})") from None
    except StopIteration:
        raise BadSetting("cron", cron, "a line that some day matches") from None


def next_time(cron: str, *, zone: str, after: float) -> float:
    """The first time after this one."""
    begin = _moment(after, zone) - _back(cron, zone)
    return _first(time for time in _times(CronSim(cron, begin)) if time > after)


def latest_time(cron: str, *, zone: str, until: float) -> float:
    """The last time that is not after this one."""
    begin = _moment(until, zone) + _back(cron, zone) + timedelta(seconds=1)
    return _first(time for time in _times(CronSim(cron, begin, reverse=True)) if time <= until)


def _times(sim: CronSim) -> Iterator[float]:
    for moment in sim:
        yield moment.timestamp()


def _first(times: Iterator[float]) -> float:
    found = next(times, None)
    if found is None:
        raise BadSetting("cron", "a line", "one that matches within fifty years")
    return found


def _back(cron: str, zone: str) -> timedelta:
    minute, hour = cron.split()[:2]
    fixed = not minute.startswith("*") and not hour.startswith("*")
    return _TURN if fixed and _zone(zone) is not UTC else timedelta()


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
        if not _NO_ZONES.match(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise BadSetting("zone", name, ZONES)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────

Missed = Literal["once", "skip"]

LATE: Final = 60.0
LONGEST_PROMPT: Final = 100_000
NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Of its tenant's own."""
    session: str
    cron: str
    prompt: str
    zone: str = "UTC"
    missed: Missed = "once"
    enabled: bool = True
    tenant: str = "default"
    source: Literal["api", "config"] = "api"
    """Those of the configuration are changed there."""


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule wants at a moment."""

    due: float | None
    """The time that it runs for; None when it does not run."""
    following: float
    """When it is to be looked at again."""


def checked(schedule: Schedule) -> Schedule:
    """The schedule, or `BadSetting` with what is wrong with it."""
    if not re.fullmatch(NAME, schedule.name):
        raise BadSetting("name", schedule.name[:64], "1 to 64 letters, digits, points, dashes or underscores")
    if not schedule.session:
        raise BadSetting("session", schedule.session, "the id of a session")
    if not schedule.prompt.strip() or len(schedule.prompt) > LONGEST_PROMPT:
        what = f"{len(schedule.prompt):,} characters"
        raise BadSetting("prompt", what, f"some text of at most {LONGEST_PROMPT:,} characters")
    if any("\ud800" <= character <= "\udfff" for character in schedule.prompt):
        raise BadSetting("prompt", "half a surrogate pair", "text that can be written as UTF-8")
    if schedule.missed not in get_args(Missed):
        raise BadSetting("missed", schedule.missed, '"once" or "skip"')
    check(schedule.cron, zone=schedule.zone)
    return schedule


def configured(schedule: ConfigSchedule) -> Schedule:
    """One of the `[[schedule]]` tables."""
    return checked(Schedule(**schedule._asdict(), source="config"))


def next_run(schedule: Schedule, *, after: float) -> float:
    return next_time(schedule.cron, zone=schedule.zone, after=after)


def at(schedule: Schedule, *, now: float) -> DueRun:
    """What a schedule wants now that one of its times has come, or several have."""
    due = latest_time(schedule.cron, zone=schedule.zone, until=now)
    missed = now - due > LATE
    return DueRun(
        due=None if missed and schedule.missed == "skip" else due, following=next_run(schedule, after=now)
    )


def stamp(time: float) -> str:
    """A time as people and programs read it: `2026-03-29T01:00:00Z`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
