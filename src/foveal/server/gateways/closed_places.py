"""Places that refuse the bot's messages: counts the answers and tells a user of the bot.

1. An answer counts once, when its place refuses it or the answer before it.
2. A user is told in private: at most once an hour for each place and cause, also after a restart, and only of
   further answers.
3. It is the first user who can be reached: the author of the message if the allow-list has them, else another user
   of the allow-list, else the author. No other user is told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from foveal.errors import FovealError
from foveal.server.chat_records import ChatMessage, ChatPlace
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions, PendingAnswer
from foveal.server.gateways.outgoing import ChannelMessage
from foveal.server.gateways.part_sender import PlaceClosed, ReplyTarget
from foveal.server.gateways.place_queue import PlaceQueue

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
