"""One channel: what is taken one after the other is answered one after the other.

Messages wait for the answers before theirs to be said. Commands do not: `/stop` must not wait for what it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import aiohttp
import discord

TYPING: Final = 8.0
"""Seconds between two signs that the bot is typing; Discord shows each for ten."""


class Place:
    """A place in the line."""

    def __init__(self, before: Place | None) -> None:
        self._before = before
        self._over = asyncio.Event()

    async def come(self) -> None:
        """Wait for everybody before, also before those who left without waiting."""
        while self._before is not None:
            await self._before._over.wait()
            self._before = self._before._before

    def leave(self) -> None:
        self._over.set()


class Line:
    def __init__(self, typing: Callable[[], Awaitable[None]]) -> None:
        """`typing` shows in the channel that the bot is at work."""
        self.taking = asyncio.Lock()
        """Held while a message is being stored, so that they are stored in the order in which they came."""
        self._typing = typing
        self._typist: asyncio.Task[None] | None = None
        self._working = 0
        self._last: Place | None = None

    def join(self) -> Place:
        self._last = Place(self._last)
        return self._last

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """The bot is seen typing as long as anybody is in here."""
        self._working += 1
        if self._typist is None:
            self._typist = asyncio.create_task(self._type())
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._typist.cancel()
                self._typist = None

    async def _type(self) -> None:
        # Typing is a courtesy: an answer must not fail because it could not be shown.
        with suppress(discord.DiscordException, aiohttp.ClientError, OSError, RuntimeError):
            while True:
                await self._typing()
                await asyncio.sleep(TYPING)
