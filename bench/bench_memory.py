"""Measures the memory of a context of 10,000 visible messages, beyond the messages themselves.

A new interpreter decodes the messages from JSON, as a caller would, and fits them into a window that holds them
all. tracemalloc measures both sizes. A context shares its texts with the messages, so its memory depends on the
number of messages more than on their length; one row therefore has tiny messages.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import work
from bench.measure import Row, progress
from foveal import Context

COUNT: Final = 10_000
MAX_GROWTH: Final = 1.5
CASES: Final = {
    "AGENT": (MAX_GROWTH, "typical agent messages"),
    "CHAT": (MAX_GROWTH, "short chat"),
    "TINY": (None, "2–12 characters each: no target"),
}


class Growth(NamedTuple):
    """Allocated bytes."""

    messages: int
    context: int
    peak: int


def rows() -> Iterator[Row]:
    for sizes, (limit, what) in CASES.items():
        progress(f"memory: {what} …")
        grown = _in_a_fresh_interpreter(sizes)
        note = (
            f"{grown.context / 1e6:.1f} MB beyond {grown.messages / 1e6:.1f} MB; "
            f"{grown.context / COUNT:,.0f} bytes per message; peak of fit {grown.peak / grown.messages:.1f} ×"
        )
        yield Row(f"context of {COUNT:,} messages, {what}", grown.context / grown.messages, "×", limit, note)


def _in_a_fresh_interpreter(sizes: str) -> Growth:
    command = [sys.executable, "-m", "bench.bench_memory", sizes]
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    return Growth(*json.loads(result.stdout))


def measure_growth(given: list[work.Json], fit: Callable[[list[work.Json]], Context]) -> Growth:
    """Return what `fit` allocates for messages that were decoded from JSON, as a caller has them."""
    encoded = json.dumps(given)
    fit(json.loads(encoded)[:10])  # loads tables and vocabularies before measuring
    tracemalloc.start()
    empty = _allocated_bytes()
    messages = json.loads(encoded)
    held = _allocated_bytes()
    tracemalloc.reset_peak()
    context = fit(messages)
    peak = tracemalloc.get_traced_memory()[1]
    full = _allocated_bytes()
    assert len(context.log) > len(given)
    return Growth(held - empty, full - held, peak - held)


def _fit(messages: list[work.Json]) -> Context:
    context = Context("gpt-4.1", window=100_000_000, tokenizer="estimate")
    context.fit(messages)
    return context


def _allocated_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    print(json.dumps(measure_growth(work.messages(COUNT, getattr(work, sys.argv[1])), _fit)))
