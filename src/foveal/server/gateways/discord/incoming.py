"""Discord messages as the bot receives them: text, author, quotes and files.

1. In a direct message every message is for the bot. In a channel it is a message that mentions the bot (or the role
   that Discord made for it), replies to it, or is one of its commands. Messages of other bots, of webhooks and of
   Discord itself are ignored.
2. A thread has a channel id of its own, so it is a place of its own.
3. Text that a message forwards or answers is quoted. Discord does not tell who wrote a forwarded message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import discord

from foveal.server.chat_records import ChatPlace
from foveal.server.gateways import texts
from foveal.server.gateways.incoming import ChatAuthor, IncomingFile, IncomingMessage, QuotedText
from foveal.server.gateways.place_intake import MessagePiece

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
