"""The bot from its start to its end, whatever the network does meanwhile.

1. A token that Discord refuses, or an intent that the bot does not have, is told at the start.
2. If Discord cannot be reached, the server starts all the same, and the bot tries again until it can.
3. Lost connections are resumed, and what was said meanwhile comes then. What comes twice is answered once.
4. Answers that an earlier process did not deliver, and those of schedules, wait until there is a connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Final

from discord import ConnectionClosed, LoginFailure, PrivilegedIntentsRequired, VoiceClient

from foveal.apps.gateways.discord.bot import Bot
from foveal.apps.gateways.discord.elsewhere import Elsewhere
from foveal.apps.gateways.discord.posting import PATIENCE, TRANSIENT
from foveal.apps.gateways.talk import Saying, Talk
from foveal.config import Config
from foveal.errors import BadSetting
from foveal.service import Room, Service
from foveal.service.pairing import Pairing
from foveal.service.turns import Turn

LOG: Final = logging.getLogger("foveal.gateways")
TOKEN: Final = "DISCORD_BOT_TOKEN"
START: Final = 20.0
"""Seconds that the start of the server waits for Discord."""
SETTLE: Final = 5.0
"""Seconds that answers get to be said when the server stops."""
PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between attempts to reach Discord; the last one for ever."""


@asynccontextmanager
async def discord(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    patience: Sequence[float] = PATIENCE,
    settle: float = SETTLE,
) -> AsyncIterator[None]:
    """Run the bot while this is open; raises `BadSetting` when Discord does not want it. `patience` are the seconds
    between attempts to say something, `settle` those that answers get to be said at the end."""
    logging.getLogger("discord").setLevel(logging.WARNING)  # below that it logs what people say
    VoiceClient.warn_nacl = VoiceClient.warn_dave = False  # nobody speaks here
    talk = Talk(
        service,
        pairing,
        face="discord",
        allowed=frozenset(config.get("discord.allowed")),
        footer=config.get("discord.footer"),
    )
    base = config.get("discord.base_url") or ""
    gateway = Gateway(talk, token=environment[TOKEN], base=base, patience=patience)
    gateway.late += await talk.undelivered()
    answered = service.tenant("discord").answered
    answered.append(gateway.answered)
    task = asyncio.create_task(gateway.run())
    try:
        await gateway.started()
        yield
    finally:
        answered.remove(gateway.answered)
        await gateway.settle(seconds=settle)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Gateway:
    """One bot after the other, if need be."""

    def __init__(self, talk: Talk, *, token: str, base: str, patience: Sequence[float]) -> None:
        self.late: list[tuple[int, Saying]] = []
        """What is to be said in which channel as soon as there is a connection."""
        self._talk = talk
        self._token = token
        self._base = base
        self._patience = patience
        self._bot: Bot | None = None
        """The one that is connected."""
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """How the first attempt ended."""

    async def run(self) -> None:
        """Until it is cancelled, or Discord does not want the bot."""
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            try:
                await self._attempt()
            except (LoginFailure, PrivilegedIntentsRequired, ConnectionClosed, BadSetting) as problem:
                self._give_up(_advice(problem))
                return
            except Exception as problem:
                # discord.py fails with an error of its own when its first connection does.
                causes = [cause for cause in (problem, problem.__context__) if isinstance(cause, TRANSIENT)]
                name = type(causes[0] if causes else problem).__name__
                trace = None if causes else problem
                LOG.warning("no connection to Discord (%s); again in %g s", name, pause, exc_info=trace)
                self._go_on()
            await asyncio.sleep(pause)

    async def started(self) -> None:
        """Wait for the first attempt, but not for ever."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._first), START)

    async def answered(self, room: Room, turn: Turn) -> None:
        """A turn has ended; say so in its channel if nobody there has asked for it."""
        if (unasked := self._talk.unasked(room, turn)) is not None:
            self.late.append(unasked)
            self._catch_up()

    async def settle(self, *, seconds: float) -> None:
        if self._bot is not None:
            await self._bot.settle(seconds=seconds)

    async def _attempt(self) -> None:
        connector = Elsewhere(self._base) if self._base else None
        bot = Bot(self._talk, arrived=self._arrived, connector=connector, patience=self._patience)
        try:
            async with bot:
                await bot.start(self._token)
        finally:
            self._bot = None
            await bot.settle(seconds=0)

    def _arrived(self, bot: Bot) -> None:
        self._bot = bot
        self._go_on()
        self._catch_up()

    def _catch_up(self) -> None:
        while self._bot is not None and self.late:
            self._bot.deliver(*self.late.pop(0))

    def _go_on(self) -> None:
        if not self._first.done():
            self._first.set_result(None)

    def _give_up(self, problem: BadSetting) -> None:
        if self._first.done():
            LOG.error("the bot on Discord has ended: %s", problem)
        else:
            self._first.set_exception(problem)


def _advice(problem: Exception) -> BadSetting:
    """What to do, without the token."""
    match problem:
        case BadSetting():
            return problem
        case PrivilegedIntentsRequired():
            allowed = (
                "switch it on for the bot in Discord's developer portal (Bot, Privileged Gateway Intents)"
            )
            return BadSetting("Message Content Intent", "off", allowed)
        case ConnectionClosed(code=code) if code != 4004:
            return BadSetting("Discord's gateway", code, "it closed the connection for good, with this code")
        case _:
            allowed = (
                "Discord refuses it; copy the bot's token from Discord's developer portal (Bot, Reset Token)"
            )
            return BadSetting(TOKEN, "…", allowed)
