"""Fork and erasure of a session, each in one transaction."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from foveal.errors import Conflict, LeaseLost, StoreError, UnknownSession
from foveal.stores.event_rows import erase_line
from foveal.stores.postgres import sql_statements as statements
from foveal.stores.postgres.connection import Connection, PostgresPool, Rows, SqlStatement
from foveal.stores.postgres.error_advice import ConnectionLost, TransactionUndone, translate_errors
from foveal.stores.postgres.sql_statements import POSTGRES_EVENT_BYTES, SessionName
from foveal.stores.postgres.thread_work import outside_loop, packer

_ERASE_PAGE_EVENTS: Final = 1_000
_MAX_REWRITE_S: Final = 120.0
"""Longest statement of a fork or an erasure; both grow with the session."""


async def fork(
    pool: PostgresPool,
    source: SessionName,
    target: SessionName,
    full_id: str | None,
    session: str,
    new: str,
    *,
    at: int,
    now: float,
) -> None:
    """Copy a session's rows up to event `at` to a new session; both share the blobs."""
    async with pool.transaction(source.tenant, statement_s=_MAX_REWRITE_S) as connection:
        # The lock lets others append to the source, but not erase it.
        found = await _run(connection, statements.lock_session(source, "KEY SHARE"))
        if not found:
            raise UnknownSession(session)
        key, head, _ = found[0]
        existing = await _run(connection, statements.session_info(target))
        if existing:
            raise Conflict(new, given=0, next_seq=existing[0][5])
        if not 0 <= at < head:
            raise StoreError(f"session {session!r} has events 0 to {head - 1}; it cannot be forked at {at}")
        ((copy, is_fenced),) = await _run(connection, statements.create_fork(target, full_id, key, at, now))
        if is_fenced:
            raise LeaseLost(new)
        if copy is None:  # created by another process just now
            ((_, _, _, _, _, end, _, _),) = await _run(connection, statements.session_info(target))
            raise Conflict(new, given=0, next_seq=end)
        for statement in statements.copy_rows(source.tenant, key, copy, at):
            await _run(connection, statement)


async def erase(pool: PostgresPool, name: SessionName, session: str) -> None:
    """Replace all facts of a session by `Erased`, and delete its title, blobs, checkpoint and index.

    An erasure whose connection breaks is run again: erasing twice is the same as erasing once."""
    until = time.monotonic() + pool.wait_s
    while True:
        try:
            async with pool.transaction(name.tenant, statement_s=_MAX_REWRITE_S) as connection:
                found = await _run(connection, statements.lock_session(name, "UPDATE"))
                if not found:
                    raise UnknownSession(session)
                key, head, is_fenced = found[0]
                if is_fenced:
                    raise LeaseLost(session)
                size = await _erase_events(connection, pool.name, name.tenant, key, head)
                digests = [row[0] for row in await _run(connection, statements.digests_of(name.tenant, key))]
                for statement in statements.delete_texts(name.tenant, key, digests, size):
                    await _run(connection, statement)
                return
        except (ConnectionLost, TransactionUndone):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)


async def _erase_events(connection: Connection, store: str, tenant: str, key: int, head: int) -> int:
    """Replace the bodies of all events; return the bytes that the session takes then."""
    size = 0
    for first in range(0, head, _ERASE_PAGE_EVENTS):
        last = min(first + _ERASE_PAGE_EVENTS, head) - 1
        rows = await _run(connection, statements.lines_to_erase(tenant, key, first, last))
        with translate_errors(store):
            bodies = await outside_loop(sum(len(row[1]) for row in rows), partial(_erased_bodies, rows))
        await _run(connection, statements.replace_bodies(tenant, key, [row[0] for row in rows], bodies))
        size += sum(len(body) + POSTGRES_EVENT_BYTES for body in bodies)
    return size


def _erased_bodies(rows: Rows) -> list[bytes]:
    return [
        erase_line(packer(), packer().unpack(body) if blob is None else packer().decompress_blob(blob))
        for _, body, blob in rows
    ]


async def _run(connection: Connection, statement: SqlStatement) -> Rows:
    cursor = await connection.execute(statement.sql, statement.values, binary=True)
    return await cursor.fetchall() if cursor.description else []
