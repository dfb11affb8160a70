"""Which session a chat is in, and which of its messages have been answered.

1. A chat (a face's numeric id) is in one session at a time: `telegram-42`, after `/new` `telegram-42-2`, and so on.
2. A message is taken once by its key. It is `open` until its answer has been delivered, so that a crash in between
   delivers it afterwards; a message that comes again when it is done is passed over.
3. Messages are forgotten after two days: chat apps repeat what they were not told of for one day at the most.
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
KEPT: Final = 48 * 3600.0
"""Seconds for which a message is remembered."""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was taken."""

    key: str
    chat: int
    session: str
    """The session that it is stored in; "" for a command."""
    done: bool = False
    """Its answer has been delivered, or never will be."""


def session_of(face: str, chat: int, number: int = 1) -> str:
    """The id of a chat's session; the number counts from 1."""
    return f"{face}-{chat}" if number == 1 else f"{face}-{chat}-{number}"


def chat_of(face: str, session: str) -> int | None:
    """The chat that a session belongs to; None for a session of no chat."""
    found = re.fullmatch(rf"{re.escape(face)}-(-?\d{{1,19}})(?:-\d+)?", session)
    return int(found[1]) if found else None


class Chats:
    """The chats of all faces, in a database that several processes may share."""

    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def session(self, face: str, chat: int) -> str:
        """The session that a chat is in."""

        def look(connection: apsw.Connection) -> str:
            return session_of(face, chat, _number(connection, face, chat))

        return await self._database.look(look)

    async def leave(self, face: str, chat: int, *, session: str) -> str:
        """Go on to the chat's next session, unless it has left this one already; the session it is in now."""

        def act(connection: apsw.Connection) -> str:
            number = _number(connection, face, chat)
            if session_of(face, chat, number) == session:
                number += 1
                connection.execute(
                    "INSERT OR REPLACE INTO chats (face, chat, number) VALUES (?, ?, ?)", (face, chat, number)
                )
            return session_of(face, chat, number)

        return await self._database.do(act)

    async def message(self, face: str, key: str) -> ChatMessage | None:
        """The message of a key; None when it has not been taken."""

        def look(connection: apsw.Connection) -> ChatMessage | None:
            sql = "SELECT chat, session, state FROM chat_messages WHERE face = ? AND key = ?"
            row = connection.execute(sql, (face, key)).fetchone()
            if row is None:
                return None
            return ChatMessage(key=key, chat=row[0], session=row[1], done=row[2] == "done")

        return await self._database.look(look)

    async def begin(self, face: str, message: ChatMessage, *, now: float) -> None:
        """The message is stored in its session; its answer is to be delivered."""

        def act(connection: apsw.Connection) -> None:
            sql = "INSERT OR IGNORE INTO chat_messages VALUES (?, ?, ?, ?, 'open', ?)"
            connection.execute(sql, (face, message.key, message.chat, message.session, now))

        await self._database.do(act)

    async def once(self, face: str, key: str, *, chat: int, now: float) -> bool:
        """Take a command, which is done as soon as it is taken; whether it is the first time."""

        def act(connection: apsw.Connection) -> bool:
            sql = "INSERT OR IGNORE INTO chat_messages VALUES (?, ?, ?, '', 'done', ?)"
            connection.execute(sql, (face, key, chat, now))
            return connection.changes() == 1

        return await self._database.do(act)

    async def end(self, face: str, key: str, *, now: float) -> None:
        """The answer has been delivered, or never will be."""

        def act(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE chat_messages SET state = 'done', at = ? WHERE face = ? AND key = ?", (now, face, key)
            )
            connection.execute("DELETE FROM chat_messages WHERE at < ?", (now - KEPT,))

        await self._database.do(act)

    async def open(self, face: str, *, now: float) -> list[ChatMessage]:
        """The messages whose answers have not been delivered, oldest first; older than two days, nobody waits."""

        def look(connection: apsw.Connection) -> list[ChatMessage]:
            sql = (
                "SELECT key, chat, session FROM chat_messages WHERE face = ? AND state = 'open' AND at >= ?"
                " ORDER BY at, key"
            )
            rows = connection.execute(sql, (face, now - KEPT))
            return [ChatMessage(key=key, chat=chat, session=session) for key, chat, session in rows]

        return await self._database.look(look)


def _number(connection: apsw.Connection, face: str, chat: int) -> int:
    sql = "SELECT number FROM chats WHERE face = ? AND chat = ?"
    row = connection.execute(sql, (face, chat)).fetchone()
    return 1 if row is None else int(row[0])
