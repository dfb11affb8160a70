"""Threads and tasks that share a context: its lock, async summarisers, and the newest request of each.

1. `afit` works in a thread and holds the lock while a summary is written. An async summariser runs in the event
   loop of the caller; if the thread of that loop waited for the lock, both would wait for ever. It gets `Busy`
   instead.
2. Usage, or a refusal, counts for the request that the same thread or task has made, not for the one that another
   has made since.
3. Code that can wait in one place and cannot in another is written once, as coroutines, and
   `run_without_waiting` runs it without an event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Lock, RLock, Thread, get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import ReferenceType, ref

from foveal.core.engine.sent_requests import SentRequests, SentSize
from foveal.errors import Busy

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future

T = TypeVar("T")


class ContextLock:
    """A lock that one thread can take several times."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._asked = ""
        """What the holder waits for, in words: a summariser or a hook."""
        self._loops: Counter[int] = Counter()
        """Threads whose event loop may have to write a summary for a holder of the lock."""
        self._loops_lock = Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            if self._loops[get_ident()]:
                raise Busy("the context is being fitted in this event loop: wait for `afit` to return")
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.leave()

    def enter_now(self) -> bool:
        """Take the lock if no other thread has it; return whether it was taken. `leave` releases it."""
        return self._lock.acquire(blocking=False)

    @contextmanager
    def asking(self, asked: str) -> Iterator[None]:
        """Hold the context while a summariser or a hook works, which must not change it."""
        self._asked = asked
        try:
            yield
        finally:
            self._asked = ""

    def check_change(self) -> None:
        """Raise `Busy` while a summariser or a hook works: it and what reports its progress may read, but not
        change."""
        if self._asked:
            raise Busy(
                f"{self._asked} of this context is at work: it cannot change the context; use another one"
            )

    def leave(self) -> None:
        """Release the lock."""
        self._lock.release()

    def begin_to_need(self, thread: int) -> None:
        """From now on, this thread does not wait for the lock: its event loop is needed."""
        with self._loops_lock:
            self._loops[thread] += 1

    def end_to_need(self, thread: int) -> None:
        """Take one `begin_to_need` back."""
        with self._loops_lock:
            self._loops[thread] -= 1
            self._loops += Counter()  # removes the zeros


class LoopWaits:
    """What the work of a thread waits for in an event loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: set[Future[Any]] = set()
        self._is_cancelled = False

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Return the result of an awaitable that runs in the loop."""
        import asyncio

        async def result() -> T:
            return await awaitable

        future = asyncio.run_coroutine_threadsafe(result(), self._loop)
        self._pending.add(future)
        try:
            if self._is_cancelled:
                future.cancel()
            return future.result()
        finally:
            self._pending.discard(future)

    def cancel(self) -> None:
        """Cancel what is waited for, now and later."""
        self._is_cancelled = True
        for future in tuple(self._pending):
            future.cancel()


async def run_in_thread(work: Callable[[Callable[[Awaitable[Any]], Any]], T]) -> T:
    """Run `work` in a thread. It gets a function that waits for an awaitable in the current event loop.

    The thread is not one of the loop's own few: what `work` waits for may need those, to look up a host for
    example. If this task is cancelled, `work` ends later, and what it waits for is cancelled."""
    import asyncio  # slow to import, and most programs that use a context are not async
    from concurrent.futures import Future

    waits, done = LoopWaits(asyncio.get_running_loop()), Future[T]()
    done.set_running_or_notify_cancel()  # a cancelled task does not cancel the work
    context = copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(work, waits.wait))
        except BaseException as error:  # noqa: BLE001 (the awaiting task gets it)
            done.set_exception(error)

    Thread(target=run, name="foveal-fit", daemon=True).start()
    try:
        return await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        waits.cancel()
        raise


_newest: ContextVar[tuple[ReferenceType[SentRequests], SentSize] | None] = ContextVar(
    "foveal_newest_request", default=None
)


def note_request(requests: SentRequests, sent: SentSize) -> None:
    """Note the request that the current thread or task has made."""
    _newest.set((ref(requests), sent))


def own_request(requests: SentRequests) -> SentSize:
    """Return the newest request of the current thread or task, or else of the context."""
    noted = _newest.get()
    return requests.last if noted is None or noted[0]() is not requests else noted[1]


def run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as result:
        return cast(T, result.value)
    work.close()
    raise AssertionError("the coroutine waits")
