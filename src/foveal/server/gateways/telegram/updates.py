"""Parses Telegram updates: message, button, new id of a group, or nothing for the bot.

1. In a private chat every message is for the bot. In a group it is a message that mentions the bot, replies to it,
   or is one of its commands. Messages of bots and channels and service messages are ignored.
2. Text that a message forwards or answers is quoted: it is never a command, and never the text of the user.
3. A topic of a forum is a place of its own; its topic `General` is the place of the chat.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec
from telegram import (
    CallbackQuery,
    MaybeInaccessibleMessage,
    Message,
    MessageEntity,
    MessageOrigin,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    PhotoSize,
    Update,
    User,
)
from telegram.constants import ChatType, MessageLimit

from foveal.server.chat_records import ChatPlace
from foveal.server.gateways.incoming import EDITS, ChatAuthor, IncomingFile, IncomingMessage, QuotedText
from foveal.server.gateways.place_intake import MessagePiece
from foveal.server.gateways.texts import BOT_COMMANDS

_COMMAND: Final = re.compile(r"/([a-zA-Z0-9_]+)(@\w+)?(?=\s|$)")
MIN_SPLIT_UNITS: Final = 4_000
"""UTF-16 units from which a client may have split a text: it prefers to do so between two lines or words."""
MAX_PHOTO_PIXELS: Final = 1_568
"""The long edge of the photo that is fetched: providers scale larger ones down."""
UNREAD_FIELDS: Final = {
    "voice": "voice messages",
    "audio": "audio files",
    "animation": "videos",
    "video": "videos",
    "video_note": "videos",
    "sticker": "stickers",
    "venue": "locations",
    "location": "locations",
    "contact": "contacts",
    "poll": "polls",
    "dice": "dice",
    "story": "stories",
    "game": "games",
    "paid_media": "paid media",
}
"""Fields of a message with content that the bot does not read, and the names of that content."""


class ButtonPressed(msgspec.Struct, frozen=True, kw_only=True):
    """A pressed button; `place` is None if Telegram no longer says to which message it belongs."""

    place: ChatPlace | None
    user: int
    query: str
    action: str
    message: int = 0
    """The message with the button; 0 if it can no longer be changed."""


class GroupMoved(msgspec.Struct, frozen=True, kw_only=True):
    """A group became a supergroup, which has another id."""

    old: int
    new: int


ParsedUpdate: TypeAlias = MessagePiece | ButtonPressed | GroupMoved | None


def parse_update(update: Update, me: User) -> ParsedUpdate:
    """Return what an update means for the bot; None if it is not for the bot."""
    if update.callback_query is not None:
        return _press(update.callback_query)
    message = update.message or update.edited_message
    if message is not None and message.migrate_to_chat_id is not None:
        return GroupMoved(old=message.chat.id, new=message.migrate_to_chat_id)
    if message is not None and message.migrate_from_chat_id is not None:
        return GroupMoved(old=message.migrate_from_chat_id, new=message.chat.id)
    if message is None or message.from_user is None or message.from_user.is_bot:
        return None
    if message.chat.type not in (ChatType.PRIVATE, ChatType.GROUP, ChatType.SUPERGROUP):
        return None
    key = f"telegram-{update.update_id}"
    if update.edited_message is not None:
        return _edit(message, me, key)
    has_content = message.text is not None or message.effective_attachment is not None
    return _piece(message, me, key) if has_content else None


def _press(query: CallbackQuery) -> ButtonPressed:
    message = query.message
    return ButtonPressed(
        place=_press_place(message) if message is not None else None,
        user=query.from_user.id,
        query=query.id,
        action=query.data or "",
        message=message.message_id if message is not None and message.is_accessible else 0,
    )


def _press_place(message: MaybeInaccessibleMessage) -> ChatPlace | None:
    """Return the place of a button. Of an old message in a forum Telegram does not say the topic."""
    if not message.is_accessible and message.chat.is_forum:
        return None
    topic = message.message_thread_id if isinstance(message, Message) and message.is_topic_message else None
    return ChatPlace(message.chat.id, topic or 0)


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────────────


def _edit(message: Message, me: User, key: str) -> MessagePiece | None:
    """Return an edit as content that is not read. The moves of a live location are no edits of a user."""
    if message.location is not None or not (_is_private(message) or _is_addressed(message, me)):
        return None
    return MessagePiece(message=_message(message, key, text="", unread=(EDITS,)))


def _piece(message: Message, me: User, key: str) -> MessagePiece | None:
    written = message.text or message.caption or ""
    text = _addressed_text(written, message, me)
    if text is None and _COMMAND.match(written):
        return None  # a command of another bot
    is_forward = message.forward_origin is not None
    incoming = _message(
        message,
        key,
        text="" if is_forward else written if text is None else text,
        quotes=_quotes(message, me),
        files=_files(message),
        unread=_unread(message),
    )
    return MessagePiece(
        message=incoming,
        sent_at=message.date.timestamp(),
        joint=_joint(message.text or ""),
        album=message.media_group_id or "",
        is_addressed=text is not None,
    )


def _message(
    message: Message,
    key: str,
    *,
    text: str,
    quotes: tuple[QuotedText, ...] = (),
    files: tuple[IncomingFile, ...] = (),
    unread: tuple[str, ...] = (),
) -> IncomingMessage:
    user = message.from_user
    assert user is not None
    is_private = _is_private(message)
    topic = message.message_thread_id if message.is_topic_message else None
    return IncomingMessage(
        key=key,
        place=ChatPlace(message.chat.id, topic or 0),
        user=user.id,
        text=text,
        reply_to=0 if is_private else message.message_id,
        place_name="" if is_private else _place_name(message),
        speaker=None if is_private else ChatAuthor(user.full_name, user.id),
        quotes=quotes,
        files=files,
        unread=unread,
    )


def _place_name(message: Message) -> str:
    """Return the names of the group and the topic. Telegram names the topic in messages that reply to no other."""
    group = message.chat.title or ""
    if not message.is_topic_message:
        return group
    created = message.reply_to_message.forum_topic_created if message.reply_to_message is not None else None
    return f"{group} / {created.name if created is not None else f'topic {message.message_thread_id}'}"


def _is_private(message: Message) -> bool:
    return message.chat.type == ChatType.PRIVATE


def _joint(text: str) -> str | None:
    """Return what joins a text to its next piece; None if a client has not split it."""
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    if units < MIN_SPLIT_UNITS or _COMMAND.match(text):
        return None
    # A full text is cut anywhere, one unit earlier before a character of two; Telegram removes a blank at the cut.
    return "" if units >= MessageLimit.MAX_TEXT_LENGTH - 1 else "\n"


def _addressed_text(text: str, message: Message, me: User) -> str | None:
    """Return the text without the name of the bot; None if it is not addressed to the bot."""
    is_private = _is_private(message)
    found = None if message.forward_origin is not None else _COMMAND.match(text)
    if found is not None:
        named = found[2] is not None and found[2][1:].casefold() == (me.username or "").casefold()
        if found[2] is not None and not named:
            return None
        if is_private or named or found[1].casefold() in BOT_COMMANDS or _is_addressed(message, me):
            return f"/{found[1]}{text[found.end() :]}"
        return None
    if is_private:
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


# ── Quotes ───────────────────────────────────────────────────────────────────────────────────────────────


def _quotes(message: Message, me: User) -> tuple[QuotedText, ...]:
    """Return the text that a message answers, and the text that it forwards."""
    reply = _reply(message, me)
    origin = message.forward_origin
    if origin is None:
        return (reply,) if reply is not None else ()
    text = message.text or message.caption or _content_name(message)
    forward = QuotedText(kind="forward", text=text, author=_origin_author(origin))
    return (reply, forward) if reply is not None else (forward,)


def _reply(message: Message, me: User) -> QuotedText | None:
    answered, elsewhere = message.reply_to_message, message.external_reply
    quoted = message.quote.text if message.quote is not None else ""
    if answered is not None and answered.forum_topic_created is None:
        text = quoted or answered.text or answered.caption or ""
        if answered.text is None:  # the quote says what the caption belongs to
            text = f"{_content_name(answered)} {text}".rstrip()
        is_own = answered.from_user is not None and answered.from_user.id == me.id
        return QuotedText(
            kind="reply", text=text, author=None if is_own else _sender(answered), is_own=is_own
        )
    if elsewhere is not None:
        text = quoted or "(a message of another chat)"
        return QuotedText(kind="reply", text=text, author=_origin_author(elsewhere.origin))
    return None


def _sender(message: Message) -> ChatAuthor | None:
    if message.sender_chat is not None:
        return ChatAuthor(message.sender_chat.effective_name or "", message.sender_chat.id)
    user = message.from_user
    return ChatAuthor(user.full_name, user.id) if user is not None else None


def _origin_author(origin: MessageOrigin) -> ChatAuthor | None:
    match origin:
        case MessageOriginUser():
            return ChatAuthor(origin.sender_user.full_name, origin.sender_user.id)
        case MessageOriginHiddenUser():
            return ChatAuthor(origin.sender_user_name)
        case MessageOriginChat():
            return ChatAuthor(origin.sender_chat.effective_name or "", origin.sender_chat.id)
        case MessageOriginChannel():
            return ChatAuthor(origin.chat.effective_name or "", origin.chat.id)
        case _:
            return None


def _content_name(message: Message) -> str:
    """Return what a message without text is, in brackets."""
    if message.photo:
        return "(photo)"
    kinds = _unread(message)
    return f"({kinds[0]})" if kinds else "(file)" if message.document is not None else "(no text)"


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────


def _files(message: Message) -> tuple[IncomingFile, ...]:
    if message.photo:
        photo = _fitting_photo(message.photo)
        name = f"photo-{message.message_id}.jpg"
        size = photo.file_size or 0
        return (IncomingFile(name=name, mime="image/jpeg", size=size, reference=photo.file_id),)
    document = message.document
    if document is None or message.animation is not None:
        return ()
    return (
        IncomingFile(
            name=document.file_name or "file",
            mime=(document.mime_type or "").lower().partition(";")[0],
            size=document.file_size or 0,
            reference=document.file_id,
        ),
    )


def _fitting_photo(sizes: tuple[PhotoSize, ...]) -> PhotoSize:
    """Return the largest size that providers do not scale down; without one, the smallest."""
    by_size = sorted(sizes, key=lambda size: max(size.width, size.height))
    fitting = [size for size in by_size if max(size.width, size.height) <= MAX_PHOTO_PIXELS]
    return fitting[-1] if fitting else by_size[0]


def _unread(message: Message) -> tuple[str, ...]:
    found = [name for field, name in UNREAD_FIELDS.items() if getattr(message, field, None)]
    return tuple(found[:1])  # a venue also has a location
