"""Worker threads that wait for the disk in place of the event loop.

Several files may share threads. Each file has its own `CallQueue`, which bounds how many of its calls run at once:
a file that is locked does not take the threads of the others.

Waking an event loop takes longer than a fast disk takes to write a page. So `run` first blocks for up to
`MAX_BLOCKING_WAIT_S` before it yields to the loop. After a slow result it does not block for the next
`SKIPPED_WAITS_AFTER_SLOW` calls.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

MAX_BLOCKING_WAIT_S: Final = 0.0005
"""Seconds for which `run` may block the event loop."""
SKIPPED_WAITS_AFTER_SLOW: Final = 100
"""Calls that do not block after one whose result was slow."""


class _ThreadTask(Generic[T]):
    """A function call in a worker thread; `done` is a lock that is released when it has ended."""

    __slots__ = ("done", "function", "problem", "result", "wake")

    def __init__(self, function: Callable[[], T]) -> None:
        self.function: Callable[[], T] = function
        self.done: Lock = Lock()
        self.done.acquire()
        self.result: T
        self.problem: BaseException | None = None
        self.wake: Callable[[], object] | None = None

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as problem:  # noqa: BLE001 - `outcome` raises it
            self.problem = problem
        self.done.release()
        if self.wake is not None:
            self.wake()

    async def wait(self) -> None:
        """Wait for the end without blocking the event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
                loop.call_soon_threadsafe(_complete, future)

        self.wake = wake
        if not self.done.acquire(blocking=False):  # not ended yet, so `run` will see `wake`
            await future

    def outcome(self) -> T:
        """Return what the function returned, or raise what it raised."""
        if self.problem is not None:
            raise self.problem
        return self.result


class _BlockingWaits:
    """Decides for each result whether to block for it before yielding to the event loop."""

    def __init__(self) -> None:
        self._to_skip = 0

    async def outcome(self, task: _ThreadTask[T]) -> T:
        """Wait for a call and return what it returned, or raise what it raised."""
        if self._to_skip:
            self._to_skip -= 1
            await task.wait()
        elif not task.done.acquire(timeout=MAX_BLOCKING_WAIT_S):
            self._to_skip = SKIPPED_WAITS_AFTER_SLOW
            await task.wait()
        return task.outcome()


class WorkerThreads:
    """Threads that share a queue. They end with `stop`, or when this object is garbage-collected."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._name = name
        self._size = threads
        self._threads: list[Thread] = []
        self._tasks: SimpleQueue[_ThreadTask[Any] | None] = SimpleQueue()
        self._waits = _BlockingWaits()
        self._lock = Lock()
        self._is_stopping = False
        weakref.finalize(self, self._tasks.put, None)

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` in one of the threads and return its result. Cancelling the caller does not stop it."""
        return await self._waits.outcome(self.submit(function))

    def submit(self, function: Callable[[], T]) -> _ThreadTask[T]:
        """Queue a call of `function` without waiting for it."""
        task = _ThreadTask(function)
        self._tasks.put(task)
        if len(self._threads) < self._size:
            self._start_thread()
        return task

    def stop(self) -> None:
        """Wait until all queued calls have ended, then end the threads.

        A call that ends meanwhile may queue another one behind the end: that one runs here."""
        with self._lock:  # one of the threads may be starting another
            threads, self._threads, self._is_stopping = self._threads, [], True
        self._tasks.put(None)
        for thread in threads:
            thread.join()
        with suppress(Empty):
            while True:
                if (task := self._tasks.get_nowait()) is not None:
                    task.run()
        self._is_stopping = False

    def _start_thread(self) -> None:
        with self._lock:  # a call queue submits its next call from one of the threads
            if len(self._threads) < self._size and not self._is_stopping:
                thread = Thread(target=_run_tasks, args=(self._tasks,), name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()


class CallQueue:
    """Calls that begin in order, at most `at_once` at a time, in threads that other queues share."""

    def __init__(self, threads: WorkerThreads, *, at_once: int = 1) -> None:
        self._threads = threads
        self._at_once = at_once
        self._waiting: deque[_ThreadTask[Any]] = deque()
        self._running = 0
        self._changed = Condition()
        self._waits = _BlockingWaits()

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` and return its result. Cancelling the caller does not stop it."""
        return await self._waits.outcome(self.submit(function))

    def submit(self, function: Callable[[], T]) -> _ThreadTask[T]:
        """Queue a call of `function` without waiting for it."""
        task = _ThreadTask(function)
        with self._changed:
            if self._running == self._at_once:
                self._waiting.append(task)
                return task
            self._running += 1
        self._threads.submit(lambda: self._run_in_turn(task))
        return task

    def wait_until_empty(self) -> None:
        """Block until no call runs or waits; not in a thread that the calls need."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _run_in_turn(self, task: _ThreadTask[Any]) -> None:
        task.run()
        with self._changed:
            waiting = self._waiting.popleft() if self._waiting else None
            if waiting is None:
                self._running -= 1
                self._changed.notify_all()
        if waiting is not None:  # behind the calls of other queues
            self._threads.submit(lambda: self._run_in_turn(waiting))


def _run_tasks(tasks: SimpleQueue[_ThreadTask[Any] | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # while it waits for the next task, the thread keeps nothing of this one alive
    tasks.put(None)  # for the other threads


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
