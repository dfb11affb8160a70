"""Notices to a chat that are not repeated with every message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from foveal.apps.gateways.channel import Replies
from foveal.server.chats import ChatPlace

NOTICE_INTERVAL_S: Final = 86_400.0
"""After which a place gets the same notice again."""
MAX_REMEMBERED_NOTICES: Final = 10_000


class ToldNotices:
    """Remembers which notices each place got."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[tuple[ChatPlace, str], float] = {}

    def untold(self, place: ChatPlace, notices: Iterable[str]) -> list[str]:
        """Return the notices that the place has not got lately; they count as told from now on."""
        now = self._clock()
        new = [
            notice
            for notice in dict.fromkeys(notices)
            if now - self._told.get((place, notice), -NOTICE_INTERVAL_S) >= NOTICE_INTERVAL_S
        ]
        for notice in new:
            self._told.pop((place, notice), None)
            self._told[place, notice] = now
        while len(self._told) > MAX_REMEMBERED_NOTICES:
            del self._told[next(iter(self._told))]
        return new


async def with_notices(replies: Replies, notices: list[str]) -> Replies:
    """Yield the replies with notices above the footer of each."""
    async with aclosing(replies):
        async for message in replies:
            lines = [*notices, message.footer] if message.footer else notices
            yield replace(message, footer="\n".join(lines))
