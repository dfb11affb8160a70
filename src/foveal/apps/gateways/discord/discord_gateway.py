"""The bot from its start to its end, whatever the network does meanwhile.

1. Nothing that happens here ends the server. A token that Discord refuses, or an intent that the bot does not have,
   is told in the log; if Discord cannot be reached, the bot tries again until it can.
2. Of several servers on one folder one listens, and another takes over when it is gone. All of them can speak.
3. Lost connections are resumed, and what was said meanwhile comes then. What comes twice is answered once.
4. An answer that could not be delivered is delivered later: after longer and longer pauses, or a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Final

import aiohttp
from aiohttp.tracing import Trace
from discord import ConnectionClosed, LoginFailure, PrivilegedIntentsRequired, VoiceClient
from yarl import URL

from foveal.apps.gateways.access import base_url
from foveal.apps.gateways.chat_session import ChatSessions, Saying
from foveal.apps.gateways.discord.discord_bot import DiscordBot
from foveal.apps.gateways.discord.discord_messages import TRANSIENT, Sleep
from foveal.apps.gateways.gateway import SETTLE, ConnectionState, talk_of, token_of, told
from foveal.config import Config
from foveal.errors import FovealError
from foveal.server import LiveSession, Service, Turn
from foveal.server.locks import SessionLock, SessionLocks
from foveal.server.pairing import Pairing

# ── elsewhere ─────────────────────────────────────────────────────────────────────────────────────
# Where the bot looks for Discord: at another address, if one is set.
#
# discord.py knows its hosts by heart, and asks for them in three places: the REST interface, the answers to
# interactions and the gateway. All of them connect through the client's connector, so this one sends them elsewhere.


class CustomApiUrl(aiohttp.TCPConnector):
    """Whatever is asked for, it is asked for at `base`."""

    def __init__(self, base: str) -> None:
        super().__init__(limit=0)
        self._base = URL(base)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        asked = req.url
        req.url = URL.build(
            scheme=self._base.scheme,
            authority=self._base.raw_authority,
            path=self._base.raw_path.rstrip("/") + asked.raw_path,
            query_string=asked.raw_query_string,
            encoded=True,
        )
        req.headers["Host"] = self._base.raw_authority
        return await super().connect(req, traces, timeout)


# ── gateway ───────────────────────────────────────────────────────────────────────────────────────

LOG: Final = logging.getLogger("foveal.gateways")
PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between attempts to reach Discord; the last one for ever."""
LOOK: Final = 5.0
"""Seconds after which a server looks again whether the one that listens is gone."""
LATER: Final = (60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0)
"""Seconds after which undelivered answers are taken up again; after the last one, when the server starts again."""


class DiscordGateway:
    """One bot after the other, if need be."""

    def __init__(
        self, talk: ChatSessions, turnstile: SessionLocks, *, token: str, base: str, sleep: Sleep
    ) -> None:
        self.standing = ConnectionState("Discord")
        self._talk = talk
        self._turnstile = turnstile
        self._token = token
        self._base = base
        self._sleep = sleep
        self._bot: DiscordBot | None = None
        """The one that can speak."""
        self._hold: SessionLock | None = None
        """Held while this server is the one that listens."""
        self._unsaid: list[tuple[int, Saying]] = []
        """What is to be said in which channel as soon as the bot can speak."""
        self._wanted = True
        """Whether Discord wants the bot, as far as is known."""
        self._later: asyncio.Task[None] | None = None
        self._rounds = 0

    async def people(self) -> int:
        return await self._talk.people()

    async def stop_listening(self) -> None:
        """Nothing: what Discord tells nobody is lost, so messages are stored to the end, and answered later."""

    async def run(self) -> None:
        """Until it is cancelled, or Discord does not want the bot."""
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            try:
                await self._attempt()
            except (LoginFailure, PrivilegedIntentsRequired, ConnectionClosed) as problem:
                self.standing.become("refused", _told(problem))
                self._wanted = False
                return
            except Exception as problem:
                # discord.py fails with an error of its own when its first connection does.
                causes = [cause for cause in (problem, problem.__context__) if isinstance(cause, TRANSIENT)]
                if not causes:
                    LOG.warning("Discord's bot has failed: %s", type(problem).__name__, exc_info=problem)
                self.standing.become("away", "cannot be reached")
            await self._sleep(pause)

    async def close(self, *, settle: float) -> None:
        """Let what is being said be said, for so many seconds; the rest is owed."""
        if self._later is not None:
            self._later.cancel()
        if self._bot is not None:
            await self._bot.settle(seconds=settle)

    async def unasked(self, room: LiveSession, turn: Turn) -> None:
        """A turn of this tenant ended; if nobody in its channel asked for it, it is told there."""
        if (told := await self._talk.unasked(room, turn)) is not None and self._wanted:
            self._unsaid.append(told)
            self._catch_up()

    async def _attempt(self) -> None:
        connector = CustomApiUrl(self._base) if self._base else None
        bot = DiscordBot(
            self._talk,
            connector=connector,
            connected=lambda: self.standing.become("listening"),
            delivered=self._pay,
            owed=self._owe,
            sleep=self._sleep,
        )
        try:
            async with bot:
                await bot.login(self._token)
                self._bot = bot
                self._catch_up()
                await self._have_turn()
                await self._settle()
                await bot.connect()
        finally:
            self._bot = None
            await bot.settle(seconds=0)
            if self._hold is not None:
                self._hold.release()
                self._hold = None

    async def _have_turn(self) -> None:
        """Discord tells each message to every server that listens, so only one does."""
        while (hold := await self._turnstile.try_hold("", "discord")) is None:
            self.standing.become("waiting")
            await self._sleep(LOOK)
        self._hold = hold

    # ── what is owed ─────────────────────────────────────────────────────────────────────────────────

    async def _settle(self) -> None:
        """Deliver what was not delivered."""
        try:
            self._unsaid += await self._talk.undelivered()
        except FovealError as problem:
            LOG.warning("what is undelivered is not known: %s", type(problem).__name__)
            self._owe()
        self._catch_up()

    def _catch_up(self) -> None:
        while self._bot is not None and self._unsaid:
            self._bot.deliver(*self._unsaid.pop(0))

    def _pay(self) -> None:
        """Something was delivered: the next pause is a short one."""
        self._rounds = 0

    def _owe(self) -> None:
        """Something was not delivered: try again later."""
        if self._later is None and self._rounds < len(LATER):
            self._later = asyncio.create_task(self._settle_after(LATER[self._rounds]))
            self._rounds += 1

    async def _settle_after(self, pause: float) -> None:
        await self._sleep(pause)
        self._later = None
        if self._hold is not None:  # otherwise another server is about to deliver them
            await self._settle()


def _told(problem: LoginFailure | PrivilegedIntentsRequired | ConnectionClosed) -> str:
    """What is wrong and what to do, as the end of a sentence about Discord, without the token."""
    if isinstance(problem, PrivilegedIntentsRequired):
        return "wants the Message Content Intent (switch it on for the bot in Discord's developer portal)"
    if isinstance(problem, ConnectionClosed) and problem.code != 4004:
        return f"has closed the connection for good (code {problem.code})"
    return "does not accept DISCORD_BOT_TOKEN"


# ── running ───────────────────────────────────────────────────────────────────────────────────────
# The bot of `DISCORD_BOT_TOKEN`, as one face of the server.

TOKEN: Final = "DISCORD_BOT_TOKEN"


@asynccontextmanager
async def discord(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    sleep: Sleep = asyncio.sleep,
    settle: float = SETTLE,
) -> AsyncIterator[DiscordGateway]:
    """Listen to Discord while the block lasts. Whether Discord can be reached shows later, in its `standing`."""
    wanted = "the token of a bot, from Discord's developer portal (Bot, Reset Token)"
    token, base = token_of(environment, TOKEN, wanted), base_url(config, "discord")
    logging.getLogger("discord").setLevel(logging.WARNING)  # below that it logs what people say
    VoiceClient.warn_nacl = VoiceClient.warn_dave = False  # nobody speaks here
    talk = talk_of(service, pairing, config, "discord")
    gateway = DiscordGateway(talk, service.ground.turnstile, token=token, base=base, sleep=sleep)
    running = asyncio.create_task(gateway.run())
    try:
        async with told(service, "discord", gateway, settle=settle):
            yield gateway
    finally:
        running.cancel()
        await asyncio.wait([running])
