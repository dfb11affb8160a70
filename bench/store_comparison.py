"""Compares the stores on SQLite and on PostgreSQL: append, list and search, alternately in one run.

Both wait for the disk at each append. Times are wall-clock times, because most of an operation is spent in other
threads or in the database server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench import work
from bench.measure import Row, progress, quantile
from foveal.core.log import AnyFact, Event
from foveal.core.wire import wire_for
from foveal.ports import Store
from foveal.stores import open_store

MIN_APPENDS_PER_S: Final = 500
"""Goal on PostgreSQL, over all sessions."""
MAX_APPEND_P99_S: Final = 0.025
WRITERS: Final = 8
"""Sessions to which is appended at once."""
PAGE: Final = 50
QUERY: Final = "server parser"


class StoreSizes(NamedTuple):
    rounds: int = 5
    appends: int = 60
    """By each writer in a round."""
    sessions: int = 1_000
    """In the list."""
    events: int = 2_000
    """In the session that is searched."""
    repetitions: int = 30
    """Of list and search."""


class StoreTimes:
    """What was measured on one store, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.appends: list[float] = []
        self.rates: list[float] = []
        """Appends per second in each round."""
        self.lists: list[float] = []
        self.first_search = 0.0
        """It builds the index of the session."""
        self.searches: list[float] = []


def rows(folder: Path, url: str, sizes: StoreSizes) -> Iterator[Row]:
    progress("server: stores …")
    sqlite, postgres = asyncio.run(_measure(folder / "compared.db", url, sizes))
    for times in (sqlite, postgres):
        is_goal, name = times is postgres, times.name
        note = f"{WRITERS} sessions at once, one event each; a server on the same machine" if is_goal else ""
        rate, goal = median(times.rates), MIN_APPENDS_PER_S if is_goal else None
        yield Row(f"append, {name}", rate, "appends/s", goal, note, at_least=True)
        limit = MAX_APPEND_P99_S if is_goal else None
        note = f"p50 {median(times.appends) * 1e3:.1f} ms"
        yield Row(f"append, {name}, p99", quantile(times.appends, 0.99), limit=limit, note=note)
    for times in (sqlite, postgres):
        what = f"list {PAGE} of {sizes.sessions:,} sessions, {times.name}, p50"
        yield Row(what, median(times.lists), note=f"p99 {quantile(times.lists, 0.99) * 1e3:.1f} ms")
    for times in (sqlite, postgres):
        note = f"the first search, which builds the index, {times.first_search * 1e3:,.0f} ms"
        what = f"search in {sizes.events:,} events, {times.name}, p50"
        yield Row(what, median(times.searches), note=note)


async def _measure(path: Path, url: str, sizes: StoreSizes) -> tuple[StoreTimes, StoreTimes]:
    facts = list(islice(_facts(), sizes.events))
    async with open_store(path) as sqlite, open_store(url, tenant="compared") as postgres:
        both = (sqlite, StoreTimes("SQLite")), (postgres, StoreTimes("PostgreSQL"))
        for number in range(sizes.rounds):
            for store, times in both:
                await _append(store, times, facts, sizes, f"round-{number}")
        for store, times in both:
            await _fill(store, facts, sizes)
            times.first_search = await _seconds(lambda store=store: store.search("searched", QUERY))
        for _ in range(sizes.repetitions):
            for store, times in both:
                times.lists.append(await _seconds(lambda store=store: store.sessions(limit=PAGE)))
                times.searches.append(await _seconds(lambda store=store: store.search("searched", QUERY)))
    return both[0][1], both[1][1]


def _facts() -> Iterator[AnyFact]:
    reader = wire_for("openai_chat")
    for message in work.conversation(work.AGENT):
        for chunk in reader.read((message,)):
            yield from chunk.facts


async def _append(
    store: Store, times: StoreTimes, facts: list[AnyFact], sizes: StoreSizes, name: str
) -> None:
    async def write(session: str) -> None:
        for seq in range(sizes.appends):
            event = Event(seq, facts[seq % len(facts)], time.time())
            times.appends.append(await _seconds(lambda event=event: store.append(session, [event])))

    start = time.perf_counter()
    await asyncio.gather(*(write(f"{name}-{number}") for number in range(WRITERS)))
    times.rates.append(WRITERS * sizes.appends / (time.perf_counter() - start))


async def _fill(store: Store, facts: list[AnyFact], sizes: StoreSizes) -> None:
    """Write the sessions of the list, and the one that is searched."""

    async def write(numbers: range) -> None:
        for number in numbers:
            at = 1.7e9 + 100 * number
            await store.append(f"listed-{number}", [Event(0, facts[number % len(facts)], at)])

    await asyncio.gather(*(write(range(first, sizes.sessions, WRITERS)) for first in range(WRITERS)))
    for first in range(0, len(facts), 500):
        batch = facts[first : first + 500]
        await store.append(
            "searched", [Event(first + nr, fact, time.time()) for nr, fact in enumerate(batch)]
        )


async def _seconds(act: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await act()
    return time.perf_counter() - start
