"""Measures opening a durable session, in time and memory.

The target: opening a long session costs about as much as opening a short one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.measure import Row, progress
from foveal.core.log import AnyFact, Call, ModelSaid, Text, ToolReturned, UserSaid
from foveal.sessions import Session
from foveal.stores import open_store

FEW_EVENTS: Final = 1_000
MANY_EVENTS: Final = 100_000
ROUNDS: Final = 9
SETTINGS: Final[dict[str, Any]] = {
    "model": "gpt-4.1",
    "window": 32_000,
    "reserve": 4_000,
    "tokenizer": "estimate",
}


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder:
        files = {count: Path(folder) / f"{count}.db" for count in (FEW_EVENTS, MANY_EVENTS)}
        for count, path in files.items():
            progress(f"session: a conversation of {count:,} events …")
            asyncio.run(_fill_session(path, count))
        few, many = (asyncio.run(_opening_seconds(files[count])) for count in (FEW_EVENTS, MANY_EVENTS))
        yield Row(f"open a session of {MANY_EVENTS:,} events", many, limit=0.010)
        yield Row(f"the same relative to one of {FEW_EVENTS:,}", many / few, "×", 2.0)
        used = asyncio.run(_memory_bytes(files[MANY_EVENTS]))
        yield Row(
            f"memory of an open session of {MANY_EVENTS:,} events, of 20 MB",
            used / 20e6,
            "×",
            1.0,
            f"{used:,} bytes",
        )


def _turn(number: int) -> list[AnyFact]:
    call = Call(id=f"c{number}", name="bash", arguments=f'{{"command": "ls part_{number}"}}')
    return [
        UserSaid(content=f"question {number}: " + "what is in there " * 8),
        ModelSaid(content=(Text(text="I look."), call)),
        ToolReturned(call_id=call.id, content=f"part_{number}:\n" + "a line of output\n" * 40),
        ModelSaid(content="There is a lot in there. " * 4),
    ]


async def _fill_session(path: Path, count: int) -> None:
    async with open_store(path, durability="normal") as store:
        session = await Session.open(store, "bench", **SETTINGS)
        number = 0
        while session.last < count:
            facts = [fact for turn in range(number, number + 10) for fact in _turn(turn)]
            await session.append(*facts)
            await session.fit()
            number += 10


async def _opening_seconds(path: Path) -> float:
    best = float("inf")
    async with open_store(path, durability="normal") as store:
        await store.sessions()
        for _ in range(ROUNDS):
            start = time.perf_counter()
            await Session.open(store, "bench", **SETTINGS)
            best = min(best, time.perf_counter() - start)
    return best


async def _memory_bytes(path: Path) -> int:
    """Return the bytes that an open session uses in addition to an open store."""
    async with open_store(path, durability="normal") as store:
        await store.sessions()
        tracemalloc.start()
        session = await Session.open(store, "bench", **SETTINGS)
        await session.fit()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return used
