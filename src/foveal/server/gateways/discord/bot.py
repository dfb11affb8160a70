"""The Discord client: passes messages, commands and buttons to `ChatSessions`.

1. `ChatSessions` decides about access, by the numeric user id that Discord guarantees.
2. The messages and commands of a channel are accepted in the order of their arrival (`PlaceIntake`). Messages are
   answered in that order. Commands do not wait for answers: `/stop` must not wait for the one that it stops.

`discord_piece` reads a message of Discord: its text, author, quotes and files.

1. In a direct message every message is for the bot. In a channel it is a message that mentions the bot (or the role
   that Discord made for it), replies to it, or is one of its commands. Messages of other bots, of webhooks and of
   Discord itself are ignored.
2. A thread has a channel id of its own, so it is a place of its own.
3. Text that a message forwards or answers is quoted. Discord does not tell who wrote a forwarded message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

import aiohttp
import discord
from discord import app_commands
from msgspec.structs import replace

from foveal.errors import FovealError
from foveal.server.chat_records import ChatPlace
from foveal.server.gateways import texts
from foveal.server.gateways.chat_commands import MEMORY_COMMANDS
from foveal.server.gateways.chat_files import FileUnavailable
from foveal.server.gateways.chat_sessions import PendingAnswer
from foveal.server.gateways.delivery import Delivery
from foveal.server.gateways.discord.send import ButtonItem, DiscordSender, InteractionSender
from foveal.server.gateways.incoming import (
    MAX_UNKNOWN_USER_REPLIES_PER_MINUTE,
    ChatAuthor,
    IncomingFile,
    IncomingMessage,
    QuotedText,
)
from foveal.server.gateways.outgoing import MEMORY_ACTION, PartSender
from foveal.server.gateways.place_intake import MessagePiece, PlaceIntake
from foveal.server.rate_limit import RateLimiter

MAX_DISCORD_CHARS: Final = 2_000
"""Characters of one message of most users."""
MIN_DISCORD_SPLIT_CHARS: Final = 1_900
"""Characters from which a message may be a piece of a longer text."""
READ_TYPES: Final = (discord.MessageType.default, discord.MessageType.reply)


def discord_piece(message: discord.Message, *, me: discord.ClientUser) -> MessagePiece | None:
    """Return what a message means for the bot; None if users did not write it."""
    if message.author.bot or message.webhook_id is not None or message.author.id == me.id:
        return None
    if message.type not in READ_TYPES:
        return None
    text = _without_mention(message, me)
    is_direct = isinstance(message.channel, discord.DMChannel)
    is_addressed = is_direct or is_command(text) or _mentions(message, me) or _replies_to(message, me)
    incoming = IncomingMessage(
        key=f"discord-{message.id}",
        place=ChatPlace(message.channel.id),
        user=message.author.id,
        text=text,
        reply_to=message.id if message.guild else 0,
        place_name=f"{message.guild.name} / {message.channel}" if message.guild else "",
        speaker=ChatAuthor(message.author.display_name, message.author.id) if message.guild else None,
        quotes=(*_replies(message, me), *_forwards(message)),
        files=tuple(_files(message)),
        unread=tuple(_unread(message)),
    )
    return MessagePiece(
        message=incoming,
        sent_at=message.created_at.timestamp(),
        joint=_joint(message.content),
        is_addressed=is_addressed,
    )


def is_command(text: str) -> bool:
    first = text.split(maxsplit=1)[0] if text else ""
    return first.startswith("/") and first[1:].lower() in texts.BOT_COMMANDS


def _joint(text: str) -> str | None:
    if len(text) < MIN_DISCORD_SPLIT_CHARS or text.startswith("/"):
        return None
    return "" if len(text) == MAX_DISCORD_CHARS else "\n"


# ── Addressing ───────────────────────────────────────────────────────────────────────────────────────────


def _mentions(message: discord.Message, me: discord.ClientUser) -> bool:
    return any(user.id == me.id for user in message.mentions) or _role(message) in message.role_mentions


def _answered(message: discord.Message) -> discord.Message | None:
    found = message.reference.resolved if message.reference else None
    return found if isinstance(found, discord.Message) else None


def _replies_to(message: discord.Message, me: discord.ClientUser) -> bool:
    answered = _answered(message)
    return answered is not None and answered.author.id == me.id


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


# ── Quotes and files ─────────────────────────────────────────────────────────────────────────────────────


def _replies(message: discord.Message, me: discord.ClientUser) -> Iterable[QuotedText]:
    answered = _answered(message)
    if answered is not None and message.type is discord.MessageType.reply:
        is_own = answered.author.id == me.id
        author = None if is_own else ChatAuthor(answered.author.display_name, answered.author.id)
        text = answered.content
        if answered.attachments or not text:  # the quote says that there is a file
            text = f"{_content_name(answered)} {text}".rstrip()
        yield QuotedText(kind="reply", text=text, author=author, is_own=is_own)


def _forwards(message: discord.Message) -> Iterable[QuotedText]:
    for snapshot in message.message_snapshots:
        yield QuotedText(kind="forward", text=snapshot.content or _content_name(snapshot))


def _content_name(message: discord.Message | discord.MessageSnapshot) -> str:
    """Return what a message without text is, in brackets."""
    return f"({message.attachments[0].filename})" if message.attachments else "(no text)"


def _files(message: discord.Message) -> Iterable[IncomingFile]:
    attachments = [*message.attachments]
    for snapshot in message.message_snapshots:
        attachments += snapshot.attachments
    for attachment in attachments:
        if not attachment.is_voice_message():
            yield IncomingFile(
                name=attachment.filename,
                mime=(attachment.content_type or "").lower().partition(";")[0],
                size=attachment.size,
                reference=attachment.url,
            )


def _unread(message: discord.Message) -> Iterable[str]:
    if any(attachment.is_voice_message() for attachment in message.attachments):
        yield "voice messages"
    if message.stickers:
        yield "stickers"
    if message.poll:
        yield "polls"


LOG: Final = logging.getLogger("foveal.gateways")
ARGUMENTS: Final = {
    "compact": ("focus", "what the summary should keep above all"),
    "memory": ("words", "what to search for; default: show the newest entries"),
    "remember": ("text", "what to remember"),
    "forget": ("entry", "its id or its words"),
    "new": ("carry", "what to carry over: record, summary or rules"),
    "undo": ("name", "which reduction; default: the newest"),
    "pair": ("code", "the code from `foveal pair discord` on the server"),
}
"""Commands with an argument: its name and description."""
REQUIRED_ARGUMENTS: Final = ("pair", "remember")
"""Commands whose argument is required."""
PRIVATE_COMMANDS: Final = ("/pair", *(f"/{name}" for name in MEMORY_COMMANDS))
"""Commands of Discord's menu whose reply only their user sees."""

Interaction = discord.Interaction[Any]


class DiscordBot(discord.Client):
    """A connection to Discord as one bot; its answers are sent by `delivery`."""

    def __init__(
        self,
        delivery: Delivery[str],
        sender: DiscordSender,
        *,
        connector: aiohttp.BaseConnector | None,
        on_connected: Callable[[], None],
        on_disconnected: Callable[[], None],
        on_update: Callable[[], None],
    ) -> None:
        super().__init__(
            intents=discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True),
            allowed_mentions=discord.AllowedMentions.none(),
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            max_messages=None,
            connector=connector,
        )
        self._chats = delivery.chats
        self._delivery = delivery
        self._sender = sender
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._on_update = on_update
        self._unknown_users = RateLimiter(MAX_UNKNOWN_USER_REPLIES_PER_MINUTE)
        self._interactions: dict[str, asyncio.Task[PartSender[str]]] = {}
        """For the key of each command that Discord's menu has sent, what sends its reply."""
        self._intake = PlaceIntake(self._handle_message, self._chats.join_keys)
        self._registering: asyncio.Task[None] | None = None
        self._tree = app_commands.CommandTree(self)

    # ── Start and end ────────────────────────────────────────────────────────────────────────────────

    async def setup_hook(self) -> None:
        self.add_dynamic_items(ButtonItem)
        for name, about in texts.BOT_COMMANDS.items():
            self._tree.add_command(self._app_command(name, about))
        self._registering = asyncio.create_task(self._register_commands())

    async def on_connect(self) -> None:
        self._on_connected()

    async def on_resumed(self) -> None:
        self._on_connected()

    async def on_disconnect(self) -> None:
        self._on_disconnected()

    async def finish(self) -> None:
        """Store what has arrived, and end the registration of the commands."""
        await self._intake.close(drops_waiting=False)
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])

    # ── Messages ─────────────────────────────────────────────────────────────────────────────────────

    async def on_message(self, message: discord.Message) -> None:
        piece = discord_piece(message, me=self.user) if self.user is not None else None
        if piece is not None:
            self._on_update()
            self._intake.put(piece)

    async def _handle_message(self, message: IncomingMessage) -> None:
        place, user = message.place, message.user
        interaction = self._interactions.pop(message.key, None)
        allowed = await self._is_allowed(user)
        is_limited = interaction is None and not allowed
        if is_limited and self._unknown_users.take(str(user), now=self.loop.time()):
            return
        if not message.has_content and not message.unread:  # such as a mention alone
            message = replace(message, text="/help")
        answer = await self._chats.accept(message, fetch=self._fetch_file)
        if interaction is not None:
            self._delivery.tasks.spawn(self._reply(answer, message, interaction))
        else:
            self._delivery.start(
                answer, place=place, reply_to=message.reply_to, key=message.key, typing=allowed
            )

    async def _reply(
        self, answer: PendingAnswer, message: IncomingMessage, interaction: asyncio.Task[PartSender[str]]
    ) -> None:
        """Send the reply to a command of Discord's menu, which is acknowledged first."""
        self._delivery.start(answer, place=message.place, key=message.key, sender=await interaction)

    async def _fetch_file(self, file: IncomingFile) -> bytes:
        try:
            return await self.http.get_from_cdn(file.reference)
        except (discord.HTTPException, aiohttp.ClientError, OSError) as problem:
            LOG.warning("a file could not be fetched: %s", type(problem).__name__)
            raise FileUnavailable from None

    # ── Commands and buttons ─────────────────────────────────────────────────────────────────────────

    def _app_command(self, name: str, about: str) -> app_commands.Command[Any, Any, None]:
        async def without_argument(interaction: discord.Interaction) -> None:
            self._handle_command(interaction, f"/{name}")

        async def optional_argument(interaction: discord.Interaction, argument: str = "") -> None:
            self._handle_command(interaction, f"/{name} {argument}".strip())

        async def required_argument(interaction: discord.Interaction, argument: str) -> None:
            self._handle_command(interaction, f"/{name} {argument}")

        if name not in ARGUMENTS:
            return app_commands.Command(name=name, description=about, callback=without_argument)
        argument_name, argument_about = ARGUMENTS[name]
        function = required_argument if name in REQUIRED_ARGUMENTS else optional_argument
        described = app_commands.describe(argument=argument_about)(function)
        callback = app_commands.rename(argument=argument_name)(described)
        return app_commands.Command(name=name, description=about, callback=callback)

    async def _register_commands(self) -> None:
        try:
            await self._tree.sync()
        except (discord.DiscordException, aiohttp.ClientError, OSError) as problem:
            # Registered commands are a convenience: typed as text, the commands work without them.
            LOG.warning("Discord has not accepted the commands: %s", type(problem).__name__)

    def _handle_command(self, interaction: Interaction, text: str) -> None:
        """Queue a command behind the messages that arrived before it."""
        if interaction.channel_id is None:
            return
        self._on_update()
        place, key = ChatPlace(interaction.channel_id), f"discord-{interaction.id}"
        acknowledging = self._acknowledge(interaction, private=text.startswith(PRIVATE_COMMANDS))
        self._interactions[key] = asyncio.create_task(acknowledging)
        message = IncomingMessage(key=key, place=place, user=interaction.user.id, text=text)
        self._intake.put(MessagePiece(message=message))

    async def press_button(self, interaction: Interaction, action: str) -> None:
        """Start the action of a button."""
        self._spawn(self._handle_button(interaction, action))

    async def _handle_button(self, interaction: Interaction, action: str) -> None:
        if interaction.channel_id is None:
            return
        place, key, user = ChatPlace(interaction.channel_id), f"discord-{interaction.id}", interaction.user.id

        async def is_admin() -> bool:
            rights = interaction.permissions
            return interaction.guild_id is not None and (rights.administrator or rights.manage_guild)

        is_private = action.startswith(MEMORY_ACTION)
        with suppress(FovealError):  # the reply reports the error
            is_private |= bool(await self._chats.refusal(user, action, is_admin=is_admin))
        sender = await self._acknowledge(interaction, private=is_private)
        answer = await self._chats.press_button(place=place, user=user, action=action, is_admin=is_admin)
        self._delivery.start(answer, place=place, key=key, sender=sender)

    async def _acknowledge(self, interaction: Interaction, *, private: bool = False) -> PartSender[str]:
        """Show that the bot is working, and return what sends the answer; privately to users without access."""
        private = private or not await self._is_allowed(interaction.user.id)
        try:
            await interaction.response.defer(thinking=True, ephemeral=private)
        except (discord.HTTPException, aiohttp.ClientError, OSError):  # such as an expired interaction
            return self._sender
        return InteractionSender(interaction, self._sender, ephemeral=private)

    # ── Helpers ──────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._on_update()
        self._delivery.tasks.spawn(work)

    async def _is_allowed(self, user: int) -> bool:
        try:
            return await self._chats.is_allowed(user)
        except FovealError:  # the reply reports the error
            return True
