"""Waiting for a condition, with a limit that only a test that hangs reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
DEADLINE_S: Final = 120.0
"""Seconds after which a condition counts as never met: a loaded machine takes a hundred times the usual."""
POLL_INTERVAL_S: Final = 0.005


def wait_until(
    condition: Callable[[], T], *, seconds: float = DEADLINE_S, interval_s: float = POLL_INTERVAL_S
) -> T:
    """Wait until a function returns a true value, and return it. `interval_s` is for a function that does much."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"the condition did not become true within {seconds:.0f} s"
        time.sleep(interval_s)
    return found


async def until(condition: Callable[[], T], *, seconds: float = DEADLINE_S) -> T:
    """Wait until a function returns a true value, and return it; other tasks run meanwhile."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"the condition did not become true within {seconds:.0f} s"
        await asyncio.sleep(POLL_INTERVAL_S)
    return found
