"""A session of 50,000 events: CPU of each operation, and how long it delays another coroutine or client.

`python -m bench.large_session [EVENTS]` builds two sessions in one SQLite file and prints a row for each operation.
Session `turns` was written turn by turn and has a checkpoint; session `imported` has the same messages without
reductions and without a checkpoint, as after an import. `client_rows` runs turns in both on a real server, while
other clients ask it for a small session.

A delay is wall time, so it includes what other processes of the machine take. `busy` is the CPU time that the
thread of the event loop used without a break, which other processes do not change.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import aiohttp

from bench.measure import Row, display, progress
from bench.processes import server
from bench.work import coding_session
from foveal.core.log import AnyFact, Event, ModelSaid, Opened, UserSaid
from foveal.core.wire import wire_for
from foveal.ports import Store
from foveal.server import DataFolder
from foveal.sessions import Session
from foveal.sessions.log_reader import read_slices
from foveal.stores import open_store
from foveal.transcripts import write_events

EVENTS: Final = 50_000
MESSAGES_PER_BATCH: Final = 40
MAX_DELAY_S: Final = 0.050
"""Goal: no other coroutine waits longer."""
TICK_S: Final = 0.005
SETTINGS: Final[dict[str, Any]] = {"model": "gpt-4.1", "window": 128_000, "tokenizer": "estimate"}


class Operation(NamedTuple):
    """What an operation cost, in seconds."""

    what: str
    cpu: float
    """CPU time of the process."""
    delay: float
    """By how much a ticking coroutine came too late at most."""
    busy: float
    """CPU time of the event loop's thread between two ticks at most."""

    def row(self) -> Row:
        note = f"{self.cpu * 1000:,.0f} ms of CPU; event loop busy for at most {self.busy * 1000:,.1f} ms"
        return Row(
            f"{self.what}: longest delay of another coroutine", self.delay, limit=MAX_DELAY_S, note=note
        )


class Ticker:
    """A coroutine that wakes every `TICK_S`, and by how much it came too late."""

    def __init__(self) -> None:
        self.delay = self.busy = 0.0

    async def run(self) -> None:
        used = time.thread_time()
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.delay, self.busy = max(self.delay, time.perf_counter() - due), max(self.busy, now - used)
            used = now


async def measure(what: str, act: Callable[[], Awaitable[Any]]) -> tuple[Operation, Any]:
    """Run an operation beside the ticking coroutine."""
    ticker = Ticker()
    task = asyncio.create_task(ticker.run())
    await asyncio.sleep(2 * TICK_S)
    start = time.process_time()
    result = await act()
    cpu = time.process_time() - start
    await asyncio.sleep(2 * TICK_S)
    task.cancel()
    return Operation(what, cpu, ticker.delay, ticker.busy), result


# ── Building ─────────────────────────────────────────────────────────────────────────────────────────────


def _facts() -> Iterator[AnyFact]:
    reader = wire_for("openai_chat")
    for message in coding_session(seed=7):
        content = message.get("content")
        if message["role"] == "tool" and isinstance(content, str):
            message = {**message, "content": content[:10_000]}
        for chunk in reader.read((message,)):
            yield from chunk.facts


async def build(path: Path, count: int) -> None:
    """Write both sessions."""
    async with open_store(path, durability="normal") as store:
        session = await Session.open(store, "turns", **SETTINGS)
        facts = _facts()
        said: list[AnyFact] = []
        while session.last < count:
            progress(f"large session: event {session.last:,} of {count:,} …")
            batch = list(islice(facts, MESSAGES_PER_BATCH))
            said += batch
            await session.append(*batch)
            await session.fit()
        await store.append("imported", [Event(0, Opened(model="gpt-4.1"))])
        for first in range(0, len(said), 500):
            events = [Event(first + 1 + nr, fact) for nr, fact in enumerate(said[first : first + 500])]
            await store.append("imported", events)


# ── Operations ───────────────────────────────────────────────────────────────────────────────────────────


async def operations(path: Path, id: str) -> AsyncIterator[Operation]:
    """Run every operation on a session of the file, which is deleted at the end."""
    async with open_store(path, durability="normal") as store:
        operation, session = await measure(f"{id}: open", lambda: Session.open(store, id, **SETTINGS))
        yield operation
        await session.append(UserSaid(content="What did we do first?"))
        yield (await measure(f"{id}: first turn", session.fit))[0]
        await session.append(ModelSaid(content="We read a file."), UserSaid(content="And then?"))
        yield (await measure(f"{id}: later turn", session.fit))[0]
        yield (await measure(f"{id}: open again", lambda: Session.open(store, id, **SETTINGS)))[0]
        yield (await measure(f"{id}: why", lambda: session.why(101)))[0]
        yield (await measure(f"{id}: export", lambda: _export(store, id)))[0]
        yield (await measure(f"{id}: search", lambda: session.search("server parser")))[0]
        yield (await measure(f"{id}: search again", lambda: session.search("server parser")))[0]
        yield (await measure(f"{id}: delete", session.delete))[0]


async def _export(store: Store, id: str) -> int:
    """Write all events as lines, and return their bytes."""
    size, end = 0, (await store.info(id)).events
    async for events in read_slices(store, id, end=end):
        size += sum(map(len, write_events(events, id)))
    return size


def rows(count: int = EVENTS) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder:
        path = Path(folder) / "large.db"
        asyncio.run(build(path, count))
        for id in ("turns", "imported"):
            for operation in asyncio.run(_collect(path, id)):
                yield operation.row()


async def _collect(path: Path, id: str) -> list[Operation]:
    return [operation async for operation in operations(path, id)]


# ── Clients of a server ──────────────────────────────────────────────────────────────────────────────────


def client_rows(count: int = EVENTS) -> Iterator[Row]:
    """Yield how long a turn in each session takes, and how long it delays other clients."""
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder:
        asyncio.run(build(DataFolder.create(Path(folder)).tenant_file("default"), count))
        settings = ("tokenizer=estimate", f"window={SETTINGS['window']}")
        with server(settings=settings, folder=folder) as running:
            for id in ("turns", "imported"):
                progress(f"large session: a turn in {id} …")
                yield from asyncio.run(_turn_rows(running.url, id, count))


async def _turn_rows(url: str, id: str, count: int) -> list[Row]:
    about = {"turns": "", "imported": ", without a checkpoint"}[id]
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as http:
        async with http.post(f"{url}/api/sessions", json={"id": f"beside-{id}"}) as reply:
            assert reply.status == 201, await reply.text()
        idle = OtherClient(http, f"{url}/api/sessions/beside-{id}")
        await idle.run_beside(asyncio.sleep(2.0))
        usual, longest = median(idle.seconds), max(idle.seconds) * 1e3
        for turn in ("first turn", "second turn"):
            other = OtherClient(http, f"{url}/api/sessions/beside-{id}")
            seconds = await other.run_beside(_run_turn(http, f"{url}/api/sessions/{id}/turns"))
            name = f"{turn} in {count:,} events{about}"
            delay = max(0.0, max(other.seconds) - usual)
            note = f"beyond {usual * 1e3:.1f} ms; before the turn up to {longest:.0f} ms"
            note += f"; the turn took {display(seconds, 's')}"
            found.append(Row(f"{name}: longest delay of another client", delay, limit=MAX_DELAY_S, note=note))
    return found


async def _run_turn(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(url, json={"text": "What did we do first?", "stream": False}) as reply:
        assert reply.status == 200, await reply.text()
        await reply.read()


class OtherClient:
    """A client that asks for the same page again and again, and how long each answer took."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.seconds: list[float] = []
        self._http = http
        self._url = url

    async def run_beside(self, act: Awaitable[None]) -> float:
        """Ask until `act` has ended; return the seconds that it took."""
        start, task = time.perf_counter(), asyncio.ensure_future(act)
        while not task.done():
            await self._ask()
            await asyncio.sleep(TICK_S)
        await task
        return time.perf_counter() - start

    async def _ask(self) -> None:
        start = time.perf_counter()
        async with self._http.get(self._url) as reply:
            assert reply.status == 200, await reply.text()
            await reply.read()
        self.seconds.append(time.perf_counter() - start)


if __name__ == "__main__":
    for row in rows(*map(int, sys.argv[1:])):
        print(f"{row.what:<66} {row.measured:>9} {row.verdict:<7} {row.note}", flush=True)
