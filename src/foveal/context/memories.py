"""The memories of a `Context`, whose methods do not wait for an event loop.

A store is asked in an event loop: in that of the caller while `afit` runs, else in one that lasts for the call. So
`fit` works with stores that any event loop can use, such as a SQLite file. A store on PostgreSQL belongs to one
event loop: use `afit` with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from foveal.core.log.events import AnyFact, Event, ModelSaid, Noted, ToolReturned, UserSaid
from foveal.core.view.fold import left_behind
from foveal.memory.attached import checked_memories, current_text, heard_notes
from foveal.memory.model_tools import MEMORY_TOOL_NAMES, MemoryTools
from foveal.recall.recall import Recall

T = TypeVar("T")
Wait = Callable[[Awaitable[Any]], Any]
"""Waits for an awaitable in the event loop of the caller."""


class ContextMemories:
    """The memories that the requests of one context show."""

    def __init__(self, memory: object, log: Sequence[Event]) -> None:
        """`log` is the log of the context; what the user said in it so far is not heard again."""
        self.memories = checked_memories(memory)
        self._log = log
        self._heard = len(log)

    def update(self, wait: Wait | None) -> tuple[Sequence[AnyFact], str]:
        """Hear what the user said since the newest answer. Return notes about it, and the text to show."""
        new = list(self._unheard())
        self._heard = len(self._log)

        async def work() -> tuple[list[Noted], str]:
            notes = await heard_notes(self.memories, reversed(new), session="")
            return notes, await current_text(self.memories)

        found: tuple[list[Noted], str] = run_now(work()) if wait is None else wait(work())
        return found

    def _unheard(self) -> Iterator[Event]:
        """Yield the newest messages of the user, newest first. A history that is passed in for the first time has
        older ones too, which an earlier context has heard."""
        for event in reversed(self._log):
            if event.seq < self._heard or isinstance(event.fact, ModelSaid | ToolReturned):
                return
            if isinstance(event.fact, UserSaid):
                yield event

    def answer(self, name: str, arguments: Any, recall: Recall) -> str:
        """Answer a model's call of a recall tool, or of `remember` and `forget`."""
        if name in MEMORY_TOOL_NAMES:
            return run_now(MemoryTools(self.memories, _LoggedWords(self._log)).call(name, arguments))
        return run_now(recall.call(name, arguments))


class _LoggedWords:
    """The log of a context as a conversation in which words are looked up."""

    id = ""

    def __init__(self, log: Sequence[Event]) -> None:
        self._log = log

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]:
        return list(self._log[first : None if last is None else last + 1])

    async def left_behind(self) -> frozenset[int]:
        return left_behind(self._log)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also in a thread whose event loop is running."""
    import asyncio  # slow to import, and most programs that use a context are not async
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(max_workers=1) as threads:
        return threads.submit(asyncio.run, work).result()
