"""Durable inbox of user messages, and the model, agent and user chosen for each session.

1. A message in the inbox is not lost. Messages of a session are processed in order of arrival, by the process that
   holds the session lock; if that process dies, the message is processed again. The prompt of a background run
   arrives when the run is queued: a message that is put later comes after it.
2. The same key stores a message once; with another text it raises `KeyReused`.
3. When a message is done, its key, its outcome and a digest of its text are kept for a week; its text is in the
   session's log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from math import inf
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from foveal.core.log.events import Content, Dialect, UserSaid
from foveal.errors import KeyReused, NothingToAsk
from foveal.server.databases import Database, Transaction

DONE_KEY_TTL_S: Final = 7 * 86_400.0
"""Seconds for which the key of a done message is kept."""
_DELETING: Final = "inbox/deleting"
"""The lock of transactions that delete several rows: two of them at once could wait for each other."""
_COLUMNS: Final = "id, tenant, session, key, kind, content, dialect, state, since, why, problem, sort"
_SELECT_USERS: Final = """SELECT tenant, person FROM memory_sessions WHERE tenant = ? AND session = ?
    UNION SELECT tenant, person FROM rooms WHERE tenant = ? AND session = ? AND person <> ''"""
_SCHEDULE_KEY: Final = re.compile(r"schedule/([A-Za-z0-9._-]{1,64})/.+")


def schedule_key(name: str, when: str) -> str:
    """Return the key of a schedule's prompt for one of its times."""
    return f"schedule/{name}/{when}"


def schedule_of_key(key: str) -> str:
    """Return the name of the schedule that a prompt's key belongs to; "" for the key of another message."""
    found = _SCHEDULE_KEY.fullmatch(key)
    return found[1] if found else ""


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
    """The message as JSON; of a done message its digest, None if an earlier version has stored it."""
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

    def has_content(self, body: bytes | None) -> bool:
        """Return whether this is the message with this JSON, as far as that is known."""
        if self.state == "done" and self.kind == "say":
            return self.content is None or (body is not None and self.content == _digest(body))
        return self.content == body

    @property
    def message(self) -> Content:
        return cast(Content, msgspec.json.decode(self.content or b'""', type=Content))


class SessionSetup(NamedTuple):
    """What a session was created with."""

    model: str = ""
    """The model; "" for the configured one."""
    agent: str = ""
    """The agent of the configuration; "" for the server's own settings."""
    user: str = ""
    """Who speaks in it, whose memory it shows; "" if that is not known, or several people do."""


CONFIGURED_SETUP: Final = SessionSetup()
"""The configured model, with the server's own settings."""


class UnansweredMessages(NamedTuple):
    """Messages that were acknowledged and have no answer yet."""

    number: int
    oldest: float | None
    """When the oldest of them was stored."""


class Inbox:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(
        self,
        tenant: str,
        session: str,
        *,
        key: str,
        message: UserSaid | None,
        now: float,
        checks_text: bool = True,
    ) -> tuple[InboxEntry, bool]:
        """Store a message and return its entry, and whether it is new. Without `message` the model is asked again;
        raises `NothingToAsk` unless the last turn failed or was stopped. Raises `KeyReused` if the key is that of
        another text, unless `checks_text` is off."""
        kind, dialect = ("again", "") if message is None else ("say", message.dialect)
        body = None if message is None else msgspec.json.encode(message.content)

        async def act(db: Transaction) -> tuple[InboxEntry, bool]:
            await _lock_inbox(db, tenant, session)
            known = await _select_entry(db, "tenant = ? AND session = ? AND key = ?", tenant, session, key)
            if known is not None:
                if checks_text and not known.has_content(body):
                    raise KeyReused(session)
                return known, False
            if message is None:
                _check_retry(await _newest(db, tenant, session), session)
            if await db.try_lock(_DELETING):
                await db.execute("DELETE FROM inbox WHERE state = 'done' AND at < ?", now - DONE_KEY_TTL_S)
            if message is not None and await _add_open_runs(db, tenant, session):
                added = await _select_entry(
                    db, "tenant = ? AND session = ? AND key = ?", tenant, session, key
                )
                if added is not None:  # the message is itself the prompt of a background run
                    if checks_text and not added.has_content(body):
                        raise KeyReused(session)
                    return added, True
            sql = f"""INSERT INTO inbox (tenant, session, key, kind, content, dialect, at, state)
                VALUES (?, ?, ?, ?, ?, ?, ?, 'waiting') RETURNING {_COLUMNS}"""
            rows = await db.fetch(sql, tenant, session, key, kind, body, dialect, now)
            return InboxEntry(*rows[0]), True

        return await self._database.write(act, tenant=tenant, repeatable=True)

    async def take(self, tenant: str, session: str, *, last: int) -> InboxEntry | None:
        """Take the oldest message that is not done. Its `state` is the one before this call: `taken` if a process
        died while answering it. `last` is the session's newest event. The caller holds the session lock."""

        async def act(db: Transaction) -> InboxEntry | None:
            await db.check_lease(tenant, session)
            where = "tenant = ? AND session = ? AND state <> 'done' ORDER BY id LIMIT 1"
            found = await _select_entry(db, where, tenant, session)
            if found is not None and found.state == "waiting":
                await db.execute("UPDATE inbox SET state = 'taken', since = ? WHERE id = ?", last, found.id)
                return found._replace(taken_after=last)
            return found

        return await self._database.write(act, tenant=tenant, repeatable=True)

    async def finish(self, entry: InboxEntry, *, why: str, problem: str, code: str) -> None:
        """Mark a message as done and delete its text. The caller holds the session lock."""

        async def act(db: Transaction) -> None:
            await db.check_lease(entry.tenant, entry.session)
            sql = "UPDATE inbox SET state = 'done', content = ?, why = ?, problem = ?, sort = ? WHERE id = ?"
            digest = None if entry.content is None else _digest(entry.content)
            await db.execute(sql, digest, why, problem, code, entry.id)

        await self._database.write(act, tenant=entry.tenant, repeatable=True)

    async def entry(self, tenant: str, id: int) -> InboxEntry | None:
        return await self._database.read(lambda db: _select_entry(db, "id = ?", id), tenant=tenant)

    async def find(self, tenant: str, session: str, *, key: str) -> InboxEntry | None:
        """Return the message with a key."""
        where = "tenant = ? AND session = ? AND key = ?"
        return await self._database.read(
            lambda db: _select_entry(db, where, tenant, session, key), tenant=tenant
        )

    async def newest(self, tenant: str, session: str) -> InboxEntry | None:
        """Return the message of a session that arrived last."""
        return await self._database.read(lambda db: _newest(db, tenant, session), tenant=tenant)

    async def recent(self, tenant: str, session: str, *, limit: int) -> list[InboxEntry]:
        """Return the messages of a session that arrived last, the newest first."""
        sql = f"SELECT {_COLUMNS} FROM inbox WHERE tenant = ? AND session = ? ORDER BY id DESC LIMIT ?"
        rows = await self._database.read(lambda db: db.fetch(sql, tenant, session, limit), tenant=tenant)
        return [InboxEntry(*row) for row in rows]

    async def unfinished(self, *, before: float = inf) -> list[tuple[str, str, int]]:
        """Return tenant, session and message count for each session with messages that are not done and whose
        oldest such message arrived before `before`."""

        sql = """SELECT tenant, session, count(*) FROM inbox WHERE state <> 'done'
            GROUP BY tenant, session HAVING min(at) < ?"""
        rows = await self._database.read(lambda db: db.fetch(sql, before))
        return [(tenant, session, count) for tenant, session, count in rows]

    async def unanswered(self) -> UnansweredMessages:
        """Count the messages in the inbox that are not done, and the open background runs not among them."""
        sql = """SELECT count(*), min(at) FROM (
            SELECT at FROM inbox WHERE state <> 'done' UNION ALL
            SELECT at FROM errands WHERE kind = 'run' AND NOT EXISTS (
                SELECT 1 FROM inbox WHERE state <> 'done' AND inbox.tenant = errands.tenant
                AND inbox.session = errands.session AND inbox.key = errands.key)) AS unanswered"""
        rows = await self._database.read(lambda db: db.fetch(sql))
        return UnansweredMessages(*rows[0])

    async def session_setup(self, tenant: str, session: str) -> SessionSetup | None:
        """Return what a session was created with; None if this server did not create the session."""
        sql = "SELECT model, agent, person FROM rooms WHERE tenant = ? AND session = ?"
        rows = await self._database.read(lambda db: db.fetch(sql, tenant, session), tenant=tenant)
        return SessionSetup(*rows[0]) if rows else None

    async def session_agents(self, tenant: str, sessions: Sequence[str]) -> dict[str, str]:
        """Return the agents of those of these sessions that have one."""
        marks = ", ".join("?" * len(sessions))
        sql = f"""SELECT session, agent FROM rooms
            WHERE tenant = ? AND agent <> '' AND session IN ({marks})"""
        if not sessions:
            return {}
        return dict(await self._database.read(lambda db: db.fetch(sql, tenant, *sessions), tenant=tenant))

    async def sessions_of(self, tenant: str, user: str, *, alone: bool = False) -> list[str]:
        """Return the sessions that `users_of` says to be of a user; `alone`, only those of no other user too."""
        own = """SELECT session FROM rooms WHERE tenant = ? AND person = ?
            UNION SELECT session FROM memory_sessions WHERE tenant = ? AND person = ?"""
        others = """SELECT session FROM rooms WHERE tenant = ? AND person NOT IN ('', ?)
            UNION SELECT session FROM memory_sessions WHERE tenant = ? AND person <> ?"""
        sql, values = f"SELECT session FROM ({own}) AS own", [tenant, user] * 2
        if alone:
            sql, values = f"{sql} WHERE session NOT IN ({others})", values * 2
        rows = await self._database.read(
            lambda db: db.fetch(f"{sql} ORDER BY session", *values), tenant=tenant
        )
        return [session for (session,) in rows]

    async def add_session_user(self, tenant: str, session: str, user: str) -> None:
        """Record that a session which was created for no user has words of one, or shows this user's memory."""
        sql = """INSERT INTO memory_sessions (tenant, person, session) VALUES (?, ?, ?)
            ON CONFLICT (tenant, person, session) DO NOTHING"""
        values = tenant, user, session
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant, repeatable=True)

    async def users_of(self, tenant: str, session: str) -> set[str]:
        """Return the users of a session: the one it was created for, those whom requests of drop-in clients have
        named in it, and those of the sessions that it has text of."""
        values = (tenant, session) * 2
        rows = await self._database.read(lambda db: db.fetch(_SELECT_USERS, *values), tenant=tenant)
        return {user for _, user in rows}

    async def copy_session_users(self, tenant: str, session: str, new: str) -> None:
        """Record for a new session that has text of another one whose users are in it."""
        sql = f"""INSERT INTO memory_sessions (tenant, person, session)
            SELECT tenant, person, ? FROM ({_SELECT_USERS}) AS users
            WHERE true ON CONFLICT (tenant, person, session) DO NOTHING"""
        values = new, *(tenant, session) * 2
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant, repeatable=True)

    async def set_session_setup(self, tenant: str, session: str, setup: SessionSetup) -> None:
        sql = """INSERT INTO rooms (tenant, session, model, agent, person) VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (tenant, session) DO UPDATE SET
            model = excluded.model, agent = excluded.agent, person = excluded.person"""
        values = tenant, session, setup.model, setup.agent, setup.user
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant, repeatable=True)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete all rows of a session."""

        async def act(db: Transaction) -> None:
            await db.lock(_DELETING)
            for table in ("inbox", "rooms", "memory_sessions"):
                await db.execute(f"DELETE FROM {table} WHERE tenant = ? AND session = ?", tenant, session)

        await self._database.write(act, tenant=tenant, repeatable=True)
        await self._database.remove_deleted_text()


async def check_key(db: Transaction, tenant: str, session: str, *, key: str, text: str) -> None:
    """Raise `KeyReused` if a message or an open background run of the session has this key and another text. Until
    the end of the caller's transaction, no message is stored."""
    await _lock_inbox(db, tenant, session)
    known = await _select_entry(db, "tenant = ? AND session = ? AND key = ?", tenant, session, key)
    sql = "SELECT prompt FROM errands WHERE tenant = ? AND session = ? AND key = ? AND kind = 'run'"
    prompts = await db.fetch(sql, tenant, session, key)
    is_same = known is None or known.has_content(msgspec.json.encode(text))
    if not is_same or any(prompt != text for (prompt,) in prompts):
        raise KeyReused(session)


async def _lock_inbox(db: Transaction, tenant: str, session: str) -> None:
    await db.lock(f"inbox/{tenant}/{session}")  # ids rise in the order in which transactions commit


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


async def _add_open_runs(db: Transaction, tenant: str, session: str) -> bool:
    """Add the prompts of background runs that were stored before, so that they are answered before. The worker that
    runs them finds them by their keys. Return whether there are any."""
    sql = (
        "SELECT key, prompt, at FROM errands WHERE tenant = ? AND session = ? AND kind = 'run' ORDER BY place"
    )
    runs = await db.fetch(sql, tenant, session)
    for key, prompt, at in runs:
        await db.execute(
            """INSERT INTO inbox (tenant, session, key, kind, content, dialect, at, state)
            VALUES (?, ?, ?, 'say', ?, '', ?, 'waiting') ON CONFLICT (tenant, session, key) DO NOTHING""",
            *(tenant, session, key, msgspec.json.encode(prompt), at),
        )
    return bool(runs)


async def _newest(db: Transaction, tenant: str, session: str) -> InboxEntry | None:
    return await _select_entry(db, "tenant = ? AND session = ? ORDER BY id DESC LIMIT 1", tenant, session)


def _check_retry(newest: InboxEntry | None, session: str) -> None:
    """Raise `NothingToAsk` if the newest message has an answer: a second answer must not follow the first."""
    if newest is None or newest.why not in ("failed", "stopped"):
        reason = "it has no messages" if newest is None else "its last turn was answered or is still running"
        raise NothingToAsk(f"session {session!r} has nothing to ask again: {reason}")


async def _select_entry(db: Transaction, where: str, *values: Any) -> InboxEntry | None:
    rows = await db.fetch(f"SELECT {_COLUMNS} FROM inbox WHERE {where}", *values)
    return InboxEntry(*rows[0]) if rows else None
