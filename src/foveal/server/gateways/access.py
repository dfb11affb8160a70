"""Access to a bot: which users of a chat app it answers.

Access is decided by the numeric user id that the chat app guarantees: in the allow-list, or paired. Other users get
one sentence, and nothing of their messages is stored.
"""

from __future__ import annotations

from typing import Final

from foveal.server.gateways import texts
from foveal.server.pairing import ChatPlatform, Pairing

MAX_UNKNOWN_USER_REPLIES_PER_MINUTE: Final = 6
"""Replies that a user without access gets, so that such users cannot keep the bot busy."""


class AccessControl:
    """Decides which users of one chat app have access, and pairs new ones."""

    def __init__(self, pairing: Pairing, *, platform: ChatPlatform, allowed: frozenset[int]) -> None:
        self._pairing = pairing
        self._platform = platform
        self._allowed = allowed

    async def is_allowed(self, user: int) -> bool:
        return user in self._allowed or await self._pairing.is_paired(self._platform, user)

    async def count_users(self) -> int:
        """Return how many users have access."""
        return len(self._allowed.union(await self.paired_users()))

    async def paired_users(self) -> list[int]:
        """Return the users who have claimed a code, earliest first."""
        return [entry.user for entry in await self._pairing.list() if entry.platform == self._platform]

    async def pair(self, user: int, code: str, *, now: float) -> str:
        """Pair a user who sent a code, and return the reply."""
        if await self.is_allowed(user):
            return texts.PAIRED
        if not code:
            return texts.no_access(self._platform, user)
        if seconds := await self._pairing.retry_after(self._platform, user, now=now):
            return texts.locked_out(self._platform, user, seconds=seconds)
        claimed = await self._pairing.claim(self._platform, code, user, now=now)
        return texts.PAIRED if claimed else texts.NOT_PAIRED
