"""Threads that wait for the disk so that an event loop need not.

To wake a loop takes longer than a fast disk takes to write a page. So whoever asks waits a moment for the answer
before it gives way to the loop, unless the answers have been slow of late.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

PATIENCE: Final = 0.0005
"""Seconds that a loop may be held up for an answer."""
SULK: Final = 100
"""Answers that are not waited for after one that was slow."""


class _Job(Generic[T]):
    __slots__ = ("act", "done", "problem", "result", "wake")

    def __init__(self, act: Callable[[], T]) -> None:
        self.act = act
        self.done = Lock()
        self.done.acquire()
        self.result: T
        self.problem: BaseException | None = None
        self.wake: Callable[[], object] | None = None

    def run(self) -> None:
        try:
            self.result = self.act()
        except BaseException as problem:  # noqa: BLE001 - it is raised where the answer is waited for
            self.problem = problem
        self.done.release()
        if self.wake is not None:
            self.wake()

    async def finished(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_set, future)

        self.wake = wake
        if not self.done.acquire(blocking=False):  # from here on `run` will see `wake`
            await future

    def answer(self) -> T:
        if self.problem is not None:
            raise self.problem
        return self.result


class WorkerThreads:
    """Some threads that share a queue; they end with `stop`, or when nobody has the crew any more."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._name = name
        self._size = threads
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._sulking = 0
        weakref.finalize(self, _dismiss, self._jobs, threads)

    async def do(self, act: Callable[[], T]) -> T:
        """What `act` returns, called in one of the threads. It is carried out even if the caller is cancelled."""
        job = self.start(act)
        if self._sulking:
            self._sulking -= 1
            await job.finished()
        elif not job.done.acquire(timeout=PATIENCE):
            self._sulking = SULK
            await job.finished()
        return job.answer()

    def start(self, act: Callable[[], T]) -> _Job[T]:
        """The same without waiting for it."""
        if len(self._threads) < self._size:
            thread = Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        job = _Job(act)
        self._jobs.put(job)
        return job

    def stop(self) -> None:
        """Wait until all that was asked for is done."""
        _dismiss(self._jobs, len(self._threads))
        while self._threads:
            self._threads.pop().join()


def _work(jobs: SimpleQueue[_Job[Any] | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job


def _dismiss(jobs: SimpleQueue[_Job[Any] | None], threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
