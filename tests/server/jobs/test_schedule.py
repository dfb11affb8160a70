"""Schedules: times by cron lines, clocks that change, times that were missed, and the table that keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from foveal.config import ScheduleSetting as Table
from foveal.errors import BadSetting
from foveal.server import Database
from foveal.server.jobs import (
    Job,
    JobQueue,
    Schedule,
    ScheduleExists,
    ScheduleIsConfigured,
    ScheduleState,
    ScheduleStore,
    UnknownSchedule,
    schedule,
    schedule_store,
    stamp,
)

BERLIN = "Europe/Berlin"
LINES = (
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "15 1,2,3 * * *",
    "0 */6 * * *",
    "0 9 * * MON-FRI",
    "5 4 29 2 *",
)
ZONES = ("UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kathmandu")
FIELDS = (
    "*",
    "*/5",
    "1",
    "2-4",
    "7,8",
    "0",
    "L",
    "LW",
    "5L",
    "1#2",
    "1#5",
    "MON",
    "FEB",
    "31",
    "30-31",
    "*/0",
)
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()  # a Monday
DAY = 86_400.0


def at(text: str, zone: str = "UTC", *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def daily(**changes: object) -> Schedule:
    return Schedule(
        **{"name": "daily", "session": "news", "cron": "0 9 * * *", "prompt": "What is new?", **changes}
    )


def times(line: str, zone: str, first: float, last: float) -> list[float]:
    """All times from the one to the other."""
    found = []
    while (first := schedule.next_time(line, zone=zone, after=first)) <= last:
        found.append(first)
    return found


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fixed_time_in_the_hour_that_is_left_out_comes_right_after_it() -> None:
    first, last = at("2026-03-28T12:00", BERLIN), at("2026-03-30T12:00", BERLIN)
    assert times("30 2 * * *", BERLIN, first, last) == [
        at("2026-03-29T03:00", BERLIN),
        at("2026-03-30T02:30", BERLIN),
    ]


def test_a_fixed_time_in_the_hour_that_comes_twice_happens_the_first_time() -> None:
    first, last = at("2026-10-24T12:00", BERLIN), at("2026-10-26T12:00", BERLIN)
    assert times("30 2 * * *", BERLIN, first, last) == [
        at("2026-10-25T02:30", BERLIN),
        at("2026-10-26T02:30", BERLIN),
    ]


@pytest.mark.parametrize("after", ["2026-10-25T02:10", "2026-10-25T02:40"])
def test_in_the_second_of_two_hours_no_time_of_the_first_comes_again(after: str) -> None:
    second = at(after, BERLIN, fold=1)
    assert schedule.next_time("30 2 * * *", zone=BERLIN, after=second) == at("2026-10-26T02:30", BERLIN)
    assert schedule.latest_time("30 2 * * *", zone=BERLIN, until=second) == at("2026-10-25T02:30", BERLIN)


def test_every_half_hour_follows_real_time_when_the_clocks_change() -> None:
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        first = at(f"{day}T00:00", BERLIN)
        assert len(times("*/30 * * * *", BERLIN, first - 1, first + hours * 3_600 - 1)) == 2 * hours


@given(
    line=st.sampled_from(LINES),
    zone=st.sampled_from(ZONES),
    now=st.datetimes(datetime(2015, 1, 1), datetime(2035, 1, 1)).map(
        lambda moment: moment.replace(tzinfo=UTC)
    ),
)
@example(line="30 2 * * *", zone=BERLIN, now=datetime(2026, 10, 25, 1, 10, tzinfo=UTC))
@example(line="30 2 * * *", zone=BERLIN, now=datetime(2026, 3, 29, 1, 0, tzinfo=UTC))
@example(line="15 1,2,3 * * *", zone="Australia/Lord_Howe", now=datetime(2026, 4, 4, 15, 20, tzinfo=UTC))
def test_the_newest_time_is_the_last_that_comes_when_counting_forward(
    line: str, zone: str, now: datetime
) -> None:
    days = 9 * 366 if "29 2" in line else 1 if line.startswith("*") else 5
    begin = now - timedelta(days=days)
    sim = CronSim(line, begin.astimezone(ZoneInfo(zone)) if zone != "UTC" else begin)
    counted = list(takewhile(lambda time: time <= now.timestamp() + DAY / 2, (t.timestamp() for t in sim)))
    newest = schedule.latest_time(line, zone=zone, until=now.timestamp())
    assert newest == max(time for time in counted if time <= now.timestamp())
    following = schedule.next_time(line, zone=zone, after=now.timestamp())
    assert following > now.timestamp() >= newest
    assert schedule.latest_time(line, zone=zone, until=following) == following
    assert following == min((time for time in counted if time > now.timestamp()), default=following)


@pytest.mark.parametrize(
    ("line", "zone"),
    [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("0 * * * * *", "UTC"),
        ("61 * * * *", "UTC"),
        ("*/0 * * * *", "UTC"),
        ("a b c d e", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("0 0 * * 1#6", "UTC"),
        ("0 0 31 2 1#5/2", "UTC"),
        ("9" * 5_000 + " * * * *", "UTC"),
        ("* * * * *", "Mars/Olympus"),
        ("* * * * *", "America"),
        ("* * * * *", "../../etc/passwd"),
        ("* * * * *", ""),
        ("* * * * *", "UTC\0"),
        ("0 0 1 1 *\n", "UTC"),
        ("* * * * *", "localtime"),
        ("* * * * *", "posixrules"),
        ("* * * * *", "right/Europe/Berlin"),
    ],
)
def test_a_line_or_zone_that_means_nothing_is_refused(line: str, zone: str) -> None:
    with pytest.raises(BadSetting):
        schedule.checked(daily(cron=line, zone=zone))


@given(
    st.lists(
        st.sampled_from(FIELDS) | st.text(alphabet="0123456789*/,-#LW", max_size=5), min_size=5, max_size=5
    ),
    st.sampled_from(ZONES[:2]),
)
def test_any_line_is_refused_or_has_times(fields: list[str], zone: str) -> None:
    line = " ".join(fields)
    try:
        schedule.check(line, zone=zone)
    except BadSetting:
        return
    following = schedule.next_time(line, zone=zone, after=NOON)
    assert schedule.latest_time(line, zone=zone, until=following) == following > NOON


@pytest.mark.parametrize(
    "changes",
    [{"name": ""}, {"name": "a/b"}, {"name": "x" * 65}, {"session": ""}, {"prompt": " "}, {"missed": "all"}],
)
def test_a_schedule_that_cannot_be_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(BadSetting):
        schedule.checked(daily(**changes))


# ── missed times ─────────────────────────────────────────────────────────────────────────────────────────────


def test_many_missed_times_make_one_run_for_the_newest_of_them() -> None:
    run = schedule.at(daily(), now=NOON + 10 * DAY)
    assert (stamp(run.due or 0), stamp(run.following)) == ("2026-03-12T09:00:00Z", "2026-03-13T09:00:00Z")


def test_missed_times_make_no_run_for_who_wants_none_but_a_time_that_has_just_come_does() -> None:
    skipping = daily(missed="skip")
    assert schedule.at(skipping, now=NOON).due is None
    nine = at("2026-03-02T09:00")
    assert schedule.at(skipping, now=nine + 59).due == nine
    assert schedule.at(skipping, now=nine + 61).due is None


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────


def with_table(path: Path, act: Callable[[ScheduleStore, JobQueue], Awaitable[None]]) -> None:
    async def main() -> None:
        database = Database(path / "service.db")
        try:
            await act(ScheduleStore(database), JobQueue(database))
        finally:
            await database.close()

    asyncio.run(main())


def names(found: list[Job]) -> list[str]:
    return [errand.key for errand in found]


def test_each_time_makes_one_errand_whatever_the_clock_does(tmp_path: Path) -> None:
    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(), now=NOON)
        assert await table.following() == at("2026-03-03T09:00")
        nine = at("2026-03-03T09:00")
        counts = [
            await table.run_due(now=now) for now in (nine - 1, nine, nine, nine - DAY, nine + 1, nine + 2)
        ]
        assert counts == [0, 1, 0, 0, 0, 0]
        [first] = await errands.waiting()
        await errands.done(first.id)
        assert await table.run_due(now=nine + DAY) == 1
        assert [first.key, *names(await errands.waiting())] == [
            "schedule/daily/2026-03-03T09:00:00Z",
            "schedule/daily/2026-03-04T09:00:00Z",
        ]

    with_table(tmp_path, act)


def test_while_a_run_is_open_further_times_of_its_schedule_make_none(tmp_path: Path) -> None:
    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(), now=NOON)
        await table.create(daily(name="other"), now=NOON)
        counts = [await table.run_due(now=NOON + day * DAY) for day in (1, 2, 3)]
        assert counts == [2, 0, 0]
        for errand in await errands.waiting():
            await errands.done(errand.id)
        assert await table.run_due(now=NOON + 3 * DAY) == 0
        assert await table.run_due(now=NOON + 4 * DAY) == 2

    with_table(tmp_path, act)


def test_an_errand_has_what_it_needs_and_says_nothing_by_its_id(tmp_path: Path) -> None:
    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(tenant="acme"), now=NOON)
        await table.run_due(now=NOON + DAY)
        [errand] = await errands.waiting()
        assert errand == Job(
            id=errand.id,
            tenant="acme",
            session="news",
            key="schedule/daily/2026-03-03T09:00:00Z",
            kind="run",
            prompt="What is new?",
            schedule="daily",
            at=NOON + DAY,
        )
        assert not {"acme", "news", "daily"} & set(errand.id.split("-"))
        line = await table.line("acme", "daily")
        assert (line.due, line.result) == (at("2026-03-03T09:00"), "waiting")

    with_table(tmp_path, act)


def test_the_table_is_the_same_after_it_was_closed(tmp_path: Path) -> None:
    async def first(table: ScheduleStore, _: JobQueue) -> None:
        await table.create(daily(), now=NOON)

    async def second(table: ScheduleStore, errands: JobQueue) -> None:
        assert await table.lines("default") == [
            ScheduleState(schedule=daily(), following=at("2026-03-03T09:00"))
        ]
        assert await table.run_due(now=NOON + 3 * DAY) == 1
        assert names(await errands.waiting()) == ["schedule/daily/2026-03-05T09:00:00Z"]

    with_table(tmp_path, first)
    with_table(tmp_path, second)


def test_times_are_not_made_up_for_when_a_schedule_is_changed_or_enabled(tmp_path: Path) -> None:
    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(), now=NOON)
        await table.change("default", "daily", {"enabled": False}, now=NOON)
        assert await table.run_due(now=NOON + 5 * DAY) == 0
        assert await table.following() is None
        line = await table.change("default", "daily", {"enabled": True}, now=NOON + 5 * DAY)
        assert stamp(line.following) == "2026-03-08T09:00:00Z"
        line = await table.change("default", "daily", {"cron": "0 11 * * *"}, now=NOON + 7 * DAY)
        assert stamp(line.following) == "2026-03-10T11:00:00Z"
        assert await table.run_due(now=NOON + 7 * DAY + 1) == 0
        changed = await table.change("default", "daily", {"prompt": "And today?"}, now=NOON + 9 * DAY)
        assert changed.following == line.following
        assert await errands.count() == 0

    with_table(tmp_path, act)


def test_the_configuration_s_schedules_go_on_where_they_were_and_are_read_only(tmp_path: Path) -> None:
    table_of = schedule.configured(Table("daily", "news", "0 9 * * *", "What is new?"))

    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(prompt="mine"), now=NOON)
        await table.configure([table_of], now=NOON)
        await table.configure([table_of], now=NOON + 2 * DAY)
        assert await table.run_due(now=NOON + 2 * DAY) == 1
        assert [errand.prompt for errand in await errands.waiting()] == ["What is new?"]
        for act in (
            table.create(daily(), now=NOON),
            table.change("default", "daily", {}, now=NOON),
            table.delete("default", "daily"),
        ):
            with pytest.raises(ScheduleIsConfigured, match=r"foveal\.toml"):
                await act
        later = schedule.configured(Table("daily", "news", "0 10 * * *", "What is new?"))
        await table.configure([later], now=NOON + 5 * DAY)
        assert await table.run_due(now=NOON + 5 * DAY) == 0
        await table.configure([], now=NOON)
        assert await table.lines("default") == []

    with_table(tmp_path, act)


def test_tenants_have_names_of_their_own_and_see_only_theirs(tmp_path: Path) -> None:
    async def act(table: ScheduleStore, _: JobQueue) -> None:
        for tenant in ("a", "b"):
            await table.create(daily(tenant=tenant, prompt=tenant), now=NOON)
        assert [line.schedule.prompt for line in await table.lines("a")] == ["a"]
        await table.delete("a", "daily")
        assert (await table.line("b", "daily")).schedule.prompt == "b"
        for attempt in (
            table.line("a", "daily"),
            table.delete("a", "daily"),
            table.run_now("a", "daily", now=NOON),
        ):
            with pytest.raises(UnknownSchedule):
                await attempt
        with pytest.raises(ScheduleExists, match="change that one, or choose another name"):
            await table.create(daily(tenant="b"), now=NOON)

    with_table(tmp_path, act)


def test_a_run_outside_of_the_times_is_the_last_one_and_leaves_them_as_they_are(tmp_path: Path) -> None:
    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        line = await table.create(daily(enabled=False), now=NOON)
        key = await table.run_now("default", "daily", now=NOON + 5)
        assert names(await errands.waiting()) == [key]
        assert await table.line("default", "daily") == ScheduleState(
            schedule=line.schedule, following=line.following, due=NOON + 5, result="waiting"
        )

    with_table(tmp_path, act)


def test_a_session_that_is_forgotten_takes_its_errands_and_schedules_with_it(tmp_path: Path) -> None:
    secret = "the words of a deleted session"

    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(prompt=secret), now=NOON)
        await table.create(daily(name="other", session="else"), now=NOON)
        await table.run_due(now=NOON + DAY)
        assert await errands.count() == 2
        await errands.forget("default", "news")
        await table.forget("default", "news")
        assert [errand.session for errand in await errands.waiting()] == ["else"]
        assert [line.schedule.name for line in await table.lines("default")] == ["other"]
        await table._database.sweep()

    with_table(tmp_path, act)
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_schedule_whose_zone_has_vanished_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(table: ScheduleStore, errands: JobQueue) -> None:
        await table.create(daily(name="first", zone="Asia/Kathmandu"), now=NOON)
        await table.create(daily(name="second"), now=NOON)

        def gone(name: str) -> ZoneInfo:
            raise KeyError(name)

        monkeypatch.setattr(schedule, "ZoneInfo", gone)
        schedule._zone.cache_clear()
        assert await table.run_due(now=NOON + DAY) == 1
        assert [errand.schedule for errand in await errands.waiting()] == ["second"]
        line = await table.line("default", "first")
        assert (line.schedule.enabled, line.result) == (False, "failed")

    with_table(tmp_path, act)
    schedule._zone.cache_clear()


def test_a_tenant_cannot_fill_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_store, "MOST", 2)

    async def act(table: ScheduleStore, _: JobQueue) -> None:
        for name in ("a", "b"):
            await table.create(daily(name=name), now=NOON)
        with pytest.raises(BadSetting, match="at most 2"):
            await table.create(daily(name="c"), now=NOON)

    with_table(tmp_path, act)
