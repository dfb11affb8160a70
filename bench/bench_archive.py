"""Measures `foveal mcp` over 1,600 transcripts: the first answer, the index, and the answer after a restart.

The transcripts are made of recorded messages, in the format of Claude Code, with 3 to 300 kB each. Each
measurement is a call of `recall_search` to a server in its own process, without the time that the process takes to
start.

    python -m bench archive
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TypeVar

from bench.bench_recall import DATA, agent_texts
from bench.measure import Row, progress

TRANSCRIPTS: Final = 1_600
MIN_BYTES: Final = 3_000
MAX_BYTES: Final = 300_000
MAX_RESTART_S: Final = 1.0
QUERIES: Final = ("marker107", "KeyError in the parser test", "which file did the test fail in?")
T = TypeVar("T")


class Answer(NamedTuple):
    """An answer of the server."""

    seconds: float
    text: str

    @property
    def is_partial(self) -> bool:
        return self.text.startswith("[foveal recall: searched ")

    @property
    def first_words(self) -> str:
        return self.text.removeprefix("[foveal recall: ").partition(";")[0]


Ask = Callable[[str], Awaitable[Answer]]


def make_transcripts(folder: Path, number: int = TRANSCRIPTS) -> int:
    """Write transcripts with recorded messages; return their bytes. Each has a word of its own."""
    texts, chance, total = agent_texts(20_000), random.Random(7), 0
    for at in range(number):
        size = int(MIN_BYTES * (MAX_BYTES / MIN_BYTES) ** chance.random())
        path = folder / f"project{at % 40}" / f"{at:04x}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = _transcript(at, size, texts, chance.randrange(len(texts)))
        path.write_text(content, encoding="utf-8", errors="replace")
        total += len(content)
    return total


def _transcript(at: int, size: int, texts: list[str], first: int) -> str:
    lines: list[str] = []
    written = 0
    while written < size:
        nr = len(lines)
        role = ("user", "assistant")[nr % 2]
        text = f"marker{at}" if nr == 0 else texts[(first + nr) % len(texts)][:size]
        entry = {
            "parentUuid": f"u{nr - 1}" if nr else None, "isSidechain": False, "cwd": f"/home/me/project{at % 40}",
            "sessionId": f"c{at}", "uuid": f"u{nr}", "type": role,
            "timestamp": f"2026-01-{1 + at % 28:02}T10:00:00Z",
            "message": {"role": role, "content": text, "id": f"m{nr}"},
        }  # fmt: skip
        lines.append(json.dumps(entry) + "\n")
        written += len(lines[-1])
    return "".join(lines)


async def with_server(folder: Path, home: Path, work: Callable[[Ask], Awaitable[T]]) -> T:
    """Do work with a new server over these transcripts, whose index is below `home`."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    command = ["-m", "foveal.cli", "mcp", str(folder)]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(stdio_client(parameters)) as client:
        await client.list_tools()

        async def ask(query: str) -> Answer:
            start = time.perf_counter()
            result = await client.call_tool("recall_search", {"query": query})
            return Answer(time.perf_counter() - start, str(result.content[0].text))  # type: ignore[union-attr]

        return await work(ask)


async def _build(ask: Ask) -> tuple[list[Answer], float]:
    """Return the first answers, and the time until an answer is complete."""
    start = time.perf_counter()
    first = [await ask(query) for query in QUERIES]
    while (await ask(QUERIES[-1])).is_partial:
        await asyncio.sleep(1.0)
    return first, time.perf_counter() - start


async def _ask_all(ask: Ask) -> list[Answer]:
    return [await ask(query) for query in QUERIES]


def rows() -> Iterator[Row]:
    if not DATA.exists():
        yield Row("foveal mcp, 1,600 transcripts", None, note="the recorded conversations are not available")
        return
    with TemporaryDirectory() as name:
        folder, home = Path(name) / "transcripts", Path(name) / "home"
        progress("archive: writing transcripts …")
        size = make_transcripts(folder)
        progress("archive: building the index …")
        first, complete = asyncio.run(with_server(folder, home, _build))
        for query, answer in zip(QUERIES, first, strict=True):
            yield Row(f"search while the index is built: {query}", answer.seconds, note=answer.first_words)
        yield Row("time until the index is complete", complete, note=f"{size / 1e6:.0f} MB of transcripts")
        stored = sum(file.stat().st_size for file in (home / "cache").rglob("*") if file.is_file())
        yield Row(
            "index size relative to the transcripts", stored / size, "×", 0.25, f"{stored / 1e6:.0f} MB"
        )
        again = asyncio.run(with_server(folder, home, _ask_all))
        for query, answer in zip(QUERIES, again, strict=True):
            seconds = None if answer.is_partial else answer.seconds
            yield Row(f"search after a restart: {query}", seconds, "s", MAX_RESTART_S, answer.first_words)
        slowest = max(answer.seconds for answer in again)
        yield Row("slowest answer after a restart, of the time to build", slowest / complete, "×", 0.1)
