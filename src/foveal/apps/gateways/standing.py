"""How a bot stands: whether it hears anything, and if not, why. Changes are logged, each once; `foveal serve` says
how it is when it begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, Protocol

from foveal.service.pairing import Face

State = Literal["beginning", "listening", "waiting", "away", "refused"]
"""`waiting`: another server of this folder listens; `away`: it is tried again and again; `refused`: it is not."""
LOG: Final = logging.getLogger("foveal.gateways")
APPS: Final[tuple[tuple[Face, str, str], ...]] = (
    ("telegram", "Telegram", "TELEGRAM_BOT_TOKEN"),
    ("discord", "Discord", "DISCORD_BOT_TOKEN"),
)
"""The chat apps: what each is called, here and in public, and where its token is."""
SOON: Final = 2.0
"""Seconds in which it usually shows how a bot stands."""


class Standing:
    def __init__(self, title: str) -> None:
        self.title = title
        """What the chat app is called in public."""
        self.state: State = "beginning"
        self.problem = ""
        """Why it does not listen, as the end of a sentence about the chat app."""
        self._known = asyncio.Event()

    def become(self, state: State, problem: str = "") -> None:
        """It stands so from now on. Several failures in a row are one change, told with the first of them."""
        before, self.state, self.problem = self.state, state, problem
        self._known.set()
        if state == before:
            return
        if state == "refused":
            LOG.error("%s %s: no messages come from there", self.title, problem)
        elif state == "away":
            LOG.warning("%s %s: it is tried again until it works", self.title, problem)
        elif state == "waiting":
            LOG.info("another server of this folder listens to %s", self.title)
        else:
            LOG.info("listening to %s%s", self.title, " again" if before == "away" else "")

    async def known(self, *, seconds: float) -> None:
        """Until it shows how it stands, but not for ever."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), seconds)


class Listener(Protocol):
    """A bot that runs."""

    standing: Standing

    async def people(self) -> int:
        """How many may talk to it."""
        ...

    async def stop_listening(self) -> None:
        """Take nothing new that the app would keep for the next start; answers are still said."""
        ...


async def standings(
    bots: Sequence[Listener], *, pair: Callable[[Face], str], seconds: float = SOON
) -> list[str]:
    """One phrase for each chat app; `pair` is the command that lets somebody in."""
    await asyncio.gather(*(bot.standing.known(seconds=seconds) for bot in bots))
    running = {bot.standing.title: bot for bot in bots}
    return [
        await _told(running[title], pair(face))
        if title in running
        else f"{title} off ({variable} is not set)"
        for face, title, variable in APPS
    ]


async def _told(bot: Listener, pair: str) -> str:
    standing, people = bot.standing, await bot.people()
    if standing.state == "refused":
        return f"{standing.title} {standing.problem}"
    who = f"{people} may talk to it, others by {pair}" if people else f"nobody may talk to it yet: {pair}"
    if standing.state == "away":
        return f"{standing.title} {standing.problem}, and is tried again ({who})"
    if standing.state == "waiting":
        return f"{standing.title} on, at another server of this folder ({who})"
    return f"{standing.title} on ({who})" if people else f"{standing.title} on, but {who}"
