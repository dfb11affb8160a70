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

import apsw
import msgspec

from foveal.server.database import Database

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS chats (
        face TEXT NOT NULL, chat INTEGER NOT NULL, number INTEGER NOT NULL,
        PRIMARY KEY (face, chat)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS chat_messages (
        face TEXT NOT NULL, key TEXT NOT NULL, chat INTEGER NOT NULL, session TEXT NOT NULL, state TEXT NOT NULL,
        at REAL NOT NULL, PRIMARY KEY (face, key)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS chat_messages_at ON chat_messages(at)",
)
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
        database.create_tables(SCHEMA)
        self._database = database

    async def session(self, platform: str, chat: int) -> str:
        """Return the current session of a chat."""

        def act(connection: apsw.Connection) -> str:
            return chat_session_id(platform, chat, _number(connection, platform, chat))

        return await self._database.read(act)

    async def start_next_session(self, platform: str, chat: int, *, session: str) -> str:
        """Move a chat from `session` to its next one, unless it has left `session`; return the current session."""

        def act(connection: apsw.Connection) -> str:
            number = _number(connection, platform, chat)
            if chat_session_id(platform, chat, number) == session:
                number += 1
                connection.execute(
                    "INSERT OR REPLACE INTO chats (face, chat, number) VALUES (?, ?, ?)",
                    (platform, chat, number),
                )
            return chat_session_id(platform, chat, number)

        return await self._database.write(act)

    async def find_message(self, platform: str, key: str) -> ChatMessage | None:
        """Return the message with a key, or None."""

        def act(connection: apsw.Connection) -> ChatMessage | None:
            sql = "SELECT chat, session, state FROM chat_messages WHERE face = ? AND key = ?"
            row = connection.execute(sql, (platform, key)).fetchone()
            if row is None:
                return None
            return ChatMessage(key=key, chat=row[0], session=row[1], is_done=row[2] == "done")

        return await self._database.read(act)

    async def record_message(self, platform: str, message: ChatMessage, *, now: float) -> None:
        """Record a message whose answer has to be delivered."""

        def act(connection: apsw.Connection) -> None:
            sql = "INSERT OR IGNORE INTO chat_messages VALUES (?, ?, ?, ?, 'open', ?)"
            connection.execute(sql, (platform, message.key, message.chat, message.session, now))

        await self._database.write(act)

    async def record_command(self, platform: str, key: str, *, chat: int, now: float) -> bool:
        """Record a command; return False if it was recorded before."""

        def act(connection: apsw.Connection) -> bool:
            sql = "INSERT OR IGNORE INTO chat_messages VALUES (?, ?, ?, '', 'done', ?)"
            connection.execute(sql, (platform, key, chat, now))
            return connection.changes() == 1

        return await self._database.write(act)

    async def mark_done(self, platform: str, key: str, *, now: float) -> None:
        """Record that the answer was delivered or never will be, and delete expired messages."""

        def act(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE chat_messages SET state = 'done', at = ? WHERE face = ? AND key = ?",
                (now, platform, key),
            )
            connection.execute("DELETE FROM chat_messages WHERE at < ?", (now - CHAT_MESSAGE_TTL_S,))

        await self._database.write(act)

    async def undelivered(self, platform: str, *, now: float) -> list[ChatMessage]:
        """Return messages without a delivered answer, oldest first, not older than two days."""

        def act(connection: apsw.Connection) -> list[ChatMessage]:
            sql = (
                "SELECT key, chat, session FROM chat_messages WHERE face = ? AND state = 'open' AND at >= ?"
                " ORDER BY at, key"
            )
            rows = connection.execute(sql, (platform, now - CHAT_MESSAGE_TTL_S))
            return [ChatMessage(key=key, chat=chat, session=session) for key, chat, session in rows]

        return await self._database.read(act)


def _number(connection: apsw.Connection, platform: str, chat: int) -> int:
    sql = "SELECT number FROM chats WHERE face = ? AND chat = ?"
    row = connection.execute(sql, (platform, chat)).fetchone()
    return 1 if row is None else int(row[0])
