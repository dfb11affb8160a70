"""Budgets of the server: what is spent is counted once, whatever happens, and no limit is spent twice."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

import foveal
from foveal.core.models.model import model
from foveal.core.models.spending import RESERVED_WAIT_S, SpentAmount, time_text
from foveal.errors import BudgetExceeded, StoreError
from foveal.server.budgets import (
    KEPT_RESERVATION_S,
    NOTHING_SPENT,
    RESERVATION_TTL_S,
    Budgets,
    Reservation,
    Spender,
)
from foveal.server.databases import Database
from foveal.server.databases.sqlite_database import SqliteDatabase
from support import budget_worker
from support.budget_config import budget_config
from support.effort import some_cases
from support.paths import ROOT
from support.service_databases import open_database

NOON: Final = budget_worker.NOON - budget_worker.NOON % 86_400 + 43_200
PRICED: Final = model("priced", input_price=1.0, output_price=1.0)
UNPRICED: Final = model("my-finetune", window=64_000)
ADA: Final = Spender("acme", user="ada", conversation="c1")
DOLLAR: Final = SpentAmount(1_000, 1.0)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path
    url: str = request.getfixturevalue("service_url")
    return url


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Scene:
    """A database, and servers on it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = Clock()

    def server(self, **limits: Any) -> Budgets:
        flags = {f"budgets.{name.replace('__', '.')}": value for name, value in limits.items()}
        return Budgets(budget_config(flags), self.database, clock=self.clock)


def run(place: Path | str, test: Callable[[Scene], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with open_database(place) as database:
            await test(Scene(database))

    asyncio.run(inside())


async def reserve(budgets: Budgets, spender: Spender = ADA, amount: SpentAmount = DOLLAR) -> Reservation:
    found = await budgets.reserve(spender, PRICED, amount)
    assert found is not None
    return found


async def spend(budgets: Budgets, spender: Spender = ADA, amount: SpentAmount = DOLLAR) -> list[str]:
    return await budgets.settle(await reserve(budgets, spender, amount), amount)


def test_a_limit_is_reached_and_a_restart_changes_nothing(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        await spend(scene.server(user="2.5 USD per day"))
        await spend(scene.server(user="2.5 USD per day"))
        with pytest.raises(BudgetExceeded, match="limit of the user") as raised:
            await reserve(scene.server(user="2.5 USD per day"))
        assert (raised.value.spent, raised.value.left, raised.value.wait_s) == (2.0, 0.5, 43_200.0)
        await spend(scene.server(user="2.5 USD per day"), ADA._replace(user="bob"))

    run(place, test)


@pytest.mark.parametrize(("per", "seconds"), [("hour", 3_600), ("day", 86_400), ("month", 31 * 86_400)])
def test_the_next_period_begins_with_nothing_spent(tmp_path: Path, per: str, seconds: int) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(tenant=f"1 USD per {per}")
        await spend(budgets)
        with pytest.raises(BudgetExceeded) as raised:
            await reserve(budgets)
        assert raised.value.wait_s is not None
        scene.clock.now += raised.value.wait_s - 1
        with pytest.raises(BudgetExceeded):
            await reserve(budgets)
        scene.clock.now += 1
        (found,) = (await reserve(budgets)).statuses
        assert found.status.spent == 0.0
        assert raised.value.wait_s <= seconds

    run(tmp_path, test)


def test_a_refusal_says_what_is_kept_for_other_requests(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(tenant="2.5 USD per day")
        await spend(budgets)
        held = await reserve(budgets)
        with pytest.raises(BudgetExceeded) as kept:
            await reserve(budgets)
        await budgets.settle(held, DOLLAR)
        with pytest.raises(BudgetExceeded) as spent:
            await reserve(budgets)
        advice = "this is the limit of the tenant, which the operator sets in [budgets]"
        until = f"left until {time_text(NOON + 43_200)}, and the next request needs about $1.00; {advice}"
        assert [(str(one.value), one.value.wait_s) for one in (kept, spent)] == [
            (
                "the limit of 2.5 USD per day is reached: $1.00 spent, $1.00 kept for requests that are being "
                f"answered, $0.50 {until}",
                RESERVED_WAIT_S,
            ),
            (f"the limit of 2.5 USD per day is reached: $2.00 spent, $0.50 {until}", 43_200.0),
        ]

    run(tmp_path, test)


def test_a_reservation_counts_until_it_is_settled_or_expires(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(tenant="1.5 USD")
        held = await reserve(budgets)
        with pytest.raises(BudgetExceeded):
            await reserve(budgets)
        await budgets.settle(held, NOTHING_SPENT)
        await reserve(budgets)  # its process dies here
        with pytest.raises(BudgetExceeded):
            await reserve(budgets)
        scene.clock.now += RESERVATION_TTL_S
        late = await reserve(budgets)
        scene.clock.now += RESERVATION_TTL_S + 1
        await budgets.settle(late, DOLLAR)  # a very long answer is counted nevertheless
        with pytest.raises(BudgetExceeded) as raised:
            await reserve(budgets)
        assert raised.value.spent == 1.0
        scene.clock.now += KEPT_RESERVATION_S + RESERVATION_TTL_S
        await reserve(budgets, amount=SpentAmount(1, 0.1))
        rows = await scene.database.read(lambda db: db.fetch("SELECT count(*) FROM spending_reservations"))
        assert rows[0] == (1,)

    run(place, test)


def test_a_settlement_counts_once(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(tenant="10 USD")
        held = await reserve(budgets)
        await budgets.settle(held, DOLLAR)
        await budgets.settle(held, DOLLAR)
        assert (await reserve(budgets)).statuses[0].status.spent == 1.0

    run(place, test)


def test_without_reported_usage_the_estimate_counts(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(tenant="10 USD")
        await budgets.settle(await reserve(budgets), None)
        assert (await reserve(budgets)).statuses[0].status.spent == 1.0

    run(tmp_path, test)


def test_a_model_without_a_price_is_refused_under_a_limit_in_dollars(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        unknown = SpentAmount(1_000, None)
        with pytest.raises(BudgetExceeded, match="price of my-finetune is not known"):
            await scene.server(tenant="5 USD").reserve(ADA, UNPRICED, unknown)
        assert await scene.server(tenant="5M tokens").reserve(ADA, UNPRICED, unknown)
        lenient = scene.server(tenant=["5 USD", "1,500 tokens"], unknown_price="allow")
        with pytest.raises(BudgetExceeded, match="1,500 tokens"):  # the tokens of both count
            await lenient.reserve(ADA, UNPRICED, unknown)

    run(tmp_path, test)


def test_what_is_spent_against_each_limit_is_listed(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(
            user=["2 USD per day", "soft 5000 tokens"],
            tenant="10 USD per month",
            tenants__other__tenant="1 USD per hour",
        )
        await spend(budgets)
        await spend(budgets, Spender("other"))
        scene.clock.now += 86_400
        reserved = await reserve(budgets)
        found = [(one.tenant, one.scope, one.key, one.limit, one.spent, one.reserved, one.left)
                 for one in await budgets.spent_limits()]  # fmt: skip
        assert found == [
            ("acme", "user", "ada", "2 USD per day", 0.0, 1.0, 1.0),
            ("acme", "user", "ada", "soft 5,000 tokens", 1_000.0, 1_000.0, 3_000.0),
            ("acme", "tenant", "acme", "10 USD per month", 1.0, 1.0, 8.0),
        ]
        assert await budgets.spent_limits(tenant="other") == []  # its hour has ended
        (day,) = [one for one in await budgets.spent_limits(tenant="acme") if "day" in one.limit]
        assert (day.unit, day.left_share, day.until) == ("USD", 0.5, NOON + 1.5 * 86_400)
        await budgets.settle(reserved, NOTHING_SPENT)
        assert [one.limit for one in await budgets.spent_limits()] == [
            "soft 5,000 tokens", "10 USD per month",
        ]  # fmt: skip

    run(place, test)


def test_a_soft_limit_is_told_once_and_refuses_nothing(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(user=["soft 2 USD per day", "9 USD per day"])
        notices = [await spend(budgets) for _ in range(4)]
        assert [len(told) for told in notices] == [0, 1, 0, 0]
        assert "soft limit of the user is reached: $2.00 of soft 2 USD per day" in notices[1][0]
        assert "soft-limit-reached" in (await reserve(budgets)).header()
        scene.clock.now += 86_400
        assert "soft-limit-reached" not in (await reserve(budgets)).header()

    run(place, test)


def test_each_scope_has_its_own_limit_and_a_tenant_may_have_others(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        limits = {"conversation": "1 USD", "agent": "3 USD", "tenants__rich__conversation": "9 USD"}
        budgets = scene.server(**limits)
        worker = Spender("acme", conversation="c1", agent="worker")
        await spend(budgets, worker)
        with pytest.raises(BudgetExceeded, match="limit of the conversation"):
            await reserve(budgets, worker)
        await spend(budgets, worker._replace(conversation="c2"))
        await spend(budgets, worker._replace(conversation="c3"))
        with pytest.raises(BudgetExceeded, match="limit of the agent"):
            await reserve(budgets, worker._replace(conversation="c4"))
        for _ in range(3):
            await spend(budgets, Spender("rich", conversation="c1"))
        assert await scene.server(user="1 USD").reserve(worker, PRICED, DOLLAR) is None  # nobody to count for

    run(tmp_path, test)


def test_a_deleted_conversation_is_forgotten_and_an_erased_user_only_by_name(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(user="9 USD", conversation="9 USD", tenant="9 USD")
        await spend(budgets)
        await reserve(budgets)
        await budgets.forget_user("acme", "ada")
        await budgets.forget_conversation("acme", "c1")
        for table in ("spending", "spending_reservations"):
            sql = f"SELECT scope, key FROM {table} ORDER BY scope"
            rows = await scene.database.read(lambda db, sql=sql: db.fetch(sql))  # type: ignore[misc]
            assert [scope for scope, _ in rows] == ["tenant", "user"]
            assert re.search(r"\bada\b", str(rows)) is None  # a digest may have these letters
        with pytest.raises(BudgetExceeded, match="limit of the user"):
            await scene.server(user="1 USD").reserve(ADA, PRICED, DOLLAR)

    run(place, test)


def test_what_an_erased_user_spent_goes_when_its_month_has_ended(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(user="9 USD per month")
        await spend(budgets)
        await budgets.forget_user("acme", "ada")
        scene.clock.now += 40 * 86_400
        await budgets.forget_user("acme", "bob")
        assert await scene.database.read(lambda db: db.fetch("SELECT key FROM spending")) == []

    run(place, test)


def test_a_request_that_ends_after_its_user_was_erased_names_nobody(place: Path | str) -> None:
    async def test(scene: Scene) -> None:
        budgets = scene.server(user="9 USD", tenant="9 USD")
        held = await reserve(budgets)
        await budgets.forget_user("acme", "ada")
        await budgets.settle(held, DOLLAR)
        rows = await scene.database.read(
            lambda db: db.fetch("SELECT scope, key FROM spending ORDER BY scope")
        )
        assert rows[0] == ("tenant", "acme")
        assert re.search(r"\bada\b", str(rows)) is None  # a digest may have these letters
        assert [status.spent for status in await budgets.statuses(ADA)] == [1.0, 1.0]

    run(place, test)


def test_what_was_spent_while_the_database_is_away_is_counted_later(tmp_path: Path) -> None:
    async def test() -> None:
        database = SqliteDatabase(tmp_path / "service.db", timeout=0.05)
        budgets = Scene(database).server(tenant="9 USD")
        held = await reserve(budgets)
        other = apsw.Connection(str(database.path))
        other.execute("BEGIN IMMEDIATE")  # another program holds the file
        with pytest.raises(StoreError):
            await budgets.settle(held, DOLLAR)
        budgets.settle_soon(held, DOLLAR)
        await asyncio.sleep(0.3)
        other.execute("ROLLBACK")
        other.close()
        while (await reserve(budgets, amount=SpentAmount(1, 0.0))).statuses[0].status.spent != 1.0:
            await asyncio.sleep(0.05)
        await budgets.close()
        await database.close()

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.soak
@pytest.mark.parametrize("seed", some_cases([1, 2, 3], every=3))
def test_machines_that_share_a_database_count_every_request_once(service_url: str, seed: int) -> None:
    """Two processes spend at the same time until nothing is left: the sums are those of what each has spent, and no
    limit is exceeded, because no request used more than was reserved for it."""
    sources = str(Path(foveal.__file__).parent.parent), str(ROOT / "tests")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sources)}
    command = [sys.executable, budget_worker.__file__, service_url]
    started = [
        subprocess.Popen([*command, f"{seed}{name}"], stdout=subprocess.PIPE, text=True, env=environment)
        for name in "ab"
    ]
    printed = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    tokens, nano = Counter[str](), Counter[str]()
    for line in "".join(printed).splitlines():
        user, used, dollars = line.split()
        for key in (f"user {user}", "tenant acme"):
            tokens[key] += int(used)
            nano[key] += int(dollars)
    sql = "SELECT scope, key, nanodollars, tokens FROM spending"

    async def read() -> tuple[list[Any], list[Any]]:
        async with open_database(service_url) as database:
            left = await database.read(lambda db: db.fetch("SELECT 1 FROM spending_reservations"))
            return await database.read(lambda db: db.fetch(sql)), left

    rows, left = asyncio.run(read())
    assert left == []
    assert {f"{scope} {key}": (dollars, used) for scope, key, dollars, used in rows} == {
        key: (nano[key], tokens[key]) for key in tokens
    }
    assert nano["tenant acme"] <= 1.0e9
    assert tokens["tenant acme"] <= 150_000
    assert max(nano[f"user {user}"] for user in budget_worker.USERS) <= 0.40e9
    assert tokens["tenant acme"] > 100_000  # the limits were what ended it
