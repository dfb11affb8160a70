"""Store of the sessions of one tenant in a PostgreSQL database.

1. Processes on several machines may use the same database. An append states its seq, so of several writers exactly
   one gets it; a writer that holds a lease is also refused once another process has taken the lease over.
2. An append is one round trip. If the connection breaks before its reply arrives, it is sent again with the same
   event ids: either they are found, or they are stored now, or another writer was first.
3. Work of more than a few milliseconds (packing, unpacking, splitting into words) runs in a thread.
4. A cancelled call may have been carried out: after cancelling an append, read the session again.
5. While this process holds the lease of a session, `read_new` asks the database only every `KNOWN_END_TTL_S`:
   another process appends only what needs no lease, and the next append of this process notices it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Self
from uuid import uuid4

import msgspec

from foveal.core.log.events import Event
from foveal.errors import BadSetting, Conflict, LeaseLost, StoreError, StoreUnusable, UnknownSession
from foveal.ports import Checkpoint, Hit, SessionEnd, SessionInfo
from foveal.stores.compression import digest, erase_line, pack_lines, to_lines
from foveal.stores.postgres import reading
from foveal.stores.postgres import sql_statements as statements
from foveal.stores.postgres.connection import (
    BlobMissing,
    Connection,
    ConnectionLost,
    PostgresPool,
    Rows,
    SqlStatement,
    TransactionUndone,
    from_text,
    to_key,
    to_text,
    translate_errors,
)
from foveal.stores.postgres.reading import outside_loop, packer
from foveal.stores.postgres.schema import STORE_MIGRATIONS, migrate
from foveal.stores.postgres.search_index import PostgresIndex
from foveal.stores.postgres.sql_statements import POSTGRES_EVENT_BYTES, AppendRequest, SessionName, StoredBlob

MAX_SESSION_EVENTS: Final = 1 << 32
"""As in SQLite."""
_RETRY_DELAY_S: Final = 0.05
_ERASE_PAGE_EVENTS: Final = 1_000
_MAX_REWRITE_S: Final = 120.0
"""Longest statement of a fork or an erasure; both grow with the session."""
_MAX_KNOWN_BLOBS: Final = 10_000
_MAX_TENANT_BYTES: Final = 1_000
KNOWN_END_TTL_S: Final = 0.2
"""For which the end of a session that this process holds is taken from memory."""
_MAX_KNOWN_ENDS: Final = 1_000


class _KnownEnd(NamedTuple):
    """Where the log of a session ended."""

    epoch: int | None
    """Of the lease that this process held."""
    next_seq: int
    erased: bool | None
    """Whether the session was erased; None if that is not known."""
    at: float
    """The monotonic time before the database was asked."""

    def answers(self, epoch: int | None, first: int, *, now: float) -> bool:
        """Return whether there is nothing new from seq `first` on, as far as the holder of the lease knows."""
        is_recent = now - self.at < KNOWN_END_TTL_S
        return is_recent and self.erased is not None and (self.epoch, self.next_seq) == (epoch, first)


class PostgresStore:
    """A `Store` of one tenant's sessions; `async with` opens it, without it the first call does."""

    def __init__(
        self,
        pool: PostgresPool,
        tenant: str = "default",
        *,
        epoch_of: Callable[[str], int | None] = lambda session: None,
        clock: Callable[[], float] = time.time,
        owns_pool: bool = False,
        durable: bool = True,
    ) -> None:
        """`epoch_of`: the epoch of the lease that this process holds on a session; `owns_pool`: whether closing the
        store closes the pool; `durable`: whether appended events survive a crash of the database server."""
        if not tenant or to_text(tenant) != tenant or len(tenant.encode()) > _MAX_TENANT_BYTES:
            raise BadSetting("tenant", tenant, "1 to 1,000 bytes of text without NUL and backslash")
        self._pool = pool
        self.tenant: Final = tenant
        self._epoch_of = epoch_of
        self._clock = clock
        self._owns_pool = owns_pool
        self._durable = durable
        self._closed = False
        self._has_tables = False
        self._known_blobs: set[bytes] = set()
        """Digests of blobs that the database had; one that was erased since then is sent again."""
        self._known_ends: dict[str, _KnownEnd] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._pool.open()
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse further calls, and close the pool if it belongs to the store; closing twice is allowed."""
        self._closed = True
        if self._owns_pool:
            await self._pool.close()

    # ── Appending ────────────────────────────────────────────────────────────────────────────────────────

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if not events:
            return
        lines = to_lines(events)
        first = events[0].seq
        if not 0 <= first <= MAX_SESSION_EVENTS - len(events):
            raise await self._conflict(session, first)
        rows = await outside_loop(sum(map(len, lines)), lambda: pack_lines(packer(), events, lines))
        digests = [[digest(cut.text) for cut in row.packed.cuts] for row in rows]
        ids = [uuid4() for _ in events]
        name, full_id = self._name(session, writes=True), _full_id(session)
        request = AppendRequest(name, full_id, first, rows, ids, digests, self._clock())
        sent = time.monotonic()
        try:
            done, is_fenced = await self._send_append(request)
            if not done and not await self._has_appended(request):
                raise LeaseLost(session) if is_fenced else await self._conflict(session, first)
        except BaseException:
            self._known_ends.pop(session, None)  # it may have been stored, or another writer was first
            raise
        self._remember_blobs(digests)
        self._remember_end(session, _KnownEnd(name.epoch, first + len(events), None, sent))

    async def _send_append(self, request: AppendRequest) -> tuple[bool, bool]:
        """Send a request until the reply arrives; return (whether it was done, whether the lease was lost).

        After a lost connection, "not done" may mean that an earlier attempt was done: `_has_appended` finds out. An
        earlier attempt that the server has yet to carry out then fails, because the session's head has moved."""
        until, is_uncertain = time.monotonic() + self._pool.wait_s, False
        while True:
            blobs = await self._blobs_to_send(request)
            try:
                done, is_fenced = await self._write(statements.append(request, blobs))
                return done, is_fenced
            except BlobMissing:
                self._known_blobs.clear()
            except ConnectionLost as problem:
                is_uncertain = is_uncertain or problem.outcome_unknown
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_RETRY_DELAY_S)
            except StoreUnusable as problem:
                if is_uncertain:
                    raise StoreUnusable(
                        f"{problem}; the connection broke before that, so whether the events were stored is"
                        " unknown: read the session again"
                    ) from problem
                raise

    async def _blobs_to_send(self, request: AppendRequest) -> list[StoredBlob]:
        texts = {
            name: cut.text
            for row, digests in zip(request.rows, request.digests, strict=True)
            for cut, name in zip(row.packed.cuts, digests, strict=True)
            if name not in self._known_blobs
        }
        return await outside_loop(
            sum(map(len, texts.values())),
            lambda: [StoredBlob(name, packer().compress_blob(text)) for name, text in texts.items()],
        )

    def _remember_blobs(self, digests: Sequence[Sequence[bytes]]) -> None:
        if len(self._known_blobs) >= _MAX_KNOWN_BLOBS:
            self._known_blobs.clear()
        self._known_blobs.update(name for names in digests for name in names)

    async def _has_appended(self, request: AppendRequest) -> bool:
        """Return whether the log has this request's events."""
        found = await self._read(statements.head_and_ids(request.session, request.first, len(request.ids)))
        return bool(found) and found[0][1] == list(request.ids)

    async def _conflict(self, session: str, given: int) -> Conflict:
        found = await self._read(statements.session_info(self._name(session)))
        return Conflict(session, given=given, next_seq=found[0][5] if found else 0)

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        end = MAX_SESSION_EVENTS if last is None else last + 1
        events, _ = await self._read_range(session, first, end)
        return events

    async def read_new(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        epoch, known, sent = self._epoch_of(session), self._known_ends.get(session), time.monotonic()
        if known is not None and known.answers(epoch, first, now=sent):
            return [], known.erased is True
        events, erased = await self._read_range(session, first, MAX_SESSION_EVENTS)
        self._remember_end(session, _KnownEnd(epoch, first + len(events), erased, sent))
        return events, erased

    def _remember_end(self, session: str, end: _KnownEnd) -> None:
        """Remember where a session ends, unless another process may append to it."""
        if (end.epoch or 0) <= 0 or end.epoch != self._epoch_of(session):  # a lost lease has a negative epoch
            return
        known = self._known_ends.get(session)
        if known is not None and known.epoch == end.epoch:
            if known.next_seq > end.next_seq:
                return  # a read that began before the last append
            end = end if end.erased is not None else end._replace(erased=known.erased)
        if len(self._known_ends) >= _MAX_KNOWN_ENDS:
            self._known_ends.clear()
        self._known_ends[session] = end

    async def _read_range(self, session: str, first: int, end: int) -> tuple[list[Event], bool]:
        await self._open()
        seqs = range(max(first, 0), max(min(end, MAX_SESSION_EVENTS), 0))
        found = await reading.read_range(self._pool, self._name(session), seqs)
        if found is None:
            raise UnknownSession(session)
        return found.events, found.erasures > 0

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        await self._open()
        wanted = sorted({seq for seq in seqs if 0 <= seq < MAX_SESSION_EVENTS})
        found = await reading.pick(self._pool, self._name(session), wanted)
        if found is None:
            raise UnknownSession(session)
        return found.events

    async def stored_bytes(self, session: str, *, first: int, last: int) -> list[int]:
        """Return the bytes that each event of a range takes in the database."""
        return [
            size for (size,) in await self._read(statements.stored_bytes(self._name(session), first, last))
        ]

    async def checkpoint(self, session: str) -> Checkpoint | None:
        found = await self._read(statements.checkpoint(self._name(session)))
        if not found:
            raise UnknownSession(session)
        seq, needed, state = found[0]
        if seq is None:
            return None
        return Checkpoint(seq=seq, needed=msgspec.msgpack.decode(needed, type=tuple[int, ...]), state=state)

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        await self._open()
        index = PostgresIndex(self._pool, self._name(session))
        if not await index.catch_up():
            raise UnknownSession(session)
        return await index.search(query, limit) if limit > 0 else []

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]:
        place = None if before is None else (before[0], to_key(before[1]))
        page = statements.session_page(self.tenant, limit, place, with_erased=with_erased, memories=memories)
        return await self._infos(page)

    async def end(self, session: str) -> SessionEnd:
        found = await self._read(statements.session_end(self._name(session)))
        if not found:
            raise UnknownSession(session)
        head, erasures = found[0]
        return SessionEnd(head, erasures > 0)

    async def info(self, session: str) -> SessionInfo:
        found = await self._infos(statements.session_info(self._name(session)))
        if not found:
            raise UnknownSession(session)
        return found[0]

    async def _infos(self, query: SqlStatement) -> list[SessionInfo]:
        rows = await self._read(query)
        keys = [row[0] for row in rows]
        shares: dict[int, float] = dict(await self._read(statements.blob_shares(self.tenant, keys)))
        return [
            SessionInfo(
                id=from_text(id),
                title=from_text(title),
                created=created,
                active=active,
                events=head,
                bytes=size + round(shares.get(key, 0.0)),
                erased=erased,
            )
            for key, id, title, created, active, head, size, erased in rows
        ]

    # ── Other writing ────────────────────────────────────────────────────────────────────────────────────

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        # Not durable: losing a checkpoint costs time, never content.
        statement = statements.keep_checkpoint(self._name(session, writes=True), checkpoint)
        _check(session, await self._write(statement, durable=False, repeatable=True))

    async def rename(self, session: str, title: str) -> None:
        statement = statements.rename(self._name(session, writes=True), to_text(title))
        _check(session, await self._write(statement, repeatable=True))

    async def restore_info(self, info: SessionInfo) -> None:
        """Set the title, the times and the erasure of a copied session as the store has them that it came from."""
        statement = statements.restore_info(self._name(info.id, writes=True), info, to_text(info.title))
        _check(info.id, await self._write(statement, repeatable=True))

    async def fork(self, session: str, new: str, *, at: int) -> None:
        await self._open()
        source, target = self._name(session), self._name(new, writes=True)
        async with self._pool.transaction(self.tenant, statement_s=_MAX_REWRITE_S) as connection:
            # The lock lets others append to the source, but not erase it.
            found = await _run(connection, statements.lock_session(source, "KEY SHARE"))
            if not found:
                raise UnknownSession(session)
            key, head, _ = found[0]
            existing = await _run(connection, statements.session_info(target))
            if existing:
                raise Conflict(new, given=0, next_seq=existing[0][5])
            if not 0 <= at < head:
                raise StoreError(
                    f"session {session!r} has events 0 to {head - 1}; it cannot be forked at {at}"
                )
            created = statements.create_fork(target, _full_id(new), key, at, self._clock())
            ((copy, is_fenced),) = await _run(connection, created)
            if is_fenced:
                raise LeaseLost(new)
            if copy is None:  # created by another process just now
                ((_, _, _, _, _, end, _, _),) = await _run(connection, statements.session_info(target))
                raise Conflict(new, given=0, next_seq=end)
            for statement in statements.copy_rows(self.tenant, key, copy, at):
                await _run(connection, statement)

    async def erase(self, session: str) -> None:
        """Replace all facts of a session by `Erased`, and delete its title, blobs, checkpoint and index.

        An erasure whose connection breaks is run again: erasing twice is the same as erasing once."""
        await self._open()
        name = self._name(session, writes=True)
        until = time.monotonic() + self._pool.wait_s
        try:
            while True:
                try:
                    return await self._erase_once(name, session)
                except (ConnectionLost, TransactionUndone):
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(_RETRY_DELAY_S)
        finally:
            self._known_ends.pop(session, None)

    async def _erase_once(self, name: SessionName, session: str) -> None:
        async with self._pool.transaction(self.tenant, statement_s=_MAX_REWRITE_S) as connection:
            found = await _run(connection, statements.lock_session(name, "UPDATE"))
            if not found:
                raise UnknownSession(session)
            key, head, is_fenced = found[0]
            if is_fenced:
                raise LeaseLost(session)
            size = await self._erase_events(connection, key, head)
            digests = [row[0] for row in await _run(connection, statements.digests_of(self.tenant, key))]
            for statement in statements.delete_texts(self.tenant, key, digests, size):
                await _run(connection, statement)

    async def _erase_events(self, connection: Connection, key: int, head: int) -> int:
        """Replace the bodies of all events; return the bytes that the session takes then."""
        size = 0
        for first in range(0, head, _ERASE_PAGE_EVENTS):
            last = min(first + _ERASE_PAGE_EVENTS, head) - 1
            rows = await _run(connection, statements.lines_to_erase(self.tenant, key, first, last))
            with translate_errors(self._pool.name):
                bodies = await outside_loop(sum(len(row[1]) for row in rows), partial(_erased_bodies, rows))
            seqs = [row[0] for row in rows]
            await _run(connection, statements.replace_bodies(self.tenant, key, seqs, bodies))
            size += sum(len(body) + POSTGRES_EVENT_BYTES for body in bodies)
        return size

    # ── Parts ────────────────────────────────────────────────────────────────────────────────────────────

    def _name(self, session: str, *, writes: bool = False) -> SessionName:
        return SessionName(self.tenant, to_key(session), self._epoch_of(session) if writes else None)

    async def _open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._pool.name} is closed: open it again to use it")
        if not self._has_tables:
            await migrate(self._pool, "store", STORE_MIGRATIONS)
            self._has_tables = True

    async def _read(self, statement: SqlStatement) -> Rows:
        await self._open()
        return (await self._pool.run(self.tenant, statement, snapshot=True))[0]

    async def _write(
        self, statement: SqlStatement, *, durable: bool = True, repeatable: bool = False
    ) -> tuple[bool, bool]:
        """Run a statement that returns (whether it was done, whether the lease was lost)."""
        await self._open()
        durable = durable and self._durable
        ((row,),) = await self._pool.run(self.tenant, statement, durable=durable, repeatable=repeatable)
        return row[0], row[1]


def _check(session: str, result: tuple[bool, bool]) -> None:
    exists, is_fenced = result
    if is_fenced:
        raise LeaseLost(session)
    if not exists:
        raise UnknownSession(session)


def _full_id(session: str) -> str | None:
    """Return the id of a session as it is stored beside its key; None if the key has all of it."""
    return to_text(session) if to_key(session) != to_text(session) else None


def _erased_bodies(rows: Rows) -> list[bytes]:
    return [
        erase_line(packer(), packer().unpack(body) if blob is None else packer().decompress_blob(blob))
        for _, body, blob in rows
    ]


async def _run(connection: Connection, statement: SqlStatement) -> Rows:
    cursor = await connection.execute(statement.sql, statement.values, binary=True)
    return await cursor.fetchall() if cursor.description else []
