"""What an update of Telegram means for us: words, a button, something without words, or nothing.

In a private chat everything is meant for the bot. In a group only what is said to it: a mention, a reply to it, or
one of its commands. Bots, channels and service messages are passed over.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec
from telegram import CallbackQuery, Message, MessageEntity, Update, User
from telegram.constants import ChatType

from foveal.apps.gateways.texts import COMMANDS

_COMMAND: Final = re.compile(r"/([a-zA-Z0-9_]+)(@\w+)?(?=\s|$)")


class ChatLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where something was said, and so where the answer belongs."""

    chat: int
    thread: int | None = None
    """The topic of a forum."""
    reply_to: int | None = None
    """The message that is answered, in a group."""


class TextMessage(msgspec.Struct, frozen=True, kw_only=True):
    place: ChatLocation
    user: int
    text: str


class NonTextMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A picture, a voice message, an edit."""

    place: ChatLocation
    user: int


class ButtonPressed(msgspec.Struct, frozen=True, kw_only=True):
    """A button was pressed; no place when Telegram does not tell which message it belongs to any more."""

    place: ChatLocation | None
    user: int
    query: str
    action: str
    message: int = 0
    """The message that has the button; 0 when it cannot be changed any more."""


Meaning: TypeAlias = TextMessage | NonTextMessage | ButtonPressed | None


def read(update: Update, me: User) -> Meaning:
    """What an update means."""
    if update.callback_query is not None:
        return _press(update.callback_query)
    message = update.message or update.edited_message
    if message is None or message.from_user is None or message.from_user.is_bot:
        return None
    if message.chat.type not in (ChatType.PRIVATE, ChatType.GROUP, ChatType.SUPERGROUP):
        return None
    private = message.chat.type == ChatType.PRIVATE
    place = ChatLocation(
        chat=message.chat.id,
        thread=message.message_thread_id if message.is_topic_message else None,
        reply_to=None if private else message.message_id,
    )
    user = message.from_user.id
    if update.edited_message is not None or message.text is None:
        spoken = private or _to_us(message, me)
        return NonTextMessage(place=place, user=user) if spoken and _has_content(message) else None
    text = _meant(message.text, message, me, private=private)
    return TextMessage(place=place, user=user, text=text) if text is not None else None


def _press(query: CallbackQuery) -> ButtonPressed:
    message = query.message
    thread = message.message_thread_id if isinstance(message, Message) and message.is_topic_message else None
    return ButtonPressed(
        place=ChatLocation(chat=message.chat.id, thread=thread) if message is not None else None,
        user=query.from_user.id,
        query=query.id,
        action=query.data or "",
        message=message.message_id if isinstance(message, Message) else 0,
    )


def _meant(text: str, message: Message, me: User, *, private: bool) -> str | None:
    """What is said to us: without our name; None when it is said to somebody else."""
    found = _COMMAND.match(text)
    if found is not None:
        named = found[2] is not None and found[2][1:].casefold() == (me.username or "").casefold()
        if found[2] is not None and not named:
            return None
        if private or named or found[1].casefold() in COMMANDS or _to_us(message, me):
            return f"/{found[1]}{text[found.end() :]}"
        return None
    if private:
        return text
    if not _to_us(message, me):
        return None
    return re.sub(rf"^\s*@{re.escape(me.username or '')}\b[\s,:]*", "", text, flags=re.IGNORECASE) or text


def _to_us(message: Message, me: User) -> bool:
    """A reply to us, or a mention of us."""
    answered = message.reply_to_message
    if answered is not None and answered.from_user is not None and answered.from_user.id == me.id:
        return True
    mentions = message.parse_entities([MessageEntity.MENTION]) | message.parse_caption_entities(
        [MessageEntity.MENTION]
    )
    return any(name[1:].casefold() == (me.username or "").casefold() for name in mentions.values())


def _has_content(message: Message) -> bool:
    """Something that a person sent, not a notice that somebody joined or a title changed."""
    return message.text is not None or message.effective_attachment is not None
