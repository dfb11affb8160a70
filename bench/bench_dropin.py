"""Measures the latency that the drop-in endpoints add, and concurrent streams on one core.

The server is a real `foveal serve` process; the upstream is another local process that answers at once. Each
request is sent twice, directly to upstream and through the server, and the figure is the difference. It contains
the whole cost: HTTP in and out, recognising the conversation, storing and fitting.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

from bench.loopback import PAUSE, PIECES, KeepAliveConnection, pieces, reply, streamed_text
from bench.measure import Row, progress, quantile
from bench.processes import cpu_seconds, relay, server, upstream

MESSAGES: Final = 200
CONVERSATIONS: Final = 12
REQUESTS: Final = 25
CLIENT_COUNTS: Final = (50, 200, 500)
STREAMS_PER_CLIENT: Final = 3
RELAY_CLIENTS: Final = 50
RELAY_ROUNDS: Final = 5
LONG_HISTORIES: Final = (500, 50_000)
LONG_REQUESTS: Final = 8


def rows() -> Iterator[Row]:
    with _server_and_upstream() as (port, upstream, _):
        yield from _latency_rows(port, upstream)
    yield from streaming_rows()
    yield from relay_rows()
    yield from long_history_rows()


def streaming_rows(client_counts: Sequence[int] = CLIENT_COUNTS) -> Iterator[Row]:
    """Yield latency, CPU time and throughput with many streaming clients, on a server that runs on one core."""
    for clients in client_counts:
        with _server_and_upstream() as (port, upstream, pid):
            yield from _client_rows(clients, port, upstream, pid)


def relay_rows() -> Iterator[Row]:
    """Yield the CPU time of a streamed request relative to a bare relay, the best of several rounds of each."""
    with _server_and_upstream() as (port, upstream, pid), relay(upstream) as bare:
        best = {pid: 1.0, bare.pid: 1.0}
        for number in range(RELAY_ROUNDS):
            progress(f"dropin: bare relay, round {number + 1} of {RELAY_ROUNDS} …")
            for process, at in ((pid, port), (bare.pid, bare.port)):
                before = cpu_seconds(process)
                streamed = asyncio.run(_stream_all(at, RELAY_CLIENTS, f"round {number}"))
                used = (cpu_seconds(process) - before) / len(streamed.first_bytes)
                best[process] = min(best[process], used) if number else 1.0  # the first is the warm-up
    note = f"{best[pid] * 1e3:.1f} and {best[bare.pid] * 1e3:.1f} ms; {RELAY_CLIENTS} clients"
    name = "CPU time of a streamed request relative to a bare aiohttp relay"
    yield Row(name, best[pid] / best[bare.pid], "×", 2.0, note=note)


def long_history_rows(counts: Sequence[int] = LONG_HISTORIES) -> Iterator[Row]:
    """Yield the CPU time of a later request in a long conversation, relative to a short one."""
    settings = "server.max_messages=1000000", "server.max_body=100000000"
    with _server_and_upstream(*settings) as (port, _, pid):
        used = [asyncio.run(_later_request_cpu(port, pid, count)) for count in counts]
    for count, cpu in zip(counts, used, strict=True):
        yield Row(f"later request with {count:,} messages: CPU time", cpu, limit=0.050)
    yield Row(f"relative to one with {counts[0]:,} messages", used[-1] / used[0], "×")


async def _later_request_cpu(port: int, pid: int, count: int) -> float:
    """Return the CPU time of one of several requests that continue a conversation with so many messages."""
    progress(f"dropin: a request with {count:,} messages …")
    connection = await KeepAliveConnection(port).open()
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"word {at} " * 8} for at in range(count)]
    before = 0.0
    for number in range(LONG_REQUESTS + 1):
        messages.append({"role": "user", "content": f"and then {number}?"})
        await connection.ask(json.dumps({"model": "gpt-4o", "messages": messages}).encode())
        messages.append(reply()["choices"][0]["message"])
        before = before or cpu_seconds(pid)
    connection.close()
    return (cpu_seconds(pid) - before) / LONG_REQUESTS


def _latency_rows(port: int, upstream: int) -> Iterator[Row]:
    progress(f"dropin: {CONVERSATIONS} conversations …")
    first, later = asyncio.run(_added_latency(port, upstream))
    note = f"{len(later)} requests in {CONVERSATIONS} conversations"
    yield Row(f"added to a request with {MESSAGES} messages, p50", median(later), limit=0.005, note=note)
    yield Row("added to a request, p99", quantile(later, 0.99), limit=0.025)
    yield Row(f"added to a first request with {MESSAGES} messages, p50", median(first))


def _client_rows(clients: int, port: int, upstream: int, pid: int) -> Iterator[Row]:
    progress(f"dropin: {clients} streaming clients …")
    asyncio.run(_stream_all(port, 2, "warm-up"))
    if hasattr(os, "sched_setaffinity"):
        _on_one_core(pid)
    direct = asyncio.run(_stream_all(upstream, clients, "run"))
    before = cpu_seconds(pid)
    through = asyncio.run(_stream_all(port, clients, "run"))
    cpu = (cpu_seconds(pid) - before) / len(through.first_bytes)
    name = f"{clients} streaming clients"
    note = (
        f"{STREAMS_PER_CLIENT} requests each; an answer has {PIECES} pieces, one every {PAUSE * 1000:.0f} ms"
    )
    yield Row(f"{name}: CPU time per request", cpu, limit=0.003, note=note)
    yield Row(f"{name}: requests per second and core", 1 / cpu, "requests")
    for share, label in ((0.5, "p50"), (0.99, "p99")):
        added = quantile(through.first_bytes, share) - quantile(direct.first_bytes, share)
        yield Row(f"{name}: added to the first byte, {label}", max(added, 0.0))
    yield Row(f"{name}: streams that lost a byte", through.lost + direct.lost, "×", 0.0)
    note = f"{through.seconds:.2f} s"
    yield Row(
        f"{name}: duration relative to direct streams", through.seconds / direct.seconds, "×", note=note
    )


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────


def history(number: int) -> list[dict[str, Any]]:
    """Return an agent conversation: questions, calls, results, answers."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You help with conversation " * 20}]
    for turn in range((MESSAGES - 1) // 4):
        name = f"{number}-{turn}"
        call = {"name": "search", "arguments": json.dumps({"query": f"part {name}"})}
        messages += [
            {"role": "user", "content": f"question {name} " + "what about this and that " * 15},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"{name}\n" + "a line of it\n" * 40},
            {"role": "assistant", "content": f"answer {name} " + "this is it and so on " * 15},
        ]
    return messages


async def _added_latency(port: int, upstream: int) -> tuple[list[float], list[float]]:
    """Return the seconds added to the first and to the later requests of all conversations."""
    through, direct = await KeepAliveConnection(port).open(), await KeepAliveConnection(upstream).open()
    first: list[float] = []
    later: list[float] = []
    for number in range(-1, CONVERSATIONS):
        messages = history(number)
        for request in range(REQUESTS):
            messages.append({"role": "user", "content": f"{number}.{request} and then? " * 10})
            body = json.dumps({"model": "gpt-4.1", "messages": messages}).encode()
            added = await _request_seconds(through, body) - await _request_seconds(direct, body)
            if number >= 0:  # conversation -1 is the warm-up
                (later if request else first).append(added)
            messages.append(reply()["choices"][0]["message"])
    through.close()
    direct.close()
    return first, later


async def _request_seconds(connection: KeepAliveConnection, body: bytes) -> float:
    start = time.perf_counter()
    await connection.ask(body)
    return time.perf_counter() - start


class Streamed(NamedTuple):
    """What a number of clients measured."""

    lost: int
    """Streams that differ from what upstream sends."""
    first_bytes: list[float]
    """Seconds until the first byte of each answer."""
    seconds: float


async def _stream_all(port: int, clients: int, name: str) -> Streamed:
    """Let all clients stream; each continues a conversation of its own. They start one after the other, within the
    time that an answer takes."""
    start, pause = time.perf_counter(), PIECES * PAUSE / clients
    each = (_stream_client(port, f"{name}-{number}", number * pause) for number in range(clients))
    found = await asyncio.gather(*each)
    firsts = [first for _, each in found for first in each]
    return Streamed(sum(lost for lost, _ in found), firsts, time.perf_counter() - start)


async def _stream_client(port: int, name: str, delay: float) -> tuple[int, list[float]]:
    await asyncio.sleep(delay)
    messages = [{"role": "system", "content": "You stream."}]
    connection = await KeepAliveConnection(port).open()
    lost, firsts = 0, []
    try:
        for number in range(STREAMS_PER_CLIENT):
            said = f"{name}.{number}"
            messages.append({"role": "user", "content": said})
            body = json.dumps(
                {"model": "gpt-4.1", "stream": True, "messages": messages}, separators=(",", ":")
            )
            data, first = await connection.ask_timed(body.encode())
            lost += data != b"".join(pieces(said))
            firsts.append(first)
            messages.append({"role": "assistant", "content": streamed_text(said)})
    finally:
        connection.close()
    return lost, firsts


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _server_and_upstream(*settings: str) -> Iterator[tuple[int, int, int]]:
    """Start both; yield the server's port, upstream's port, and the process id of the server."""
    with (
        upstream() as upstream_port,
        server(settings=[f"server.openai_url=http://127.0.0.1:{upstream_port}/v1", *settings]) as running,
    ):
        yield running.port, upstream_port, running.pid


def _on_one_core(pid: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
