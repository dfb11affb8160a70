"""The audit trail: what it records, that nothing can change it, and that it names no user. On both databases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foveal import config
from foveal.errors import StoreError
from foveal.server.audit import MAX_REFUSED_LOGINS_PER_MINUTE, AuditFilter, AuditTrail
from support.gated_provider import run
from support.service_databases import open_database

ALL = AuditFilter()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@run
async def test_rows_come_back_in_order_and_by_filter(place: Path | str) -> None:
    async with open_database(place) as database:
        clock = Clock()
        trail = AuditTrail(database, clock=clock)
        await trail.record("token", "token:3f2a9c01", tenant="alice")
        clock.now += 10
        await trail.record("export", "session:demo", tenant="bob", actor="3f2a9c01", address="10.0.0.7")
        rows = [entry async for entry in trail.entries(ALL)]
        assert [(e.at, e.tenant, e.actor, e.action, e.object, e.outcome, e.address) for e in rows] == [
            (1_000.0, "alice", "command line", "token", "token:3f2a9c01", "ok", ""),
            (1_010.0, "bob", "3f2a9c01", "export", "session:demo", "ok", "10.0.0.7"),
        ]
        first, second = rows
        for chosen, expected in (
            (AuditFilter(since=1_005.0), [second]),
            (AuditFilter(until=1_010.0), [first]),
            (AuditFilter(tenant="alice"), [first]),
            (AuditFilter(action="export"), [second]),
            (AuditFilter(tenant="alice", action="export"), []),
        ):
            assert await trail.page(chosen, limit=10) == expected
        assert await trail.page(ALL, limit=1) == [first]
        assert await trail.page(ALL, after=first.id, limit=1) == [second]


@pytest.mark.parametrize("change", ["UPDATE audit SET actor = 'somebody'", "DELETE FROM audit"])
@run
async def test_the_database_refuses_to_change_a_row(place: Path | str, change: str) -> None:
    async with open_database(place) as database:
        trail = AuditTrail(database, clock=Clock())
        await trail.record("erase", "session:demo")
        before = await trail.page(ALL, limit=10)
        with pytest.raises(StoreError):
            await database.write(lambda db: db.execute(change))
        assert await trail.page(ALL, limit=10) == before


@run
async def test_a_user_is_found_by_the_id_and_named_nowhere(place: Path | str) -> None:
    async with open_database(place) as database:
        trail = AuditTrail(database, clock=Clock())
        for user in ("ada", "ada", "grace"):
            await trail.record("erase", f"user:{user}", tenant="t")
        rows = await trail.page(ALL, limit=10)
        assert re.search(r"\bada\b", str(rows)) is None  # a digest may have these letters
        assert len({entry.object for entry in rows}) == 3, "equal users do not look equal"
        assert await trail.page(AuditFilter(user="ada"), limit=10) == rows[:2]
        assert await trail.page(AuditFilter(user="grace"), limit=10) == rows[2:]
        assert await trail.page(AuditFilter(user="linus"), limit=10) == []


@run
async def test_a_client_that_polls_leaves_one_row_a_minute(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        clock = Clock()
        trail = AuditTrail(database, clock=clock)
        for _ in range(100):
            clock.now += 1
            await trail.record("read", "session:demo", actor="one")
            await trail.record("undo", "session:demo", actor="one")
        await trail.record("read", "session:demo", actor="two")
        await trail.record("read", "session:other", actor="one")
        assert len(await trail.page(AuditFilter(action="read"), limit=1_000)) == 4
        assert len(await trail.page(AuditFilter(action="undo"), limit=1_000)) == 100


@run
async def test_refused_logins_cannot_fill_the_table(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        trail = AuditTrail(database, clock=Clock())
        for number in range(200):
            await trail.record("login", actor="", outcome="refused", address=f"10.0.0.{number}")
        assert len(await trail.page(ALL, limit=1_000)) == MAX_REFUSED_LOGINS_PER_MINUTE
        await trail.record("login", actor="3f2a9c01", tenant="alice")
        assert (await trail.page(AuditFilter(tenant="alice"), limit=1))[0].outcome == "ok"


@run
async def test_settings_are_recorded_when_they_change(place: Path | str, tmp_path: Path) -> None:
    async with open_database(place) as database:
        trail = AuditTrail(database, clock=Clock())
        for window, port in ((4_000, 1), (4_000, 2), (5_000, 1), (4_000, 1)):
            flags = {"window": window, "server.port": port}
            await trail.record_config(config.load(tmp_path, flags=flags, environ={}, user_folder=tmp_path))
        found = await trail.page(AuditFilter(action="config"), limit=10)
        first, second, third = [entry.object for entry in found]
        assert first == third != second


@run
async def test_a_change_of_a_secret_is_recorded_and_the_secret_is_not(
    place: Path | str, tmp_path: Path
) -> None:
    def loaded(secret: str) -> config.Config:
        flags = {"server.webhook_secret": secret}
        return config.load(tmp_path, flags=flags, environ={}, user_folder=tmp_path)

    async with open_database(place) as database:
        trail = AuditTrail(database, clock=Clock())
        for secret in ("first", "first", "second", "first"):
            await trail.record_config(loaded(secret))
        for _ in range(2):  # the second is another machine
            await trail.record_config(loaded("third"), changed=["server.webhook_secret"])
        found = [entry.object for entry in await trail.page(AuditFilter(action="config"), limit=10)]
    one, two, again, three = found
    assert one == again != two
    assert three.partition(" ")[2] == "changed, server.webhook_secret"
    assert len({word.partition(".")[0] for word in found}) == 1, "what is shown is the same"
    assert not re.search("first|second|third", " ".join(found))
