"""Tests of schedules: cron expressions, clock changes, missed times, and the schedule store."""

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
from foveal.server.jobs import schedule_store
from foveal.server.jobs import schedule_store as schedule
from foveal.server.jobs.queue import Job, JobQueue
from foveal.server.jobs.schedule_store import (
    Schedule,
    ScheduleExists,
    ScheduleIsConfigured,
    ScheduleState,
    ScheduleStore,
    UnknownSchedule,
    format_time,
)
from support.service_databases import open_database

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
    """Return all times from `first` to `last`."""
    found = []
    while (first := schedule.next_time(line, zone=zone, after=first)) <= last:
        found.append(first)
    return found


# ── Times ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fixed_time_in_the_skipped_hour_runs_right_after_it() -> None:
    first, last = at("2026-03-28T12:00", BERLIN), at("2026-03-30T12:00", BERLIN)
    assert times("30 2 * * *", BERLIN, first, last) == [
        at("2026-03-29T03:00", BERLIN),
        at("2026-03-30T02:30", BERLIN),
    ]


def test_a_fixed_time_in_the_repeated_hour_runs_the_first_time() -> None:
    first, last = at("2026-10-24T12:00", BERLIN), at("2026-10-26T12:00", BERLIN)
    assert times("30 2 * * *", BERLIN, first, last) == [
        at("2026-10-25T02:30", BERLIN),
        at("2026-10-26T02:30", BERLIN),
    ]


@pytest.mark.parametrize("after", ["2026-10-25T02:10", "2026-10-25T02:40"])
def test_in_the_second_repeated_hour_no_time_of_the_first_runs_again(after: str) -> None:
    second = at(after, BERLIN, fold=1)
    assert schedule.next_time("30 2 * * *", zone=BERLIN, after=second) == at("2026-10-26T02:30", BERLIN)
    assert schedule.latest_time("30 2 * * *", zone=BERLIN, until=second) == at("2026-10-25T02:30", BERLIN)


def test_every_half_hour_follows_elapsed_time_when_the_clocks_change() -> None:
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
def test_latest_time_is_the_last_one_found_by_next_time(line: str, zone: str, now: datetime) -> None:
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
def test_an_invalid_expression_or_zone_is_refused(line: str, zone: str) -> None:
    with pytest.raises(BadSetting):
        schedule.check_schedule(daily(cron=line, zone=zone))


@given(
    st.lists(
        st.sampled_from(FIELDS) | st.text(alphabet="0123456789*/,-#LW", max_size=5), min_size=5, max_size=5
    ),
    st.sampled_from(ZONES[:2]),
)
def test_any_expression_is_refused_or_has_times(fields: list[str], zone: str) -> None:
    line = " ".join(fields)
    try:
        schedule.check_cron(line, zone=zone)
    except BadSetting:
        return
    following = schedule.next_time(line, zone=zone, after=NOON)
    assert schedule.latest_time(line, zone=zone, until=following) == following > NOON


@pytest.mark.parametrize(
    "changes",
    [{"name": ""}, {"name": "a/b"}, {"name": "x" * 65}, {"session": ""}, {"prompt": " "}, {"missed": "all"}],
)
def test_an_invalid_schedule_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(BadSetting):
        schedule.check_schedule(daily(**changes))


# ── Missed times ──────────────────────────────────────────────────────────────────────────────────────


def test_many_missed_times_make_one_run_for_the_newest() -> None:
    run = schedule.due_run(daily(), now=NOON + 10 * DAY)
    assert (format_time(run.due or 0), format_time(run.next_due)) == (
        "2026-03-12T09:00:00Z",
        "2026-03-13T09:00:00Z",
    )


def test_with_skip_missed_times_make_no_run_but_a_current_time_does() -> None:
    skipping = daily(missed="skip")
    assert schedule.due_run(skipping, now=NOON).due is None
    nine = at("2026-03-02T09:00")
    assert schedule.due_run(skipping, now=nine + 59).due == nine
    assert schedule.due_run(skipping, now=nine + 61).due is None


# ── Store ─────────────────────────────────────────────────────────────────────────────────────────────


def with_store(place: Path | str, act: Callable[[ScheduleStore, JobQueue], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_database(place) as database:
            await act(ScheduleStore(database), JobQueue(database))

    asyncio.run(main())


def names(found: list[Job]) -> list[str]:
    return [job.key for job in found]


def test_each_time_makes_one_job_whatever_the_clock_does(place: Path | str) -> None:
    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(), now=NOON)
        assert await store.next_due() == at("2026-03-03T09:00")
        nine = at("2026-03-03T09:00")
        counts = [
            await store.queue_due_runs(now=now)
            for now in (nine - 1, nine, nine, nine - DAY, nine + 1, nine + 2)
        ]
        assert counts == [0, 1, 0, 0, 0, 0]
        [first] = await jobs.untaken()
        await store.end_job(first, "answered")
        assert await store.queue_due_runs(now=nine + DAY) == 1
        assert [first.key, *names(await jobs.untaken())] == [
            "schedule/daily/2026-03-03T09:00:00Z",
            "schedule/daily/2026-03-04T09:00:00Z",
        ]

    with_store(place, act)


def test_several_executors_make_one_job_of_each_time(place: Path | str) -> None:
    async def main() -> None:
        async with open_database(place) as one, open_database(place) as other:
            stores = [ScheduleStore(database) for database in (one, other)]
            await stores[0].create(daily(), now=NOON)
            counts = await asyncio.gather(*(store.queue_due_runs(now=NOON + DAY) for store in stores * 4))
            assert sum(counts) == 1
            assert names(await JobQueue(other).untaken()) == ["schedule/daily/2026-03-03T09:00:00Z"]

    asyncio.run(main())


def test_an_open_run_prevents_further_runs_of_its_schedule(place: Path | str) -> None:
    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(), now=NOON)
        await store.create(daily(name="other"), now=NOON)
        counts = [await store.queue_due_runs(now=NOON + day * DAY) for day in (1, 2, 3)]
        assert counts == [2, 0, 0]
        for job in await jobs.untaken():
            await store.end_job(job, "answered")
        assert await store.queue_due_runs(now=NOON + 3 * DAY) == 0
        assert await store.queue_due_runs(now=NOON + 4 * DAY) == 2

    with_store(place, act)


def test_a_job_has_all_fields_and_a_random_id(place: Path | str) -> None:
    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(tenant="acme"), now=NOON)
        await store.queue_due_runs(now=NOON + DAY)
        [job] = await jobs.untaken()
        assert job == Job(
            id=job.id,
            tenant="acme",
            session="news",
            key="schedule/daily/2026-03-03T09:00:00Z",
            kind="run",
            prompt="What is new?",
            schedule="daily",
            at=NOON + DAY,
        )
        assert not {"acme", "news", "daily"} & set(job.id.split("-"))
        line = await store.get("acme", "daily")
        assert (line.last_due, line.result) == (at("2026-03-03T09:00"), "waiting")

    with_store(place, act)


def test_schedules_survive_closing_the_database(place: Path | str) -> None:
    async def first(store: ScheduleStore, _: JobQueue) -> None:
        await store.create(daily(), now=NOON)

    async def second(store: ScheduleStore, jobs: JobQueue) -> None:
        assert await store.list("default") == [
            ScheduleState(schedule=daily(), next_due=at("2026-03-03T09:00"))
        ]
        assert await store.queue_due_runs(now=NOON + 3 * DAY) == 1
        assert names(await jobs.untaken()) == ["schedule/daily/2026-03-05T09:00:00Z"]

    with_store(place, first)
    with_store(place, second)


def test_a_changed_or_enabled_schedule_counts_from_that_moment(place: Path | str) -> None:
    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(), now=NOON)
        await store.update("default", "daily", {"enabled": False}, now=NOON)
        assert await store.queue_due_runs(now=NOON + 5 * DAY) == 0
        assert await store.next_due() is None
        line = await store.update("default", "daily", {"enabled": True}, now=NOON + 5 * DAY)
        assert format_time(line.next_due) == "2026-03-08T09:00:00Z"
        line = await store.update("default", "daily", {"cron": "0 11 * * *"}, now=NOON + 7 * DAY)
        assert format_time(line.next_due) == "2026-03-10T11:00:00Z"
        assert await store.queue_due_runs(now=NOON + 7 * DAY + 1) == 0
        changed = await store.update("default", "daily", {"prompt": "And today?"}, now=NOON + 9 * DAY)
        assert changed.next_due == line.next_due
        assert await jobs.count() == 0

    with_store(place, act)


def test_configured_schedules_keep_their_due_time_and_are_read_only(place: Path | str) -> None:
    table_of = schedule.schedule_from_config(Table("daily", "news", "0 9 * * *", "What is new?"))

    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(prompt="mine"), now=NOON)
        await store.set_configured([table_of], now=NOON)
        await store.set_configured([table_of], now=NOON + 2 * DAY)
        assert await store.queue_due_runs(now=NOON + 2 * DAY) == 1
        assert [job.prompt for job in await jobs.untaken()] == ["What is new?"]
        for act in (
            store.create(daily(), now=NOON),
            store.update("default", "daily", {}, now=NOON),
            store.delete("default", "daily"),
        ):
            with pytest.raises(ScheduleIsConfigured, match=r"foveal\.toml"):
                await act
        later = schedule.schedule_from_config(Table("daily", "news", "0 10 * * *", "What is new?"))
        await store.set_configured([later], now=NOON + 5 * DAY)
        assert await store.queue_due_runs(now=NOON + 5 * DAY) == 0
        await store.set_configured([], now=NOON)
        assert await store.list("default") == []

    with_store(place, act)


def test_tenants_see_only_their_own_schedules(place: Path | str) -> None:
    async def act(store: ScheduleStore, _: JobQueue) -> None:
        for tenant in ("a", "b"):
            await store.create(daily(tenant=tenant, prompt=tenant), now=NOON)
        assert [line.schedule.prompt for line in await store.list("a")] == ["a"]
        await store.delete("a", "daily")
        assert (await store.get("b", "daily")).schedule.prompt == "b"
        for attempt in (
            store.get("a", "daily"),
            store.delete("a", "daily"),
            store.queue_run_now("a", "daily", now=NOON),
        ):
            with pytest.raises(UnknownSchedule):
                await attempt
        with pytest.raises(ScheduleExists, match="change it or choose another name"):
            await store.create(daily(tenant="b"), now=NOON)

    with_store(place, act)


def test_a_requested_run_does_not_change_the_due_time(place: Path | str) -> None:
    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        line = await store.create(daily(enabled=False), now=NOON)
        key = await store.queue_run_now("default", "daily", now=NOON + 5)
        assert names(await jobs.untaken()) == [key]
        assert await store.get("default", "daily") == ScheduleState(
            schedule=line.schedule, next_due=line.next_due, last_due=NOON + 5, result="waiting"
        )

    with_store(place, act)


def test_deleting_a_session_deletes_its_jobs_and_schedules(tmp_path: Path) -> None:
    secret = "the words of a deleted session"

    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(prompt=secret), now=NOON)
        await store.create(daily(name="other", session="else"), now=NOON)
        await store.queue_due_runs(now=NOON + DAY)
        assert await jobs.count() == 2
        await jobs.delete_session("default", "news")
        await store.delete_session("default", "news")
        assert [job.session for job in await jobs.untaken()] == ["else"]
        assert [line.schedule.name for line in await store.list("default")] == ["other"]
        await store._database.remove_deleted_text()

    with_store(tmp_path, act)
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_a_schedule_with_a_missing_zone_does_not_block_others(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(store: ScheduleStore, jobs: JobQueue) -> None:
        await store.create(daily(name="first", zone="Asia/Kathmandu"), now=NOON)
        await store.create(daily(name="second"), now=NOON)

        def gone(name: str) -> ZoneInfo:
            raise KeyError(name)

        monkeypatch.setattr(schedule, "ZoneInfo", gone)
        schedule._zone.cache_clear()
        assert await store.queue_due_runs(now=NOON + DAY) == 1
        assert [job.schedule for job in await jobs.untaken()] == ["second"]
        line = await store.get("default", "first")
        assert (line.schedule.enabled, line.result) == (False, "failed")

    with_store(place, act)
    schedule._zone.cache_clear()


def test_the_number_of_schedules_of_a_tenant_is_limited(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_store, "MAX_SCHEDULES_PER_TENANT", 2)

    async def act(store: ScheduleStore, _: JobQueue) -> None:
        for name in ("a", "b"):
            await store.create(daily(name=name), now=NOON)
        with pytest.raises(BadSetting, match="at most 2"):
            await store.create(daily(name="c"), now=NOON)

    with_store(place, act)
