"""Result rows and timing functions of the benchmarks."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median
from typing import Any, Final, Literal, NamedTuple, Self

Unit = Literal[
    "s", "×", "%", "modules", "summaries", "requests", "runs", "events", "MB", "descriptors", "threads",
    "appends/s", "turns/s", "frames", "tokens", "bits/byte",
]  # fmt: skip

_SCALES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


class Row(NamedTuple):
    """One row of the table. `value` is None if it could not be measured, `limit` is None if there is no target."""

    what: str
    value: float | None
    unit: Unit = "s"
    limit: float | None = None
    note: str = ""
    at_least: bool = False
    """The target is reached from `limit` upwards, not downwards."""

    @property
    def measured(self) -> str:
        return "–" if self.value is None else display(self.value, self.unit)

    @property
    def target(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return "" if self.limit is None else f"{sign} {display(self.limit, self.unit, digits=2)}"

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        if self.value is None:
            return "missed"
        is_met = self.value >= self.limit if self.at_least else self.value <= self.limit
        return "ok" if is_met else "missed"

    def plain(self) -> dict[str, Any]:
        """Return the row as it is stored in the results file."""
        return {**self._asdict(), "verdict": self.verdict}


def display(value: float, unit: Unit, *, digits: int = 3) -> str:
    """Format a value with three digits and a suitable unit."""
    if unit == "s":
        scale, name = next((s for s in _SCALES if value >= s[0]), _SCALES[-1])
        return f"{_short(value / scale, digits)} {name}"
    if unit == "%":
        return f"{value * 100:.1f} %"
    if unit == "×":
        return f"{value:.2f} ×" if value < 10 else f"{_short(value, digits)} ×"
    if unit == "bits/byte":
        return f"{value:.3f} {unit}"
    return f"{value:,.0f} {unit}"


def _short(value: float, digits: int) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


class Turns(NamedTuple):
    """Seconds per turn of a run."""

    median: float
    mean: float
    p99: float
    worst: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Turns:
        ranked = sorted(seconds)
        return cls(median(ranked), mean(ranked), ranked[int(len(ranked) * 0.99)], ranked[-1])


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def seconds_of(act: Callable[[], object]) -> float:
    """Run a function and return its CPU time."""
    start = time.process_time()
    act()
    return time.process_time() - start


def time_each(acts: Iterable[Callable[[], object]]) -> Turns:
    """Run each function once and measure its CPU time."""
    return Turns.of([seconds_of(act) for act in acts])


class CollectorTime:
    """Measures the CPU time of Python's garbage collector while it is entered."""

    def __init__(self) -> None:
        self._started = self._seconds = 0.0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_collection)
        return self

    def __exit__(self, *_error: object) -> None:
        gc.callbacks.remove(self._on_collection)

    def lap(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.process_time()
        else:
            self._seconds += time.process_time() - self._started


def best_of(times: int, act: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest of several runs."""
    return best_after(times, lambda: None, lambda _: act())


def best_after(times: int, prepare: Callable[[], Any], act: Callable[[Any], object]) -> float:
    """The same for a function that needs new input each time; preparing it is not timed."""
    best = float("inf")
    for _ in range(times):
        prepared = prepare()
        start = time.process_time()
        act(prepared)
        best = min(best, time.process_time() - start)
    return best


def progress(words: str) -> None:
    """Show the current task on one line, if standard error is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()
