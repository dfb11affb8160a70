"""SQL statements of the store, each a complete operation or a complete read.

1. A statement that writes first locks the session's lease and compares its epoch, if the writer holds one. Its row
   of results tells what prevented it: an epoch that differs, or no row for the session.
2. An append is one statement: the session's row moves from the expected head to the new one, and only then rows are
   inserted. Of several writers, the first one to lock that row wins; a rollback undoes the head too, so seqs are
   gapless.
3. Locks are taken in the order lease, session, blobs by digest, so that writers do not wait for each other in a
   circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.ports import Checkpoint, SessionInfo
from foveal.stores.compression import BLOB_ROW_BYTES, MAX_COUNTED_SHARERS, EventRow
from foveal.stores.postgres.connection import SqlStatement

POSTGRES_EVENT_BYTES: Final = 80
"""Bytes of an event's row beside its body: header, tenant, session, seq, id and time."""

MAX_TEXT_BYTES: Final = 16 << 10
"""Bytes of values that are sent as text, in which each takes two characters."""


class SessionName(NamedTuple):
    """A session as statements name it."""

    tenant: str
    key: str
    """Its id, or the digest of a long one."""
    epoch: int | None = None
    """The epoch of the writer's lease; None without one."""


class StoredBlob(NamedTuple):
    """A large text as it is inserted."""

    digest: bytes
    body: bytes


# ── Appending ────────────────────────────────────────────────────────────────────────────────────────────

_LEASE: Final = """
lease_row AS MATERIALIZED (
    SELECT epoch FROM foveal.lease
    WHERE %(epoch)s::bigint IS NOT NULL AND tenant = %(tenant)s AND name = %(id)s FOR SHARE
), allowed AS MATERIALIZED (
    SELECT 1 WHERE %(epoch)s::bigint IS NULL OR EXISTS (SELECT 1 FROM lease_row WHERE epoch = %(epoch)s)
)
"""

_NO_LEASE: Final = "allowed AS MATERIALIZED (SELECT 1)"
"""In place of `_LEASE` for a writer without a lease: planning the search for one takes a tenth of an append."""

_MOVE_HEAD: Final = """
moved AS (
    UPDATE foveal.session SET head = head + %(count)s, bytes = bytes + %(size)s, active = %(active)s
    WHERE tenant = %(tenant)s AND id = %(id)s AND head = %(first)s AND EXISTS (SELECT 1 FROM allowed)
    RETURNING key
)
"""

_CREATE_SESSION: Final = """
moved AS (
    INSERT INTO foveal.session (tenant, id, full_id, created, active, head, bytes)
    SELECT %(tenant)s, %(id)s, %(full_id)s::text, %(created)s, %(active)s, %(count)s, %(size)s FROM allowed
    ON CONFLICT (tenant, id) DO NOTHING RETURNING key
)
"""

_INSERT_EVENTS: Final = """
added AS (
    INSERT INTO foveal.event (tenant, session, seq, event_id, at, cuts, body)
    SELECT %(tenant)s, key, %(first)s + nr - 1, new.id, new.at, new.cuts, new.body
    FROM moved, unnest(%(ids)s::uuid[], %(times)s::float8[], %(cut_counts)s::int[], %(bodies)s::bytea[])
        WITH ORDINALITY AS new(id, at, cuts, body, nr)
)
"""

_INSERT_EVENT: Final = """
added AS (
    INSERT INTO foveal.event (tenant, session, seq, event_id, at, cuts, body)
    SELECT %(tenant)s, key, %(first)s, %(event_id)s::uuid, %(at)s::float8, %(cut_count)s, %(body)s::bytea FROM moved
)
"""
"""`_INSERT_EVENTS` for one event, as most appends have: without arrays, client and server have less work."""

_INSERT_BLOBS: Final = """
stored AS (
    INSERT INTO foveal.blob (tenant, digest, body)
    SELECT %(tenant)s, new.digest, new.body
    FROM moved, unnest(%(digests)s::bytea[], %(blobs)s::bytea[]) AS new(digest, body)
    ON CONFLICT (tenant, digest) DO NOTHING
), cut_out AS (
    INSERT INTO foveal.cut (tenant, session, seq, nr, place, digest)
    SELECT %(tenant)s, key, new.seq, new.nr, new.place, new.digest
    FROM moved, unnest(%(cut_seqs)s::bigint[], %(cut_nrs)s::int[], %(places)s::bigint[], %(cut_digests)s::bytea[])
        AS new(seq, nr, place, digest)
)
"""


class AppendRequest(NamedTuple):
    """Events to append, packed; it is sent again unchanged after a lost connection."""

    session: SessionName
    full_id: str | None
    """The session's id, if it is too long for a key."""
    first: int
    rows: Sequence[EventRow]
    ids: Sequence[UUID]
    """Made by the writer, one per event: they tell its events from those of other writers."""
    digests: Sequence[Sequence[bytes]]
    """The digests of each row's cuts."""
    now: float


def append(request: AppendRequest, blobs: Sequence[StoredBlob]) -> SqlStatement:
    """Append rows; the result is (whether it was done, whether the lease was lost).

    `blobs`: the texts that the database may lack."""
    rows = request.rows
    values: dict[str, object] = {
        **_named(request.session),
        "first": request.first,
        "count": len(rows),
        "size": sum(len(row.packed.body) + POSTGRES_EVENT_BYTES for row in rows),
        "active": request.now if rows[-1].at is None else rows[-1].at,
        **_event_values(request),
    }
    if request.first == 0:
        created = request.now if rows[0].at is None else rows[0].at
        values |= {"full_id": request.full_id, "created": created}
    parts = [
        _NO_LEASE if request.session.epoch is None else _LEASE,
        _MOVE_HEAD if request.first else _CREATE_SESSION,
        _INSERT_EVENT if len(rows) == 1 else _INSERT_EVENTS,
    ]
    if any(request.digests):
        parts += [_INSERT_BLOBS]
        values |= _blob_values(request, sorted(blobs))
    text = f"WITH {', '.join(parts)} SELECT EXISTS (SELECT 1 FROM moved), NOT EXISTS (SELECT 1 FROM allowed)"
    size = sum(len(row.packed.body) for row in rows) + sum(len(blob.body) for blob in blobs)
    return SqlStatement(text, values, is_large=size > MAX_TEXT_BYTES)


def _event_values(request: AppendRequest) -> dict[str, object]:
    rows = request.rows
    if len(rows) == 1:
        cut_count, body = len(rows[0].packed.cuts), rows[0].packed.body
        return {"event_id": request.ids[0], "at": rows[0].at, "cut_count": cut_count, "body": body}
    return {
        "ids": list(request.ids),
        "times": [row.at for row in rows],
        "cut_counts": [len(row.packed.cuts) for row in rows],
        "bodies": [row.packed.body for row in rows],
    }


def _blob_values(request: AppendRequest, blobs: Sequence[StoredBlob]) -> dict[str, object]:
    placed = sorted(
        (digest, request.first + at, nr, cut.offset)
        for at, (row, digests) in enumerate(zip(request.rows, request.digests, strict=True))
        for nr, (cut, digest) in enumerate(zip(row.packed.cuts, digests, strict=True))
    )
    columns = ("cut_digests", "cut_seqs", "cut_nrs", "places")
    values: dict[str, object] = dict(zip(columns, map(list, zip(*placed, strict=True)), strict=True))
    return {**values, "digests": [blob.digest for blob in blobs], "blobs": [blob.body for blob in blobs]}


def head_and_ids(session: SessionName, first: int, count: int) -> SqlStatement:
    """Read (head, ids of the events from `first` on): what a writer needs after a conflict or a lost connection."""
    return SqlStatement(
        """
        SELECT head, ARRAY(
            SELECT event_id FROM foveal.event WHERE tenant = session.tenant AND event.session = session.key
            AND seq BETWEEN %s AND %s ORDER BY seq)
        FROM foveal.session WHERE tenant = %s AND id = %s
        """,
        (first, first + count - 1, session.tenant, session.key),
    )


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────

_SELECT_EVENTS: Final = """
SELECT session.key, head, erasures, seq, at, cuts, body
FROM foveal.session LEFT JOIN foveal.event
    ON event.tenant = session.tenant AND event.session = session.key AND {}
WHERE session.tenant = %s AND id = %s ORDER BY seq
"""


def events_between(session: SessionName, first: int, last: int) -> SqlStatement:
    """Read the session's state with each of its events in a range; one row with nulls if there is none."""
    return SqlStatement(
        _SELECT_EVENTS.format("seq BETWEEN %s AND %s"), (first, last, session.tenant, session.key)
    )


def events_at(session: SessionName, seqs: Sequence[int]) -> SqlStatement:
    """Read the session's state with single events."""
    return SqlStatement(
        _SELECT_EVENTS.format("seq = ANY(%s::bigint[])"), (list(seqs), session.tenant, session.key)
    )


def stored_bytes(session: SessionName, first: int, last: int) -> SqlStatement:
    """Read the bytes of the bodies and blobs of each event in a range."""
    return SqlStatement(
        """
        SELECT (octet_length(body) + coalesce((
            SELECT sum(octet_length(blob.body)) FROM foveal.cut JOIN foveal.blob USING (tenant, digest)
            WHERE cut.tenant = event.tenant AND cut.session = event.session AND cut.seq = event.seq), 0))::bigint
        FROM foveal.event WHERE tenant = %s AND seq BETWEEN %s AND %s
            AND session = (SELECT key FROM foveal.session WHERE tenant = %s AND id = %s) ORDER BY seq
        """,
        (session.tenant, first, last, session.tenant, session.key),
    )


def cuts_of(tenant: str, key: int, seqs: Sequence[int]) -> tuple[SqlStatement, SqlStatement]:
    """Read (seq, offset, digest) of the cuts of events, and (digest, body) of their blobs, each once."""
    of_events = "tenant = %s AND session = %s AND seq = ANY(%s::bigint[])"
    values = (tenant, key, list(seqs))
    return (
        SqlStatement(f"SELECT seq, place, digest FROM foveal.cut WHERE {of_events} ORDER BY seq, nr", values),
        SqlStatement(
            "SELECT digest, body FROM foveal.blob WHERE tenant = %s AND digest IN"
            f" (SELECT digest FROM foveal.cut WHERE {of_events})",
            (tenant, *values),
            is_large=True,
        ),
    )


_SELECT_INFO: Final = """
SELECT key, coalesce(full_id, id), title, created, active, head, bytes, erasures > 0
FROM foveal.session WHERE tenant = %s
"""


def session_end(session: SessionName) -> SqlStatement:
    """Read (head, erasures) of a session."""
    text = "SELECT head, erasures FROM foveal.session WHERE tenant = %s AND id = %s"
    return SqlStatement(text, (session.tenant, session.key))


def session_info(session: SessionName) -> SqlStatement:
    """Read what is known of a session."""
    return SqlStatement(f"{_SELECT_INFO} AND id = %s", (session.tenant, session.key))


def session_page(
    tenant: str, limit: int | None, before: tuple[float, str] | None, *, with_erased: bool, memories: bool
) -> SqlStatement:
    """Read what is known of sessions, or of memories, the most recently active first; `before` has a session's
    key."""
    text, values = f"{_SELECT_INFO} AND starts_with(id, %s) = %s", [tenant, MEMORY_LOG_PREFIX, memories]
    values += before or ()
    if not with_erased:
        text += " AND erasures = 0"  # as in the partial index
    if before is not None:
        text += " AND (active, id) < (%s, %s)"
    return SqlStatement(f"{text} ORDER BY active DESC, id DESC LIMIT %s", (*values, limit))


def blob_shares(tenant: str, keys: Sequence[int]) -> SqlStatement:
    """Read (session, its share of the bytes of its blobs): a blob counts equally for each session that uses it."""
    return SqlStatement(
        f"""
        SELECT used.session, sum((octet_length(body) + {BLOB_ROW_BYTES})::float8 / sharers)
        FROM (SELECT DISTINCT session, digest FROM foveal.cut
              WHERE tenant = %s AND session = ANY(%s::bigint[])) used
        JOIN foveal.blob ON blob.tenant = %s AND blob.digest = used.digest
        CROSS JOIN LATERAL (SELECT count(*) AS sharers FROM (
            SELECT DISTINCT session FROM foveal.cut WHERE tenant = %s AND cut.digest = used.digest
            LIMIT {MAX_COUNTED_SHARERS}) sharing) shared
        GROUP BY used.session
        """,
        (tenant, list(keys), tenant, tenant),
    )


def checkpoint(session: SessionName) -> SqlStatement:
    """Read a session's checkpoint; a row with nulls if there is none."""
    return SqlStatement(
        """
        SELECT seq, needed, state FROM foveal.session LEFT JOIN foveal.checkpoint
            ON checkpoint.tenant = session.tenant AND checkpoint.session = session.key
        WHERE session.tenant = %s AND id = %s
        """,
        (session.tenant, session.key),
    )


# ── Other writing ────────────────────────────────────────────────────────────────────────────────────────

_RESULT: Final = "SELECT EXISTS (SELECT 1 FROM found), NOT EXISTS (SELECT 1 FROM allowed)"


def keep_checkpoint(session: SessionName, kept: Checkpoint) -> SqlStatement:
    """Store a checkpoint; the result is (whether the session exists, whether the lease was lost)."""
    return SqlStatement(
        f"""
        WITH {_LEASE}, found AS MATERIALIZED (
            SELECT key FROM foveal.session WHERE tenant = %(tenant)s AND id = %(id)s FOR KEY SHARE
        ), kept AS (
            INSERT INTO foveal.checkpoint (tenant, session, seq, needed, state)
            SELECT %(tenant)s, key, %(seq)s, %(needed)s, %(state)s FROM found, allowed
            ON CONFLICT (tenant, session) DO UPDATE
                SET seq = excluded.seq, needed = excluded.needed, state = excluded.state
        ) {_RESULT}
        """,
        {
            **_named(session),
            "seq": kept.seq,
            "needed": msgspec.msgpack.encode(kept.needed),
            "state": kept.state,
        },
        is_large=len(kept.state) > MAX_TEXT_BYTES,
    )


def rename(session: SessionName, title: str) -> SqlStatement:
    """Set a session's title; the result is (whether the session exists, whether the lease was lost)."""
    return SqlStatement(
        f"""
        WITH {_LEASE}, found AS MATERIALIZED (
            SELECT key FROM foveal.session WHERE tenant = %(tenant)s AND id = %(id)s FOR NO KEY UPDATE
        ), renamed AS (
            UPDATE foveal.session SET title = %(title)s FROM found, allowed
            WHERE tenant = %(tenant)s AND session.key = found.key
        ) {_RESULT}
        """,
        {**_named(session), "title": title},
    )


def restore_info(session: SessionName, info: SessionInfo, title: str) -> SqlStatement:
    """Set a session's title, times and erasure; the result is as that of `rename`."""
    return SqlStatement(
        f"""
        WITH {_LEASE}, found AS MATERIALIZED (
            SELECT key FROM foveal.session WHERE tenant = %(tenant)s AND id = %(id)s FOR NO KEY UPDATE
        ), restored AS (
            UPDATE foveal.session SET title = %(title)s, created = %(created)s, active = %(active)s,
                erasures = CASE WHEN %(erased)s THEN greatest(erasures, 1) ELSE 0 END
            FROM found, allowed WHERE tenant = %(tenant)s AND session.key = found.key
        ) {_RESULT}
        """,
        {
            **_named(session),
            "title": title,
            "created": info.created,
            "active": info.active,
            "erased": info.erased,
        },
    )


def _named(session: SessionName) -> dict[str, object]:
    return {"tenant": session.tenant, "id": session.key, "epoch": session.epoch}


# ── Fork and erasure: steps of one transaction ───────────────────────────────────────────────────────────


def lock_session(session: SessionName, strength: str) -> SqlStatement:
    """Lock a session's row `FOR` the strength; the result is (key, head, whether the lease was lost)."""
    return SqlStatement(
        f"""
        WITH {_LEASE} SELECT key, head, NOT EXISTS (SELECT 1 FROM allowed) FROM foveal.session
        WHERE tenant = %(tenant)s AND id = %(id)s FOR {strength} OF session
        """,
        _named(session),
    )


def create_fork(session: SessionName, full_id: str | None, source: int, at: int, now: float) -> SqlStatement:
    """Create the session of a fork; the result is (its key, whether the lease was lost), no key if it exists."""
    return SqlStatement(
        f"""
        WITH {_LEASE}, made AS (
            INSERT INTO foveal.session (tenant, id, full_id, created, active, head, bytes, erasures)
            SELECT %(tenant)s, %(id)s, %(full_id)s::text, %(now)s, coalesce(
                    (SELECT event.at FROM foveal.event WHERE tenant = %(tenant)s AND session = %(source)s
                     AND seq = %(at)s), %(now)s), %(at)s + 1,
                (SELECT sum(octet_length(body) + {POSTGRES_EVENT_BYTES}) FROM foveal.event
                 WHERE tenant = %(tenant)s AND session = %(source)s AND seq <= %(at)s),
                erasures
            FROM foveal.session, allowed WHERE tenant = %(tenant)s AND key = %(source)s
            ON CONFLICT (tenant, id) DO NOTHING RETURNING key
        ) SELECT (SELECT key FROM made), NOT EXISTS (SELECT 1 FROM allowed)
        """,
        {**_named(session), "full_id": full_id, "source": source, "at": at, "now": now},
    )


def copy_rows(tenant: str, source: int, target: int, at: int) -> tuple[SqlStatement, ...]:
    """Copy the rows of a session up to event `at`; the blobs are shared."""
    columns = {
        "event": "seq, event_id, at, cuts, body",
        "cut": "seq, nr, place, digest",
        "checkpoint": "seq, needed, state",
    }
    return tuple(
        SqlStatement(
            f"INSERT INTO foveal.{table} (tenant, session, {names}) SELECT tenant, %s, {names}"
            f" FROM foveal.{table} WHERE tenant = %s AND session = %s AND seq <= %s",
            (target, tenant, source, at),
        )
        for table, names in columns.items()
    )


def lines_to_erase(tenant: str, key: int, first: int, last: int) -> SqlStatement:
    """Read (seq, body, blob): the blob of a line that is itself one, and has an empty body.

    A subquery and not a join, so that the plan is good without statistics of the tables too."""
    return SqlStatement(
        """
        SELECT seq, body, CASE WHEN octet_length(body) = 0 THEN (
            SELECT blob.body FROM foveal.cut JOIN foveal.blob USING (tenant, digest)
            WHERE cut.tenant = event.tenant AND cut.session = event.session AND cut.seq = event.seq AND nr = 0) END
        FROM foveal.event WHERE tenant = %s AND session = %s AND seq BETWEEN %s AND %s ORDER BY seq
        """,
        (tenant, key, first, last),
    )


def replace_bodies(tenant: str, key: int, seqs: Sequence[int], bodies: Sequence[bytes]) -> SqlStatement:
    """Replace the bodies of events by others without cuts."""
    return SqlStatement(
        """
        UPDATE foveal.event SET body = new.body, cuts = 0
        FROM unnest(%s::bigint[], %s::bytea[]) AS new(seq, body)
        WHERE event.tenant = %s AND event.session = %s AND event.seq BETWEEN %s AND %s AND event.seq = new.seq
        """,
        (list(seqs), list(bodies), tenant, key, min(seqs), max(seqs)),
    )


def delete_texts(tenant: str, key: int, digests: Sequence[bytes], size: int) -> tuple[SqlStatement, ...]:
    """Delete a session's cuts, checkpoint, index and title, and its blobs that no other session uses."""
    caches = ("cut", "checkpoint", "search_term", "search_piece", "search_progress")
    return (
        # Locked in a statement of its own: the one that deletes then sees what a concurrent append has added.
        SqlStatement(
            "SELECT 1 FROM foveal.blob WHERE tenant = %s AND digest = ANY(%s::bytea[]) ORDER BY digest FOR UPDATE",
            (tenant, list(digests)),
        ),
        *(
            SqlStatement(f"DELETE FROM foveal.{table} WHERE tenant = %s AND session = %s", (tenant, key))
            for table in caches
        ),
        SqlStatement(
            "DELETE FROM foveal.blob WHERE tenant = %s AND digest = ANY(%s::bytea[]) AND NOT EXISTS"
            " (SELECT 1 FROM foveal.cut WHERE cut.tenant = blob.tenant AND cut.digest = blob.digest)",
            (tenant, list(digests)),
        ),
        SqlStatement(
            "UPDATE foveal.session SET title = '', erasures = erasures + 1, bytes = %s"
            " WHERE tenant = %s AND key = %s",
            (size, tenant, key),
        ),
    )


def digests_of(tenant: str, key: int) -> SqlStatement:
    """Read the digests of a session's blobs."""
    return SqlStatement(
        "SELECT DISTINCT digest FROM foveal.cut WHERE tenant = %s AND session = %s ORDER BY digest",
        (tenant, key),
    )
