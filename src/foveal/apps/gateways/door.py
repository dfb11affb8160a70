"""Who may talk to a bot: the numeric ids of the configuration, and whoever brought a code from the terminal."""

from __future__ import annotations

from foveal.apps.gateways import cards
from foveal.service.pairing import Face, Pairing


class Door:
    def __init__(self, pairing: Pairing, *, face: Face, allowed: frozenset[int]) -> None:
        self._pairing = pairing
        self._face = face
        self._allowed = allowed

    async def may(self, user: int) -> bool:
        return user in self._allowed or await self._pairing.paired(self._face, user)

    async def people(self) -> int:
        """How many may talk."""
        paired = {one.user for one in await self._pairing.list() if one.face == self._face}
        return len(self._allowed | paired)

    async def knock(self, user: int, code: str, *, now: float) -> str:
        """Somebody brings a code; what he is told."""
        if await self.may(user):
            return cards.PAIRED
        if not code:
            return cards.stranger(self._face, user)
        if seconds := await self._pairing.wait(self._face, user, now=now):
            return cards.locked_out(self._face, user, seconds=seconds)
        claimed = await self._pairing.claim(self._face, code, user, now=now)
        return cards.PAIRED if claimed else cards.NOT_PAIRED
