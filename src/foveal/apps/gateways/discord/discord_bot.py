"""The Discord client: passes messages, commands and buttons to `ChatSessions`.

1. `ChatSessions` decides about access, by the numeric user id that Discord guarantees.
2. The messages of a channel are stored in the order of their arrival, and answered in that order.
3. An answer counts as delivered when Discord has accepted it, or refused it permanently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from typing import Any, Final
from weakref import WeakValueDictionary

import aiohttp
import discord
import msgspec
from discord import app_commands

from foveal.apps.gateways import texts
from foveal.apps.gateways.channel import Replies, Undelivered
from foveal.apps.gateways.chat_session import MAX_UNKNOWN_USER_REPLIES_PER_MINUTE, ChatSessions
from foveal.apps.gateways.delivery import DeliveryTasks, Sleep
from foveal.apps.gateways.discord.discord_messages import (
    ButtonItem,
    ChannelPost,
    ChannelQueue,
    QueuePosition,
    addressed_text,
    has_more_than_text,
    is_command,
)
from foveal.errors import FovealError
from foveal.server.rate_limit import RateLimiter

LOG: Final = logging.getLogger("foveal.gateways")
ARGUMENTS: Final = {
    "compact": ("focus", "what the summary should keep above all"),
    "new": ("carry", "what to carry over: record, summary or rules"),
    "undo": ("name", "which reduction; default: the newest"),
    "pair": ("code", "the code from `foveal pair discord` on the server"),
}
"""Commands with an argument: its name and description."""
REQUIRED_ARGUMENTS: Final = ("pair",)
"""Commands whose argument is required."""

Interaction = discord.Interaction[Any]


class DiscordBot(discord.Client):
    """A connection to Discord as one bot."""

    def __init__(
        self,
        chats: ChatSessions,
        *,
        connector: aiohttp.BaseConnector | None,
        on_connected: Callable[[], None],
        on_delivered: Callable[[], None],
        on_undelivered: Callable[[], None],
        sleep: Sleep,
    ) -> None:
        super().__init__(
            intents=discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True),
            allowed_mentions=discord.AllowedMentions.none(),
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            max_messages=None,
            connector=connector,
        )
        self._chats = chats
        self._on_connected = on_connected
        self._on_delivered = on_delivered
        self._on_undelivered = on_undelivered
        self._sleep = sleep
        self._unknown_users = RateLimiter(MAX_UNKNOWN_USER_REPLIES_PER_MINUTE)
        self._queues: WeakValueDictionary[int, ChannelQueue] = WeakValueDictionary()
        self._deliveries = DeliveryTasks(on_failure=on_undelivered)
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

    async def finish(self, *, seconds: float) -> None:
        """Finish the answers that are being sent, within this time, and cancel the others."""
        await self._deliveries.finish(seconds=seconds)
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])

    def deliver(self, chat: int, replies: Replies) -> None:
        """Send replies to a channel that did not just ask for them."""
        queue, post = self._queue(chat), self._post(chat)
        self._deliveries.spawn(self._send_all(replies, post=post, position=queue.join()))

    # ── Messages ─────────────────────────────────────────────────────────────────────────────────────

    async def on_message(self, message: discord.Message) -> None:
        text = addressed_text(message, me=self.user) if self.user is not None else None
        if text is not None:
            self._deliveries.spawn(self._handle_message(message, text))

    async def _handle_message(self, message: discord.Message, text: str) -> None:
        chat, user = message.channel.id, message.author.id
        reference = message.to_reference(fail_if_not_exists=False) if message.guild else None
        post = self._post(chat, seed=message.id, reference=reference)
        queue = self._queue(chat)
        async with queue.storing:
            allowed = await self._is_allowed(user)
            if not allowed and self._unknown_users.take(str(user), now=self.loop.time()):
                return
            if not text and has_more_than_text(message):
                replies = self._chats.reply_to_non_text(user=user)
            else:
                key = f"discord-{message.id}"
                replies = await self._chats.accept(chat=chat, user=user, key=key, text=text or "/help")
            position = queue.join() if text and not is_command(text) else None
        if allowed and text and has_more_than_text(message):
            replies = _with_note(replies, texts.TEXT_ONLY)
        async with queue.typing() if allowed else nullcontext():
            await self._send_all(replies, post=post, position=position)

    async def _send_all(
        self, replies: Replies, *, post: ChannelPost, position: QueuePosition | None = None
    ) -> None:
        """Send replies, after all earlier answers of the channel's queue."""
        try:
            async with aclosing(replies):
                async for message in replies:
                    if position is not None:
                        await position.wait_turn()
                    await post.send(message)
            self._on_delivered()
        except Undelivered as problem:
            LOG.warning("an answer could not be delivered and is kept: %s", problem)
            self._on_undelivered()
        finally:
            if position is not None:
                position.leave()

    # ── Commands and buttons ─────────────────────────────────────────────────────────────────────────

    def _app_command(self, name: str, about: str) -> app_commands.Command[Any, Any, None]:
        async def without_argument(interaction: discord.Interaction) -> None:
            self._deliveries.spawn(self._handle_command(interaction, f"/{name}"))

        async def optional_argument(interaction: discord.Interaction, argument: str = "") -> None:
            self._deliveries.spawn(self._handle_command(interaction, f"/{name} {argument}".strip()))

        async def required_argument(interaction: discord.Interaction, argument: str) -> None:
            self._deliveries.spawn(self._handle_command(interaction, f"/{name} {argument}"))

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

    async def _handle_command(self, interaction: Interaction, text: str) -> None:
        chat, user = interaction.channel_id, interaction.user.id
        if chat is not None:
            post = await self._acknowledge(interaction, chat, private=text.startswith("/pair"))
            async with self._queue(chat).storing:
                key = f"discord-{interaction.id}"
                replies = await self._chats.accept(chat=chat, user=user, key=key, text=text)
            await self._send_all(replies, post=post)

    async def press_button(self, interaction: Interaction, action: str) -> None:
        """Start the action of a button."""
        self._deliveries.spawn(self._handle_button(interaction, action))

    async def _handle_button(self, interaction: Interaction, action: str) -> None:
        chat, user = interaction.channel_id, interaction.user.id
        if chat is not None:
            post = await self._acknowledge(interaction, chat)
            replies = self._chats.press_button(chat=chat, user=user, action=action)
            await self._send_all(replies, post=post)

    async def _acknowledge(
        self, interaction: Interaction, chat: int, *, private: bool = False
    ) -> ChannelPost:
        """Show that the bot is working, and return where to send the answer; privately to users without access."""
        private = private or not await self._is_allowed(interaction.user.id)
        channel = self.get_partial_messageable(chat)

        async def send(text: str, **options: Any) -> None:
            try:
                await interaction.followup.send(text, ephemeral=private, **options)
            except discord.NotFound:  # Discord accepts followups for 15 minutes
                await channel.send(text, **options)

        try:
            await interaction.response.defer(thinking=True, ephemeral=private)
        except (discord.HTTPException, aiohttp.ClientError, OSError):  # such as an expired interaction
            return self._post(chat)
        return ChannelPost(send, sleep=self._sleep)

    # ── Helpers ──────────────────────────────────────────────────────────────────────────────────────

    async def _is_allowed(self, user: int) -> bool:
        try:
            return await self._chats.is_allowed(user)
        except FovealError:  # the reply reports the error
            return True

    def _post(
        self, chat: int, *, seed: int | None = None, reference: discord.MessageReference | None = None
    ) -> ChannelPost:
        send = self.get_partial_messageable(chat).send
        return ChannelPost(send, seed=seed, reference=reference, sleep=self._sleep)

    def _queue(self, chat: int) -> ChannelQueue:
        queue = self._queues.get(chat)
        if queue is None:
            channel = self.get_partial_messageable(chat)
            queue = self._queues[chat] = ChannelQueue(lambda: self.http.send_typing(channel.id))
        return queue


async def _with_note(replies: Replies, note: str) -> Replies:
    """Yield the replies with a note above each footer."""
    async with aclosing(replies):
        async for message in replies:
            yield msgspec.structs.replace(message, footer=f"{note}\n{message.footer}")
