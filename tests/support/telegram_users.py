"""What the users of the Telegram stand-in send: messages, files, edits, pressed buttons.

    api.hear("Hello", user=42)                                     # the id of a private chat is the id of its user
    api.hear(f"@{NAME} hi", user=42, chat=-100, topic=7)           # a forum topic; chats below 0 are groups
    api.hear("Really?", user=42, reply_to=message, quote="sure")   # a message of the bot, or an update
    api.hear("What is this?", user=42, **api.photo(png))           # text of a message with a file is its caption
    api.hear(None, user=42, album="a", **api.photo(png))           # messages with one name are one album
    api.paste("x" * 10_000, user=42)                               # the client splits it into three messages

Each message is a minute younger than the one before; the messages of an album or of a pasted text have one date.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, Final

import msgspec

Json = dict[str, Any]

NAME: Final = "foveal_bot"
ME: Final = {"id": 110201543, "is_bot": True, "first_name": "Foveal", "username": NAME}
MESSAGE_UNITS: Final = 4096
"""UTF-16 units of one message."""
GENERAL: Final = 1
"""The topic of a forum whose messages do not name it."""
SECONDS_BETWEEN_MESSAGES: Final = 60
_MEDIA: Final = frozenset(("photo", "document", "voice", "audio", "video", "animation", "video_note"))
_QUOTED: Final = ("message_id", "date", "chat", "from", "text", "entities", "caption", "caption_entities")
_QUOTED_MEDIA: Final = ("photo", "document", "voice", "sticker", "message_thread_id", "is_topic_message")
_ENTITY: Final = re.compile(r"(?<!\w)(?:@(?P<mention>\w{4,32})|/(?P<command>\w{1,32}(?:@\w+)?))")


class Topic(msgspec.Struct):
    """A topic of a forum."""

    name: str = "Topic"
    is_closed: bool = False


class StoredFile(msgspec.Struct):
    """A file that a user has sent."""

    data: bytes
    size: int
    """The size that Telegram reports, which may be that of a larger file than `data`."""
    path: str


class TelegramUsers:
    """Makes the updates that users cause."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """First names of users; the others are called A."""
        self.topics: dict[int, dict[int, Topic]] = {}
        """The topics of each forum; a topic that a user writes in exists."""
        self.files: dict[str, StoredFile] = {}
        self.expired_queries: set[str] = set()
        self.now = 1_760_000_000
        """The date of the newest message."""
        self._message_ids = 1_000
        self._albums: dict[str, int] = {}
        self._queries: set[str] = set()

    @abstractmethod
    def give(self, update: Json) -> Json:
        """Queue an update for the bot."""

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def hear(
        self,
        text: str | None,
        *,
        user: int,
        chat: int | None = None,
        topic: int | None = None,
        reply_to: Json | None = None,
        quote: str = "",
        forward: Json | None = None,
        album: str = "",
        **fields: Any,
    ) -> Json:
        """Send a message as a user and return the update; `fields` are further fields of the message."""
        chat = user if chat is None else chat
        if fields.get("is_topic_message"):
            topic = fields["message_thread_id"]
        self._pass_time(album)
        content = _content(text, fields)
        message: Json = {
            "message_id": self._new_message_id(),
            "date": self.now,
            "chat": self.chat_of(chat, topic=topic),
            "from": self.user_of(user),
            **self._place(chat, topic, reply_to),
            **content,
            **({"forward_origin": forward} if forward else {}),
            **({"media_group_id": album} if album else {}),
            **fields,
        }
        if quote:
            message["quote"] = quote_of(quote, message.get("reply_to_message", {}).get("text", quote))
        return self.give({"message": message})

    def paste(self, text: str, *, user: int, **place: Any) -> list[Json]:
        """Send a text as a client does that splits it: several messages with one date and consecutive ids."""
        date = self.now + SECONDS_BETWEEN_MESSAGES
        return [self.hear(part, user=user, date=date, **place) for part in parts(text)]

    def edit(self, update: Json, text: str | None = None, **fields: Any) -> Json:
        """Change a message as its user."""
        message = (
            update["message"] | ({} if text is None else _content(text, fields)) | {"edit_date": self.now + 1}
        )
        return self.give({"edited_message": message | fields})

    def move(self, update: Json, latitude: float, longitude: float) -> Json:
        """Change a live location, as a phone does while it moves."""
        return self.edit(update, location=update["message"]["location"] | _position(latitude, longitude))

    def press(self, data: str, *, user: int, message: Json | None, expired: bool = False) -> Json:
        """Press a button of a message of the bot; an expired press can no longer be answered."""
        query = f"q{self._new_message_id()}"
        (self.expired_queries if expired else self._queries).add(query)
        press: Json = {"id": query, "from": self.user_of(user), "chat_instance": "1", "data": data}
        if message is not None:
            press["message"] = message
        return self.give({"callback_query": press})

    # ── files and positions: fields for `hear` ───────────────────────────────────────────────────────

    def photo(self, data: bytes, *, width: int = 1280, height: int = 960, size: int | None = None) -> Json:
        """Return a photo in three sizes, smallest first; only the largest has the whole data."""
        sizes = []
        for part in (14, 4, 1):
            is_largest = part == 1
            stored = data if is_largest else data[: len(data) // part]
            kept = self._keep(stored, "photos/{}.jpg", size=size if is_largest else None)
            sizes.append(kept | {"width": width // part, "height": height // part})
        return {"photo": sizes}

    def document(self, name: str, data: bytes, *, mime: str = "text/plain", size: int | None = None) -> Json:
        """Return a document; `size` is the size that Telegram reports, if it is not that of the data."""
        kept = self._keep(data, "documents/{}." + name.rpartition(".")[2], size=size)
        return {"document": kept | {"file_name": name, "mime_type": mime}}

    def voice(self, data: bytes = b"OggS", *, seconds: int = 3) -> Json:
        """Return a voice message."""
        kept = self._keep(data, "voice/{}.oga")
        return {"voice": kept | {"duration": seconds, "mime_type": "audio/ogg"}}

    def sticker(self, emoji: str = "👍") -> Json:
        """Return a sticker."""
        shape = {"type": "regular", "width": 512, "height": 512, "is_animated": False, "is_video": False}
        return {"sticker": self._keep(b"RIFF", "stickers/{}.webp") | shape | {"emoji": emoji}}

    def location(self, latitude: float = 48.2, longitude: float = 16.37, *, live_s: int = 0) -> Json:
        """Return a position, which can move for `live_s` seconds."""
        return {"location": _position(latitude, longitude) | ({"live_period": live_s} if live_s else {})}

    # ── forums ───────────────────────────────────────────────────────────────────────────────────────

    def open_topic(self, chat: int, topic: int, name: str = "Topic") -> None:
        """Create a topic, or open it again."""
        self.topics.setdefault(chat, {})[topic] = Topic(name)

    def close_topic(self, chat: int, topic: int) -> None:
        """Close a topic: the bot can no longer write in it."""
        self.topics.setdefault(chat, {}).setdefault(topic, Topic()).is_closed = True

    def delete_topic(self, chat: int, topic: int) -> None:
        del self.topics[chat][topic]

    # ── parts of messages ────────────────────────────────────────────────────────────────────────────

    def user_of(self, user: int) -> Json:
        return {"id": user, "is_bot": False, "first_name": self.names.get(user, "A")}

    def chat_of(self, chat: int, *, topic: int | None = None) -> Json:
        if chat > 0:
            return {"id": chat, "type": "private", "first_name": self.names.get(chat, "A")}
        forum = {"is_forum": True} if topic is not None or chat in self.topics else {}
        return {"id": chat, "type": "supergroup", "title": "Group"} | forum

    def _place(self, chat: int, topic: int | None, reply_to: Json | None) -> Json:
        """Return topic and answered message.

        A message of a topic replies to the message that created the topic, unless it replies to another one. A
        reply elsewhere has the id of a thread of replies, which is no topic.
        """
        answered = None if reply_to is None else _quoted(reply_to.get("message", reply_to))
        if topic is not None and topic != GENERAL:
            known = self.topics.setdefault(chat, {}).setdefault(topic, Topic())
            created = {"message_id": topic, "date": 1_750_000_000, "chat": self.chat_of(chat)}
            created |= {"from": self.user_of(1), "message_thread_id": topic, "is_topic_message": True}
            created |= {"forum_topic_created": {"name": known.name, "icon_color": 7322096}}
            place = {"message_thread_id": topic, "is_topic_message": True}
            return place | {"reply_to_message": answered or created}
        if topic == GENERAL:
            self.topics.setdefault(chat, {})
        if answered is None:
            return {}
        return {"reply_to_message": answered} | (
            {"message_thread_id": answered["message_id"]} if chat < 0 else {}
        )

    def _keep(self, data: bytes, path: str, *, size: int | None = None) -> Json:
        name = f"AgAD{len(self.files)}"
        size = len(data) if size is None else size
        self.files[name] = StoredFile(data, size, path.format(f"file_{len(self.files)}"))
        return {"file_id": name, "file_unique_id": f"u{name}", "file_size": size}

    def _pass_time(self, album: str) -> None:
        """Let a minute pass, unless the album of the message has begun."""
        if album not in self._albums:
            self.now += SECONDS_BETWEEN_MESSAGES
        if album:
            self.now = self._albums.setdefault(album, self.now)

    def _new_message_id(self) -> int:
        self._message_ids += 1
        return self._message_ids


def origin(kind: str, name: str = "Eve", *, date: int = 1_750_000_000) -> Json:
    """Return where a forwarded message comes from: `user`, `hidden_user`, `chat` or `channel`."""
    group = {"id": -1_009, "type": "channel" if kind == "channel" else "supergroup", "title": name}
    fields: dict[str, Json] = {
        "user": {"sender_user": {"id": 99, "is_bot": False, "first_name": name}},
        "hidden_user": {"sender_user_name": name},
        "chat": {"sender_chat": group},
        "channel": {"chat": group, "message_id": 5, "author_signature": "Editor"},
    }
    return {"type": kind, "date": date} | fields[kind]


def external_reply(text: str, *, kind: str = "user", name: str = "Eve") -> Json:
    """Return the arguments of `hear` for a reply to a message of another chat; only the quoted text is known."""
    return {"external_reply": {"origin": origin(kind, name)}, "quote": text}


def quote_of(quote: str, text: str) -> Json:
    """Return a quoted part of a text."""
    position = units(text.partition(quote)[0]) if quote in text else 0
    return {"text": quote, "position": position, "is_manual": True}


def units(text: str) -> int:
    """Return the length of a text in UTF-16 units, as the Bot API counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def parts(text: str, *, limit: int = MESSAGE_UNITS) -> list[str]:
    """Return a text in parts of at most `limit` UTF-16 units."""
    found, part, length = [], "", 0
    for character in text:
        if length + units(character) > limit:
            found.append(part)
            part, length = "", 0
        part += character
        length += units(character)
    return [*found, part]


def _content(text: str | None, fields: Json) -> Json:
    """Return a text, or the caption of a file, with the mentions and commands that Telegram finds in it."""
    if text is None:
        return {}
    name = "caption" if _MEDIA & fields.keys() else "text"
    entities = [
        {
            "type": "mention" if found["mention"] else "bot_command",
            "offset": units(text[: found.start()]),
            "length": units(found[0]),
        }
        for found in _ENTITY.finditer(text)
    ]
    entity_field = "entities" if name == "text" else "caption_entities"
    return {name: text} | ({entity_field: entities} if entities else {})


def _quoted(message: Json) -> Json:
    """Return a message as another one contains it: without the message that it answers."""
    return {name: message[name] for name in (*_QUOTED, *_QUOTED_MEDIA) if name in message}


def _position(latitude: float, longitude: float) -> Json:
    return {"latitude": latitude, "longitude": longitude}
