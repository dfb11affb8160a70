"""What the gateways share: settings, connection state, listener lock, turn events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from foveal.config import Config
from foveal.errors import BadSetting
from foveal.server import LiveSession, Service, Turn
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.delivery import Delivery, Sleep
from foveal.server.pairing import ChatPlatform, Pairing
from foveal.stores.session_locks import HeldLock, Locks

LOG: Final = logging.getLogger("foveal.gateways")
PLATFORMS: Final[tuple[tuple[ChatPlatform, str, str], ...]] = (
    ("telegram", "Telegram", "TELEGRAM_BOT_TOKEN"),
    ("discord", "Discord", "DISCORD_BOT_TOKEN"),
)
"""The chat apps: name, title, and the environment variable with the token."""
CLOSE_GRACE_S: Final = 5.0
"""Time for unfinished answers when the server stops."""
LOCK_POLL_S: Final = 5.0
"""Time between two attempts to become the server that listens."""
STARTUP_WAIT_S: Final = 2.0
"""Time in which a bot usually connects."""
MAX_REFUSED_PAUSE_S: Final = 300.0
"""The pause between two attempts with a refused token grows up to this."""
_LOCAL_HOSTS: Final = ("127.0.0.1", "::1", "localhost")

# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────


def require_token(environment: Mapping[str, str], name: str, allowed: str) -> str:
    """Return a bot's token; raise `BadSetting`, which says what is allowed, if it is not set."""
    token = environment.get(name, "").strip()
    if not token:
        raise BadSetting(name, "", allowed)
    return token


def base_url(config: Config, platform: ChatPlatform) -> str:
    """Return `telegram.base_url` or `discord.base_url`; "" means the official API.

    The token is sent to this address, so it must be https or local. Raises `BadSetting`.
    """
    name = f"{platform}.base_url"
    base: str = config.get(name) or ""
    try:
        url = urlsplit(base)
        is_safe = url.scheme == "https" or (url.scheme == "http" and url.hostname in _LOCAL_HOSTS)
    except ValueError:  # such as an unclosed bracket
        is_safe = False
    if base and not is_safe:
        raise BadSetting(name, base, "https, because the bot's token is sent there")
    return base


def open_chats(service: Service, pairing: Pairing, config: Config, platform: ChatPlatform) -> ChatSessions:
    """Return the chat sessions of a chat app, with the users that the configuration allows."""
    return ChatSessions(
        service,
        pairing,
        platform=platform,
        allowed=tuple(config.get(f"{platform}.allowed")),
        footer=config.get(f"{platform}.footer"),
        asks_admins=config.get(f"{platform}.approvers") == "admins",
    )


# ── Connection state ─────────────────────────────────────────────────────────────────────────────────────

ConnectionStatus = Literal["starting", "listening", "standby", "unreachable", "refused"]
"""`standby`: another server of this folder listens; `refused`: the operator has to change something. The bot
retries as it does while the chat app is `unreachable`."""


class ConnectionState:
    """Connection state of a bot; each change is logged once. `on_listening` is called when the bot connects."""

    def __init__(self, title: str, *, clock: Callable[[], float], on_listening: Callable[[], None]) -> None:
        self.title = title
        """Title of the chat app."""
        self.status: ConnectionStatus = "starting"
        self.problem: str = ""
        """Why it does not listen, as the end of a sentence about the chat app."""
        self.last_error: tuple[float, str] = (0.0, "")
        """When the newest problem occurred, and the problem, also if it is solved."""
        self.connected_since: float | None = None
        self.last_update: float | None = None
        """When the newest message or button arrived."""
        self._clock = clock
        self._on_listening = on_listening
        self._is_known = asyncio.Event()

    def change(self, status: ConnectionStatus, problem: str = "") -> None:
        """Set the status and log it, unless it is the same as before."""
        before, problem_before = self.status, self.problem
        self.status, self.problem = status, problem
        if problem:
            self.last_error = self._clock(), f"{self.title} {problem}"
        self._is_known.set()
        if status == before and (status != "refused" or problem == problem_before):
            return
        self.connected_since = self._clock() if status == "listening" else None
        self._log(before)
        if status == "listening":
            self._on_listening()

    def record_update(self) -> None:
        """Record that a message or button arrived."""
        self.last_update = self._clock()

    def _log(self, before: ConnectionStatus) -> None:
        status, problem = self.status, self.problem
        if status == "refused":
            LOG.error("%s %s: the bot receives no messages and retries until it works", self.title, problem)
        elif status == "unreachable":
            LOG.warning("%s %s: the bot retries until it works", self.title, problem)
        elif status == "standby":
            LOG.info("another server of this folder listens to %s", self.title)
        else:
            is_again = before in ("unreachable", "refused")
            LOG.info("listening to %s%s", self.title, " again" if is_again else "")

    async def wait_known(self, *, seconds: float) -> None:
        """Wait for the first status, at most this long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_known.wait(), seconds)


class GatewayHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one gateway; its texts contain no secrets and nothing of a conversation."""

    platform: str
    status: str
    connected_since: float | None
    """When the gateway began to receive messages; None while it does not."""
    last_update: float | None
    """When the newest message arrived; None if none did since the start."""
    owed: int
    """Answers that are ready and not delivered, without those that their place refuses."""
    owed_oldest_at: float | None
    """When the oldest one became ready."""
    given_up: int
    """Answers that were not delivered within two days."""
    refused: int
    """Answers that their place refused, such as a closed topic; they are sent if it opens within two days."""
    last_error: str
    """What failed last, also if it works again; "" for nothing."""


class RunningBot(Protocol):
    """A running bot, as the server uses it."""

    connection: ConnectionState

    async def count_users(self) -> int:
        """Return how many users have access."""
        ...

    async def stop_listening(self) -> None:
        """Accept no new messages that the chat app keeps for the next start; answers are still sent."""
        ...

    def health(self) -> GatewayHealth:
        """Return the state for `/healthz` and `/metrics`."""
        ...


def gateway_health(
    platform: ChatPlatform, connection: ConnectionState, delivery: Delivery[Any]
) -> GatewayHealth:
    """Return how a bot is."""
    owed = delivery.owed()
    return GatewayHealth(
        platform=platform,
        status=connection.status,
        connected_since=connection.connected_since,
        last_update=connection.last_update,
        owed=owed.number,
        owed_oldest_at=owed.oldest_at,
        given_up=delivery.given_up,
        refused=delivery.refused,
        last_error=max(connection.last_error, delivery.last_error)[1],
    )


async def connection_states(
    bots: Sequence[RunningBot], *, pair: Callable[[ChatPlatform], str], seconds: float = STARTUP_WAIT_S
) -> list[str]:
    """Return the state of each chat app in words; `pair` returns the command that gives a user access."""
    await asyncio.gather(*(bot.connection.wait_known(seconds=seconds) for bot in bots))
    running = {bot.connection.title: bot for bot in bots}
    return [
        await _state_text(running[title], pair(platform))
        if title in running
        else f"{title} off ({variable} is not set)"
        for platform, title, variable in PLATFORMS
    ]


async def _state_text(bot: RunningBot, pair: str) -> str:
    connection, users = bot.connection, await bot.count_users()
    if connection.status == "refused":
        return f"{connection.title} {connection.problem}"
    many = "s" * (users != 1)
    access = (
        f"{users} user{many} with access, others by {pair}" if users else f"no user has access yet: {pair}"
    )
    if connection.status == "unreachable":
        return f"{connection.title} {connection.problem}, the bot retries ({access})"
    if connection.status == "standby":
        return f"{connection.title} on, at another server of this folder ({access})"
    return f"{connection.title} on ({access})" if users else f"{connection.title} on, but {access}"


async def listener_lock(
    locks: Locks, platform: ChatPlatform, connection: ConnectionState, *, sleep: Sleep
) -> HeldLock:
    """Wait until no other server of this folder listens to the chat app, and return the lock.

    Only one server may listen: Telegram sends each message to one reader, and Discord sends it to all of them.
    """
    while (lock := await locks.try_lock("", platform)) is None:
        connection.change("standby")
        await sleep(LOCK_POLL_S)
    return lock


# ── Turn events ──────────────────────────────────────────────────────────────────────────────────────────


class TurnObserver(Protocol):
    """A gateway that is informed of the turns of its tenant."""

    async def turn_ended(self, session: LiveSession, turn: Turn) -> None:
        """Send the answer of a turn for which no reply is waiting, such as the turn of a schedule."""
        ...

    async def close(self, *, grace_s: float) -> None:
        """Finish the answers that are being sent, within this time."""
        ...


@asynccontextmanager
async def observed_turns(
    service: Service, platform: ChatPlatform, gateway: TurnObserver, *, grace_s: float
) -> AsyncIterator[None]:
    """Inform the gateway of turns while the block runs, then close it."""
    tenant = service.tenant(platform)
    tenant.add_turn_listener(gateway.turn_ended)
    try:
        yield
    finally:
        tenant.remove_turn_listener(gateway.turn_ended)
        await gateway.close(grace_s=grace_s)
