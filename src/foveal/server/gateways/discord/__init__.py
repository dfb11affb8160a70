"""The Discord gateway: one session per channel, thread and direct message.

    async with discord(service, pairing, config, environment) as bot:
        ...                        # it listens until the block ends

1. No error here stops the server or the bot: it retries with growing pauses if Discord cannot be reached, refuses
   the token, or requires an intent. Each change is logged once.
2. Of several servers on one folder one listens, and another takes over when it stops. All of them can send.
3. Lost connections are resumed, and Discord then sends the messages of the meantime. A message that arrives twice
   is answered once.
4. Answers are delivered in order, until Discord has accepted them (`Delivery`). They outlive the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp.tracing import Trace
from discord import ConnectionClosed, LoginFailure, PrivilegedIntentsRequired, VoiceClient
from yarl import URL

from foveal.config import Config
from foveal.server import LiveSession, Service, Turn
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.delivery import Delivery, Sleep
from foveal.server.gateways.discord.bot import DiscordBot
from foveal.server.gateways.discord.send import (
    DISCORD_TYPING_INTERVAL_S,
    TRANSIENT_ERRORS,
    DiscordSender,
)
from foveal.server.gateways.gateway import (
    CLOSE_GRACE_S,
    MAX_REFUSED_PAUSE_S,
    ConnectionState,
    GatewayHealth,
    base_url,
    gateway_health,
    listener_lock,
    observed_turns,
    open_chats,
    require_token,
)
from foveal.server.pairing import Pairing
from foveal.stores.session_locks import HeldLock, Locks

LOG: Final = logging.getLogger("foveal.gateways")
RECONNECT_PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pauses between attempts to reach Discord; the last one is repeated."""
MAX_RESUME_S: Final = 30.0
"""Time in which a lost connection is usually resumed; after it, Discord counts as unreachable."""
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
        self._chats = chats
        self._locks = locks
        self._token = token
        self._base = base
        self._sleep = sleep
        self._lock: HeldLock | None = None
        """Held while this server listens."""
        self._has_listened = False
        self._failures = 0
        """Attempts to connect since Discord was last connected."""
        self._lost: asyncio.TimerHandle | None = None
        """Reports a lost connection that is not resumed in time."""
        self._sender = DiscordSender()
        self._delivery = Delivery(
            chats,
            self._sender,
            typing_interval_s=DISCORD_TYPING_INTERVAL_S,
            may_retry=lambda: self._lock is not None,
            sleep=sleep,
        )
        self.connection: ConnectionState = ConnectionState(
            "Discord", clock=chats.now, on_listening=self._delivery.retry_now
        )

    async def count_users(self) -> int:
        return await self._chats.count_users()

    def health(self) -> GatewayHealth:
        return gateway_health("discord", self.connection, self._delivery)

    async def stop_listening(self) -> None:
        """Do nothing: Discord keeps no messages, so the bot stores them to the end and answers them later."""

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                is_refused = not await self._connect_once()
                self._failures += 1
                await self._sleep(_pause(self._failures, is_refused=is_refused))
        finally:
            self._cancel_lost()
            self._release_lock()

    async def close(self, *, grace_s: float) -> None:
        """Finish the answers that are being sent, within this time; the others stay undelivered."""
        await self._delivery.close(seconds=grace_s)

    async def turn_ended(self, session: LiveSession, turn: Turn) -> None:
        """Send the answer of a turn for which no reply is waiting, such as the turn of a schedule."""
        answer = await self._chats.unrequested_answer(session, turn)
        if answer is not None:
            self._delivery.start_recorded(answer)

    # ── Connection ───────────────────────────────────────────────────────────────────────────────────

    async def _connect_once(self) -> bool:
        """Listen until the connection ends; return False if Discord refuses the bot."""
        try:
            await self._connect()
        except (LoginFailure, PrivilegedIntentsRequired, ConnectionClosed) as problem:
            self.connection.change("refused", _refusal_text(problem))
            if not self._has_listened:  # another server may have a token that works
                self._release_lock()
            return False
        except Exception as problem:
            # If the first connection fails, discord.py raises an error of its own in that context.
            causes = [c for c in (problem, problem.__context__) if isinstance(c, TRANSIENT_ERRORS)]
            if not causes:
                LOG.warning("Discord's bot has failed: %s", type(problem).__name__, exc_info=problem)
            self.connection.change("unreachable", "cannot be reached")
        return True

    async def _connect(self) -> None:
        bot = DiscordBot(
            self._delivery,
            self._sender,
            connector=CustomUrlConnector(self._base) if self._base else None,
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
            on_update=self.connection.record_update,
        )
        try:
            async with bot:
                await bot.login(self._token)
                self._sender.client = bot
                if self._lock is None:
                    self._lock = await listener_lock(
                        self._locks, "discord", self.connection, sleep=self._sleep
                    )
                await self._delivery.deliver_all()
                await bot.connect()
        finally:
            self._sender.client = None
            self._cancel_lost()
            await bot.finish()

    def _on_connected(self) -> None:
        self._cancel_lost()
        self._has_listened, self._failures = True, 0
        self.connection.change("listening")
        self._delivery.retry_now()  # also after a connection that was lost for a moment

    def _on_disconnected(self) -> None:
        if self._lost is None:
            loop = asyncio.get_running_loop()
            self._lost = loop.call_later(MAX_RESUME_S, self._report_lost)

    def _report_lost(self) -> None:
        self.connection.change("unreachable", "has ended the connection")

    def _cancel_lost(self) -> None:
        if self._lost is not None:
            self._lost.cancel()
            self._lost = None

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _pause(failures: int, *, is_refused: bool) -> float:
    """Return the pause before the next attempt to connect."""
    pause = RECONNECT_PAUSES_S[min(failures, len(RECONNECT_PAUSES_S)) - 1]
    is_longest = failures > len(RECONNECT_PAUSES_S)
    return MAX_REFUSED_PAUSE_S if is_refused and is_longest else pause


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
