"""Measures the memory of one context on a coding session: `python -m bench.fit_memory economy 100000`.

It runs in a new interpreter, because tracemalloc slows everything down and counts what others allocate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Final

from bench.bench_memory import Growth, measure_growth
from bench.work import Json, coding_session
from foveal import Context

COUNT: Final = 10_000
MAX_WAIT_S: Final = 60


def memory(policy: str, window: int) -> Growth | None:
    """Return what a context of 10,000 messages allocates, or None if fitting them takes more than a minute."""
    command = [sys.executable, "-m", "bench.fit_memory", policy, str(window)]
    folder = Path(__file__).parents[1]
    try:
        result = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=folder, timeout=MAX_WAIT_S
        )
    except subprocess.TimeoutExpired:
        return None
    return Growth(*json.loads(result.stdout))


def main(policy: str, window: str) -> None:
    def fit(messages: list[Json]) -> Context:
        context = Context("gpt-4.1", window=int(window), policy=policy, tokenizer="o200k_base")
        context.fit(messages)
        return context

    print(json.dumps(measure_growth(list(islice(coding_session(), COUNT)), fit)))


if __name__ == "__main__":
    main(*sys.argv[1:])
