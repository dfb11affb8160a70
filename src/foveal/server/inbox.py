"""Where messages are laid down before anything is done with them, and which model a room speaks to.

1. A message that was put here is not lost: it is taken up in the order of its coming, by whichever process has the
   session, and once more if that process dies over it.
2. The same key puts it here once.
3. When a message is done only its key and how it ended are kept, for a week; its text is in the log.
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
KEPT: Final = 7 * 86_400.0
"""Seconds for which the key of a message that is done is remembered."""
_COLUMNS: Final = "id, tenant, session, key, kind, content, dialect, state, since, why, problem, sort"


class InboxEntry(NamedTuple):
    """A message in the inbox."""

    id: int
    tenant: str
    session: str
    key: str
    kind: Literal["say", "again"]
    content: bytes | None
    dialect: Dialect
    state: Literal["waiting", "taken", "done"]
    since: int
    """The newest event of the session when it was taken up: what belongs to it comes later."""
    why: str
    problem: str
    code: str

    @property
    def turn(self) -> str:
        """The name of its turn, which does not tell how many messages there were in other sessions."""
        place = f"{self.tenant}\0{self.session}\0{self.id}"
        return blake2b(place.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def said(self) -> Content:
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
        """Lay a message down (None: ask the model again, if the last turn came to nothing), and whether it was not
        there yet."""
        kind, body = ("again", None) if content is None else ("say", msgspec.json.encode(content))

        def act(db: apsw.Connection) -> tuple[InboxEntry, bool]:
            known = _one(db, "tenant = ? AND session = ? AND key = ?", (tenant, session, key))
            if known is not None:
                return known, False
            if content is None:
                _check_again(_newest(db, tenant, session), session)
            db.execute("DELETE FROM inbox WHERE state = 'done' AND at < ?", (now - KEPT,))
            db.execute(
                "INSERT INTO inbox (tenant, session, key, kind, content, dialect, at, state)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting')",
                (tenant, session, key, kind, body, dialect, now),
            )
            made = _one(db, "id = ?", (db.last_insert_rowid(),))
            assert made is not None
            return made, True

        return await self._database.do(act)

    async def take(self, tenant: str, session: str, *, last: int) -> InboxEntry | None:
        """The oldest message that is not done, as it was before: `taken` if somebody died over it. `last` is the
        session's newest event."""

        def act(db: apsw.Connection) -> InboxEntry | None:
            where = "tenant = ? AND session = ? AND state <> 'done' ORDER BY id LIMIT 1"
            found = _one(db, where, (tenant, session))
            if found is not None and found.state == "waiting":
                db.execute("UPDATE inbox SET state = 'taken', since = ? WHERE id = ?", (last, found.id))
                return found._replace(since=last)
            return found

        return await self._database.do(act)

    async def done(self, id: int, *, why: str, problem: str, code: str) -> None:
        def act(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE inbox SET state = 'done', content = NULL, why = ?, problem = ?, sort = ? WHERE id = ?",
                (why, problem, code, id),
            )

        await self._database.do(act)

    async def entry(self, id: int) -> InboxEntry | None:
        return await self._database.look(lambda db: _one(db, "id = ?", (id,)))

    async def newest(self, tenant: str, session: str) -> InboxEntry | None:
        """The message that came last."""
        return await self._database.look(lambda db: _newest(db, tenant, session))

    async def waiting(self, *, before: float = inf) -> list[tuple[str, str, int]]:
        """The sessions that have messages which are not done, by tenant and id, and how many; only those whose
        oldest came before a time."""

        def act(db: apsw.Connection) -> list[tuple[str, str, int]]:
            query = (
                "SELECT tenant, session, count(*) FROM inbox WHERE state <> 'done'"
                " GROUP BY tenant, session HAVING min(at) < ?"
            )
            return list(db.execute(query, (before,)))

        return await self._database.look(act)

    async def model(self, tenant: str, session: str) -> str | None:
        """The model that a room was made with, "" for the configured one; None when it was not made here."""

        def act(db: apsw.Connection) -> Any:
            query = "SELECT model FROM rooms WHERE tenant = ? AND session = ?"
            return db.execute(query, (tenant, session)).get

        return cast("str | None", await self._database.look(act))

    async def choose(self, tenant: str, session: str, model: str) -> None:
        def act(db: apsw.Connection) -> None:
            db.execute("REPLACE INTO rooms VALUES (?, ?, ?)", (tenant, session, model))

        await self._database.do(act)

    async def forget(self, tenant: str, session: str) -> None:
        """Take out all that is known of a session."""

        def act(db: apsw.Connection) -> None:
            for table in ("inbox", "rooms"):
                db.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", (tenant, session))

        await self._database.do(act)
        await self._database.sweep()


def _newest(db: apsw.Connection, tenant: str, session: str) -> InboxEntry | None:
    return _one(db, "tenant = ? AND session = ? ORDER BY id DESC LIMIT 1", (tenant, session))


def _check_again(newest: InboxEntry | None, session: str) -> None:
    """Nobody has spoken since, and there was no answer: or two answers would follow one another."""
    if newest is None or newest.why not in ("failed", "stopped"):
        told = "nothing was said in it" if newest is None else "its last turn was answered, or still runs"
        raise NothingToAsk(f"session {session!r} has nothing to ask again: {told}")


def _one(db: apsw.Connection, where: str, values: tuple[Any, ...]) -> InboxEntry | None:
    row = next(db.execute(f"SELECT {_COLUMNS} FROM inbox WHERE {where}", values), None)
    return None if row is None else InboxEntry(*row)
