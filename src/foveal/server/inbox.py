"""Durable inbox of user messages, and the model chosen for each session.

1. A message in the inbox is not lost. Messages of a session are processed in order of arrival, by the process that
   holds the session lock; if that process dies, the message is processed again.
2. The same key stores a message once.
3. When a message is done, its key and its outcome are kept for a week; its text is in the session's log.
"""

from __future__ import annotations

from hashlib import blake2b
from math import inf
from typing import Any, Final, Literal, NamedTuple, cast

import apsw
import msgspec

from foveal.core.log.events import Content, Dialect
from foveal.errors import NothingToAsk
from foveal.server.database import Database

# The table `rooms` holds the model of each session; its name predates the word "session".
SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS inbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, session TEXT NOT NULL, key TEXT NOT NULL,
        kind TEXT NOT NULL, content BLOB, dialect TEXT NOT NULL, at REAL NOT NULL, state TEXT NOT NULL,
        since INTEGER NOT NULL DEFAULT -1, why TEXT NOT NULL DEFAULT '', problem TEXT NOT NULL DEFAULT '',
        sort TEXT NOT NULL DEFAULT '', UNIQUE (tenant, session, key)) STRICT""",
    "CREATE INDEX IF NOT EXISTS inbox_open ON inbox(tenant, session, id) WHERE state <> 'done'",
    "CREATE INDEX IF NOT EXISTS inbox_done ON inbox(at) WHERE state = 'done'",
    """CREATE TABLE IF NOT EXISTS rooms (
        tenant TEXT NOT NULL, session TEXT NOT NULL, model TEXT NOT NULL,
        PRIMARY KEY (tenant, session)) STRICT, WITHOUT ROWID""",
)
DONE_KEY_TTL_S: Final = 7 * 86_400.0
"""Seconds for which the key of a done message is kept."""
_COLUMNS: Final = "id, tenant, session, key, kind, content, dialect, state, since, why, problem, sort"


class InboxEntry(NamedTuple):
    """A message in the inbox.

    The fields are in the order of `_COLUMNS`; `taken_after` is the column `since`, `code` is `sort`.
    """

    id: int
    tenant: str
    session: str
    key: str
    kind: Literal["say", "again"]
    """`again`: ask the model again without a new message."""
    content: bytes | None
    dialect: Dialect
    state: Literal["waiting", "taken", "done"]
    taken_after: int
    """The session's newest event when the message was taken: its own events come later."""
    why: str
    problem: str
    code: str

    @property
    def turn_id(self) -> str:
        """The id of the message's turn: a hash, so it does not reveal the number of messages in other sessions."""
        place = f"{self.tenant}\0{self.session}\0{self.id}"
        return blake2b(place.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def message(self) -> Content:
        return cast(Content, msgspec.json.decode(self.content or b'""', type=Content))


class Inbox:
    def __init__(self, database: Database) -> None:
        database.create_tables(SCHEMA)
        self._database = database

    async def put(
        self,
        tenant: str,
        session: str,
        *,
        key: str,
        content: Content | None,
        dialect: Dialect,
        now: float,
    ) -> tuple[InboxEntry, bool]:
        """Store a message and return its entry, and whether it is new. Without `content` the model is asked again;
        raises `NothingToAsk` unless the last turn failed or was stopped."""
        kind, body = ("again", None) if content is None else ("say", msgspec.json.encode(content))

        def act(db: apsw.Connection) -> tuple[InboxEntry, bool]:
            known = _select_entry(db, "tenant = ? AND session = ? AND key = ?", (tenant, session, key))
            if known is not None:
                return known, False
            if content is None:
                _check_retry(_newest(db, tenant, session), session)
            db.execute("DELETE FROM inbox WHERE state = 'done' AND at < ?", (now - DONE_KEY_TTL_S,))
            db.execute(
                "INSERT INTO inbox (tenant, session, key, kind, content, dialect, at, state)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting')",
                (tenant, session, key, kind, body, dialect, now),
            )
            entry = _select_entry(db, "id = ?", (db.last_insert_rowid(),))
            assert entry is not None
            return entry, True

        return await self._database.write(act)

    async def take(self, tenant: str, session: str, *, last: int) -> InboxEntry | None:
        """Take the oldest message that is not done. Its `state` is the one before this call: `taken` if a process
        died while answering it. `last` is the session's newest event."""

        def act(db: apsw.Connection) -> InboxEntry | None:
            where = "tenant = ? AND session = ? AND state <> 'done' ORDER BY id LIMIT 1"
            found = _select_entry(db, where, (tenant, session))
            if found is not None and found.state == "waiting":
                db.execute("UPDATE inbox SET state = 'taken', since = ? WHERE id = ?", (last, found.id))
                return found._replace(taken_after=last)
            return found

        return await self._database.write(act)

    async def finish(self, id: int, *, why: str, problem: str, code: str) -> None:
        """Mark a message as done and delete its text."""

        def act(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE inbox SET state = 'done', content = NULL, why = ?, problem = ?, sort = ? WHERE id = ?",
                (why, problem, code, id),
            )

        await self._database.write(act)

    async def entry(self, id: int) -> InboxEntry | None:
        return await self._database.read(lambda db: _select_entry(db, "id = ?", (id,)))

    async def newest(self, tenant: str, session: str) -> InboxEntry | None:
        """Return the message of a session that arrived last."""
        return await self._database.read(lambda db: _newest(db, tenant, session))

    async def unfinished(self, *, before: float = inf) -> list[tuple[str, str, int]]:
        """Return tenant, session and message count for each session with messages that are not done and whose
        oldest such message arrived before `before`."""

        def act(db: apsw.Connection) -> list[tuple[str, str, int]]:
            query = (
                "SELECT tenant, session, count(*) FROM inbox WHERE state <> 'done'"
                " GROUP BY tenant, session HAVING min(at) < ?"
            )
            return list(db.execute(query, (before,)))

        return await self._database.read(act)

    async def session_model(self, tenant: str, session: str) -> str | None:
        """Return the model that a session was created with, "" for the configured one; None if this server did not
        create the session."""

        def act(db: apsw.Connection) -> Any:
            query = "SELECT model FROM rooms WHERE tenant = ? AND session = ?"
            return db.execute(query, (tenant, session)).get

        return cast("str | None", await self._database.read(act))

    async def set_session_model(self, tenant: str, session: str, model: str) -> None:
        def act(db: apsw.Connection) -> None:
            db.execute("REPLACE INTO rooms VALUES (?, ?, ?)", (tenant, session, model))

        await self._database.write(act)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete all rows of a session."""

        def act(db: apsw.Connection) -> None:
            for table in ("inbox", "rooms"):
                db.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", (tenant, session))

        await self._database.write(act)
        await self._database.truncate_wal()


def _newest(db: apsw.Connection, tenant: str, session: str) -> InboxEntry | None:
    return _select_entry(db, "tenant = ? AND session = ? ORDER BY id DESC LIMIT 1", (tenant, session))


def _check_retry(newest: InboxEntry | None, session: str) -> None:
    """Raise `NothingToAsk` if the newest message has an answer: a second answer must not follow the first."""
    if newest is None or newest.why not in ("failed", "stopped"):
        reason = "it has no messages" if newest is None else "its last turn was answered or is still running"
        raise NothingToAsk(f"session {session!r} has nothing to ask again: {reason}")


def _select_entry(db: apsw.Connection, where: str, values: tuple[Any, ...]) -> InboxEntry | None:
    row = next(db.execute(f"SELECT {_COLUMNS} FROM inbox WHERE {where}", values), None)
    return None if row is None else InboxEntry(*row)
