"""Offload: work that would hold up the event loop runs in a thread.

1. Work that takes more than `MAX_LOOP_SECONDS` of CPU leaves the event loop. How long it takes is estimated by the
   number of events it processes.
2. Python runs one thread at a time. While offloaded work runs, threads take turns every `SWITCH_INTERVAL_S` instead
   of every 5 ms: the event loop needs many turns to answer one request.
3. Cancelling the caller does not end the work: the caller discards what the work was changing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Lock
from typing import Final, TypeVar

T = TypeVar("T")

MAX_LOOP_SECONDS: Final = 0.020
"""CPU time that one piece of work may take on the event loop."""
SECONDS_PER_EVENT: Final = 0.000_3
"""CPU time to count, fold or read one event for a ledger, about."""
MAX_LOOP_EVENTS: Final = int(MAX_LOOP_SECONDS / SECONDS_PER_EVENT)
"""Events that are processed on the event loop; a thread processes more."""
MAX_OFFLOAD_THREADS: Final = 2
"""More threads would not be faster, and the event loop would wait for more of them."""
SWITCH_INTERVAL_S: Final = 0.000_5


async def offload(work: Callable[[], T], *, events: int) -> T:
    """Run work on about that many events, in a thread if it would take too long here."""
    if events <= MAX_LOOP_EVENTS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads(), _run_in_turns, work)


def short_turns() -> AbstractContextManager[None]:
    """Return a context in which threads take short turns, for work in other threads than those of `offload`."""
    return _SHORT_TURNS.hold()


def _run_in_turns(work: Callable[[], T]) -> T:
    with _SHORT_TURNS.hold():
        return work()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_OFFLOAD_THREADS, thread_name_prefix="foveal-offload")


class ShortTurns:
    """Shortens the turns of threads while at least one holder needs that."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._usual_s = 0.0

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual_s, SWITCH_INTERVAL_S))
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    sys.setswitchinterval(self._usual_s)


_SHORT_TURNS: Final = ShortTurns()
