"""Queue of the answers of one place, and the typing status while they are written."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from foveal.server.chat_records import ChatPlace


class QueuePosition:
    """The position of one answer in the queue of its place."""

    def __init__(self) -> None:
        self.is_first: asyncio.Event = asyncio.Event()
        self.ready_at: float | None = None
        """Since when the answer is ready and not delivered."""
        self.is_refused = False
        """Whether the place refuses the answer, or the answer before it."""


class PlaceQueue:
    """The answers of one place that are not delivered, oldest first."""

    def __init__(self) -> None:
        self.sending: asyncio.Lock = asyncio.Lock()
        self.failures = 0
        """How often the first answer could not be sent."""
        self.retry: asyncio.Event = asyncio.Event()
        """Ends the pause before the first answer is sent again."""
        self._positions: deque[QueuePosition] = deque()

    def join(self) -> QueuePosition:
        position = QueuePosition()
        self._positions.append(position)
        self._positions[0].is_first.set()
        return position

    def leave(self, position: QueuePosition) -> None:
        self._positions.remove(position)
        if self._positions:
            self._positions[0].is_first.set()

    def ready_times(self) -> list[float]:
        """Return since when each answer is ready; without answers that the place refuses."""
        waiting = (position.ready_at for position in self._positions if not position.is_refused)
        return [at for at in waiting if at is not None]

    def mark_refused(self) -> int:
        """Record that the place refuses the answers that are ready; return how many were not recorded before."""
        before = self.count_refused()
        for position in self._positions:
            position.is_refused = position.ready_at is not None
        return self.count_refused() - before

    def mark_open(self) -> None:
        """Record that the place accepts answers."""
        for position in self._positions:
            position.is_refused = False

    def count_refused(self) -> int:
        return sum(position.is_refused for position in self._positions)


class TypingStatus:
    """Shows in places that the bot is typing, while answers are written."""

    def __init__(self, show: Callable[[ChatPlace], Awaitable[None]], *, interval_s: float) -> None:
        self._show = show
        self._interval_s = interval_s
        self._shown: dict[ChatPlace, tuple[int, asyncio.Task[None]]] = {}
        """For each place the number of answers being written, and the task that shows it."""

    @asynccontextmanager
    async def shown(self, place: ChatPlace) -> AsyncIterator[None]:
        """Show the typing status while any such block of the place runs."""
        count, task = self._shown.get(place, (0, None))
        self._shown[place] = count + 1, task or asyncio.create_task(self._keep_showing(place))
        try:
            yield
        finally:
            count, task = self._shown.pop(place)
            if count > 1:
                self._shown[place] = count - 1, task
            else:
                task.cancel()
                await asyncio.wait([task])

    async def _keep_showing(self, place: ChatPlace) -> None:
        while True:
            await self._show(place)
            await asyncio.sleep(self._interval_s)
