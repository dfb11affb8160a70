"""A prompt that comes into a session at given times, and the rule for times that were missed.

    once    any number of missed times make one run, as soon as a server is there, for the newest of them
    skip    missed times make none

A time counts as missed when it is noticed more than `LATE` seconds afterwards: no server ran, or the machine slept.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal, get_args

import msgspec

from foveal.config import Schedule as ConfigSchedule
from foveal.errors import BadSetting
from foveal.service import cron

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


class Run(msgspec.Struct, frozen=True, kw_only=True):
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
    cron.check(schedule.cron, zone=schedule.zone)
    return schedule


def configured(schedule: ConfigSchedule) -> Schedule:
    """One of the `[[schedule]]` tables."""
    return checked(Schedule(**schedule._asdict(), source="config"))


def following(schedule: Schedule, *, after: float) -> float:
    return cron.following(schedule.cron, zone=schedule.zone, after=after)


def at(schedule: Schedule, *, now: float) -> Run:
    """What a schedule wants now that one of its times has come, or several have."""
    due = cron.newest(schedule.cron, zone=schedule.zone, until=now)
    missed = now - due > LATE
    return Run(
        due=None if missed and schedule.missed == "skip" else due, following=following(schedule, after=now)
    )


def stamp(time: float) -> str:
    """A time as people and programs read it: `2026-03-29T01:00:00Z`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
