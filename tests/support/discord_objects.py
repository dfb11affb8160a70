"""JSON objects of the Discord stand-in: users, guild, channels, threads, messages, attachments."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

BOT: Final = 900
APPLICATION: Final = 901
GUILD: Final = 5_000
CHANNEL: Final = 5_001
"""A text channel of the guild."""
ROLE: Final = 5_002
"""The role that Discord made for the bot."""
DM: Final = 6_000
"""The direct channel of user 7; the channel of another user is `DM` + user id."""
OWNER: Final = 7
TIMESTAMP: Final = "2026-01-01T00:00:00+00:00"
REPLY: Final = 19
"""Type of a message that replies to another one."""
_SNAPSHOT: Final = (
    "content", "timestamp", "edited_timestamp", "attachments", "embeds", "mentions", "mention_roles", "type"
)  # fmt: skip


def direct_channel(user: int) -> int:
    return DM if user == OWNER else DM + user


def user_object(id: int, *, bot: bool = False, name: str = "") -> Json:
    """Return a user; `name` is the name that others see."""
    return {
        "id": str(id),
        "username": f"user{id}",
        "discriminator": "0",
        "global_name": name or f"user{id}",
        "avatar": None,
        "bot": bot,
    }


def member_object() -> Json:
    return {"roles": [], "joined_at": TIMESTAMP, "deaf": False, "mute": False, "flags": 0}


def message_object(id: int, text: str, channel: int, author: Json) -> Json:
    return {
        "id": str(id),
        "channel_id": str(channel),
        "author": author,
        "content": text,
        "timestamp": TIMESTAMP,
        "edited_timestamp": None,
        "tts": False,
        "mention_everyone": False,
        "mentions": [],
        "mention_roles": [],
        "attachments": [],
        "embeds": [],
        "pinned": False,
        "type": 0,
    }


def reply_fields(message: Json) -> Json:
    """Return the fields by which a message replies to another one."""
    return {"type": REPLY, "message_reference": _reference(message, 0), "referenced_message": message}


def forward_fields(message: Json) -> Json:
    """Return the fields of a forwarded message, which has no text of its own and does not name the author."""
    snapshot = {name: message[name] for name in _SNAPSHOT}
    return {"message_reference": _reference(message, 1), "message_snapshots": [{"message": snapshot}]}


def _reference(message: Json, kind: int) -> Json:
    guild = {"guild_id": message["guild_id"]} if "guild_id" in message else {}
    return {"type": kind, "message_id": message["id"], "channel_id": message["channel_id"]} | guild


def channel_object() -> Json:
    return {"id": str(CHANNEL), "type": 0, "name": "room", "position": 0, "permission_overwrites": []} | {
        "guild_id": str(GUILD),
        "parent_id": None,
        "nsfw": False,
    }


def thread_object(id: int, name: str, *, archived: bool = False, locked: bool = False) -> Json:
    """Return a public thread of the channel."""
    state = {
        "archived": archived,
        "locked": locked,
        "auto_archive_duration": 1440,
        "archive_timestamp": TIMESTAMP,
    }
    return {
        "id": str(id),
        "type": 11,
        "name": name,
        "guild_id": str(GUILD),
        "parent_id": str(CHANNEL),
        "owner_id": str(OWNER),
        "message_count": 0,
        "member_count": 1,
        "thread_metadata": state,
    }


def guild_object(threads: list[Json]) -> Json:
    empty: Json = {name: [] for name in ("emojis", "stickers", "features", "voice_states", "presences")}
    role = {
        "id": str(GUILD),
        "name": "@everyone",
        "color": 0,
        "hoist": False,
        "position": 0,
        "permissions": "0",
        "managed": False,
        "mentionable": False,
        "flags": 0,
    }
    return empty | {
        "id": str(GUILD),
        "name": "guild",
        "owner_id": str(OWNER),
        "afk_timeout": 300,
        "verification_level": 0,
        "default_message_notifications": 0,
        "explicit_content_filter": 0,
        "mfa_level": 0,
        "nsfw_level": 0,
        "premium_tier": 0,
        "preferred_locale": "en-US",
        "member_count": 2,
        "system_channel_flags": 0,
        "roles": [role, role | {"id": str(ROLE), "name": "bot", "tags": {"bot_id": str(BOT)}}],
        "members": [],
        "channels": [channel_object()],
        "threads": threads,
        "large": False,
        "unavailable": False,
    }


def bot() -> Json:
    return user_object(BOT, bot=True)


def mention_of_bot() -> Json:
    return bot() | {"member": member_object()}
