"""Measures the latency that the drop-in endpoints add, and concurrent streams on one core.

The server is a real `foveal serve` process; the upstream is another local process that answers at once. Each
request is sent twice, directly to upstream and through the server, and the figure is the difference. It contains
the whole cost: HTTP in and out, recognising the conversation, storing and fitting.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

from bench.loopback import PAUSE, PIECES, KeepAliveConnection, pieces, reply
from bench.measure import Row, progress

MESSAGES: Final = 200
CONVERSATIONS: Final = 12
REQUESTS: Final = 25
STREAMS: Final = 200
_URL: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder, _upstream() as upstream:
        settings = [f"server.openai_url=http://127.0.0.1:{upstream}/v1", "server.rate=0"]
        with _server(folder, settings) as (port, pid):
            progress(f"dropin: {CONVERSATIONS} conversations …")
            first, later = asyncio.run(_added_latency(port, upstream))
            note = f"{len(later)} requests in {CONVERSATIONS} conversations"
            yield Row(
                f"added to a request with {MESSAGES} messages, p50", median(later), limit=0.005, note=note
            )
            yield Row("added to a request, p99", _quantile(later, 0.99), limit=0.025)
            yield Row(f"added to a first request with {MESSAGES} messages, p50", median(first))
            if hasattr(os, "sched_setaffinity"):
                _on_one_core(pid)
            progress(f"dropin: {STREAMS} streams …")
            lost, seconds, alone = asyncio.run(_streams(port, upstream))
            yield Row(f"{STREAMS} concurrent streams on one core: streams that lost a byte", lost, "×", 0.0)
            note = f"{seconds:.2f} s; each has {PIECES} pieces, one every {PAUSE * 1000:.0f} ms"
            yield Row(
                "duration of these streams, relative to direct streams", seconds / alone, "×", note=note
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


async def _streams(port: int, upstream: int) -> tuple[int, float, float]:
    """Return how many streams lost a byte, and the seconds for all of them: through the server, and directly."""
    alone = await _stream_all(upstream)
    through = await _stream_all(port)
    return through[0] + alone[0], through[1], alone[1]


async def _stream_all(port: int) -> tuple[int, float]:
    start = time.perf_counter()
    lost = sum(await asyncio.gather(*(_stream(port, f"stream-{number}") for number in range(STREAMS))))
    return lost, time.perf_counter() - start


async def _stream(port: int, name: str) -> bool:
    messages = [{"role": "system", "content": "You stream."}, {"role": "user", "content": name}]
    body = json.dumps({"model": "gpt-4.1", "stream": True, "messages": messages}, separators=(",", ":"))
    connection = await KeepAliveConnection(port).open()
    try:
        return await connection.ask(body.encode()) != b"".join(pieces(name))
    finally:
        connection.close()


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _upstream() -> Iterator[int]:
    command = [sys.executable, "-m", "bench.loopback"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate("")


@contextmanager
def _server(folder: str, settings: list[str]) -> Iterator[tuple[int, int]]:
    """Start a server on a free port; yield the port and the process id."""
    command = [sys.executable, "-m", "foveal.apps", "serve", "--port", "0", "--folder", folder]
    command += [part for setting in settings for part in ("--set", setting)]
    log = os.path.join(folder, "stderr")
    with open(log, "w+", encoding="utf-8") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            yield _port(process, log), process.pid
        finally:
            process.terminate()
            process.wait(60)


def _port(process: subprocess.Popen[bytes], log: str) -> int:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with open(log, encoding="utf-8") as file:
            text = file.read()
        found = _URL.search(text)
        if found and '"listening"' in text:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


def _on_one_core(pid: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
