"""Child process for memory tests: `python memory_worker.py PATH NAME` remembers until it is killed.

Each entry is printed once `remember` has returned. With `files` as a third argument, it writes files instead.
"""

from __future__ import annotations

import asyncio
import os
import sys

from foveal import Memory
from foveal.core.tokens.counter import Estimate
from foveal.stores import SqliteStore


def entry(name: str, number: int) -> str:
    """Return the text of an entry: no two are about the same subject."""
    return f"Worker {name}{number} keeps box {name}{number}x in hall {name}{number}y."


async def main(path: str, name: str, kind: str = "entries") -> None:
    async with SqliteStore(path, timeout=30) as store:
        memory = Memory("ada", store=store, counting=Estimate())
        number = 0
        while True:
            text = entry(name, number)
            if kind == "files":
                await memory.files.write(f"/memories/{name}/{number}.md", text)
                await asyncio.sleep(0.02)  # a memory holds 1,000 files, and each worker needs its share
            else:
                await memory.remember(text)
            os.write(1, f"{text}\n".encode())
            number += 1


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
