"""Measures the SQLite store: appends compared with plain SQLite, opening, size on disk, reading.

Appends wait for the disk, so they are measured in wall-clock time: blocks of appends to the store and to plain
SQLite alternate, and the median block counts. The store's figure includes the event loop and threads. The size on
disk is measured on recorded conversations if they are available, otherwise on synthetic ones.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

import apsw

from bench import work
from bench.measure import Row, progress
from foveal.core.log import AnyFact, Event, encode
from foveal.core.wire import wire_for
from foveal.ports import Checkpoint
from foveal.stores import Durability, SqliteStore, open_store

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
MANY_EVENTS: Final = 100_000
FEW_EVENTS: Final = 1_000
NEEDED_EVENTS: Final = 300
TAIL_EVENTS: Final = 50
ROUNDS: Final = 7
APPENDS: Final[dict[Durability, tuple[int, int]]] = {"full": (60, 10), "normal": (40, 100)}
"""Number of blocks, and appends in each."""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder:
        yield from _appends(Path(folder))
        yield from _size_on_disk(Path(folder))
        yield from _opening(Path(folder))


# ── Appends ──────────────────────────────────────────────────────────────────────────────────────────────


def _appends(folder: Path) -> Iterator[Row]:
    facts = _facts(work.messages(5_000, work.AGENT))
    events = [Event(seq, fact, 1.7e9 + seq) for seq, fact in enumerate(facts)]
    for durability, (blocks, size) in APPENDS.items():
        progress(f"store: appends, {durability} …")
        turns = [events[nr * size : (nr + 1) * size] for nr in range(blocks)]
        ours, bare = asyncio.run(_append_seconds(folder, durability, turns))
        note = (
            f"{ours / size * 1e6:,.0f} µs against {bare / size * 1e6:,.0f} µs; {blocks} blocks of {size} each"
        )
        yield Row(
            f"append, durability {durability}: relative to a plain transaction",
            ours / bare,
            "×",
            1 / 0.7,
            note,
        )


async def _append_seconds(
    folder: Path, durability: Durability, turns: list[list[Event]]
) -> tuple[float, float]:
    """Return the median time of a block: of the store, and of plain SQLite."""
    ours: list[float] = []
    bare: list[float] = []
    connection = _bare_table(folder / f"bare-{durability}.db", durability)
    async with open_store(folder / f"{durability}.db", durability=durability) as store:
        for events in turns:
            start = time.perf_counter()
            for event in events:
                await store.append("s", [event])
            between = time.perf_counter()
            for event in events:
                _append_bare(connection, event)
            ours.append(between - start)
            bare.append(time.perf_counter() - between)
    connection.close()
    return median(ours), median(bare)


def _bare_table(path: Path, durability: Durability) -> apsw.Connection:
    """Create a minimal table that stores only the encoded events."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", durability)
    connection.execute(
        "CREATE TABLE events(session TEXT, seq INTEGER, line TEXT, PRIMARY KEY (session, seq))"
    )
    return connection


def _append_bare(connection: apsw.Connection, event: Event) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO events VALUES (?, ?, ?)", ("s", event.seq, encode(event)))
    connection.execute("COMMIT")


# ── Size on disk ─────────────────────────────────────────────────────────────────────────────────────────


def _size_on_disk(folder: Path) -> Iterator[Row]:
    recorded = _recorded_conversations()
    for varied, what in ((True, "every copy with other words"), (False, "exact copies, for comparison")):
        progress(f"store: size on disk, {what} …")
        path = folder / f"size-{varied}.db"
        start = time.perf_counter()
        size = asyncio.run(_fill_store(path, _sessions(recorded, varied=varied)))
        seconds = time.perf_counter() - start
        note = f"{path.stat().st_size / 1e6:.0f} of {size / 1e6:.0f} MB; {what}; written in {seconds:.1f} s"
        limit = 0.5 if varied else None
        yield Row(
            f"size of {MANY_EVENTS:,} events: bytes per byte of JSON",
            path.stat().st_size / size,
            "×",
            limit,
            note,
        )


async def _fill_store(path: Path, sessions: Iterator[list[AnyFact]]) -> int:
    """Write `MANY_EVENTS` events in batches of four, eight sessions in parallel; return the size of their JSON."""
    size = count = 0
    async with open_store(path, durability="normal") as store:
        while count < MANY_EVENTS:
            beside = [(f"s{count}-{nr}", next(sessions)) for nr in range(8)]
            for first in range(0, max(len(facts) for _, facts in beside), 4):
                for session, facts in beside:
                    batch = facts[first : first + 4]
                    events = [Event(first + nr, fact, 1.7e9 + count + nr) for nr, fact in enumerate(batch)]
                    await store.append(session, events)
                    count += len(events)
                    size += sum(len(encode(event)) + 1 for event in events)
    return size


def _sessions(recorded: list[list[work.Json]], *, varied: bool) -> Iterator[list[AnyFact]]:
    """Yield conversations endlessly; with `varied`, repeated ones have other words."""
    turn = 0
    while True:
        for messages in recorded:
            again = _varied(messages, random.Random(turn)) if varied and turn else messages
            yield _facts(again)
        turn += 1


def _varied(messages: list[work.Json], pick: random.Random) -> list[work.Json]:
    """Return the conversation with a third of its words changed, each consistently."""
    changed: dict[str, str] = {}

    def word(found: re.Match[str]) -> str:
        old = found.group()
        if old not in changed:
            letters = list(old)
            if pick.random() < 0.33:
                pick.shuffle(letters)
            changed[old] = "".join(letters)
        return changed[old]

    def varied(value: object) -> object:
        if isinstance(value, str):
            return re.sub(r"[A-Za-z0-9]{4,}", word, value)
        if isinstance(value, list):
            return [varied(item) for item in value]
        if isinstance(value, dict):
            keep = ("role", "type", "name")
            return {key: item if key in keep else varied(item) for key, item in value.items()}
        return value

    return [{key: varied(item) if key != "role" else item for key, item in m.items()} for m in messages]


def _recorded_conversations() -> list[list[work.Json]]:
    files = [path for path in sorted(DATA.glob("*.jsonl.gz")) if path.name != "raw.jsonl.gz"]
    if not files:
        return [work.messages(400, work.AGENT)]
    conversations: list[list[work.Json]] = []
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            conversations.extend(json.loads(line)["messages"] for line in lines)
    return conversations


def _facts(messages: list[work.Json]) -> list[AnyFact]:
    return [fact for chunk in wire_for("openai_chat").read(messages) for fact in chunk.facts]


# ── Opening and reading ──────────────────────────────────────────────────────────────────────────────────


def _opening(folder: Path) -> Iterator[Row]:
    path = folder / "opening.db"
    progress("store: a long session …")
    asyncio.run(_long_sessions(path))
    few, many = asyncio.run(_measured_opening(path))
    what = f"open by checkpoint, {NEEDED_EVENTS} needed and {TAIL_EVENTS} new"
    yield Row(
        f"{what}: of {MANY_EVENTS:,} events", many, "s", 0.010, "a new store each time, wall-clock time"
    )
    yield Row(f"{what}: relative to one of {FEW_EVENTS:,}", many / few, "×", 2, f"{few * 1e3:.1f} ms")
    seconds = asyncio.run(_best_seconds(path, lambda store: store.read("many")))
    yield Row(
        f"read all of {MANY_EVENTS:,} events", seconds, note=f"{MANY_EVENTS / seconds:,.0f} events per second"
    )
    info = asyncio.run(_best_seconds(path, lambda store: store.sessions()))
    yield Row("list the sessions of that store", info)


async def _long_sessions(path: Path) -> None:
    facts = _facts(work.messages(5_000, work.CHAT))
    async with open_store(path, durability="normal") as store:
        for session, count in (("few", FEW_EVENTS), ("many", MANY_EVENTS)):
            for first in range(0, count, 500):
                batch = range(first, first + 500)
                await store.append(
                    session, [Event(seq, facts[seq % len(facts)], 1.7e9 + seq) for seq in batch]
                )
            needed = tuple(sorted(random.Random(1).sample(range(count - TAIL_EVENTS), NEEDED_EVENTS)))
            await store.keep_checkpoint(
                session, Checkpoint(seq=count - TAIL_EVENTS - 1, needed=needed, state=b"x" * 2_000)
            )


async def _measured_opening(path: Path) -> tuple[float, float]:
    few = many = float("inf")
    for _ in range(ROUNDS):
        few = min(few, await _open(path, "few"))
        many = min(many, await _open(path, "many"))
    return few, many


async def _open(path: Path, session: str) -> float:
    start = time.perf_counter()
    async with open_store(path) as store:
        checkpoint = await store.checkpoint(session)
        assert checkpoint is not None
        events = await store.pick(session, checkpoint.needed)
        events += await store.read(session, first=checkpoint.seq + 1)
        seconds = time.perf_counter() - start
    assert len(events) == NEEDED_EVENTS + TAIL_EVENTS
    return seconds


async def _best_seconds(path: Path, act: Callable[[SqliteStore], Awaitable[object]]) -> float:
    best = float("inf")
    async with open_store(path) as store:
        for _ in range(3):
            start = time.perf_counter()
            await act(store)
            best = min(best, time.perf_counter() - start)
    return best
