"""Who may talk to a bot: the numeric ids of the configuration, and whoever brought a code from the terminal."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from foveal.apps.gateways import texts
from foveal.config import Config
from foveal.errors import BadSetting
from foveal.server.pairing import Face, Pairing

# ── addresses ─────────────────────────────────────────────────────────────────────────────────────
# Where a bot's token may be sent: over https, or to this machine.

_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


def base_url(config: Config, face: Face) -> str:
    """The address of `telegram.base_url` or `discord.base_url`; "" is the app's own. Raises `BadSetting`."""
    name = f"{face}.base_url"
    base: str = config.get(name) or ""
    try:
        address = urlsplit(base)
        safe = address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOCAL)
    except ValueError:  # such as a bracket without its end
        safe = False
    if base and not safe:
        raise BadSetting(name, base, "https, because the bot's token is sent there")
    return base


# ── door ──────────────────────────────────────────────────────────────────────────────────────────


class AccessControl:
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
            return texts.PAIRED
        if not code:
            return texts.stranger(self._face, user)
        if seconds := await self._pairing.wait(self._face, user, now=now):
            return texts.locked_out(self._face, user, seconds=seconds)
        claimed = await self._pairing.claim(self._face, code, user, now=now)
        return texts.PAIRED if claimed else texts.NOT_PAIRED
