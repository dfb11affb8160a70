"""Discord messages: which are for the bot, their order, sending, buttons.

1. In a direct message every message is for the bot. In a channel it is a message that mentions the bot (or the role
   that Discord made for it), replies to it, or is one of its commands. Messages of other bots, of webhooks and of
   Discord itself are ignored.
2. Messages of a channel are answered in the order in which they were stored. Commands do not wait: `/stop` must not
   wait for the answer that it stops.
3. Answers are split into pieces that Discord accepts. They mention no user and show no link previews.
4. A piece that could not be sent is sent again a few times; a nonce keeps Discord from showing it twice. A message
   that Discord refuses permanently is given up. A failure of the network raises `Undelivered`.
5. The action of a button is part of its id, so that it works after a restart of the server.
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
from foveal.apps.gateways.channel import Button, ChannelMessage, Undelivered
from foveal.apps.gateways.delivery import Sleep
from foveal.apps.gateways.split_message import split, utf16

LOG: Final = logging.getLogger("foveal.gateways")
DISCORD_MESSAGE_LIMIT: Final = 2_000
"""Size of a message, counted in UTF-16 units as Discord's clients do, which is never too low."""
DISCORD_SEND_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts to send a piece."""
DISCORD_TYPING_INTERVAL_S: Final = 8.0
"""Discord shows the typing status for ten seconds."""
TRANSIENT_ERRORS: Final = (
    discord.DiscordServerError,
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
)

Send = Callable[..., Awaitable[Any]]

# ── Buttons ──────────────────────────────────────────────────────────────────────────────────────────────


class ButtonHandler(Protocol):
    """A client that handles pressed buttons."""

    async def press_button(self, interaction: discord.Interaction[Any], action: str) -> None: ...


class ButtonItem(
    discord.ui.DynamicItem[discord.ui.Button[discord.ui.View]], template=r"foveal:(?P<action>[\w:.-]{1,80})"
):
    """A button whose id contains its action."""

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
        client: ButtonHandler = interaction.client
        await client.press_button(interaction, self._action)


def button_view(buttons: Iterable[Button]) -> discord.ui.View:
    view = discord.ui.View(timeout=None)
    for button in buttons:
        shown: discord.ui.Button[discord.ui.View] = discord.ui.Button(
            label=button.label[:80], custom_id=f"foveal:{button.action}"
        )
        view.add_item(ButtonItem(shown, button.action))
    return view


# ── Messages for the bot ─────────────────────────────────────────────────────────────────────────────────


def addressed_text(message: discord.Message, *, me: discord.ClientUser) -> str | None:
    """Return the text without the mention of the bot, possibly ""; None if the message is not for the bot."""
    if message.author.bot or message.webhook_id is not None or message.author.id == me.id:
        return None
    if message.type not in (discord.MessageType.default, discord.MessageType.reply):
        return None
    text = _without_mention(message, me)
    if isinstance(message.channel, discord.DMChannel) or is_command(text):
        return text
    return text if _mentions(message, me) or _replies_to(message, me) else None


def is_command(text: str) -> bool:
    first = text.split(maxsplit=1)[0] if text else ""
    return first.startswith("/") and first[1:].lower() in texts.BOT_COMMANDS


def has_more_than_text(message: discord.Message) -> bool:
    """Return whether a message has content that the bot does not read."""
    return bool(message.attachments or message.stickers or message.poll or message.message_snapshots)


def _mentions(message: discord.Message, me: discord.ClientUser) -> bool:
    return any(user.id == me.id for user in message.mentions) or _role(message) in message.role_mentions


def _replies_to(message: discord.Message, me: discord.ClientUser) -> bool:
    answered = message.reference.resolved if message.reference else None
    return isinstance(answered, discord.Message) and answered.author.id == me.id


def _without_mention(message: discord.Message, me: discord.ClientUser) -> str:
    """Remove mentions of the bot before and after the text; one inside the text becomes its name."""
    role = _role(message)
    mentions = (me.mention, f"<@!{me.id}>", *([role.mention] if role else []))
    text = message.content.strip()
    while found := next((mention for mention in mentions if text.startswith(mention)), ""):
        text = text.removeprefix(found).lstrip(" \t\r\n,:")
    while found := next((mention for mention in mentions if text.endswith(mention)), ""):
        text = text.removesuffix(found).rstrip()
    for mention in mentions:
        text = text.replace(mention, f"@{me.name}")
    return text


def _role(message: discord.Message) -> discord.Role | None:
    """Return the role that Discord made for the bot."""
    return message.guild.self_role if message.guild else None


# ── Order of answers ─────────────────────────────────────────────────────────────────────────────────────


class QueuePosition:
    """The position of one answer in a channel's queue."""

    def __init__(self, before: QueuePosition | None) -> None:
        self._before = before
        self._left = asyncio.Event()

    async def wait_turn(self) -> None:
        """Wait until all earlier positions have left; a position may leave without having waited itself."""
        while self._before is not None:
            await self._before._left.wait()
            self._before = self._before._before

    def leave(self) -> None:
        self._left.set()


class ChannelQueue:
    """The queue of one channel; `send_typing` shows in the channel that the bot is typing."""

    def __init__(self, send_typing: Callable[[], Awaitable[None]]) -> None:
        self.storing = asyncio.Lock()
        """Held while a message is stored, so that messages are stored in the order of their arrival."""
        self._send_typing = send_typing
        self._typing_task: asyncio.Task[None] | None = None
        self._typing_count = 0
        self._last: QueuePosition | None = None

    def join(self) -> QueuePosition:
        self._last = QueuePosition(self._last)
        return self._last

    @asynccontextmanager
    async def typing(self) -> AsyncIterator[None]:
        """Show the typing status while any such block runs."""
        self._typing_count += 1
        if self._typing_task is None:
            self._typing_task = asyncio.create_task(self._show_typing())
        try:
            yield
        finally:
            self._typing_count -= 1
            if not self._typing_count:
                self._typing_task.cancel()
                self._typing_task = None

    async def _show_typing(self) -> None:
        # An answer must not fail because the typing status could not be shown.
        with suppress(discord.DiscordException, aiohttp.ClientError, OSError, RuntimeError):
            while True:
                await self._send_typing()
                await asyncio.sleep(DISCORD_TYPING_INTERVAL_S)


# ── Sending ──────────────────────────────────────────────────────────────────────────────────────────────


def split_for_discord(message: ChannelMessage) -> list[str]:
    """Return the text and the footer in pieces that Discord accepts."""
    footer = "\n".join(f"-# {line}" for line in message.footer.splitlines() if line.strip())
    parts = split(_valid_unicode(message.text), DISCORD_MESSAGE_LIMIT, size=utf16)
    if not footer:
        return parts
    if parts and utf16(parts[-1]) + 1 + utf16(footer) <= DISCORD_MESSAGE_LIMIT:
        return [*parts[:-1], f"{parts[-1]}\n{footer}"]
    return [*parts, *split(footer, DISCORD_MESSAGE_LIMIT, size=utf16)]


class ChannelPost:
    """Sends the replies to one input: the first piece is a reply to the message, each piece has its own nonce."""

    def __init__(
        self,
        send: Send,
        *,
        seed: int | None = None,
        reference: discord.MessageReference | None = None,
        sleep: Sleep,
    ) -> None:
        """`seed` makes the nonces: different for each input, and the same when an input is answered again."""
        self._send = send
        self._seed = seed
        self._reference = reference
        self._sleep = sleep
        self._count = 0

    async def send(self, message: ChannelMessage) -> None:
        """Send a message; raise `Undelivered` if another attempt later may succeed."""
        pieces = split_for_discord(message)
        for number, text in enumerate(pieces, 1):
            options: dict[str, Any] = {}
            if self._seed is not None:
                options["nonce"] = f"{self._seed}.{self._count}"
            if self._reference is not None:
                options["reference"], self._reference = self._reference, None
            if number == len(pieces) and message.buttons:
                options["view"] = button_view(message.buttons)
            self._count += 1
            await self._send_with_retries(text, options)

    async def _send_with_retries(self, text: str, options: dict[str, Any]) -> None:
        failure: Exception
        for pause in (*DISCORD_SEND_PAUSES_S, None):
            try:
                await self._send(
                    text, allowed_mentions=discord.AllowedMentions.none(), suppress_embeds=True, **options
                )
                return
            except TRANSIENT_ERRORS as problem:
                failure = problem
            except discord.HTTPException as problem:
                if problem.status != 429:
                    LOG.warning("Discord refused a message: %s (%s)", problem.status, problem.code)
                    return
                failure = problem
            if pause is not None:
                await self._sleep(pause)
        raise Undelivered(f"Discord could not be reached: {type(failure).__name__}")


def _valid_unicode(text: str) -> str:
    """Return a text without unpaired surrogates, which JSON for Discord cannot represent."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
