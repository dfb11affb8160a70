"""A server that runs in a thread of a test's own process, with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

LONGEST: Final = 60.0
"""Seconds that it may take to begin and to end, on a machine that is busy with others."""


class Threaded(ABC):
    """Runs while the block lasts. `serve` sets `ready` when it can be asked."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    @abstractmethod
    async def serve(self) -> None:
        """Until it is told to end."""

    @abstractmethod
    def end(self) -> None:
        """Tell it to end, from another thread."""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.ready.wait(LONGEST)
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._thread.join(LONGEST)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        try:
            await self.serve()
        except BaseException as problem:
            self._problem = problem
            raise
        finally:
            self.ready.set()
