"""Chats of the gateways: current session of each chat, and messages still unanswered.

1. A chat (a numeric id on a platform) is in one session at a time: `telegram-42`, after `/new` `telegram-42-2`, and
   so on.
2. A message is recorded once, by its key. It stays `open` until its answer is delivered, so an answer that a crash
   interrupted is delivered afterwards; a message that arrives again after that is ignored.
3. Messages are deleted after two days: chat platforms repeat unacknowledged messages for at most one day.

The `face` columns hold the platform.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from foveal.server.databases import Database, Transaction

CHAT_MESSAGE_TTL_S: Final = 48 * 3600.0
"""Seconds for which a message is kept."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded message."""

    key: str
    chat: int
    session: str
    """The session that holds the message; "" for a command."""
    is_done: bool = False
    """The answer was delivered, or never will be."""


def chat_session_id(platform: str, chat: int, number: int = 1) -> str:
    """Return the id of a chat's session; `number` counts from 1."""
    return f"{platform}-{chat}" if number == 1 else f"{platform}-{chat}-{number}"


def find_chat(platform: str, session: str) -> int | None:
    """Return the chat that a session belongs to, or None."""
    found = re.fullmatch(rf"{re.escape(platform)}-(-?\d{{1,19}})(?:-\d+)?", session)
    return int(found[1]) if found else None


class Chats:
    """The chats of all platforms, in a database that several processes may share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def session(self, platform: str, chat: int) -> str:
        """Return the current session of a chat."""

        async def act(db: Transaction) -> str:
            return chat_session_id(platform, chat, await _number(db, platform, chat))

        return await self._database.read(act)

    async def start_next_session(self, platform: str, chat: int, *, session: str) -> str:
        """Move a chat from `session` to its next one, unless it has left `session`; return the current session."""

        async def act(db: Transaction) -> str:
            await db.lock(f"chats/{platform}/{chat}")
            number = await _number(db, platform, chat)
            if chat_session_id(platform, chat, number) == session:
                number += 1
                sql = """INSERT INTO chats (face, chat, number) VALUES (?, ?, ?)
                    ON CONFLICT (face, chat) DO UPDATE SET number = excluded.number"""
                await db.execute(sql, platform, chat, number)
            return chat_session_id(platform, chat, number)

        return await self._database.write(act)

    async def find_message(self, platform: str, key: str) -> ChatMessage | None:
        """Return the message with a key, or None."""

        sql = "SELECT chat, session, state FROM chat_messages WHERE face = ? AND key = ?"
        rows = await self._database.read(lambda db: db.fetch(sql, platform, key))
        for chat, session, state in rows:
            return ChatMessage(key=key, chat=chat, session=session, is_done=state == "done")
        return None

    async def record_message(self, platform: str, message: ChatMessage, *, now: float) -> None:
        """Record a message whose answer has to be delivered."""

        values = platform, message.key, message.chat, message.session, "open", now
        await self._database.write(lambda db: db.execute(_INSERT_MESSAGE, *values))

    async def record_command(self, platform: str, key: str, *, chat: int, now: float) -> bool:
        """Record a command; return False if it was recorded before."""

        values = platform, key, chat, "", "done", now
        return await self._database.write(lambda db: db.execute(_INSERT_MESSAGE, *values)) == 1

    async def mark_done(self, platform: str, key: str, *, now: float) -> None:
        """Record that the answer was delivered or never will be, and delete expired messages."""

        async def act(db: Transaction) -> None:
            sql = "UPDATE chat_messages SET state = 'done', at = ? WHERE face = ? AND key = ?"
            await db.execute(sql, now, platform, key)
            if await db.try_lock("chats/deleting"):  # two transactions that delete could wait for each other
                await db.execute("DELETE FROM chat_messages WHERE at < ?", now - CHAT_MESSAGE_TTL_S)

        await self._database.write(act)

    async def undelivered(self, platform: str, *, now: float) -> list[ChatMessage]:
        """Return messages without a delivered answer, oldest first, not older than two days."""

        sql = """SELECT key, chat, session FROM chat_messages WHERE face = ? AND state = 'open' AND at >= ?
            ORDER BY at, key"""
        rows = await self._database.read(lambda db: db.fetch(sql, platform, now - CHAT_MESSAGE_TTL_S))
        return [ChatMessage(key=key, chat=chat, session=session) for key, chat, session in rows]


_INSERT_MESSAGE: Final = """INSERT INTO chat_messages (face, key, chat, session, state, at)
    VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""


async def _number(db: Transaction, platform: str, chat: int) -> int:
    rows = await db.fetch("SELECT number FROM chats WHERE face = ? AND chat = ?", platform, chat)
    return int(rows[0][0]) if rows else 1
