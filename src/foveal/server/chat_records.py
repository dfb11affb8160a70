"""Chats of the gateways: current session of each chat, unanswered messages, notices.

1. A chat, or a topic in it, is in one session at a time: `telegram-42`, after `/new` `telegram-42-2`, and so on;
   topic 7 of the chat -100 is in `telegram--100.7`.
2. A message is recorded once, by its key. It stays `open` until its answer is delivered, so an answer that a crash
   interrupted is delivered afterwards, in the place where the message was written and from the first part that was
   not delivered; a message that arrives again after that is ignored.
3. Messages that are pieces of one message are recorded before that message is stored (`join_pieces`), so that they
   are the same pieces when they arrive again after a crash. `piece_of` is the key of the first piece; a row without
   a session is no message yet.
4. Messages are deleted two days after their answer: chat platforms repeat unacknowledged messages for at most one
   day. An answer that could not be delivered for two days is given up.
5. An answer to a user who has blocked the bot is `kept`: it is offered when the user writes again, for a week.
6. A group that became a supergroup has a new id and keeps its sessions, named after the old id (`record_move`).
7. Notices that a place gets only once in a while are recorded with their time (`untold_notices`).

The `face` columns hold the platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from foveal.server.chat_questions import delete_questions
from foveal.server.databases import Database, Transaction
from foveal.server.inbox import DONE_KEY_TTL_S

CHAT_MESSAGE_TTL_S: Final = 48 * 3600.0
"""Seconds for which a message is kept."""
MAX_KEPT_ANSWERS: Final = 20
"""Answers that are kept for a user who has blocked the bot, the newest."""


class ChatPlace(msgspec.Struct, frozen=True):
    """A conversation on a platform: a chat, or a topic in it."""

    chat: int
    topic: int = 0
    """The topic of a forum; 0 for the chat itself."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded message."""

    key: str
    place: ChatPlace
    session: str
    """The session that holds the message; "" for a command."""
    reply_to: int = 0
    """The message on the platform that the answer replies to; 0 for none."""
    parts: int = 0
    """How many parts of the answer were delivered."""
    is_done: bool = False
    """The answer was delivered, or never will be."""
    at: float = 0.0
    """When the message was recorded, or its answer was delivered."""
    author: int = 0
    """The user who wrote it; 0 if no user did."""
    place_name: str = ""
    """What users call the place; "" for a private chat."""


def chat_session_id(platform: str, place: ChatPlace, number: int = 1) -> str:
    """Return the id of a place's session; `number` counts from 1."""
    topic = f".{place.topic}" if place.topic else ""
    return f"{platform}-{place.chat}{topic}" + (f"-{number}" if number > 1 else "")


def find_place(platform: str, session: str) -> ChatPlace | None:
    """Return the place that a session belongs to, or None."""
    found = re.fullmatch(rf"{re.escape(platform)}-(-?\d{{1,19}})(?:\.(\d{{1,19}}))?(?:-\d+)?", session)
    return ChatPlace(int(found[1]), int(found[2] or 0)) if found else None


async def current_session(db: Transaction, platform: str, session: str) -> str:
    """Return the session that a chat is in now, given any of its sessions; others are returned as they are."""
    place = find_place(platform, session)
    number = None if place is None else await _find_number(db, platform, place)
    return session if place is None or number is None else chat_session_id(platform, place, number)


class Chats:
    """The chats of all platforms, in a database that several processes may share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def session(self, platform: str, place: ChatPlace) -> str:
        """Return the current session of a place."""

        async def act(db: Transaction) -> str:
            origin = await _origin(db, platform, place)
            return chat_session_id(platform, origin, await _number(db, platform, origin))

        return await self._database.read(act)

    async def start_next_session(self, platform: str, place: ChatPlace, *, session: str) -> str:
        """Move a place from `session` to its next one, unless it has left `session`; return the current session."""

        async def act(db: Transaction) -> str:
            origin = await _origin(db, platform, place)
            await db.lock(f"chats/{platform}/{origin.chat}/{origin.topic}")
            number = await _number(db, platform, origin)
            if chat_session_id(platform, origin, number) == session:
                number += 1
                await _set_number(db, platform, origin, number)
            return chat_session_id(platform, origin, number)

        return await self._database.write(act)

    async def record_move(self, platform: str, *, old: int, new: int) -> None:
        """Record that a group has a new id: its sessions are those of the old one."""
        sql = """INSERT INTO chat_places (face, chat, topic, number, moved_from) VALUES (?, ?, 0, 1, ?)
            ON CONFLICT (face, chat, topic) DO UPDATE SET moved_from = excluded.moved_from"""
        await self._database.write(lambda db: db.execute(sql, platform, new, old), repeatable=True)

    async def find_message(self, platform: str, key: str) -> ChatMessage | None:
        """Return the message with a key, or None."""
        sql = f"""SELECT {_MESSAGE_COLUMNS} FROM chat_messages
            WHERE face = ? AND key = ? AND NOT (piece_of = key AND session = '')"""
        rows = await self._database.read(lambda db: db.fetch(sql, platform, key))
        return _message(*rows[0]) if rows else None

    async def record_message(self, platform: str, message: ChatMessage, *, now: float) -> None:
        """Record a message whose answer has to be delivered."""
        await self._insert(platform, message, state="open", now=now)

    async def record_command(self, platform: str, key: str, *, place: ChatPlace, now: float) -> bool:
        """Record a command; return False if it was recorded before."""
        command = ChatMessage(key=key, place=place, session="")
        return await self._insert(platform, command, state="done", now=now) == 1

    async def _insert(self, platform: str, message: ChatMessage, *, state: str, now: float) -> int:
        place = message.place
        values = (
            platform,
            message.key,
            place.chat,
            place.topic,
            message.reply_to,
            message.session,
            state,
            now,
            message.author,
            message.place_name,
        )
        sql = """INSERT INTO chat_messages
            (face, key, chat, topic, reply_to, session, state, at, author, place_name)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (face, key) DO UPDATE SET
            reply_to = excluded.reply_to, session = excluded.session, state = excluded.state, at = excluded.at,
            author = excluded.author, place_name = excluded.place_name
            WHERE chat_messages.piece_of <> '' AND chat_messages.session = ''"""
        return await self._database.write(lambda db: db.execute(sql, *values))

    async def join_pieces(
        self, platform: str, keys: Sequence[str], *, place: ChatPlace, now: float
    ) -> list[str]:
        """Decide which messages are one message with the key of the first, record that, and return their keys.

        The decision is made once: a later call with the same first message returns it again. A message that was
        recorded before is not joined.
        """
        first = keys[0]

        async def act(db: Transaction) -> list[str]:
            await db.lock(f"chats/{platform}/{place.chat}/{place.topic}")
            marks = ", ".join("?" * len(keys))
            sql = f"SELECT key, piece_of, session FROM chat_messages WHERE face = ? AND key IN ({marks})"
            known = {key: (whole, session) for key, whole, session in await db.fetch(sql, platform, *keys)}
            if first in known:
                # A piece that has not arrived again is not waited for: it becomes a message of its own.
                sql = f"""DELETE FROM chat_messages WHERE face = ? AND piece_of = ? AND session = ''
                    AND key NOT IN ({marks})"""
                if known[first] == (first, ""):
                    await db.execute(sql, platform, first, *keys)
                return [key for key in keys if key == first or known.get(key) == (first, "")]
            pieces = [key for key in keys if key not in known]
            sql = """INSERT INTO chat_messages (face, key, chat, topic, session, state, at, piece_of)
                VALUES (?, ?, ?, ?, '', 'done', ?, ?)"""
            rows = [(platform, key, place.chat, place.topic, now, first) for key in pieces]
            await db.execute_many(sql, rows)
            return pieces

        return await self._database.write(act)

    async def forget_message(self, platform: str, key: str) -> None:
        """Delete the record of a message that was not stored, so that it is accepted when it arrives again."""

        async def act(db: Transaction) -> None:
            sql = "DELETE FROM chat_messages WHERE face = ? AND key = ? AND state = 'open' AND piece_of = ''"
            await db.execute(sql, platform, key)
            sql = """UPDATE chat_messages SET session = '', state = 'done'
                WHERE face = ? AND key = ? AND state = 'open'"""
            await db.execute(sql, platform, key)  # a first piece: the others are recorded and stay its pieces

        await self._database.write(act, repeatable=True)

    async def record_parts(self, platform: str, key: str, *, parts: int) -> None:
        """Record how many parts of an answer were delivered."""
        sql = "UPDATE chat_messages SET parts = ? WHERE face = ? AND key = ?"
        await self._database.write(lambda db: db.execute(sql, parts, platform, key), repeatable=True)

    async def mark_done(self, platform: str, key: str, *, now: float) -> None:
        """Record that the answer was delivered or never will be, and delete expired messages."""

        async def act(db: Transaction) -> None:
            sql = "UPDATE chat_messages SET state = 'done', at = ? WHERE face = ? AND key = ?"
            await db.execute(sql, now, platform, key)
            if await db.try_lock("chats/deleting"):  # two transactions that delete could wait for each other
                sql = "DELETE FROM chat_messages WHERE state = 'done' AND at < ?"
                await db.execute(sql, now - CHAT_MESSAGE_TTL_S)
                sql = "DELETE FROM chat_messages WHERE state = 'kept' AND at < ?"
                await db.execute(sql, now - DONE_KEY_TTL_S)
                await db.execute("DELETE FROM chat_notices WHERE at < ?", now - CHAT_MESSAGE_TTL_S)

        await self._database.write(act)

    async def undelivered(self, platform: str, *, now: float) -> list[ChatMessage]:
        """Return messages without a delivered answer, oldest first, not older than two days."""
        sql = f"""SELECT {_MESSAGE_COLUMNS} FROM chat_messages WHERE face = ? AND state = 'open' AND at >= ?
            ORDER BY at, length(key), key"""
        rows = await self._database.read(lambda db: db.fetch(sql, platform, now - CHAT_MESSAGE_TTL_S))
        return [_message(*row) for row in rows]

    async def keep_answer(self, platform: str, message: ChatMessage) -> None:
        """Keep an answer whose user has blocked the bot, and the newest ones before it."""
        place = message.place

        async def act(db: Transaction) -> None:
            sql = "UPDATE chat_messages SET state = 'kept' WHERE face = ? AND key = ?"
            await db.execute(sql, platform, message.key)
            sql = """UPDATE chat_messages SET state = 'done' WHERE face = ? AND key IN (
                SELECT key FROM chat_messages WHERE face = ? AND chat = ? AND topic = ? AND state = 'kept'
                ORDER BY at DESC, length(key) DESC, key DESC LIMIT 1000 OFFSET ?)"""
            await db.execute(sql, platform, platform, place.chat, place.topic, MAX_KEPT_ANSWERS)

        await self._database.write(act, repeatable=True)

    async def kept_answers(self, platform: str, place: ChatPlace, *, now: float) -> list[ChatMessage]:
        """Return the messages of a place whose answers are kept, oldest first, as long as the inbox knows them."""
        sql = f"""SELECT {_MESSAGE_COLUMNS} FROM chat_messages
            WHERE face = ? AND chat = ? AND topic = ? AND state = 'kept' AND at >= ?
            ORDER BY at, length(key), key"""
        values = (platform, place.chat, place.topic, now - DONE_KEY_TTL_S)
        return [_message(*row) for row in await self._database.read(lambda db: db.fetch(sql, *values))]

    async def give_up_expired(self, platform: str, *, now: float) -> int:
        """Record that answers which could not be delivered for two days never will be; return their number."""
        sql = "UPDATE chat_messages SET state = 'done', at = ? WHERE face = ? AND state = 'open' AND at < ?"
        values = (now, platform, now - CHAT_MESSAGE_TTL_S)
        return await self._database.write(lambda db: db.execute(sql, *values))

    async def forget_session(self, platform: str, session: str) -> None:
        """Delete what is known of the users of a session that is deleted. The keys of its messages stay, so that
        none is taken for a new one when it arrives again."""

        async def act(db: Transaction) -> None:
            await delete_questions(db, platform, session)
            sql = """UPDATE chat_messages SET author = 0, place_name = '',
                state = CASE state WHEN 'kept' THEN 'done' ELSE state END WHERE face = ? AND session = ?"""
            await db.execute(sql, platform, session)

        await self._database.write(act, repeatable=True)

    async def untold_notices(
        self, platform: str, place: ChatPlace, notices: Iterable[str], *, now: float, interval_s: float
    ) -> list[str]:
        """Return the notices that a place has not got within the interval; they count as told from now on."""
        wanted = list(dict.fromkeys(notices))

        async def act(db: Transaction) -> list[str]:
            sql = """INSERT INTO chat_notices (face, chat, topic, notice, at) VALUES (?, ?, ?, ?, ?)
                ON CONFLICT (face, chat, topic, notice) DO UPDATE SET at = excluded.at WHERE chat_notices.at <= ?"""
            row = (platform, place.chat, place.topic)
            return [notice for notice in wanted if await db.execute(sql, *row, notice, now, now - interval_s)]

        return await self._database.write(act) if wanted else []

    async def forget_notice(self, platform: str, place: ChatPlace, notice: str) -> None:
        """Let a place get a notice again, because its cause is gone."""
        sql = "DELETE FROM chat_notices WHERE face = ? AND chat = ? AND topic = ? AND notice = ?"
        values = (platform, place.chat, place.topic, notice)
        await self._database.write(lambda db: db.execute(sql, *values), repeatable=True)


_MESSAGE_COLUMNS: Final = "key, chat, topic, reply_to, session, parts, state, at, author, place_name"


def _message(key: Any, chat: Any, topic: Any, *values: Any) -> ChatMessage:
    reply_to, session, parts, state, at, author, place_name = values
    return ChatMessage(
        key=key,
        place=ChatPlace(chat, topic),
        session=session,
        reply_to=reply_to,
        parts=parts,
        is_done=state != "open",
        at=at,
        author=author,
        place_name=place_name,
    )


async def _origin(db: Transaction, platform: str, place: ChatPlace) -> ChatPlace:
    """Return the place that the sessions of a place are named after: before it became a supergroup."""
    sql = "SELECT moved_from FROM chat_places WHERE face = ? AND chat = ? AND topic = 0"
    rows = [] if place.topic else await db.fetch(sql, platform, place.chat)
    return ChatPlace(rows[0][0]) if rows and rows[0][0] is not None else place


async def _set_number(db: Transaction, platform: str, place: ChatPlace, number: int) -> None:
    sql = """INSERT INTO chat_places (face, chat, topic, number) VALUES (?, ?, ?, ?)
        ON CONFLICT (face, chat, topic) DO UPDATE SET number = excluded.number"""
    await db.execute(sql, platform, place.chat, place.topic, number)


async def _number(db: Transaction, platform: str, place: ChatPlace) -> int:
    return await _find_number(db, platform, place) or 1


async def _find_number(db: Transaction, platform: str, place: ChatPlace) -> int | None:
    sql = "SELECT number FROM chat_places WHERE face = ? AND chat = ? AND topic = ?"
    rows = await db.fetch(sql, platform, place.chat, place.topic)
    return int(rows[0][0]) if rows else None
