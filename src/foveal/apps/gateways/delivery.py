"""Delivery of answers: background tasks, and retries of undelivered answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from foveal.apps.gateways.channel import Replies
from foveal.apps.gateways.chat_session import ChatSessions
from foveal.errors import FovealError

LOG: Final = logging.getLogger("foveal.gateways")
REDELIVERY_PAUSES_S: Final = (60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0)
"""Pauses before undelivered answers are sent again; after the last one, the next start of the server sends them."""

Sleep = Callable[[float], Awaitable[None]]


class UndeliveredAnswers:
    """Sends answers that were not delivered: at the start, and after growing pauses.

    `deliver` starts the delivery of the replies for one chat. `may_deliver` is False while another server of the
    same folder is responsible for these answers.
    """

    def __init__(
        self,
        chats: ChatSessions,
        deliver: Callable[[int, Replies], None],
        *,
        may_deliver: Callable[[], bool] = lambda: True,
        sleep: Sleep,
    ) -> None:
        self._chats = chats
        self._deliver = deliver
        self._may_deliver = may_deliver
        self._sleep = sleep
        self._retry: asyncio.Task[None] | None = None
        self._is_pausing = False
        self._retries = 0

    async def deliver_all(self) -> None:
        """Start the delivery of every undelivered answer."""
        try:
            undelivered = await self._chats.undelivered()
        except FovealError as problem:
            LOG.warning("the undelivered answers could not be read: %s", type(problem).__name__)
            self.retry_later()
        else:
            for chat, replies in undelivered:
                self._deliver(chat, replies)

    def reset_pauses(self) -> None:
        """Start again with the shortest pause, because the chat app can be reached."""
        self._retries = 0

    def retry_later(self) -> None:
        """Plan another attempt, unless one is planned or the attempts are used up."""
        if not self._is_pausing and self._retries < len(REDELIVERY_PAUSES_S):
            self._is_pausing = True
            self._retry = asyncio.create_task(self._retry_after(REDELIVERY_PAUSES_S[self._retries]))
            self._retries += 1

    async def close(self) -> None:
        """Cancel a planned attempt."""
        if self._retry is not None:
            self._retry.cancel()
            await asyncio.wait([self._retry])

    async def _retry_after(self, pause: float) -> None:
        await self._sleep(pause)
        self._is_pausing = False
        if self._may_deliver():
            try:
                await self.deliver_all()
            except Exception as problem:  # noqa: BLE001  (the answers stay undelivered; try again)
                LOG.error("undelivered answers were not sent: %s", type(problem).__name__)
                self.retry_later()


class DeliveryTasks:
    """Background tasks of a gateway; a task that fails calls `on_failure`."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    async def finish(self, *, seconds: float) -> None:
        """Wait for the tasks for at most this time, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            LOG.error("an answer was not delivered and is kept: %s", type(problem).__name__)
            LOG.debug("the traceback", exc_info=problem)
            self._on_failure()
