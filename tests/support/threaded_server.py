"""Base class of servers that run in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from support.prompt_uvicorn import shorten_pauses

START_STOP_TIMEOUT_S: Final = 60.0
"""Seconds allowed to start and to stop, on a busy machine."""

shorten_pauses()


class ThreadedServer(ABC):
    """Runs for the duration of a `with` block. `serve` sets `ready` when it accepts requests."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    @abstractmethod
    async def serve(self) -> None:
        """Run until `end` is called."""

    @abstractmethod
    def end(self) -> None:
        """Stop the server; called from another thread."""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.ready.wait(START_STOP_TIMEOUT_S)
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._thread.join(START_STOP_TIMEOUT_S)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        try:
            await self.serve()
        except BaseException as problem:
            self._problem = problem
            raise
        finally:
            self.ready.set()
