"""Measures `append` + `fit` for one more message, at 1,000 and at 100,000 messages.

The targets: less than a millisecond, and about the same time for both lengths. After the first 1,000 or 100,000
messages, the same messages are appended one by one, so both windows have the same content when timing starts. A
turn is one message. The figure is the median turn of a run, best of several runs; the note has the mean and the
worst turn, which include reductions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from bench.measure import Row, Turns, display, progress, time_each
from bench.work import Json, conversation
from foveal import Context

WINDOW: Final = 8_000
SIZES: Final = (1_000, 100_000)
WARM_UP_TURNS: Final = 200
TURNS: Final = 200
RUNS: Final = 5
MAX_GROWTH_RATIO: Final = 1.5
MAX_TURN_S: Final = 0.001
WAYS: Final = ("append(m); fit()", "fit(messages)")
CASES: Final = (
    ("estimate", "economy"),
    ("estimate", "recent"),
    ("estimate", "rolling"),
    ("o200k_base", "economy"),
)


class Loop:
    """An agent loop with a history, which continues with the messages of `following`."""

    def __init__(self, history: list[Json], following: list[Json], *, policy: str, tokenizer: str) -> None:
        self.context = Context("gpt-4.1", window=WINDOW, policy=policy, tokenizer=tokenizer)
        self.messages = list(history)
        self.following = iter(following)
        start = time.process_time()
        self.context.fit(self.messages)
        self.first_fit = time.process_time() - start

    def turns(self, count: int, way: str) -> Turns:
        """Run and time `count` more turns."""
        step = self._append_and_fit if way == WAYS[0] else self._fit_history
        return time_each(map(step, islice(self.following, count)))

    def _append_and_fit(self, message: Json) -> Callable[[], Any]:
        self.messages.append(message)

        def turn() -> None:
            self.context.append(message)
            self.context.fit()

        return turn

    def _fit_history(self, message: Json) -> Callable[[], Any]:
        def turn() -> None:
            self.messages.append(message)
            self.context.fit(self.messages)

        return turn


def rows() -> Iterator[Row]:
    large = max(SIZES)
    stream = list(islice(conversation(), large + WARM_UP_TURNS + len(WAYS) * RUNS * TURNS))
    for tokenizer, policy in CASES:
        progress(f"fit: a conversation of {large:,} messages, {policy}, {tokenizer} …")
        loops = {
            size: Loop(stream[:size], stream[large:], policy=policy, tokenizer=tokenizer) for size in SIZES
        }
        for loop in loops.values():
            loop.turns(WARM_UP_TURNS, WAYS[0])
        for way in WAYS:
            yield from _compare(loops, way, f"{policy}, {tokenizer}: {way}", limited=tokenizer == "estimate")
        first = loops[large].first_fit
        yield Row(f"{policy}, {tokenizer}: first fit of {large:,}", first, note="all at once")


def _compare(loops: dict[int, Loop], way: str, what: str, *, limited: bool) -> Iterator[Row]:
    small, large = SIZES
    runs: dict[int, list[Turns]] = {size: [] for size in SIZES}
    for _ in range(RUNS):
        for size, loop in loops.items():
            runs[size].append(loop.turns(TURNS, way))
    best = {size: min(run.median for run in runs[size]) for size in SIZES}
    means = {size: min(run.mean for run in runs[size]) for size in SIZES}
    worst = min(run.worst for run in runs[large])
    note = f"per turn, median; mean {display(means[large], 's')}, worst {display(worst, 's')}"
    yield Row(f"{what} at {large:,}", best[large], limit=MAX_TURN_S if limited else None, note=note)
    note = f"{display(best[large], 's')} to {display(best[small], 's')}; means {means[large] / means[small]:.2f} ×"
    yield Row(f"{what}: growth from {small:,}", best[large] / best[small], "×", MAX_GROWTH_RATIO, note)
