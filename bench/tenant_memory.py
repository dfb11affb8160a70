"""Measures memory, descriptors and threads of a server that many tenants have used once.

    python -m bench.tenant_memory 1000

The server is a real `foveal serve` process. Each tenant has a token of its own, sends one drop-in request, and runs
one turn in a session.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.measure import Row, progress
from bench.processes import server, upstream
from foveal.server import AuthTokens, DataFolder
from foveal.testing import Scripted

TENANTS: Final = 1_000
MAX_MB: Final = 300
MAX_DESCRIPTORS: Final = 200
MAX_THREADS: Final = 100
ENVIRONMENT: Final = {"FOVEAL_PROVIDER": "bench.tenant_memory:provider", "OPENAI_API_KEY": "sk-bench"}


class ProcessUse(NamedTuple):
    """What a process uses."""

    megabytes: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> ProcessUse:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        memory = int(fields["VmRSS"].split()[0]) / 1_000
        return cls(memory, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]))


def rows(tenants: int = TENANTS) -> Iterator[Row]:
    """Yield what the server uses after all tenants have used it, and what the last request cost."""
    with tempfile.TemporaryDirectory(prefix="foveal-bench-") as folder, upstream() as upstream_port:
        secrets = asyncio.run(_make_tokens(Path(folder), tenants))
        settings = [f"server.openai_url=http://127.0.0.1:{upstream_port}/v1"]
        with server(settings=settings, folder=folder, environment=ENVIRONMENT) as running:
            before = ProcessUse.of(running.pid)
            began = time.perf_counter()
            for number, secret in enumerate(secrets):
                progress(f"server: tenant {number} of {tenants} …")
                _use_once(running.port, secret)
            seconds = (time.perf_counter() - began) / tenants
            after = ProcessUse.of(running.pid)
    name = f"{tenants:,} tenants, each used once"
    note = f"{before.megabytes:.0f} MB at start"
    yield Row(f"{name}: memory of the server", after.megabytes, "MB", MAX_MB, note)
    yield Row(f"{name}: open descriptors", after.descriptors, "descriptors", MAX_DESCRIPTORS)
    yield Row(f"{name}: threads", after.threads, "threads", MAX_THREADS)
    yield Row(f"{name}: time per tenant", seconds, note="a drop-in request, a new session and a turn")


async def _make_tokens(folder: Path, count: int) -> list[str]:
    database = DataFolder.create(folder).open_database()
    tokens = AuthTokens(database)
    made = [await tokens.create(f"tenant-{number}", label="", now=time.time()) for number in range(count)]
    await database.close()
    return [secret for _, secret in made]


def _use_once(port: int, secret: str) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {
        "Authorization": f"Bearer {secret}",
        "X-Foveal-Token": secret,
        "Content-Type": "application/json",
    }
    message = {"role": "user", "content": "What is a fovea? " * 50}
    requests = (
        ("/v1/chat/completions", {"model": "gpt-4.1", "messages": [message]}),
        ("/api/sessions", {"id": "demo"}),
        ("/api/sessions/demo/turns", {"text": "What is a fovea? " * 50, "stream": False}),
    )
    for path, body in requests:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{path}: {response.status} {text[:300]!r}")
    connection.close()


def provider(name: str | None = None, **_: Any) -> Scripted:
    """Return the provider of the server's own sessions: it answers at once."""
    return Scripted(name="openai/gpt-4.1")


if __name__ == "__main__":
    for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else TENANTS):
        progress("")
        print(f"{row.what:<60} {row.measured:>16} {row.target:>20}  {row.verdict:<6} {row.note}")
