"""How something is said in a channel: in pieces that Discord takes, without mentioning or previewing anything.

A piece that could not be sent is sent again a few times; a nonce keeps Discord from showing it twice. What Discord
refuses for good is given up, and what could not be sent because of the network is `Undelivered`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, Self

import aiohttp
import discord

from foveal.apps.gateways import texts
from foveal.apps.gateways.chat_session import Button, ChannelMessage
from foveal.apps.gateways.split_message import split, utf16

# ── buttons ───────────────────────────────────────────────────────────────────────────────────────
# Buttons below a message. What one does is in its name, so that it works after a restart of the server.


class Pressable(Protocol):
    """A client that knows what to do when a button is pressed."""

    async def pressed(self, interaction: discord.Interaction[Any], action: str) -> None: ...


class ButtonItem(
    discord.ui.DynamicItem[discord.ui.Button[discord.ui.View]], template=r"foveal:(?P<action>[\w:.-]{1,80})"
):
    def __init__(self, button: discord.ui.Button[discord.ui.View], action: str) -> None:
        super().__init__(button)
        self._action = action

    @classmethod
    async def from_custom_id(
        cls, interaction: discord.Interaction[Any], item: discord.ui.Item[Any], match: re.Match[str], /
    ) -> Self:
        assert isinstance(item, discord.ui.Button)
        return cls(item, match["action"])

    async def callback(self, interaction: discord.Interaction[Any]) -> None:
        client: Pressable = interaction.client
        await client.pressed(interaction, self._action)


def view(buttons: Iterable[Button]) -> discord.ui.View:
    made = discord.ui.View(timeout=None)
    for button in buttons:
        shown: discord.ui.Button[discord.ui.View] = discord.ui.Button(
            label=button.label[:80], custom_id=f"foveal:{button.action}"
        )
        made.add_item(ButtonItem(shown, button.action))
    return made


# ── words ─────────────────────────────────────────────────────────────────────────────────────────
# Which messages are meant for the bot, and what their words are.
#
# In a direct message all are. In a channel those are that mention the bot (or the role that Discord made for it),
# reply to it, or are one of its commands. What other bots, webhooks and Discord itself write is never meant for it.


def words(message: discord.Message, *, me: discord.ClientUser) -> str | None:
    """The words without the mention of the bot, perhaps none; None when they are not meant for the bot."""
    if message.author.bot or message.webhook_id is not None or message.author.id == me.id:
        return None
    if message.type not in (discord.MessageType.default, discord.MessageType.reply):
        return None
    text = _unmentioned(message, me)
    if isinstance(message.channel, discord.DMChannel) or is_command(text):
        return text
    return text if _mentioned(message, me) or _answered(message, me) else None


def is_command(text: str) -> bool:
    first = text.split(maxsplit=1)[0] if text else ""
    return first.startswith("/") and first[1:].lower() in texts.COMMANDS


def more_than_text(message: discord.Message) -> bool:
    """Whether there is something in it that is not read."""
    return bool(message.attachments or message.stickers or message.poll or message.message_snapshots)


def _mentioned(message: discord.Message, me: discord.ClientUser) -> bool:
    return any(user.id == me.id for user in message.mentions) or _role(message) in message.role_mentions


def _answered(message: discord.Message, me: discord.ClientUser) -> bool:
    answered = message.reference.resolved if message.reference else None
    return isinstance(answered, discord.Message) and answered.author.id == me.id


def _unmentioned(message: discord.Message, me: discord.ClientUser) -> str:
    """A mention before or behind the words calls the bot; one between them is a name."""
    role = _role(message)
    mentions = (me.mention, f"<@!{me.id}>", *([role.mention] if role else []))
    text = message.content.strip()
    while called := next((mention for mention in mentions if text.startswith(mention)), ""):
        text = text.removeprefix(called).lstrip(" \t\r\n,:")
    while called := next((mention for mention in mentions if text.endswith(mention)), ""):
        text = text.removesuffix(called).rstrip()
    for mention in mentions:
        text = text.replace(mention, f"@{me.name}")
    return text


def _role(message: discord.Message) -> discord.Role | None:
    """The role that Discord has made for the bot."""
    return message.guild.self_role if message.guild else None


# ── line ──────────────────────────────────────────────────────────────────────────────────────────
# One channel: what is taken one after the other is answered one after the other.
#
# Messages wait for the answers before theirs to be said. Commands do not: `/stop` must not wait for what it stops.

TYPING: Final = 8.0
"""Seconds between two signs that the bot is typing; Discord shows each for ten."""


class QueuePosition:
    """A place in the line."""

    def __init__(self, before: QueuePosition | None) -> None:
        self._before = before
        self._over = asyncio.Event()

    async def come(self) -> None:
        """Wait for everybody before, also before those who left without waiting."""
        while self._before is not None:
            await self._before._over.wait()
            self._before = self._before._before

    def leave(self) -> None:
        self._over.set()


class ChannelQueue:
    def __init__(self, typing: Callable[[], Awaitable[None]]) -> None:
        """`typing` shows in the channel that the bot is at work."""
        self.taking = asyncio.Lock()
        """Held while a message is being stored, so that they are stored in the order in which they came."""
        self._typing = typing
        self._typist: asyncio.Task[None] | None = None
        self._working = 0
        self._last: QueuePosition | None = None

    def join(self) -> QueuePosition:
        self._last = QueuePosition(self._last)
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


# ── posting ───────────────────────────────────────────────────────────────────────────────────────

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


class DiscordUndelivered(Exception):
    """Something could not be said, and may be said later."""


def pieces(says: ChannelMessage) -> list[str]:
    """The text and its footer, in messages that are not too long."""
    below = "\n".join(f"-# {line}" for line in says.footer.splitlines() if line.strip())
    parts = split(_unicode(says.text), LIMIT, size=utf16)
    if not below:
        return parts
    if parts and utf16(parts[-1]) + 1 + utf16(below) <= LIMIT:
        return [*parts[:-1], f"{parts[-1]}\n{below}"]
    return [*parts, *split(below, LIMIT, size=utf16)]


class ChannelPost:
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

    async def say(self, says: ChannelMessage) -> None:
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
        raise DiscordUndelivered(f"Discord could not be reached: {type(failed).__name__}")


def _unicode(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON for Discord cannot carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
