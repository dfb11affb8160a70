"""The answers of one place in order, the typing status, and places that refuse answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from foveal.errors import FovealError
from foveal.server.chat_records import ChatMessage, ChatPlace
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions, PendingAnswer
from foveal.server.gateways.outgoing import ChannelMessage, PlaceClosed, ReplyTarget


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


# ── Places that refuse messages ──────────────────────────────────────────────────────────────────────
# 1. An answer counts once, when its place refuses it or the answer before it.
# 2. A user is told in private: at most once an hour for each place and cause, also after a restart, and only of
#    further answers.
# 3. It is the first user who can be reached: the author of the message if the allow-list has them, else another
#    user of the allow-list, else the author. No other user is told.

LOG: Final = logging.getLogger("foveal.gateways")
CLOSED_NOTICE_INTERVAL_S: Final = 3_600.0
"""Time between two notices about a place and cause."""
MAX_USERS_TRIED: Final = 5
"""Users to whom a notice is sent in turn, until one gets it."""

MAX_CLOSED_PLACES: Final = 1_000
"""Places and causes of which answers are counted."""

Tell = Callable[[int, ChannelMessage, ReplyTarget], Awaitable[bool]]
"""Sends a notice about a place to a user in private; returns whether that worked."""


class ClosedPlaces:
    """The places of one chat app in which the bot cannot write."""

    def __init__(self, chats: ChatSessions, tell: Tell) -> None:
        self.refused: int = 0
        """Answers since the start that a place refused."""
        self._chats = chats
        self._tell = tell
        self._untold: dict[tuple[ChatPlace, str], int] = {}
        """For each place that refuses answers, and cause, the answers of which no user was told."""

    async def on_refused(self, answer: PendingAnswer, problem: PlaceClosed, queue: PlaceQueue) -> None:
        """Count the answers that a place refuses, and tell a user unless one was told lately."""
        assert answer.message is not None
        new = queue.mark_refused()
        self.refused += new
        if problem.is_gone:
            LOG.info("a chat is gone: its answers stay on the server")
            return
        about = answer.message.place, problem.cause
        untold = self._untold.pop(about, 0) + new
        self._untold[about] = untold
        while len(self._untold) > MAX_CLOSED_PLACES:
            del self._untold[next(iter(self._untold))]
        if untold and await self._is_due(*about):
            self._untold[about] = 0
            count = queue.count_refused() if problem.may_reopen else untold
            await self._tell_one(answer, answer.message, problem, count=count)

    async def on_open(self, place: ChatPlace, queue: PlaceQueue) -> None:
        """Forget that a place was closed, because it has accepted a message."""
        queue.mark_open()
        for about in [about for about in self._untold if about[0] == place]:
            del self._untold[about]
            with suppress(FovealError):  # then it is told again after the interval
                await self._chats.forget_notice(place, _notice(about[1]))

    async def _is_due(self, place: ChatPlace, cause: str) -> bool:
        """Return whether no user was told of a place and cause within the interval, and count that as told."""
        try:
            return bool(
                await self._chats.untold_notices(place, [_notice(cause)], interval_s=CLOSED_NOTICE_INTERVAL_S)
            )
        except FovealError as problem:
            LOG.warning("a notice could not be recorded and is sent later: %s", type(problem).__name__)
            return False

    async def _tell_one(
        self, answer: PendingAnswer, message: ChatMessage, problem: PlaceClosed, *, count: int
    ) -> None:
        LOG.warning("answers to %s cannot be sent: %s", message.session, problem.cause)
        text = texts.place_closed(message, problem.cause, count=count, may_reopen=problem.may_reopen)
        for user in await self._users(answer.user):
            target = ReplyTarget(message.place, 0, f"{message.key}/notice")
            if await self._tell(user, ChannelMessage(text=text), target):
                return
        LOG.warning("no user could be told that answers to %s cannot be sent", message.session)

    async def _users(self, author: int) -> list[int]:
        try:
            users = await self._chats.users_to_tell(author)
        except FovealError as problem:
            LOG.warning("the paired users could not be read: %s", type(problem).__name__)
            users = list(self._chats.owners)
        return users[:MAX_USERS_TRIED]


def _notice(cause: str) -> str:
    """Return the name under which it is recorded that a user was told."""
    return f"closed: {cause}"
