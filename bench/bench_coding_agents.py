"""Measures coding agents from npm and PyPI: what they send with and without Foveal.

Each agent has the same conversation several times, with an upstream that lets it call its own tools:

1. directly, in a window without a limit, its own compaction off: the whole history;
2. directly, in a window that it is told, its own compaction on;
3. through `foveal serve`, in the same window, its own compaction off;
4. through `foveal serve`, in the same window, its own compaction on.

    python -m bench.bench_coding_agents pi aider 32000    only these agents, only this window
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, NamedTuple

from bench.measure import Row, progress
from bench.processes import cpu_seconds, import_from_tests

TURNS: Final = 4
STEPS: Final = 26
WINDOWS: Final = (32_000, 120_000)
"""A larger one for an agent whose tools and instructions do not fit into it."""
REQUESTS: Final = TURNS * (STEPS + 1)
_MODES: Final = {"own": "its own compaction", "foveal": "Foveal", "both": "both"}


class AgentRun(NamedTuple):
    """What one conversation sent upstream."""

    figures: Any
    """`UpstreamFigures` of the tests."""
    answered: int
    """Steps and final texts that the agent got."""
    summaries: int
    """Requests for summaries, of Foveal or of the agent itself."""
    problem: str
    seconds: float
    added_ms: float = 0.0
    """Median of the time that the server adds to a request."""
    cpu_s: float = 0.0
    """CPU time of the server."""


def rows(names: list[str] | None = None) -> Iterator[Row]:
    support = import_from_tests("support.coding_clients")
    programs = {name for name in names or () if not name.isdigit()}
    windows = [int(name) for name in names or () if name.isdigit()] or WINDOWS
    for client in support.CODING_CLIENTS:
        if not programs or client.client.program in programs:
            yield from _client_rows(client, "whole", "whole history", support.UNLIMITED)
            for window in dict.fromkeys(max(window, client.window) for window in windows):
                for mode, words in _MODES.items():
                    yield from _client_rows(client, mode, words, window)


def _client_rows(client: Any, mode: str, words: str, window: int) -> Iterator[Row]:
    skipped = import_from_tests("pytest").skip.Exception
    size = "" if mode == "whole" else f" in {window:,}"
    progress(f"coding_agents: {client.name}, {words}{size} …")
    what = f"{client.name}, {words}{size}: cost"
    try:
        run = measured_run(client, mode, window)
    except skipped as reason:
        yield Row(what, None, "tokens", note=str(reason))
    else:
        yield Row(what, round(run.figures.cost), "tokens", note=_note(run))
        if mode == "foveal":
            yield Row(f"{client.name}{size}: added to a request, p50", run.added_ms / 1_000)
            yield Row(f"{client.name}{size}: CPU time per request", run.cpu_s / max(run.answered, 1))


def _note(run: AgentRun) -> str:
    figures = run.figures
    parts = [
        f"{figures.tokens:,} prompt tokens",
        f"{figures.uncached:,} uncached",
        f"largest {figures.largest:,}",
        f"{figures.requests} requests",
        f"{run.answered} of {REQUESTS} steps",
        f"{run.summaries} summaries",
        f"{figures.illegal} illegal, {figures.too_large} too large",
        f"{run.seconds:.0f} s",
    ]
    return ", ".join(parts) + (f"; {run.problem}" if run.problem else "")


def measured_run(client: Any, mode: str, window: int) -> AgentRun:
    """Have the conversation once; a client that gives up ends it, and the figures are those until then."""
    upstreams = import_from_tests("support.agent_upstream")
    processes = import_from_tests("support.serve_process")
    npm = import_from_tests("support.npm_clients")
    npm.installed(client.client)
    turns = TURNS if client.has_tools else REQUESTS
    prompts = [f"Find part {turn}." for turn in range(turns)]
    problem, added, cpu, began = "", [0.0], 0.0, time.perf_counter()
    with ExitStack() as stack:
        upstream = stack.enter_context(upstreams.AgentUpstream(window=window))
        home = stack.enter_context(npm.client_home())
        upstream.steps, upstream.has_tools = STEPS, client.has_tools
        (home / "work/notes.txt").write_text("".join(f"note {number}\n" for number in range(200)))
        url, server = upstream.anthropic, None
        if mode in ("foveal", "both"):
            urls = {"server.openai_url": upstream.openai, "server.anthropic_url": upstream.anthropic}
            server = stack.enter_context(
                processes.serving(window=window, settings={**urls, "tokenizer": "auto"})
            )
            url = server.url
        try:
            client.converse(home, url, prompts, own_window=window if mode in ("own", "both") else 0)
        except AssertionError as error:
            problem = f"ended early: {' '.join(str(error).split())[-160:]}"
        if server is not None:
            added = [line["added_ms"] for line in server.logged if line["event"] == "exchange"] or added
            cpu = cpu_seconds(server.pid)
        return AgentRun(
            upstreams.upstream_figures(upstream),
            upstream.answered,
            upstream.summaries + upstream.client_summaries,
            problem,
            time.perf_counter() - began,
            median(added),
            cpu,
        )


def main(names: list[str]) -> None:
    """Print the rows of the named agents."""
    for row in rows(names):
        print(f"{row.what:<60} {row.measured:>20}  {row.note}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
