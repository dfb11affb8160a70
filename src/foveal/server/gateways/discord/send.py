"""Sends messages to Discord: to channels, and as answers to interactions.

1. Messages mention no user and show no link previews.
2. Each part has a nonce, which keeps Discord from showing it twice when it is sent again.
3. A refusal of the place (an archived thread, missing permissions) raises `PlaceClosed`. A message that Discord
   refuses for its content is replaced by a sentence. Any other failure raises `Undelivered`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Protocol, Self

import aiohttp
import discord

from foveal.server.chat_records import ChatPlace
from foveal.server.gateways.discord.parts import discord_parts
from foveal.server.gateways.outgoing import Button, ChannelMessage, Undelivered
from foveal.server.gateways.part_sender import OutgoingPart, PlaceClosed


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


LOG: Final = logging.getLogger("foveal.gateways")
DISCORD_TYPING_INTERVAL_S: Final = 8.0
"""Discord shows the typing status for ten seconds."""
TRANSIENT_ERRORS: Final = (
    discord.DiscordServerError,
    discord.RateLimited,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
    RuntimeError,  # the session of a bot that is being replaced is closed
)
TRANSIENT_STATUSES: Final = (401, 429)
"""A refused token may be accepted again; the connection reports it."""
EXPIRED_INTERACTION_CODE: Final = 50_027
"""The token of an interaction is no longer valid; Discord accepts it for 15 minutes."""
NO_PRIVATE_MESSAGES_CODE: Final = 50_007
"""The user does not accept messages of the bot."""
DELETED_CHANNEL_CODE: Final = 10_003
CLOSED_CHANNELS: Final = {
    DELETED_CHANNEL_CODE: "the channel was deleted",
    50_001: "the bot cannot see the channel",
    50_013: "the bot may not write there",
    50_083: "the thread is archived",
    160_005: "the thread is locked",
    NO_PRIVATE_MESSAGES_CODE: "the user accepts no messages of the bot",
}
"""Codes with which Discord refuses a place, and what they mean."""


REFUSED_DISCORD_PART: Final = "(Discord does not accept this part of the answer; it is stored on the server.)"


class DiscordSender:
    """Sends parts of messages to channels, threads and direct messages."""

    def __init__(self) -> None:
        self.client: discord.Client | None = None
        """The client that is logged in; None while there is none."""

    def split(self, message: ChannelMessage) -> list[str]:
        return discord_parts(message)

    async def send(self, part: OutgoingPart[str]) -> None:
        channel = self._logged_in().get_partial_messageable(part.place.chat)
        options = _options(part) | {"nonce": part.nonce}
        if part.reply_to:
            options["reference"] = discord.MessageReference(
                message_id=part.reply_to, channel_id=part.place.chat, fail_if_not_exists=False
            )
        for content in (part.content, REFUSED_DISCORD_PART):
            try:
                await channel.send(content, **options)
                return
            except (discord.DiscordException, *TRANSIENT_ERRORS) as problem:
                _raise_unless_given_up(problem)

    async def show_typing(self, place: ChatPlace) -> None:
        with suppress(discord.DiscordException, *TRANSIENT_ERRORS):
            if self.client is not None:
                await self.client.http.send_typing(place.chat)

    async def private_place(self, user: int) -> ChatPlace:
        try:
            return ChatPlace((await self._logged_in().create_dm(discord.Object(user))).id)
        except (discord.DiscordException, *TRANSIENT_ERRORS) as problem:
            raise (_failure(problem) or Undelivered("Discord opens no private chat")) from None

    def _logged_in(self) -> discord.Client:
        if self.client is None:
            raise Undelivered("Discord is not connected")
        return self.client


class InteractionSender:
    """Sends parts as answers to an interaction, and to its channel when Discord accepts no more answers."""

    def __init__(
        self, interaction: discord.Interaction[Any], channel: DiscordSender, *, ephemeral: bool
    ) -> None:
        """`ephemeral`: only the user sees the answers."""
        self._interaction = interaction
        self._channel = channel
        self._ephemeral = ephemeral

    def split(self, message: ChannelMessage) -> list[str]:
        return self._channel.split(message)

    async def send(self, part: OutgoingPart[str]) -> None:
        try:
            await self._interaction.followup.send(part.content, ephemeral=self._ephemeral, **_options(part))
        except (discord.NotFound, RuntimeError):  # the interaction is unknown, or the bot was replaced
            await self._channel.send(part)
        except (discord.DiscordException, *TRANSIENT_ERRORS) as problem:
            if getattr(problem, "code", 0) != EXPIRED_INTERACTION_CODE:
                _raise_unless_given_up(problem)
                return
            await self._channel.send(part)

    async def show_typing(self, place: ChatPlace) -> None:
        await self._channel.show_typing(place)

    async def private_place(self, user: int) -> ChatPlace:
        return await self._channel.private_place(user)


def _options(part: OutgoingPart[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"allowed_mentions": discord.AllowedMentions.none(), "suppress_embeds": True}
    return options | ({"view": button_view(part.buttons)} if part.buttons else {})


def _raise_unless_given_up(problem: Exception) -> None:
    """Raise what a failure means for delivery; return if Discord refuses the message for its content."""
    if failure := _failure(problem):
        raise failure from None


def _failure(problem: Exception) -> Undelivered | PlaceClosed | None:
    """Return what a failure means for delivery, without text of messages; None for a refused message."""
    if not isinstance(problem, discord.HTTPException):
        return Undelivered(f"Discord could not be reached: {type(problem).__name__}")
    if isinstance(problem, discord.DiscordServerError) or problem.status in TRANSIENT_STATUSES:
        return Undelivered(f"Discord answers with the status {problem.status}")
    if cause := CLOSED_CHANNELS.get(problem.code):
        is_gone, may_reopen = problem.code == NO_PRIVATE_MESSAGES_CODE, problem.code != DELETED_CHANNEL_CODE
        return PlaceClosed(cause, is_gone=is_gone, may_reopen=may_reopen)
    LOG.warning("Discord refused a message: %s (%s)", problem.status, problem.code)
    return None
