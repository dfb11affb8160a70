"""Child process for tests of the store on PostgreSQL: `python postgres_worker.py URL NAME COUNT`.

It appends COUNT events to a session to which other processes append too, and prints the seqs that it won.
"""

from __future__ import annotations

import asyncio
import sys

from foveal.core.log import Event, Noted
from foveal.errors import Conflict
from foveal.stores import open_store


async def compete(url: str, name: str, count: int) -> None:
    async with open_store(url, timeout=30) as store:
        seq, won = 0, 0
        while won < count:
            try:
                await store.append("a", [Event(seq, Noted(text=name), 1.0)])
            except Conflict as conflict:
                seq = conflict.next_seq
                continue
            sys.stdout.write(f"{seq}\n")
            won, seq = won + 1, seq + 1


if __name__ == "__main__":
    asyncio.run(compete(sys.argv[1], sys.argv[2], int(sys.argv[3])))
