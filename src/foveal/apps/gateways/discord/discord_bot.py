"""The bot: messages, commands and buttons become calls of `Talk`, and what it says becomes messages.

1. Nothing is decided here about who may talk: `Talk` decides by the numeric id that Discord vouches for.
2. Messages of a channel are stored in the order in which they came, and answered in that order.
3. An answer counts as delivered when Discord has taken it, or refused it for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing, nullcontext
from typing import Any, Final
from weakref import WeakValueDictionary

import aiohttp
import discord
import msgspec
from discord import app_commands

from foveal.apps.gateways import texts
from foveal.apps.gateways.chat_session import ChatSessions, Saying
from foveal.apps.gateways.discord.discord_messages import (
    ButtonItem,
    ChannelPost,
    ChannelQueue,
    DiscordUndelivered,
    QueuePosition,
    Sleep,
    is_command,
    more_than_text,
    words,
)
from foveal.errors import FovealError
from foveal.server.auth_tokens import RateLimiter

STRANGERS: Final = 6
"""Answers that a stranger gets in a minute."""
LOG: Final = logging.getLogger("foveal.gateways")
ARGUMENTS: Final = {
    "compact": ("focus", "what the summary should keep above all"),
    "undo": ("name", "which reduction; the newest if none is named"),
    "pair": ("code", "the code from `foveal pair discord` on the server"),
}
"""The commands that take words: what those are called, and what they mean."""
NEEDED: Final = ("pair",)
"""Those that mean nothing without them."""

Interaction = discord.Interaction[Any]


class DiscordBot(discord.Client):
    def __init__(
        self,
        talk: ChatSessions,
        *,
        connector: aiohttp.BaseConnector | None,
        connected: Callable[[], None],
        delivered: Callable[[], None],
        owed: Callable[[], None],
        sleep: Sleep,
    ) -> None:
        """`connected` is called when Discord has let the bot in, `delivered` whenever something was said, and
        `owed` when it could not be said."""
        super().__init__(
            intents=discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True),
            allowed_mentions=discord.AllowedMentions.none(),
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            max_messages=None,
            connector=connector,
        )
        self._talk = talk
        self._connected = connected
        self._delivered = delivered
        self._owed = owed
        self._sleep = sleep
        self._strangers = RateLimiter(STRANGERS)
        self._lines: WeakValueDictionary[int, ChannelQueue] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        """The conversations that are being had."""
        self._registering: asyncio.Task[None] | None = None
        self._tree = app_commands.CommandTree(self)

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────

    async def setup_hook(self) -> None:
        self.add_dynamic_items(ButtonItem)
        for name, about in texts.COMMANDS.items():
            self._tree.add_command(self._command(name, about))
        self._registering = asyncio.create_task(self._register())

    async def on_connect(self) -> None:
        self._connected()

    async def settle(self, *, seconds: float) -> None:
        """Let what is being said come to its end, but not for ever."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        tasks = [*self._tasks, *([self._registering] if self._registering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def deliver(self, chat: int, saying: Saying) -> None:
        """Say something in a channel that nobody has just asked for."""
        line, post = self._line(chat), self._post(chat)
        self._spawn(self._say(saying, post=post, place=line.join()))

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    async def on_message(self, message: discord.Message) -> None:
        text = words(message, me=self.user) if self.user is not None else None
        if text is not None:
            self._spawn(self._heard(message, text))

    async def _heard(self, message: discord.Message, text: str) -> None:
        chat, user = message.channel.id, message.author.id
        reference = message.to_reference(fail_if_not_exists=False) if message.guild else None
        post = self._post(chat, seed=message.id, reference=reference)
        line = self._line(chat)
        async with line.taking:
            known = await self._knows(user)
            if not known and self._strangers.wait(str(user), now=self.loop.time()):
                return
            if not text and more_than_text(message):
                taken = self._talk.wordless(user=user)
            else:
                key = f"discord-{message.id}"
                taken = await self._talk.take(chat=chat, user=user, key=key, text=text or "/help")
            place = line.join() if text and not is_command(text) else None
        if known and text and more_than_text(message):
            taken = _noted(taken, texts.TEXT_ONLY)
        async with line.working() if known else nullcontext():
            await self._say(taken, post=post, place=place)

    async def _say(self, saying: Saying, *, post: ChannelPost, place: QueuePosition | None = None) -> None:
        """Say it, when everything has been said that stood before it in the line."""
        try:
            async with aclosing(saying):
                async for says in saying:
                    if place is not None:
                        await place.come()
                    await post.say(says)
            self._delivered()
        except DiscordUndelivered as problem:
            LOG.warning("something could not be said: %s", problem)
            self._owed()
        finally:
            if place is not None:
                place.leave()

    # ── commands and buttons ─────────────────────────────────────────────────────────────────────────

    def _command(self, name: str, about: str) -> app_commands.Command[Any, Any, None]:
        async def plain(interaction: discord.Interaction) -> None:
            self._spawn(self._asked(interaction, f"/{name}"))

        async def perhaps(interaction: discord.Interaction, given: str = "") -> None:
            self._spawn(self._asked(interaction, f"/{name} {given}".strip()))

        async def surely(interaction: discord.Interaction, given: str) -> None:
            self._spawn(self._asked(interaction, f"/{name} {given}"))

        if name not in ARGUMENTS:
            return app_commands.Command(name=name, description=about, callback=plain)
        called, means = ARGUMENTS[name]
        asks = app_commands.rename(given=called)(
            app_commands.describe(given=means)(surely if name in NEEDED else perhaps)
        )
        return app_commands.Command(name=name, description=about, callback=asks)

    async def _register(self) -> None:
        try:
            await self._tree.sync()
        except (discord.DiscordException, aiohttp.ClientError, OSError) as problem:
            # They are a convenience: what is typed as text works without them.
            LOG.warning("Discord has not taken the commands: %s", type(problem).__name__)

    async def _asked(self, interaction: Interaction, text: str) -> None:
        chat, user = interaction.channel_id, interaction.user.id
        if chat is not None:
            post = await self._answering(interaction, chat, private=text.startswith("/pair"))
            line = self._line(chat)
            async with line.taking:
                key = f"discord-{interaction.id}"
                taken = await self._talk.take(chat=chat, user=user, key=key, text=text)
            await self._say(taken, post=post)

    async def pressed(self, interaction: Interaction, action: str) -> None:
        """A button was pressed."""
        self._spawn(self._pressed(interaction, action))

    async def _pressed(self, interaction: Interaction, action: str) -> None:
        chat, user = interaction.channel_id, interaction.user.id
        if chat is not None:
            post = await self._answering(interaction, chat)
            taken = self._talk.pressed(chat=chat, user=user, action=action)
            await self._say(taken, post=post)

    async def _answering(self, interaction: Interaction, chat: int, *, private: bool = False) -> ChannelPost:
        """Show that the bot is at work, and where to say the answer. Strangers are answered in private."""
        private = private or not await self._knows(interaction.user.id)
        channel = self.get_partial_messageable(chat)

        async def send(text: str, **more: Any) -> None:
            try:
                await interaction.followup.send(text, ephemeral=private, **more)
            except discord.NotFound:  # it took longer than the quarter of an hour that Discord allows
                await channel.send(text, **more)

        try:
            await interaction.response.defer(thinking=True, ephemeral=private)
        except (discord.HTTPException, aiohttp.ClientError, OSError):  # too late for that, perhaps
            return self._post(chat)
        return ChannelPost(send, sleep=self._sleep)

    # ── parts ────────────────────────────────────────────────────────────────────────────────────────

    async def _knows(self, user: int) -> bool:
        try:
            return await self._talk.may(user)
        except FovealError:  # the answer will say so
            return True

    def _post(
        self, chat: int, *, seed: int | None = None, reference: discord.MessageReference | None = None
    ) -> ChannelPost:
        send = self.get_partial_messageable(chat).send
        return ChannelPost(send, seed=seed, reference=reference, sleep=self._sleep)

    def _line(self, chat: int) -> ChannelQueue:
        line = self._lines.get(chat)
        if line is None:
            channel = self.get_partial_messageable(chat)
            line = self._lines[chat] = ChannelQueue(lambda: self.http.send_typing(channel.id))
        return line

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            LOG.error("a conversation on Discord broke off: %s", type(problem).__name__)
            LOG.debug("this is where", exc_info=problem)
            self._owed()


async def _noted(saying: Saying, note: str) -> Saying:
    """The same with a note below each."""
    async with aclosing(saying):
        async for says in saying:
            yield msgspec.structs.replace(says, footer=f"{note}\n{says.footer}")
