"""How something is said in a channel: in pieces that Discord takes, without mentioning or previewing anything.

A piece that could not be sent is sent again a few times; a nonce keeps Discord from showing it twice. What Discord
refuses for good is given up, and what could not be sent because of the network is `Undelivered`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import discord

from foveal.apps.gateways.discord.buttons import view
from foveal.apps.gateways.splitting import split, utf16
from foveal.apps.gateways.talk import Says

LOG: Final = logging.getLogger("foveal.gateways")
LIMIT: Final = 2_000
"""Characters of a message; counted in UTF-16, as Discord's clients do, which is never too little."""
PATIENCE: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to say something."""
TRANSIENT: Final = (
    discord.DiscordServerError,
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
)

Send = Callable[..., Awaitable[Any]]
Sleep = Callable[[float], Awaitable[None]]


class Undelivered(Exception):
    """Something could not be said, and may be said later."""


def pieces(says: Says) -> list[str]:
    """The text and its footer, in messages that are not too long."""
    below = "\n".join(f"-# {line}" for line in says.footer.splitlines() if line.strip())
    parts = split(_unicode(says.text), LIMIT, size=utf16)
    if not below:
        return parts
    if parts and utf16(parts[-1]) + 1 + utf16(below) <= LIMIT:
        return [*parts[:-1], f"{parts[-1]}\n{below}"]
    return [*parts, *split(below, LIMIT, size=utf16)]


class Post:
    """One conversation's way out: its first piece answers a message, all pieces have nonces of their own."""

    def __init__(
        self,
        send: Send,
        *,
        seed: int | None = None,
        reference: discord.MessageReference | None = None,
        sleep: Sleep,
    ) -> None:
        """`seed` is different for each conversation, and the same when it is had again."""
        self._send = send
        self._seed = seed
        self._reference = reference
        self._sleep = sleep
        self._count = 0

    async def say(self, says: Says) -> None:
        """Raises `Undelivered` when it is worth while to try again later."""
        texts = pieces(says)
        for place, text in enumerate(texts, 1):
            more: dict[str, Any] = {}
            if self._seed is not None:
                more["nonce"] = f"{self._seed}.{self._count}"
            if self._reference is not None:
                more["reference"], self._reference = self._reference, None
            if place == len(texts) and says.buttons:
                more["view"] = view(says.buttons)
            self._count += 1
            await self._sent(text, more)

    async def _sent(self, text: str, more: dict[str, Any]) -> None:
        failed: Exception
        for pause in (*PATIENCE, None):
            try:
                await self._send(
                    text, allowed_mentions=discord.AllowedMentions.none(), suppress_embeds=True, **more
                )
                return
            except TRANSIENT as problem:
                failed = problem
            except discord.HTTPException as problem:
                if problem.status != 429:
                    LOG.warning("Discord refused a message: %s (%s)", problem.status, problem.code)
                    return
                failed = problem
            if pause is not None:
                await self._sleep(pause)
        raise Undelivered(f"Discord could not be reached: {type(failed).__name__}")


def _unicode(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON for Discord cannot carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
