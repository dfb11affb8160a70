"""Parses Telegram updates: text, button, non-text message, or nothing for the bot.

In a private chat every message is for the bot. In a group it is a message that mentions the bot, replies to it, or
is one of its commands. Messages of bots and channels and service messages are ignored.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec
from telegram import CallbackQuery, Message, MessageEntity, Update, User
from telegram.constants import ChatType

from foveal.apps.gateways.texts import BOT_COMMANDS

_COMMAND: Final = re.compile(r"/([a-zA-Z0-9_]+)(@\w+)?(?=\s|$)")


class ChatLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message was sent, which is where the answer goes."""

    chat: int
    thread: int | None = None
    """The topic of a forum."""
    reply_to: int | None = None
    """The message that is answered, in a group."""


class TextMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A text for the bot, without the mention of the bot."""

    location: ChatLocation
    user: int
    text: str


class NonTextMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A picture, a voice message, an edit."""

    location: ChatLocation
    user: int


class ButtonPressed(msgspec.Struct, frozen=True, kw_only=True):
    """A pressed button; `location` is None if Telegram no longer says to which message it belongs."""

    location: ChatLocation | None
    user: int
    query: str
    action: str
    message: int = 0
    """The message with the button; 0 if it can no longer be changed."""


ParsedUpdate: TypeAlias = TextMessage | NonTextMessage | ButtonPressed | None


def parse_update(update: Update, me: User) -> ParsedUpdate:
    """Return what an update means for the bot; None if it is not for the bot."""
    if update.callback_query is not None:
        return _press(update.callback_query)
    message = update.message or update.edited_message
    if message is None or message.from_user is None or message.from_user.is_bot:
        return None
    if message.chat.type not in (ChatType.PRIVATE, ChatType.GROUP, ChatType.SUPERGROUP):
        return None
    private = message.chat.type == ChatType.PRIVATE
    location = ChatLocation(
        chat=message.chat.id,
        thread=message.message_thread_id if message.is_topic_message else None,
        reply_to=None if private else message.message_id,
    )
    user = message.from_user.id
    if update.edited_message is not None or message.text is None:
        addressed = private or _is_addressed(message, me)
        return NonTextMessage(location=location, user=user) if addressed and _has_content(message) else None
    text = _addressed_text(message.text, message, me, private=private)
    return TextMessage(location=location, user=user, text=text) if text is not None else None


def _press(query: CallbackQuery) -> ButtonPressed:
    message = query.message
    thread = message.message_thread_id if isinstance(message, Message) and message.is_topic_message else None
    return ButtonPressed(
        location=ChatLocation(chat=message.chat.id, thread=thread) if message is not None else None,
        user=query.from_user.id,
        query=query.id,
        action=query.data or "",
        message=message.message_id if isinstance(message, Message) else 0,
    )


def _addressed_text(text: str, message: Message, me: User, *, private: bool) -> str | None:
    """Return the text without the name of the bot; None if it is not addressed to the bot."""
    found = _COMMAND.match(text)
    if found is not None:
        named = found[2] is not None and found[2][1:].casefold() == (me.username or "").casefold()
        if found[2] is not None and not named:
            return None
        if private or named or found[1].casefold() in BOT_COMMANDS or _is_addressed(message, me):
            return f"/{found[1]}{text[found.end() :]}"
        return None
    if private:
        return text
    if not _is_addressed(message, me):
        return None
    return re.sub(rf"^\s*@{re.escape(me.username or '')}\b[\s,:]*", "", text, flags=re.IGNORECASE) or text


def _is_addressed(message: Message, me: User) -> bool:
    """Return whether a message replies to the bot or mentions it."""
    answered = message.reply_to_message
    if answered is not None and answered.from_user is not None and answered.from_user.id == me.id:
        return True
    mentions = message.parse_entities([MessageEntity.MENTION]) | message.parse_caption_entities(
        [MessageEntity.MENTION]
    )
    return any(name[1:].casefold() == (me.username or "").casefold() for name in mentions.values())


def _has_content(message: Message) -> bool:
    """Return whether a user sent the message; service messages, such as a new title, have no content."""
    return message.text is not None or message.effective_attachment is not None
