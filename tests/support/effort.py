"""How much work a test does: examples of properties, cases of tables, and a guard against work without bound.

The guard is no claim of speed: those live in bench/. What counts are the CPU seconds of this process, without the
garbage collector, whose work depends on all that other tests have left in memory. The bound is some hundred times
what is usual, so that noise never fails a test.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")
BOUND: Final = 30.0
"""CPU seconds."""
TEST_SHARE: Final = 0.15
"""Which part of the examples `make test` tries: the same ones in each run. `make soak` tries all, at random: other
ones each time it runs."""
MIN_EXAMPLES: Final = 4
QUICK_SHARE: Final = 0.1
MIN_QUICK_EXAMPLES: Final = 3
"""The same for `make test-quick`."""
QUICK_STRIDE: Final = 3
"""Of the cases that `make test` takes of a table, `make test-quick` takes one of this many."""


def examples(count: int, *, share: float = TEST_SHARE) -> settings:
    """The number of examples of a property whose examples take long; `make test` tries a part of them."""
    if os.environ.get("FOVEAL_SOAK"):
        return settings(max_examples=count)
    quick = os.environ.get("FOVEAL_QUICK")
    share, least = (min(share, QUICK_SHARE), MIN_QUICK_EXAMPLES) if quick else (share, MIN_EXAMPLES)
    return settings(max_examples=max(min(count, least), round(count * share)))


def some_cases(cases: Iterable[T], *, every: int = 1) -> list[T]:
    """Return the cases of a table that this run tries: every `every`-th one, and all of them in `make soak`.

    Where `every` divides no length of the table's dimensions, each of their values stays in it."""
    if os.environ.get("FOVEAL_SOAK"):
        return list(cases)
    return list(cases)[:: every * QUICK_STRIDE if os.environ.get("FOVEAL_QUICK") else every]


def rest_in_soak(cases: Iterable[Any], *, kept: int = 1, every: int = 0) -> list[Any]:
    """Return the cases of a table for `pytest.mark.parametrize`. Only `make soak` tries those that are variations:
    all after the first `kept` ones, or all but each `every`-th one."""
    return [
        case
        if (at % every == 0 if every else at < kept)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
        for at, case in enumerate(cases)
    ]


@contextmanager
def bounded() -> Iterator[None]:
    """What is done inside ends before long."""
    with _undisturbed():
        begun = process_time()
        yield
        taken = process_time() - begun
    assert taken < BOUND, f"this took {taken:.1f} CPU seconds"


def seconds(act: Callable[[], object], *, times: int = 3) -> float:
    """The CPU seconds that something takes, the best of several times."""
    best = float("inf")
    with _undisturbed():
        for _ in range(times):
            begun = process_time()
            act()
            best = min(best, process_time() - begun)
    return best


@contextmanager
def _undisturbed() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
