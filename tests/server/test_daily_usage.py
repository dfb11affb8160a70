"""Usage by day: sums over several servers, of the right user, and without a name after an erasure."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from foveal.core.log import Event, UserSaid
from foveal.core.log.events import Used
from foveal.errors import BadSetting, StoreError
from foveal.server import Inbox, SqliteDatabase
from foveal.server.daily_usage import DailyUsage, UsageRow, usage_groups
from foveal.server.inbox import SessionSetup
from support.gated_provider import run
from support.service_databases import open_database

DAY = 86_400.0
CALL = Used(input=500_000, output=250_000, model="gpt-4.1")
"""Costs 3 dollars."""


def events(*facts: Used | UserSaid) -> list[Event]:
    return [Event(seq, fact) for seq, fact in enumerate(facts)]


def sums(rows: list[UsageRow], *names: str) -> list[tuple[object, ...]]:
    return [tuple(getattr(row, name) for name in names) for row in rows]


@run
async def test_servers_that_share_a_database_add_to_the_same_sums(place: Path | str) -> None:
    async with open_database(place) as one, open_database(place) as other:
        servers = [DailyUsage(database, clock=lambda: 10.0) for database in (one, other)]

        async def count(server: DailyUsage) -> None:
            for _ in range(50):
                server.add("t", "s", events(UserSaid(content="Hello."), CALL))
                await server.write_all()

        await asyncio.gather(*map(count, servers))
        (row,) = await servers[0].rows(["tenant", "model", "day", "user"])
        assert row == UsageRow(
            day="1970-01-01",
            tenant="t",
            user="",
            model="gpt-4.1",
            calls=100,
            input=50_000_000,
            cache_read=0,
            cache_write=0,
            output=25_000_000,
            dollars=pytest.approx(300.0),
            unpriced=0,
        )
        for server in servers:
            await server.close()


@run
async def test_sums_by_user_model_and_day(place: Path | str) -> None:
    async with open_database(place) as database:
        now = 10.0
        usage, inbox = DailyUsage(database, clock=lambda: now), Inbox(database)
        await inbox.set_session_setup("t", "of-ada", SessionSetup(user="ada"))
        await inbox.add_session_user("t", "of-grace", "grace")
        usage.add("t", "of-ada", events(CALL))
        usage.add("t", "of-grace", events(CALL, Used(input=7, model="unheard/of")))
        now += 2 * DAY
        usage.add("t", "of-nobody", events(CALL))
        usage.add("u", "of-ada", events(Used(input=500_000, output=250_000, model="openai/gpt-4.1")))
        by_user = sums(await usage.rows(["user"], tenant="t"), "user", "calls", "dollars", "unpriced")
        assert sorted(by_user) == [("", 1, 3.0, 0), ("ada", 1, 3.0, 0), ("grace", 2, 3.0, 1)]
        assert sums(await usage.rows(["model"]), "model", "calls") == [("gpt-4.1", 4), ("unheard/of", 1)]
        assert sums(await usage.rows(["day"], since="1970-01-02"), "day", "calls") == [("1970-01-03", 2)]
        assert sums(await usage.rows(["day"], until="1970-01-02"), "day", "calls") == [("1970-01-01", 3)]
        assert sums(await usage.rows([]), "tenant", "calls") == [(None, 5)]
        assert sums(await usage.rows([], user="ada"), "calls") == [(1,)]
        await usage.close()


@run
async def test_an_erased_user_leaves_sums_without_a_name(place: Path | str) -> None:
    async with open_database(place) as database:
        usage, inbox = DailyUsage(database, clock=lambda: 10.0), Inbox(database)
        await inbox.set_session_setup("t", "of-ada", SessionSetup(user="ada"))
        for session in ("of-ada", "of-nobody"):
            usage.add("t", session, events(CALL))
        await usage.forget_user("t", "ada")
        assert sums(await usage.rows(["user"]), "user", "calls", "dollars") == [("", 2, 6.0)]
        await usage.close()


@run
async def test_counts_outlive_a_database_that_is_locked(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "service.db", timeout=0.05)
    await database.check_writable()
    usage = DailyUsage(database, clock=lambda: 10.0)
    with closing(apsw.Connection(str(tmp_path / "service.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        usage.add("t", "s", events(CALL))
        with pytest.raises(StoreError):
            await usage.write_all()
    usage.add("t", "s", events(CALL))
    assert sums(await usage.rows(["tenant"]), "calls") == [(2,)]
    await usage.close()
    await database.close()


def test_sums_are_asked_for_by_name() -> None:
    assert usage_groups("model, tenant") == ["tenant", "model"]
    assert usage_groups("") == []
    for wrong in ("person", "tenant,tenant"):
        with pytest.raises(BadSetting):
            usage_groups(wrong)
