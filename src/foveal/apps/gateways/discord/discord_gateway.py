"""Runs the Discord bot: connects, reconnects, and delivers undelivered answers.

1. No error here stops the server. If Discord refuses the token, or the bot lacks an intent, that is logged; if
   Discord cannot be reached, the bot retries until it can.
2. Of several servers on one folder one listens, and another takes over when it stops. All of them can send.
3. Lost connections are resumed, and Discord then sends the messages of the meantime. A message that arrives twice
   is answered once.
4. An answer that could not be delivered is delivered later: after growing pauses, or after a restart.
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

from foveal.apps.gateways.channel import Replies
from foveal.apps.gateways.chat_session import ChatSessions
from foveal.apps.gateways.delivery import Sleep, UndeliveredAnswers
from foveal.apps.gateways.discord.discord_bot import DiscordBot
from foveal.apps.gateways.discord.discord_messages import TRANSIENT_ERRORS
from foveal.apps.gateways.gateway import (
    CLOSE_GRACE_S,
    ConnectionState,
    base_url,
    listener_lock,
    observed_turns,
    open_chats,
    require_token,
)
from foveal.config import Config
from foveal.server import LiveSession, Service, Turn
from foveal.server.pairing import Pairing
from foveal.stores.session_locks import HeldLock, Locks

LOG: Final = logging.getLogger("foveal.gateways")
RECONNECT_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pauses between attempts to reach Discord; the last one is repeated."""
BAD_TOKEN_CODE: Final = 4004
"""Code with which Discord closes a connection whose token is wrong."""


@asynccontextmanager
async def discord(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    sleep: Sleep = asyncio.sleep,
    grace_s: float = CLOSE_GRACE_S,
) -> AsyncIterator[DiscordGateway]:
    """Listen to Discord while the block runs; `connection` of the gateway says whether Discord can be reached."""
    allowed = "the token of a bot, from Discord's developer portal (Bot, Reset Token)"
    token, base = require_token(environment, "DISCORD_BOT_TOKEN", allowed), base_url(config, "discord")
    logging.getLogger("discord").setLevel(logging.WARNING)  # below this level it logs messages of users
    VoiceClient.warn_nacl = VoiceClient.warn_dave = False  # the bot does not use voice
    chats = open_chats(service, pairing, config, "discord")
    gateway = DiscordGateway(chats, service.runtime.locks, token=token, base=base, sleep=sleep)
    running = asyncio.create_task(gateway.run())
    try:
        async with observed_turns(service, "discord", gateway, grace_s=grace_s):
            yield gateway
    finally:
        running.cancel()
        await asyncio.wait([running])


class DiscordGateway:
    """Runs a bot, and a new one after each lost connection that cannot be resumed."""

    def __init__(self, chats: ChatSessions, locks: Locks, *, token: str, base: str, sleep: Sleep) -> None:
        self.connection = ConnectionState("Discord")
        self._chats = chats
        self._locks = locks
        self._token = token
        self._base = base
        self._sleep = sleep
        self._bot: DiscordBot | None = None
        """The bot that is logged in and can send."""
        self._lock: HeldLock | None = None
        """Held while this server listens."""
        self._unsent: list[tuple[int, Replies]] = []
        """Channels and replies to send as soon as the bot can send."""
        self._is_refused = False
        """Discord does not accept the bot."""
        self._undelivered = UndeliveredAnswers(
            chats, self._deliver, may_deliver=lambda: self._lock is not None, sleep=sleep
        )

    async def count_users(self) -> int:
        return await self._chats.count_users()

    async def stop_listening(self) -> None:
        """Do nothing: Discord keeps no messages, so the bot stores them to the end and answers them later."""

    async def run(self) -> None:
        """Run until cancelled, or until Discord refuses the bot."""
        for pause in chain(RECONNECT_PAUSES_S, repeat(RECONNECT_PAUSES_S[-1])):
            try:
                await self._connect()
            except (LoginFailure, PrivilegedIntentsRequired, ConnectionClosed) as problem:
                self.connection.change("refused", _refusal_text(problem))
                self._is_refused = True
                return
            except Exception as problem:
                # If the first connection fails, discord.py raises an error of its own in that context.
                causes = [c for c in (problem, problem.__context__) if isinstance(c, TRANSIENT_ERRORS)]
                if not causes:
                    LOG.warning("Discord's bot has failed: %s", type(problem).__name__, exc_info=problem)
                self.connection.change("unreachable", "cannot be reached")
            await self._sleep(pause)

    async def close(self, *, grace_s: float) -> None:
        """Finish the answers that are being sent, within this time; the others stay undelivered."""
        await self._undelivered.close()
        if self._bot is not None:
            await self._bot.finish(seconds=grace_s)

    async def turn_ended(self, session: LiveSession, turn: Turn) -> None:
        """Send the answer of a turn for which no reply is waiting, such as the turn of a schedule."""
        answer = await self._chats.unrequested_answer(session, turn)
        if answer is not None and not self._is_refused:
            self._deliver(*answer)

    async def _connect(self) -> None:
        connector = CustomUrlConnector(self._base) if self._base else None
        bot = DiscordBot(
            self._chats,
            connector=connector,
            on_connected=lambda: self.connection.change("listening"),
            on_delivered=self._undelivered.reset_pauses,
            on_undelivered=self._undelivered.retry_later,
            sleep=self._sleep,
        )
        try:
            async with bot:
                await bot.login(self._token)
                self._bot = bot
                self._send_unsent()
                self._lock = await listener_lock(self._locks, "discord", self.connection, sleep=self._sleep)
                await self._undelivered.deliver_all()
                await bot.connect()
        finally:
            self._bot = None
            await bot.finish(seconds=0)
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _deliver(self, chat: int, replies: Replies) -> None:
        self._unsent.append((chat, replies))
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._bot is not None and self._unsent:
            self._bot.deliver(*self._unsent.pop(0))


def _refusal_text(problem: LoginFailure | PrivilegedIntentsRequired | ConnectionClosed) -> str:
    """Return what is wrong and what to do, as the end of a sentence about Discord, without the token."""
    if isinstance(problem, PrivilegedIntentsRequired):
        return "requires the Message Content Intent (turn it on for the bot in Discord's developer portal)"
    if isinstance(problem, ConnectionClosed) and problem.code != BAD_TOKEN_CODE:
        return f"has closed the connection permanently (code {problem.code})"
    return "does not accept DISCORD_BOT_TOKEN"


class CustomUrlConnector(aiohttp.TCPConnector):
    """Sends every request to `base` instead of Discord's hosts.

    discord.py has the hosts of the REST API, of the answers to interactions and of the gateway built in. All of
    them connect through the client's connector, so `discord.base_url` is applied here.
    """

    def __init__(self, base: str) -> None:
        super().__init__(limit=0)
        self._base = URL(base)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        original = req.url
        req.url = URL.build(
            scheme=self._base.scheme,
            authority=self._base.raw_authority,
            path=self._base.raw_path.rstrip("/") + original.raw_path,
            query_string=original.raw_query_string,
            encoded=True,
        )
        req.headers["Host"] = self._base.raw_authority
        return await super().connect(req, traces, timeout)
