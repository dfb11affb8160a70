"""Streams of the inspector: a session or the list of sessions as it changes, and replays.

Every stream ends when the client disconnects, when the server stops, when its sessions cannot be read any more, and
with `LOGIN_ENDED` when its login has ended. A page resumes a stream with the id of the last event that it has seen,
and then receives the reason as an error.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from foveal.errors import FovealError
from foveal.inspector.open_logs import OpenLog
from foveal.inspector.sessions.source import LogEnd, SessionSource
from foveal.web.event_stream import encode_event

WAIT_FOR_CHANGE_S: Final = 10.0
"""Seconds after which a stream looks whether the log has grown, if its source has not said so."""
REPLAY_PROGRESS_INTERVAL_S: Final = 0.2
"""Seconds between two reports of a replay."""
_POSITION: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,15}))?", re.ASCII)
LOG: Final = logging.getLogger("foveal.inspector")
T = TypeVar("T")

LOGIN_ENDED: Final = encode_event("login", {"message": "Your login has ended: log in again."})
"""Last event of a stream whose login has ended, such as by a revoked token."""
ReportReplay = Callable[[int, int], None]
Replay = Callable[[ReportReplay, Callable[[], bool]], Any]
"""Runs in a thread: reports calls done and calls in total, and asks whether to stop."""


async def _before(stopping: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return what `work` returns; None if the server begins to stop before."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.wait({task, stop})


@contextmanager
def _ends_if_unreadable() -> Iterator[None]:
    """Leave the block if a session cannot be read, such as one whose file was moved."""
    try:
        yield
    except FovealError as problem:
        LOG.warning("a stream of the inspector ends: %s", problem)


class StreamPosition(NamedTuple):
    """The newest event that a page has, and the generation of its log."""

    seq: int
    generation: int | None = None
    """None if the page does not know it."""

    @classmethod
    def parse(cls, text: str) -> StreamPosition | None:
        """Return the position that an event's id stands for; None if it is none."""
        found = _POSITION.fullmatch(text)
        return None if found is None else cls(int(found[1]), int(found[2] or 0))

    def __str__(self) -> str:
        return f"{self.seq}.{self.generation}" if self.generation else str(self.seq)


async def session_stream(
    log: OpenLog, *, after: StreamPosition, stopping: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield the timeline after a position, and its continuation whenever the log grows.

    A timeline that begins at 0 replaces all that the page has: the log was read again.
    """
    with _ends_if_unreadable():
        first, generation = after.seq + 1, after.generation
        while not stopping.is_set():
            timeline = await log.timeline(first)
            generation = timeline.generation if generation is None else generation
            if timeline.generation != generation or timeline.next < first:
                generation, first = timeline.generation, 0
                continue
            if timeline.next > first:
                id = str(StreamPosition(timeline.next - 1, generation))
                data = await asyncio.to_thread(encode_event, "timeline", timeline, id=id)
                yield data
                first = timeline.next
            known = LogEnd(first, generation)
            # A log that has not changed is not asked for its timeline: one server can have many streams.
            while known == await _before(stopping, log.reader.wait(known, timeout=WAIT_FOR_CHANGE_S)):
                pass


async def sessions_stream(
    source: SessionSource, *, cursor: str, stopping: asyncio.Event
) -> AsyncGenerator[bytes, None]:
    """Yield the rows of sessions that changed since `cursor`, or since now."""
    with _ends_if_unreadable():
        cursor = cursor or await source.cursor()
        while not stopping.is_set():
            changes = await _before(stopping, source.wait_for_changes(cursor, timeout=WAIT_FOR_CHANGE_S))
            if changes is None:
                return
            cursor = changes.cursor
            if changes.rows:
                yield encode_event("sessions", changes.rows, id=cursor)


class Replays:
    """Runs one replay, or another long computation, at a time: it takes a whole processor."""

    def __init__(self, *, waits: bool = False) -> None:
        """`waits`: a second one begins when the first has ended, instead of being refused."""
        self._waits = waits
        self._is_running = False

    async def stream(self, replay: Replay, *, stopping: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield the progress of a replay, then its result, or the problem in words."""
        while self._waits and self._is_running and not stopping.is_set():
            yield encode_event("progress", {"done": 0, "total": 0})
            await asyncio.sleep(REPLAY_PROGRESS_INTERVAL_S)
        if self._is_running:
            yield _problem("another replay is running: wait for its end, or close its page")
            return
        self._is_running = True
        cancelled, progress = threading.Event(), (0, 0)

        def report(done: int, total: int) -> None:
            nonlocal progress
            progress = (done, total)

        task = asyncio.ensure_future(asyncio.to_thread(replay, report, cancelled.is_set))
        try:
            while not task.done() and not stopping.is_set():
                await asyncio.wait({task}, timeout=REPLAY_PROGRESS_INTERVAL_S)
                yield encode_event("progress", {"done": progress[0], "total": progress[1]})
            if task.done():
                yield await asyncio.to_thread(encode_event, "result", task.result())
        except FovealError as problem:
            yield _problem(str(problem))
        finally:
            cancelled.set()
            if not task.done():  # the thread ends at its next check
                await asyncio.wait({task})
            self._is_running = False


def _problem(message: str) -> bytes:
    return encode_event("problem", {"message": message})
