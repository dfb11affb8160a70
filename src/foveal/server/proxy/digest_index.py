"""Digest index: which session contains the history with a digest, and up to which event.

A row of `heads` says: the history with this digest is session S up to event `seq`. A fork of S at `seq` restores
exactly that history, whatever happened to S since; a row is `stale` if S was rewound to before it. Rows of `beside`
hold the side state of a session: the last digests of its system text and tools, so that a change is noticed after a
restart, and the events with newer versions of its instructions.

The column `words` holds the digest of an instruction's text in `heads`, and a value of the side state in `beside`.
The rows are a cache of what the stores hold: without them a conversation is not recognised and a new one begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import apsw

from foveal.server.database import Database

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS heads (tenant TEXT NOT NULL, session TEXT NOT NULL, digest BLOB NOT NULL,"
    " seq INTEGER NOT NULL, turn INTEGER NOT NULL, words BLOB, stale INTEGER NOT NULL DEFAULT 0,"
    " PRIMARY KEY (tenant, digest, session)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS heads_by_session ON heads(tenant, session, stale, seq)",
    "CREATE TABLE IF NOT EXISTS beside (tenant TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,"
    " words BLOB NOT NULL, PRIMARY KEY (tenant, session, name)) WITHOUT ROWID",
)
_MARK_STALE: Final = (
    "UPDATE heads INDEXED BY heads_by_session SET stale = 1 WHERE tenant = ? AND session = ? AND seq > ?"
)
_EXISTS: Final = "SELECT 1 FROM heads WHERE tenant = ? AND digest = ? AND turn LIMIT 1"
_FIND_SESSIONS: Final = (
    "SELECT session, seq, turn, words FROM heads AS one WHERE tenant = ?1 AND digest = ?2 AND turn"
    " ORDER BY stale, seq = (SELECT max(seq) FROM heads WHERE tenant = ?1 AND session = one.session"
    " AND stale = 0) DESC LIMIT ?3"
)
MAX_CANDIDATE_SESSIONS: Final = 32
"""Sessions returned of those that contain the same history."""


class IndexedMessage(NamedTuple):
    """A message of a conversation, as the index knows it."""

    digest: bytes
    """Of the history up to the message."""
    seq: int
    """The last event of the message."""
    turn: int
    """Number of user messages up to it."""
    text_digest: bytes | None = None
    """For an instruction: the digest of its text; b"" if unknown."""


class KnownSession(NamedTuple):
    """A session that contains a history, and the last message of that history."""

    session: str
    end: IndexedMessage


class DigestIndex:
    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def find(self, tenant: str, digests: Sequence[bytes]) -> list[KnownSession]:
        """Return the sessions that contain the longest of these histories, which are ordered by length. Sessions
        that end with it come first. A history without a user message is never found."""

        def act(connection: apsw.Connection) -> list[KnownSession]:
            cursor = connection.cursor()
            longest = next(
                (digest for digest in reversed(digests) if cursor.execute(_EXISTS, (tenant, digest)).get),
                None,
            )
            if longest is None:
                return []
            rows: list[Any] = cursor.execute(
                _FIND_SESSIONS, (tenant, longest, MAX_CANDIDATE_SESSIONS)
            ).fetchall()
            return [KnownSession(session, IndexedMessage(longest, *row)) for session, *row in rows]

        return await self._database.read(act)

    async def load(self, tenant: str, session: str) -> tuple[list[IndexedMessage], dict[str, bytes]]:
        """Return the current messages of a session in order, and its side state."""

        def act(connection: apsw.Connection) -> tuple[list[IndexedMessage], dict[str, bytes]]:
            rows = connection.execute(
                "SELECT digest, seq, turn, words FROM heads WHERE tenant = ? AND session = ? AND stale = 0"
                " ORDER BY seq",
                (tenant, session),
            )
            named = connection.execute(
                "SELECT name, words FROM beside WHERE tenant = ? AND session = ?", (tenant, session)
            )
            return [IndexedMessage(*row) for row in rows], {str(name): bytes(value) for name, value in named}

        return await self._database.read(act)

    async def find_in_session(
        self, tenant: str, session: str, digests: Sequence[bytes]
    ) -> list[IndexedMessage]:
        """Return the messages of a session with these digests, stale or not, in order."""

        def act(connection: apsw.Connection) -> list[IndexedMessage]:
            sql = "SELECT seq, turn, words FROM heads WHERE tenant = ? AND digest = ? AND session = ?"
            cursor = connection.cursor()
            rows = ((digest, cursor.execute(sql, (tenant, digest, session)).get) for digest in digests)
            return sorted(
                (IndexedMessage(digest, *row) for digest, row in rows if row), key=attrgetter("seq")
            )

        return await self._database.read(act)

    async def add(
        self,
        tenant: str,
        session: str,
        messages: Sequence[IndexedMessage],
        *,
        side_state: Mapping[str, bytes] | None = None,
        rewound: int | None = None,
    ) -> None:
        """Add messages to a session. If it was rewound, rows after the event `rewound` become stale."""
        rows = [(tenant, session, *message) for message in messages]
        named = [(tenant, session, name, value) for name, value in (side_state or {}).items()]

        def act(connection: apsw.Connection) -> None:
            if rewound is not None:
                connection.execute(_MARK_STALE, (tenant, session, rewound))
            connection.executemany("REPLACE INTO heads VALUES (?, ?, ?, ?, ?, ?, 0)", rows)
            connection.executemany("REPLACE INTO beside VALUES (?, ?, ?, ?)", named)

        await self._database.write(act, durable=False)

    async def deprioritise(self, tenant: str, found: KnownSession) -> None:
        """Let `find` return other sessions with the same history before this one."""

        def act(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE heads SET stale = 1 WHERE tenant = ? AND digest = ? AND session = ?",
                (tenant, found.end.digest, found.session),
            )

        await self._database.write(act, durable=False)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the rows of a session."""

        def act(connection: apsw.Connection) -> None:
            for table in ("heads INDEXED BY heads_by_session", "beside"):
                connection.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", (tenant, session))

        await self._database.write(act)
