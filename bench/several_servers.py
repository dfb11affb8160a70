"""Turns of real server processes: SQLite against PostgreSQL, one process against three, wake-up and takeover.

1. The model is `bench.slow_model`. It answers at once, or it answers few requests of each process at a time, as a
   model on the machine of the process does. Then more processes give more turns, as long as the machine has CPU
   time left: clients, servers and database share it here.
2. Each client has a session and sends its next message when it has the answer.
3. *Wake-up* is the time from the model's answer in one process to a client that waits for it at another process.
4. *Takeover* is the time from `kill -9` to the answer of another process, to which the client repeats its request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import aiohttp

from bench.measure import Row, progress, quantile
from bench.processes import ServerProcess, cpu_seconds, server
from bench.slow_model import ANSWER_S, SLOTS, ModelAnswer

MIN_GAIN: Final = 2.0
"""Goal: turns per second with three processes relative to one, with a slow model."""
MAX_WAKE_UP_S: Final = 0.150
"""Goal of the 95th percentile."""
MAX_TAKEOVER_S: Final = 17.0
SETTINGS: Final = ("tokenizer=estimate",)
_numbers: Final = itertools.count()


class TurnSizes(NamedTuple):
    seconds: float = 4.0
    """Of each round of turns."""
    rounds: int = 2
    """With one process and with three, alternately."""
    clients: int = 24
    pairs: int = 40
    """Of clients that use one session at two processes."""
    left: int = 8
    """Messages that a killed process leaves."""


def rows(url: str, sizes: TurnSizes) -> Iterator[Row]:
    progress("server: turns …")
    with _servers(url) as processes, server(settings=SETTINGS) as sqlite:
        yield from asyncio.run(_turn_rows(sqlite, processes[0], sizes))
        yield from asyncio.run(_gain_rows(processes, sizes))
        yield from asyncio.run(_wake_up_rows(processes, sizes))
        yield from asyncio.run(_takeover_rows(processes, sizes))


@contextmanager
def _servers(url: str) -> Iterator[list[ServerProcess]]:
    """Start the processes on one database; the model of the last one holds requests that begin with `hold`."""
    settings = (*SETTINGS, f"server.database={url}")
    with ExitStack() as stack:
        holds: list[dict[str, str]] = [{}, {}, {"BENCH_HOLDS": "1"}]
        yield [stack.enter_context(server(settings=settings, environment=each)) for each in holds]


# ── SQLite and PostgreSQL ────────────────────────────────────────────────────────────────────────────────


async def _turn_rows(sqlite: ServerProcess, postgres: ServerProcess, sizes: TurnSizes) -> list[Row]:
    alone: dict[str, list[float]] = {"SQLite": [], "PostgreSQL": []}
    at_once: dict[str, list[ClientsRun]] = {"SQLite": [], "PostgreSQL": []}
    for _ in range(sizes.rounds):
        for name, process in (("SQLite", sqlite), ("PostgreSQL", postgres)):
            alone[name] += (await _run_clients([process], 1, sizes.seconds / 2, "fast")).latencies
            at_once[name].append(await _run_clients([process], 8, sizes.seconds / 2, "fast"))
    found = []
    for name, latencies in alone.items():
        note = f"p99 {quantile(latencies, 0.99) * 1e3:.1f} ms; one client, the model answers at once"
        found.append(Row(f"turn, {name}, p50", median(latencies), note=note))
    for name, runs in at_once.items():
        rate, cpu = median(run.per_second for run in runs), median(run.cpu_per_turn for run in runs)
        note = f"8 clients; {cpu * 1e3:.1f} ms of CPU of the server per turn"
        found.append(Row(f"turns of one process, {name}", rate, "turns/s", note=note))
    return found


# ── One process and three ────────────────────────────────────────────────────────────────────────────────


async def _gain_rows(processes: Sequence[ServerProcess], sizes: TurnSizes) -> list[Row]:
    found = []
    for word, what, limit in (
        ("slow", f"a model with {SLOTS} requests at once of {ANSWER_S:g} s", MIN_GAIN),
        ("fast", "a model that answers at once", None),
    ):
        one: list[ClientsRun] = []
        three: list[ClientsRun] = []
        for _ in range(sizes.rounds):
            one.append(await _run_clients(processes[:1], sizes.clients, sizes.seconds, word))
            three.append(await _run_clients(processes, sizes.clients, sizes.seconds, word))
        rates = [median(run.per_second for run in runs) for runs in (one, three)]
        cpu = median(run.cpu_per_turn for run in three) * 1e3
        note = f"{rates[0]:.1f} and {rates[1]:.1f} turns/s; {sizes.clients} clients, {cpu:.1f} ms of CPU per turn"
        gain = rates[1] / rates[0]
        found.append(
            Row(f"{len(processes)} processes against one, {what}", gain, "×", limit, note, at_least=True)
        )
    return found


class ClientsRun(NamedTuple):
    """What a number of clients measured."""

    latencies: list[float]
    """Of each turn, in seconds."""
    per_second: float
    cpu_per_turn: float
    """CPU time of the server processes."""


async def _run_clients(
    processes: Sequence[ServerProcess], clients: int, seconds: float, word: str
) -> ClientsRun:
    """Let clients send turn after turn; the rate counts those that end within the time."""
    latencies: list[float] = []
    in_time = 0
    async with AsyncExitStack() as stack:
        each = [
            await stack.enter_async_context(SessionClient.open(processes[number % len(processes)]))
            for number in range(clients)
        ]
        for client in each:
            await client.create_session()
        pids = [process.pid for process in processes]
        cpu, end = sum(map(cpu_seconds, pids)), time.perf_counter() + seconds

        async def run(client: SessionClient) -> None:
            nonlocal in_time
            while (start := time.perf_counter()) < end:
                await client.run_turn(f"{word}: what is a fovea?")
                latencies.append(time.perf_counter() - start)
                in_time += time.perf_counter() <= end

        await asyncio.gather(*map(run, each))
        cpu = sum(map(cpu_seconds, pids)) - cpu
    return ClientsRun(latencies, in_time / seconds, cpu / len(latencies))


# ── Wake-up and takeover ─────────────────────────────────────────────────────────────────────────────────


async def _wake_up_rows(processes: Sequence[ServerProcess], sizes: TurnSizes) -> list[Row]:
    here: list[float] = []
    elsewhere: list[float] = []
    for _ in range(0, sizes.pairs, SLOTS):  # a session asks the model once at a time
        done = await asyncio.gather(*(_use_session_at_two(processes) for _ in range(SLOTS)))
        for pid, answer, received in (each for pair in done for each in pair):
            (here if answer.pid == pid else elsewhere).append(received - answer.at)
    if not elsewhere:
        return [Row("wake-up of a client at another process, p95", None, limit=MAX_WAKE_UP_S)]
    p50, own = median(elsewhere) * 1e3, median(here) * 1e3
    note = f"{len(elsewhere)} turns; p50 {p50:.0f} ms, at the process that answers {own:.0f} ms"
    found = quantile(elsewhere, 0.95)
    return [Row("wake-up of a client at another process, p95", found, limit=MAX_WAKE_UP_S, note=note)]


async def _use_session_at_two(processes: Sequence[ServerProcess]) -> list[tuple[int, ModelAnswer, float]]:
    """Send a message to each of two processes; return the process, the answer and when it arrived."""
    first, second = processes[0], processes[1]
    async with SessionClient.open(first) as here, SessionClient.open(second) as there:
        await here.create_session()
        there.session = here.session

        async def ask(client: SessionClient, delay: float) -> tuple[int, ModelAnswer, float]:
            await asyncio.sleep(delay)
            answer = await client.run_turn("slow: what is a fovea?")
            return client.process.pid, answer, time.time()

        return await asyncio.gather(ask(here, 0.0), ask(there, ANSWER_S / 2))


async def _takeover_rows(processes: Sequence[ServerProcess], sizes: TurnSizes) -> list[Row]:
    progress("server: takeover …")
    *others, killed = processes
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                SessionClient.open(killed, retries_at=others[number % len(others)])
            )
            for number in range(sizes.left)
        ]
        for client in clients:
            await client.create_session()
            await client.begin_turn("hold: what is a fovea?", key="the-same")
        killed.process.send_signal(signal.SIGKILL)
        start = time.time()
        answers = await asyncio.gather(
            *(client.retry_turn("hold: what is a fovea?", key="the-same") for client in clients)
        )
    times = sorted(answer.at - start for answer in answers)
    note = f"{len(times)} sessions, the first after {times[0]:.1f} s"
    return [Row("takeover after kill -9: until the last answer", times[-1], limit=MAX_TAKEOVER_S, note=note)]


# ── Clients ──────────────────────────────────────────────────────────────────────────────────────────────


class SessionClient:
    """A client of one session."""

    def __init__(
        self, http: aiohttp.ClientSession, process: ServerProcess, retries_at: ServerProcess | None
    ) -> None:
        self.process = process
        self.session = f"bench-{os.getpid()}-{next(_numbers)}"
        self._http = http
        self._retries_at = retries_at or process

    @classmethod
    @asynccontextmanager
    async def open(
        cls, process: ServerProcess, *, retries_at: ServerProcess | None = None
    ) -> AsyncIterator[SessionClient]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as http:
            yield cls(http, process, retries_at)

    async def create_session(self) -> None:
        async with self._http.post(f"{self.process.url}/api/sessions", json={"id": self.session}) as reply:
            await _check(reply)

    async def run_turn(self, text: str) -> ModelAnswer:
        return await self._run_turn(self.process, text=text)

    async def begin_turn(self, text: str, *, key: str) -> None:
        """Send a message and leave when the server has stored it in the log."""
        body = {"text": text, "key": key, "stream": True}
        async with self._http.post(self._turns(self.process), json=body) as reply:
            await reply.content.readline()

    async def retry_turn(self, text: str, *, key: str) -> ModelAnswer:
        """Send a message again, to the other process."""
        return await self._run_turn(self._retries_at, text=text, key=key)

    async def _run_turn(self, process: ServerProcess, **body: str) -> ModelAnswer:
        async with self._http.post(self._turns(process), json={**body, "stream": False}) as reply:
            outcome = (await _check(reply))["outcome"]
        return ModelAnswer.parse(outcome["text"])

    def _turns(self, process: ServerProcess) -> str:
        return f"{process.url}/api/sessions/{self.session}/turns"


async def _check(reply: aiohttp.ClientResponse) -> Any:
    if reply.status >= 300:
        raise RuntimeError(f"{reply.url.path}: {reply.status} {(await reply.text())[:300]}")
    return await reply.json()
