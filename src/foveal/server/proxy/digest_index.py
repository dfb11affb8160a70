"""Where histories are known to lead: for each digest the session that has it, and the event that ends it there.

A row says: the history with this digest is session S up to event `seq`. Forking S there restores just that history,
whatever has happened to S since; a row is `stale` when S was rewound to before it. What instructions, tools and
system text said last is kept as digests, too, so that a change is noticed after a restart.

The rows are a cache of what the stores hold: without them a conversation is not recognised, and begins anew.
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
_STALE: Final = (
    "UPDATE heads INDEXED BY heads_by_session SET stale = 1 WHERE tenant = ? AND session = ? AND seq > ?"
)
_ANY: Final = "SELECT 1 FROM heads WHERE tenant = ? AND digest = ? AND turn LIMIT 1"
_SESSIONS: Final = (
    "SELECT session, seq, turn, words FROM heads AS one WHERE tenant = ?1 AND digest = ?2 AND turn"
    " ORDER BY stale, seq = (SELECT max(seq) FROM heads WHERE tenant = ?1 AND session = one.session"
    " AND stale = 0) DESC LIMIT ?3"
)
CANDIDATES: Final = 32
"""Sessions that are looked at, of all that begin alike."""


class IndexedDigest(NamedTuple):
    """The end of a history."""

    digest: bytes
    seq: int
    """The last event of the message that ends it."""
    turn: int
    """How often the user has spoken by then."""
    words: bytes | None = None
    """For an instruction: the digest of its text."""


class KnownSession(NamedTuple):
    """A session that has a history."""

    session: str
    head: IndexedDigest


class DigestIndex:
    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def find(self, tenant: str, digests: Sequence[bytes]) -> list[KnownSession]:
        """The sessions that have the longest of these histories, which are given in the order of their length;
        those first that end there. One in which nobody has spoken yet is none."""

        def act(connection: apsw.Connection) -> list[KnownSession]:
            cursor = connection.cursor()
            longest = next(
                (one for one in reversed(digests) if cursor.execute(_ANY, (tenant, one)).get), None
            )
            if longest is None:
                return []
            rows: list[Any] = cursor.execute(_SESSIONS, (tenant, longest, CANDIDATES)).fetchall()
            return [KnownSession(session, IndexedDigest(longest, *head)) for session, *head in rows]

        return await self._database.look(act)

    async def of(self, tenant: str, session: str) -> tuple[list[IndexedDigest], dict[str, bytes]]:
        """What a session consists of now, in its order, and what stands beside it."""

        def act(connection: apsw.Connection) -> tuple[list[IndexedDigest], dict[str, bytes]]:
            rows = connection.execute(
                "SELECT digest, seq, turn, words FROM heads WHERE tenant = ? AND session = ? AND stale = 0"
                " ORDER BY seq",
                (tenant, session),
            )
            named = connection.execute(
                "SELECT name, words FROM beside WHERE tenant = ? AND session = ?", (tenant, session)
            )
            return [IndexedDigest(*row) for row in rows], {str(name): bytes(words) for name, words in named}

        return await self._database.look(act)

    async def at(self, tenant: str, session: str, digests: Sequence[bytes]) -> list[IndexedDigest]:
        """The heads of a session with these digests, stale or not, in its order."""

        def act(connection: apsw.Connection) -> list[IndexedDigest]:
            one = "SELECT seq, turn, words FROM heads WHERE tenant = ? AND digest = ? AND session = ?"
            cursor = connection.cursor()
            rows = ((digest, cursor.execute(one, (tenant, digest, session)).get) for digest in digests)
            return sorted((IndexedDigest(digest, *row) for digest, row in rows if row), key=attrgetter("seq"))

        return await self._database.look(act)

    async def keep(
        self,
        tenant: str,
        session: str,
        heads: Sequence[IndexedDigest],
        *,
        beside: Mapping[str, bytes] | None = None,
        rewound: int | None = None,
    ) -> None:
        """Add heads to a session; when it was rewound, what came after `rewound` is stale from now on."""
        rows = [(tenant, session, *head) for head in heads]
        named = [(tenant, session, name, words) for name, words in (beside or {}).items()]

        def act(connection: apsw.Connection) -> None:
            if rewound is not None:
                connection.execute(_STALE, (tenant, session, rewound))
            connection.executemany("REPLACE INTO heads VALUES (?, ?, ?, ?, ?, ?, 0)", rows)
            connection.executemany("REPLACE INTO beside VALUES (?, ?, ?, ?)", named)

        await self._database.do(act, lasting=False)

    async def rest(self, tenant: str, found: KnownSession) -> None:
        """Others that have the same history are to be found before this one."""

        def act(connection: apsw.Connection) -> None:
            connection.execute(
                "UPDATE heads SET stale = 1 WHERE tenant = ? AND digest = ? AND session = ?",
                (tenant, found.head.digest, found.session),
            )

        await self._database.do(act, lasting=False)

    async def forget(self, tenant: str, session: str) -> None:
        """A session is erased: nothing leads to it any more."""

        def act(connection: apsw.Connection) -> None:
            for table in ("heads INDEXED BY heads_by_session", "beside"):
                connection.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", (tenant, session))

        await self._database.do(act)
