"""Digest index: which session contains the history with a digest, and up to which event.

A row of `heads` says: the history with this digest is session S up to event `seq`. A fork of S at `seq` restores
exactly that history, whatever happened to S since; a row is `stale` if S was rewound to before it. Rows of `beside`
hold the side state of a session: the last digests of its system text and tools, so that a change is noticed after a
restart, and the events with newer versions of its instructions.

The digest of a provider's summary (`transport.digests.summary_digest`) has a row as well, which is always
`stale`: it leads to the session that the provider has summarised, and is no message of it.

The column `words` holds the digest of an instruction's text in `heads`, and a value of the side state in `beside`.
The rows are a cache of what the stores hold: without them a conversation is not recognised and a new one begins.

`ProxyRetention` erases sessions that were not used for a number of days:

1. A session is erased only under its lock, after a second look at when it was last used. So none is erased while a
   request is recorded, and none that a request has just continued.
2. A sweep is bounded: it reads sessions in pages and erases at most `MAX_ERASED_PER_SWEEP` of them, with pauses, so
   that clients do not wait. The next sweep continues.
3. Sessions of the native API and of gateways are kept, and so are forks that the native API made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from foveal.core.log.events import Opened
from foveal.errors import FovealError, UnknownSession
from foveal.ports import SessionInfo
from foveal.server.audit import RETENTION
from foveal.server.databases import Database, Transaction
from foveal.server.runtime import LOG
from foveal.server.service import Service
from foveal.server.tenants import PROXY_ORIGIN, Tenant
from foveal.transport.recognised_messages import IndexedMessage

# The inner query leads SQLite to the index by session; it would choose the primary key and read the whole tenant.
_MARK_STALE: Final = """UPDATE heads SET stale = 1 WHERE tenant = ? AND session = ? AND digest IN
    (SELECT digest FROM heads WHERE tenant = ? AND session = ? AND stale = 0 AND seq > ?)"""
_DELETE_MESSAGES: Final = """DELETE FROM heads WHERE tenant = ? AND session = ? AND digest IN
    (SELECT digest FROM heads WHERE tenant = ? AND session = ?)"""
_FIND_SESSIONS: Final = """SELECT session, seq, turn, words FROM heads AS one
    WHERE tenant = ? AND digest = ? AND turn > 0
    ORDER BY stale, CASE WHEN seq = (SELECT max(seq) FROM heads WHERE tenant = one.tenant
        AND session = one.session AND stale = 0) THEN 0 ELSE 1 END, session LIMIT ?"""
_ADD_MESSAGE: Final = """INSERT INTO heads (tenant, session, digest, seq, turn, words, stale)
    VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT (tenant, digest, session)
    DO UPDATE SET seq = excluded.seq, turn = excluded.turn, words = excluded.words, stale = 0"""
_ADD_SUMMARY: Final = """INSERT INTO heads (tenant, session, digest, seq, turn, words, stale)
    VALUES (?, ?, ?, ?, ?, NULL, 1) ON CONFLICT (tenant, digest, session) DO NOTHING"""
_SET_SIDE_STATE: Final = """INSERT INTO beside (tenant, session, name, words) VALUES (?, ?, ?, ?)
    ON CONFLICT (tenant, session, name) DO UPDATE SET words = excluded.words"""
FIRST_DIGESTS_TRIED: Final = 8
"""Digests in the first query of a search for the longest history; each further query tries twice as many."""
MAX_DIGESTS_TRIED: Final = 1_024
MAX_CANDIDATE_SESSIONS: Final = 32
"""Sessions returned of those that contain the same history."""


class KnownSession(NamedTuple):
    """A session that contains a history, and the last message of that history."""

    session: str
    end: IndexedMessage


class DigestIndex:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant: str, digests: Sequence[bytes]) -> list[KnownSession]:
        """Return the sessions that contain the longest of these histories, which are ordered by length. Sessions
        that end with it come first. A history without a user message is never found."""

        async def act(db: Transaction) -> list[KnownSession]:
            longest = await _find_longest(db, tenant, digests)
            if longest is None:
                return []
            rows = await db.fetch(_FIND_SESSIONS, tenant, longest, MAX_CANDIDATE_SESSIONS)
            return [KnownSession(session, IndexedMessage(longest, *row)) for session, *row in rows]

        return await self._database.read(act, tenant=tenant)

    async def next_tenant(self, after: str) -> str | None:
        """Return the first tenant with indexed sessions whose name comes after this one; None if there is none."""
        sql = "SELECT min(tenant) FROM heads WHERE tenant > ?"
        ((name,),) = await self._database.read(lambda db: db.fetch(sql, after))
        return None if name is None else str(name)

    async def load(self, tenant: str, session: str) -> tuple[list[IndexedMessage], dict[str, bytes]]:
        """Return the current messages of a session in order, and its side state."""

        async def act(db: Transaction) -> tuple[list[IndexedMessage], dict[str, bytes]]:
            sql = """SELECT digest, seq, turn, words FROM heads WHERE tenant = ? AND session = ? AND stale = 0
                ORDER BY seq"""
            messages = [IndexedMessage(*row) for row in await db.fetch(sql, tenant, session)]
            sql = "SELECT name, words FROM beside WHERE tenant = ? AND session = ?"
            return messages, {name: bytes(value) for name, value in await db.fetch(sql, tenant, session)}

        return await self._database.read(act, tenant=tenant)

    async def has_side_state(self, tenant: str, session: str, name: str) -> bool:
        """Return whether the side state of a session has a value with this name."""

        async def act(db: Transaction) -> bool:
            sql = "SELECT 1 FROM beside WHERE tenant = ? AND session = ? AND name = ?"
            return bool(await db.fetch(sql, tenant, session, name))

        return await self._database.read(act, tenant=tenant)

    async def find_in_session(
        self, tenant: str, session: str, digests: Sequence[bytes]
    ) -> list[IndexedMessage]:
        """Return the messages of a session with these digests, stale or not, in order."""

        async def act(db: Transaction) -> list[IndexedMessage]:
            found: list[IndexedMessage] = []
            for start in range(0, len(digests), MAX_DIGESTS_TRIED):
                part = digests[start : start + MAX_DIGESTS_TRIED]
                sql = f"""SELECT digest, seq, turn, words FROM heads
                    WHERE tenant = ? AND session = ? AND digest IN ({_marks(part)})"""
                found += [IndexedMessage(*row) for row in await db.fetch(sql, tenant, session, *part)]
            return sorted(found, key=attrgetter("seq"))

        return await self._database.read(act, tenant=tenant)

    async def add(
        self,
        tenant: str,
        session: str,
        messages: Sequence[IndexedMessage],
        *,
        side_state: Mapping[str, bytes] | None = None,
        rewound: int | None = None,
        summaries: Sequence[IndexedMessage] = (),
    ) -> None:
        """Add messages to a session, and summaries that the provider made. If the session was rewound, rows after
        the event `rewound` become stale."""
        rows = [(tenant, session, *message) for message in messages]
        named = [(tenant, session, name, value) for name, value in (side_state or {}).items()]

        async def act(db: Transaction) -> None:
            await db.lock(f"digests/{tenant}/{session}")
            if rewound is not None:
                await db.execute(_MARK_STALE, tenant, session, tenant, session, rewound)
            await db.execute_many(_ADD_MESSAGE, rows)
            await db.execute_many(_ADD_SUMMARY, [(tenant, session, *one[:3]) for one in summaries])
            await db.execute_many(_SET_SIDE_STATE, named)

        await self._database.write(act, tenant=tenant, durable=False)

    async def deprioritise(self, tenant: str, found: KnownSession) -> None:
        """Let `find` return other sessions with the same history before this one."""
        sql = "UPDATE heads SET stale = 1 WHERE tenant = ? AND digest = ? AND session = ?"
        values = tenant, found.end.digest, found.session
        await self._database.write(lambda db: db.execute(sql, *values), tenant=tenant, durable=False)

    async def delete_session(self, tenant: str, session: str) -> None:
        """Delete the rows of a session."""

        async def act(db: Transaction) -> None:
            await db.lock(f"digests/{tenant}/{session}")
            await db.execute(_DELETE_MESSAGES, tenant, session, tenant, session)
            await db.execute("DELETE FROM beside WHERE tenant = ? AND session = ?", tenant, session)

        await self._database.write(act, tenant=tenant)


async def _find_longest(db: Transaction, tenant: str, digests: Sequence[bytes]) -> bytes | None:
    """Return the last of the digests that is indexed with a user message."""
    end, size = len(digests), FIRST_DIGESTS_TRIED
    while end > 0:
        part = digests[max(0, end - size) : end]
        sql = f"""SELECT DISTINCT digest FROM heads
            WHERE tenant = ? AND digest IN ({_marks(part)}) AND turn > 0"""
        known = {bytes(digest) for (digest,) in await db.fetch(sql, tenant, *part)}
        if known:
            return next(digest for digest in reversed(part) if digest in known)
        end, size = end - len(part), min(size * 2, MAX_DIGESTS_TRIED)
    return None


def _marks(values: Sequence[bytes]) -> str:
    return ", ".join("?" * len(values))


SECONDS_PER_DAY: Final = 86_400
FIRST_SWEEP_DELAY_S: Final = 60.0
SWEEP_INTERVAL_S: Final = 3_600.0
MAX_ERASED_PER_SWEEP: Final = 1_000
PAGE_SESSIONS: Final = 100
"""Sessions that are read at once."""
ERASE_PAUSE_S: Final = 0.02
"""Pause after each erased session."""


class ProxyRetention:
    def __init__(self, service: Service, index: DigestIndex, *, days: int) -> None:
        self._service, self._index = service, index
        self._runtime = service.runtime
        self._days = days

    async def run(self) -> None:
        """Sweep at intervals until the task is cancelled."""
        await asyncio.sleep(FIRST_SWEEP_DELAY_S)
        while True:
            try:
                await self.sweep()
            except FovealError as problem:  # the next sweep may succeed
                LOG.error("old sessions of drop-in clients cannot be erased: %s", type(problem).__name__)
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> int:
        """Erase the sessions of all tenants that are due; return their number."""
        cutoff = self._runtime.clock() - self._days * SECONDS_PER_DAY
        erased, name = 0, await self._index.next_tenant("")
        while name is not None and erased < MAX_ERASED_PER_SWEEP:
            erased += await self._sweep_tenant(
                self._service.tenant(name), cutoff, MAX_ERASED_PER_SWEEP - erased
            )
            name = await self._index.next_tenant(name)
        if erased:
            LOG.info("erased %d sessions of drop-in clients, unused for %d days", erased, self._days)
        return erased

    async def _sweep_tenant(self, tenant: Tenant, cutoff: float, limit: int) -> int:
        erased, before = 0, (cutoff, "")
        while page := await tenant.store.sessions(limit=PAGE_SESSIONS, before=before, with_erased=False):
            for info in page:
                if erased == limit:
                    return erased
                if await self._is_proxied(tenant, info) and await self._erase(tenant, info.id, cutoff):
                    erased += 1
                    await asyncio.sleep(ERASE_PAUSE_S)
            before = page[-1].active, page[-1].id
        return erased

    async def _is_proxied(self, tenant: Tenant, info: SessionInfo) -> bool:
        """Return whether a session is one of a proxy client, and not a fork of it that the native API made."""
        if await self._runtime.inbox.session_setup(tenant.name, info.id) is not None:
            return False
        try:
            first = (await tenant.store.read(info.id, first=0, last=0))[0].fact
        except (UnknownSession, IndexError):  # erased meanwhile
            return False
        return isinstance(first, Opened) and first.origin == PROXY_ORIGIN

    async def _erase(self, tenant: Tenant, id: str, cutoff: float) -> bool:
        lock = await self._runtime.locks.try_lock(tenant.name, id)
        if lock is None:
            return False
        try:
            info = await tenant.store.info(id)
            if info.erased or info.active >= cutoff:
                return False
            await self._runtime.run_delete_hooks(tenant.name, id)
            await tenant.store.erase(id)
            await self._runtime.audit.record("erase", f"session:{id}", tenant=tenant.name, actor=RETENTION)
            return True
        finally:
            lock.release()
