"""What the faces have in common: a token from the environment, conversations by the configuration, and a bot that
is told of answers which nobody in its chats has asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, Protocol

from foveal.apps.gateways.chat_session import ChatSessions
from foveal.config import Config
from foveal.errors import BadSetting
from foveal.server import LiveSession, Service, Turn
from foveal.server.pairing import Face, Pairing

# ── standing ──────────────────────────────────────────────────────────────────────────────────────
# How a bot stands: whether it hears anything, and if not, why. Changes are logged, each once; `foveal serve` says
# how it is when it begins.

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


class ConnectionState:
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


class RunningBot(Protocol):
    """A bot that runs."""

    standing: ConnectionState

    async def people(self) -> int:
        """How many may talk to it."""
        ...

    async def stop_listening(self) -> None:
        """Take nothing new that the app would keep for the next start; answers are still said."""
        ...


async def connection_states(
    bots: Sequence[RunningBot], *, pair: Callable[[Face], str], seconds: float = SOON
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


async def _told(bot: RunningBot, pair: str) -> str:
    standing, people = bot.standing, await bot.people()
    if standing.state == "refused":
        return f"{standing.title} {standing.problem}"
    who = f"{people} may talk to it, others by {pair}" if people else f"nobody may talk to it yet: {pair}"
    if standing.state == "away":
        return f"{standing.title} {standing.problem}, and is tried again ({who})"
    if standing.state == "waiting":
        return f"{standing.title} on, at another server of this folder ({who})"
    return f"{standing.title} on ({who})" if people else f"{standing.title} on, but {who}"


# ── face ──────────────────────────────────────────────────────────────────────────────────────────

SETTLE: Final = 5.0
"""Seconds that answers get to be said when the server stops."""


class Bot(Protocol):
    async def unasked(self, room: LiveSession, turn: Turn) -> None:
        """A turn has ended; if nobody in its chat waits for it, it is told there."""
        ...

    async def close(self, *, settle: float) -> None: ...


def token_of(environment: Mapping[str, str], name: str, wanted: str) -> str:
    """A bot's token; raises `BadSetting`, which says what is wanted, when there is none."""
    token = environment.get(name, "").strip()
    if not token:
        raise BadSetting(name, "", wanted)
    return token


def talk_of(service: Service, pairing: Pairing, config: Config, face: Face) -> ChatSessions:
    """The conversations of a face, with those whom the configuration allows."""
    return ChatSessions(
        service,
        pairing,
        face=face,
        allowed=frozenset(config.get(f"{face}.allowed")),
        footer=config.get(f"{face}.footer"),
    )


@asynccontextmanager
async def told(service: Service, face: Face, bot: Bot, *, settle: float) -> AsyncIterator[None]:
    """While the block lasts the bot is told how turns end; then it says what it still has to say."""
    answered = service.tenant(face).answered
    answered.append(bot.unasked)
    try:
        yield
    finally:
        answered.remove(bot.unasked)
        await bot.close(settle=settle)
