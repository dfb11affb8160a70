"""Places that refuse the bot's messages: counts the answers and tells a user of the bot.

1. An answer counts once, when its place refuses it or the answer before it.
2. A user is told in private: at most once an hour for each place and cause, and only of further answers.
3. It is the first user who can be reached: one of the allow-list, else the paired user who wrote the message, else
   another paired user.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from foveal.apps.gateways import texts
from foveal.apps.gateways.channel import ChannelMessage
from foveal.apps.gateways.chat_session import ChatSessions, PendingAnswer
from foveal.apps.gateways.part_sender import PlaceClosed
from foveal.apps.gateways.place_queue import PlaceQueue
from foveal.errors import FovealError
from foveal.server.chats import CHAT_MESSAGE_TTL_S, ChatMessage, ChatPlace

LOG: Final = logging.getLogger("foveal.gateways")
CLOSED_NOTICE_INTERVAL_S: Final = 3_600.0
"""Time between two notices about a place and cause."""
MAX_USERS_TRIED: Final = 5
"""Users to whom a notice is sent in turn, until one gets it."""

Tell = Callable[[int, ChannelMessage, ChatMessage], Awaitable[bool]]
"""Sends a notice about a message to a user in private; returns whether that worked."""


class _ToldRefusal(NamedTuple):
    at: float
    untold: int
    """Answers that were refused since."""


class ClosedPlaces:
    """The places of one chat app in which the bot cannot write."""

    def __init__(self, chats: ChatSessions, tell: Tell) -> None:
        self.refused = 0
        """Answers since the start that a place refused."""
        self._chats = chats
        self._tell = tell
        self._told: dict[tuple[ChatPlace, str], _ToldRefusal] = {}

    async def on_refused(self, answer: PendingAnswer, problem: PlaceClosed, queue: PlaceQueue) -> None:
        """Count the answers that a place refuses, and tell a user unless one was told lately."""
        assert answer.message is not None
        new = queue.mark_refused()
        self.refused += new
        if problem.is_gone:
            LOG.info("a chat is gone: its answers stay on the server")
            return
        now, about = self._chats.now(), (answer.message.place, problem.cause)
        self._told = {key: told for key, told in self._told.items() if now - told.at < CHAT_MESSAGE_TTL_S}
        told = self._told.get(about, _ToldRefusal(now - CLOSED_NOTICE_INTERVAL_S, 0))
        untold = told.untold + new
        if not untold or now - told.at < CLOSED_NOTICE_INTERVAL_S:
            self._told[about] = told._replace(untold=untold)
            return
        self._told[about] = _ToldRefusal(now, 0)
        count = queue.count_refused() if problem.may_reopen else untold
        await self._tell_one(answer, answer.message, problem, count=count)

    def on_open(self, place: ChatPlace, queue: PlaceQueue) -> None:
        """Forget that a place was closed, because it has accepted a message."""
        queue.mark_open()
        self._told = {about: told for about, told in self._told.items() if about[0] != place}

    async def _tell_one(
        self, answer: PendingAnswer, message: ChatMessage, problem: PlaceClosed, *, count: int
    ) -> None:
        LOG.warning("answers to %s cannot be sent: %s", message.session, problem.cause)
        text = texts.place_closed(message.session, problem.cause, count=count, may_reopen=problem.may_reopen)
        for user in await self._users(answer.user):
            if await self._tell(user, ChannelMessage(text=text), message):
                return
        LOG.warning("no user could be told that answers to %s cannot be sent", message.session)

    async def _users(self, author: int) -> list[int]:
        try:
            users = await self._chats.users_to_tell(author)
        except FovealError as problem:
            LOG.warning("the paired users could not be read: %s", type(problem).__name__)
            users = list(self._chats.owners)
        return users[:MAX_USERS_TRIED]
