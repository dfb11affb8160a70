"""Child process for tests of budgets: `python budget_worker.py PLACE SEED` spends until nothing is left.

It is one machine of several that share a database. Requests run at the same time, some fail, some report less than
was reserved, and some settlements are made twice, as after a lost connection. What was spent is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from foveal.core.models.model import model
from foveal.core.models.spending import SpentAmount
from foveal.errors import BudgetExceeded
from foveal.server.budgets import NOTHING_SPENT, Budgets, Spender
from support.budget_config import budget_config
from support.service_databases import open_database, place_of

LIMITS = {"budgets.tenant": ["1 USD per month", "150k tokens per day"], "budgets.user": "0.40 USD per hour"}
NOON = 1_795_003_200.0
USERS = ("ada", "bob", "eve")
PARALLEL = 8


async def spend(budgets: Budgets, chance: random.Random) -> None:
    known = model("priced", input_price=1.0, output_price=1.0)
    for _ in range(60):
        spender = Spender("acme", user=chance.choice(USERS))
        tokens = chance.randint(1_000, 9_000)
        try:
            reservation = await budgets.reserve(spender, known, SpentAmount(tokens, tokens / 1e6 * 7))
        except BudgetExceeded:
            continue
        assert reservation is not None
        await asyncio.sleep(chance.random() / 100)
        used = chance.randint(1, tokens)
        spent = chance.choice((SpentAmount(used, used / 1e6 * 7), NOTHING_SPENT, None))
        await budgets.settle(reservation, spent)
        if chance.random() < 0.3:
            await budgets.settle(reservation, spent)
        amount = spent or reservation.estimate
        os.write(1, f"{spender.user} {amount.tokens} {round((amount.dollars or 0) * 1e9)}\n".encode())


async def main(place: str, seed: str) -> None:
    async with open_database(place_of(place)) as database:
        budgets = Budgets(budget_config(LIMITS), database, clock=lambda: NOON)
        await asyncio.gather(*(spend(budgets, random.Random(f"{seed}/{at}")) for at in range(PARALLEL)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
