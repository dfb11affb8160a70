"""Runs a coroutine that never waits, without an event loop.

Code that can wait in one place and cannot in another is written once, as coroutines.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as result:
        return cast(T, result.value)
    work.close()
    raise AssertionError("the coroutine waits")
