"""A task that indexes what searches have left, in slices between which calls pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Final

from foveal.errors import FovealError

INDEXING_SLICE_S: Final = 2.0
"""Time for which the task indexes until it lists the sessions again; it makes way for a call before that."""
OTHER_BUILDER_S: Final = 1.0
"""Time after which the task looks again whether another process has stopped building."""


class BackgroundIndexing:
    """The task, while there is something to index; for one event loop."""

    def __init__(self, work: Callable[[float], Awaitable[bool]], may_build: Callable[[], bool]) -> None:
        """`work` indexes for so many seconds and returns whether there is more; `may_build` says whether no other
        process does it."""
        self._work = work
        self._may_build = may_build
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0
        self._stopped = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, *, for_s: float = inf) -> None:
        """Index for at most so long from now on."""
        self._until = time.monotonic() + for_s
        if not self.is_running and not self._stopped.is_set():
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End the task for good after its current step, because a thread of it cannot be interrupted."""
        self._until = 0.0
        self._stopped.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        with suppress(FovealError, OSError):  # a call reports it
            while time.monotonic() < self._until:
                if not self._may_build():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._stopped.wait(), OTHER_BUILDER_S)
                elif not await self._work(INDEXING_SLICE_S):
                    return
