"""Which messages are meant for the bot, and what their words are.

In a direct message all are. In a channel those are that mention the bot (or the role that Discord made for it),
reply to it, or are one of its commands. What other bots, webhooks and Discord itself write is never meant for it.
"""

from __future__ import annotations

import discord

from foveal.apps.gateways import cards


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
    return first.startswith("/") and first[1:].lower() in cards.COMMANDS


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
