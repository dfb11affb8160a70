"""SQL statements that read and write the tables of a store.

The functions run on one connection, inside the caller's transaction. Threads, locks and transactions belong to
`store` and `connection`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from heapq import heappush, heappushpop
from itertools import accumulate, groupby
from math import inf, isfinite
from typing import Final, NamedTuple, TypeAlias

import apsw
import msgspec

from foveal.core.log.codec import encode
from foveal.core.log.events import MEMORY_LOG_PREFIX, Event
from foveal.errors import Conflict, StoreError, UnknownSession, UnreadableEvent
from foveal.ports import Checkpoint, SessionInfo
from foveal.stores.compression import (
    BLOB_ROW_BYTES,
    MAX_COUNTED_SHARERS,
    MAX_INLINE_BYTES,
    CutText,
    EventRow,
    LinePacker,
    digest,
    erase_line,
    to_events,
)
from foveal.stores.sqlite.schema import ACTIVE_LAG_S, EVENT_ROW_BYTES, ID_STRIDE

# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────


def append_one(cursor: apsw.Cursor, packer: LinePacker, key: int, event: Event) -> bool:
    """Append a small event to an existing session, in one statement that is a transaction by itself.

    Returns False when the event needs more than that: `append` then does it, or raises."""
    if event.at is None or not isfinite(event.at) or not 0 < event.seq < ID_STRIDE:
        return False
    line = encode(Event(0, event.fact))
    if len(line) > MAX_INLINE_BYTES:
        return False
    body = packer.compress_line(line)
    try:
        cursor.execute(
            "INSERT INTO events VALUES (?1 + 1, ?2, (SELECT total FROM events WHERE id = ?1) + ?3, ?4)",
            (key * ID_STRIDE + event.seq - 1, event.at, len(body) + EVENT_ROW_BYTES, body),
        )
    except apsw.ConstraintError:  # the seq is taken, or the one before it is missing
        return False
    return True


def append(
    connection: apsw.Connection,
    packer: LinePacker,
    session: str,
    first: int,
    rows: Sequence[EventRow],
    now: float,
) -> int:
    """Append rows to a session, which is created if `first` is 0; return its key."""
    key, total = _session_for_append(connection, session, first, now if rows[0].at is None else rows[0].at)
    start = key * ID_STRIDE + first
    totals = accumulate((len(row.packed.body) + EVENT_ROW_BYTES for row in rows), initial=total)
    next(totals)
    values = ((start + nr, row.at, next(totals), row.packed.body) for nr, row in enumerate(rows))
    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", values)
    if rows[-1].at is None:
        connection.execute("UPDATE sessions SET active = ? WHERE key = ?", (now, key))
    for nr, row in enumerate(rows):
        if row.packed.cuts:
            _insert_cuts(connection, packer, start + nr, row.packed.cuts)
    return key


def _session_for_append(
    connection: apsw.Connection, session: str, first: int, created: float
) -> tuple[int, int]:
    """Return the key and the size of a session, which is created if `first` is 0; `first` must be its next seq."""
    found = find_session(connection, session)
    end = found.end if found else 0
    if end != first:
        raise Conflict(session, given=first, next_seq=end)
    if found:
        return found.key, found.total
    connection.execute(
        "INSERT INTO sessions(id, created, active) VALUES (?, ?, ?)", (session, created, created)
    )
    return connection.last_insert_rowid(), 0


def rename(connection: apsw.Connection, session: str, title: str) -> None:
    connection.execute(
        "UPDATE sessions SET title = ? WHERE key = ?", (title, get_session(connection, session).key)
    )


def restore_info(connection: apsw.Connection, info: SessionInfo) -> None:
    """Set the title, the times and the erasure of a session as `info` has them."""
    key = get_session(connection, info.id).key
    connection.execute(
        "UPDATE sessions SET title = ?, created = ?, active = ?, erased = ? WHERE key = ?",
        (info.title, info.created, info.active, info.erased, key),
    )


def fork(connection: apsw.Connection, session: str, new: str, at: int, now: float) -> None:
    """Copy a session's rows up to event `at` to a new session; both share the blobs."""
    key, end, _ = get_session(connection, session)
    if existing := find_session(connection, new):
        raise Conflict(new, given=0, next_seq=existing.end)
    if not 0 <= at < end:
        raise StoreError(f"session {session!r} has events 0 to {end - 1}; it cannot be forked at {at}")
    connection.execute(
        "INSERT INTO sessions(id, created, active, erased) SELECT ?, ?, ?, erased FROM sessions WHERE key = ?",
        (new, now, now, key),
    )
    copy = connection.last_insert_rowid()
    copied = {
        "by": (copy - key) * ID_STRIDE,
        "first": key * ID_STRIDE,
        "last": key * ID_STRIDE + at,
    }
    connection.execute(
        "INSERT INTO events SELECT id + :by, at, total, body FROM events"
        " WHERE id BETWEEN :first AND :last ORDER BY id",
        copied,
    )
    # Events without a time: the rows before them have moved `active` to their own time.
    connection.execute(
        "UPDATE sessions SET active = ? WHERE key = ? AND (SELECT at FROM events WHERE id = ?) IS NULL",
        (now, copy, copied["last"]),
    )
    connection.execute(
        "INSERT INTO cuts SELECT event + :by, nr, place, blob FROM cuts WHERE event BETWEEN :first AND :last",
        copied,
    )
    connection.execute(
        "INSERT INTO checkpoints SELECT ?, seq, needed, state FROM checkpoints WHERE session = ? AND seq <= ?",
        (copy, key, at),
    )


def keep_checkpoint(connection: apsw.Connection, session: str, checkpoint: Checkpoint) -> None:
    needed = msgspec.msgpack.encode(checkpoint.needed)
    row = (get_session(connection, session).key, checkpoint.seq, needed, checkpoint.state)
    connection.execute("REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────


class SessionSize(NamedTuple):
    """Key and size of a session."""

    key: int
    end: int
    """Its next seq, which is also its number of events."""
    total: int
    """Bytes of its events, without blobs."""


def find_session(connection: apsw.Connection, session: str) -> SessionSize | None:
    """Return the session, or None."""
    key: int | None = connection.execute("SELECT key FROM sessions WHERE id = ?", (session,)).get
    if key is None:
        return None
    newest = connection.execute(
        "SELECT id, total FROM events WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1",
        (key * ID_STRIDE, key * ID_STRIDE + ID_STRIDE - 1),
    ).get
    if newest is None:  # a session is created with its first event
        raise UnreadableEvent(f"session {session!r} has no events")
    last, total = newest
    return SessionSize(key, last % ID_STRIDE + 1, total)


def get_session(connection: apsw.Connection, session: str) -> SessionSize:
    """Return the session, or raise `UnknownSession`."""
    found = find_session(connection, session)
    if found is None:
        raise UnknownSession(session)
    return found


def is_erased(connection: apsw.Connection, key: int) -> bool:
    return bool(connection.execute("SELECT erased FROM sessions WHERE key = ?", (key,)).get)


def read(connection: apsw.Connection, packer: LinePacker, key: int, seqs: range) -> list[Event]:
    """Return the events of a session in a range of seqs."""
    ids = (key * ID_STRIDE + seqs.start, key * ID_STRIDE + seqs.stop - 1)
    rows = connection.execute("SELECT id, at, body FROM events WHERE id BETWEEN ? AND ? ORDER BY id", ids)
    cuts = connection.execute(
        "SELECT event, place, body FROM cuts JOIN blobs ON blobs.id = blob WHERE event BETWEEN ? AND ?"
        " ORDER BY event, nr",
        ids,
    )
    return _decode_events(packer, rows, cuts)


def skim(connection: apsw.Connection, packer: LinePacker, key: int, seqs: range) -> list[Event]:
    """Return the events of a range with "" for texts above `MAX_INLINE_BYTES`, which are not read."""
    ids = (key * ID_STRIDE + seqs.start, key * ID_STRIDE + seqs.stop - 1)
    sql = "SELECT id % ?, at, body FROM events WHERE id BETWEEN ? AND ? ORDER BY id"
    rows = list(connection.execute(sql, (ID_STRIDE, *ids)))
    skimmed = to_events(packer, (row for row in rows if row[2]), {})
    # A line that stays long without its long texts is a blob as a whole.
    whole = pick(connection, packer, key, [seq for seq, _, body in rows if not body])
    return sorted([*skimmed, *whole], key=lambda event: event.seq)


def stored_bytes(connection: apsw.Connection, key: int, seqs: range) -> list[int]:
    """Return the bytes of the bodies and blobs of each event in a range."""
    rows = connection.execute(
        "SELECT length(body) + coalesce((SELECT sum(size) FROM cuts JOIN blobs ON blobs.id = blob"
        " WHERE event = events.id), 0) FROM events WHERE id BETWEEN ? AND ? ORDER BY id",
        (key * ID_STRIDE + seqs.start, key * ID_STRIDE + seqs.stop - 1),
    )
    return [size for (size,) in rows]


def pick(connection: apsw.Connection, packer: LinePacker, key: int, seqs: Iterable[int]) -> list[Event]:
    """Return single events of a session, ascending."""
    ids = json.dumps(sorted({key * ID_STRIDE + seq for seq in seqs if 0 <= seq < ID_STRIDE}))
    rows = connection.execute(
        "SELECT events.id, at, body FROM json_each(?) CROSS JOIN events ON events.id = value ORDER BY events.id",
        (ids,),
    )
    cuts = connection.execute(
        "SELECT event, place, body FROM json_each(?) CROSS JOIN cuts ON event = value"
        " JOIN blobs ON blobs.id = blob ORDER BY event, nr",
        (ids,),
    )
    return _decode_events(packer, rows, cuts)


def _decode_events(packer: LinePacker, rows: apsw.Cursor, cuts: apsw.Cursor) -> list[Event]:
    cuts_of = {
        event % ID_STRIDE: [CutText(offset, packer.decompress_blob(body)) for _, offset, body in group]
        for event, group in groupby(cuts, key=lambda row: row[0])
    }
    return to_events(packer, ((id % ID_STRIDE, at, body) for id, at, body in rows), cuts_of)


def checkpoint(connection: apsw.Connection, session: str) -> Checkpoint | None:
    row: tuple[int, bytes, bytes] | None = connection.execute(
        "SELECT seq, needed, state FROM checkpoints WHERE session = ?",
        (get_session(connection, session).key,),
    ).get
    if row is None:
        return None
    seq, needed, state = row
    return Checkpoint(seq=seq, needed=msgspec.msgpack.decode(needed, type=tuple[int, ...]), state=state)


# ── Session infos, without reading the events ────────────────────────────────────────────────────────────

_SELECT_INFO: Final = f"""
    SELECT sessions.id, title, created, coalesce(at, active) AS active, events.id % {ID_STRIDE} + 1, total,
        erased, key
    FROM sessions JOIN events ON events.id =
        (SELECT max(id) FROM events WHERE id BETWEEN key * {ID_STRIDE} AND key * {ID_STRIDE} + {ID_STRIDE} - 1)
"""

_IS_LISTED: Final = "(substr(sessions.id, 1, ?) = ?) = ?"
"""Whether a log is of the wanted kind: a memory by the beginning of its id, or a session."""


InfoRow: TypeAlias = tuple[str, str, float, float, int, int, int, int]
"""A row of `_SELECT_INFO`: id, title, created, active, events, bytes without blobs, erased, key."""


def session_info(connection: apsw.Connection, session: str) -> SessionInfo:
    row = connection.execute(f"{_SELECT_INFO} WHERE sessions.id = ?", (session,)).get
    if row is None:
        get_session(connection, session)
        raise UnknownSession(session)
    return _info(row, _blob_share(connection, row[-1]))


def list_sessions(
    connection: apsw.Connection,
    *,
    limit: int | None,
    before: tuple[float, str] | None,
    with_erased: bool,
    memories: bool = False,
) -> list[SessionInfo]:
    """Return a page of sessions, the most recently active first, of equally active ones the greater id."""
    listed_kind = (len(MEMORY_LOG_PREFIX), MEMORY_LOG_PREFIX, memories)
    if limit is None:
        sql = f"{_SELECT_INFO} WHERE erased <= ? AND {_IS_LISTED}"
        rows = list(connection.execute(sql, (with_erased, *listed_kind)))
    else:
        rows = [
            row
            for erased in range(1 + with_erased)
            for row in _newest_rows(connection, listed_kind, limit=limit, before=before, erased=erased)
        ]
    listed = [row for row in rows if before is None or _place(row) < before]
    page = sorted(listed, key=_place, reverse=True)[:limit]
    shares = _all__blob_shares(connection) if limit is None else None
    return [
        _info(row, _blob_share(connection, row[-1]) if shares is None else shares.get(row[-1], 0.0))
        for row in page
    ]


def _newest_rows(
    connection: apsw.Connection,
    listed_kind: tuple[int, str, bool],
    *,
    limit: int,
    before: tuple[float, str] | None,
    erased: int,
) -> list[InfoRow]:
    """Return the rows among which are the `limit` most recently active ones below `before`.

    `sessions.active` is at most `ACTIVE_LAG_S` behind, so the walk over its index ends when no later row can be as
    active as the last one of the page."""
    last = (inf, "") if before is None else before
    keys = connection.execute(
        f"SELECT key, active FROM sessions WHERE erased = ? AND active <= ? AND {_IS_LISTED} ORDER BY active DESC",
        (erased, last[0], *listed_kind),
    )
    rows: list[InfoRow] = []
    page: list[float] = []  # a heap with the activity of the best rows
    for key, stored in keys:
        if len(page) == limit and (not page or stored + ACTIVE_LAG_S < page[0]):
            break
        row: InfoRow | None = connection.execute(f"{_SELECT_INFO} WHERE key = ?", (key,)).get
        if row is None:
            raise UnreadableEvent(f"the session with key {key} has no events")
        if _place(row) < last:
            rows.append(row)
            (heappush if len(page) < limit else heappushpop)(page, row[3])
    return rows


def _all__blob_shares(connection: apsw.Connection) -> dict[int, float]:
    """Return the share of each session in the bytes of its blobs, in one query."""
    return dict(
        connection.execute(f"""
            WITH used AS (SELECT DISTINCT blob, event / {ID_STRIDE} AS session FROM cuts),
                 sharing AS (SELECT blob, min(count(*), {MAX_COUNTED_SHARERS}) AS sessions FROM used GROUP BY blob)
            SELECT session, sum(size * 1.0 / sessions)
            FROM used JOIN sharing USING (blob) JOIN blobs ON blobs.id = blob GROUP BY session
        """)
    )


def _place(row: InfoRow) -> tuple[float, str]:
    """Return what sessions are ordered by: activity and id."""
    return row[3], row[0]


def _info(row: InfoRow, share: float) -> SessionInfo:
    id, title, created, active, events, size, erased, _ = row
    return SessionInfo(
        id=id,
        title=title,
        created=created,
        active=active,
        events=events,
        bytes=size + round(share),
        erased=bool(erased),
    )


# ── Erasing ───────────────────────────────────────────────────────────────────────────────────────

_ERASE_BATCH_EVENTS: Final = 1_000


def erase(connection: apsw.Connection, packer: LinePacker, session: str) -> int:
    """Replace all facts of a session by `Erased`, and delete its title, blobs and checkpoint; return its key."""
    key, end, _ = get_session(connection, session)
    first, last = key * ID_STRIDE, key * ID_STRIDE + end - 1
    total = 0
    for start in range(first, last + 1, _ERASE_BATCH_EVENTS):
        left = _erased_bodies(connection, packer, start, min(start + _ERASE_BATCH_EVENTS - 1, last))
        totals = list(accumulate((len(body) + EVENT_ROW_BYTES for _, body in left), initial=total))
        total = totals[-1]
        rows = ((body, size, id) for (id, body), size in zip(left, totals[1:], strict=True))
        connection.executemany("UPDATE events SET body = ?, total = ? WHERE id = ?", rows)
    orphans = "SELECT blob FROM cuts WHERE event BETWEEN ?1 AND ?2"
    connection.execute(
        f"DELETE FROM blobs WHERE id IN ({orphans}) AND NOT EXISTS "
        "(SELECT 1 FROM cuts WHERE blob = blobs.id AND NOT event BETWEEN ?1 AND ?2)",
        (first, last),
    )
    connection.execute("DELETE FROM cuts WHERE event BETWEEN ? AND ?", (first, last))
    connection.execute("DELETE FROM checkpoints WHERE session = ?", (key,))
    connection.execute("UPDATE sessions SET title = '', erased = 1 WHERE key = ?", (key,))
    return key


def _erased_bodies(
    connection: apsw.Connection, packer: LinePacker, first: int, last: int
) -> list[tuple[int, bytes]]:
    """Return the id and the body after erasure of each event.

    The blobs need not be read, because a line without its cuts names its kind. Only a line that is itself a blob is
    decompressed."""
    found = connection.execute(
        "SELECT events.id, coalesce(blobs.body, events.body), blobs.id IS NOT NULL FROM events"
        " LEFT JOIN cuts ON event = events.id AND nr = 0 AND length(events.body) = 0"
        " LEFT JOIN blobs ON blobs.id = blob WHERE events.id BETWEEN ? AND ? ORDER BY events.id",
        (first, last),
    )
    return [
        (id, erase_line(packer, packer.decompress_blob(body) if is_blob else packer.unpack(body)))
        for id, body, is_blob in found
    ]


# ── Large texts, stored once per content ──────────────────────────────────────────────────────────


def _insert_cuts(
    connection: apsw.Connection, packer: LinePacker, event: int, cuts: Sequence[CutText]
) -> None:
    rows = [
        (event, nr, cut.offset, _insert_blob(connection, packer, cut.text)) for nr, cut in enumerate(cuts)
    ]
    connection.executemany("INSERT INTO cuts VALUES (?, ?, ?, ?)", rows)


def _insert_blob(connection: apsw.Connection, packer: LinePacker, text: bytes) -> int:
    name = digest(text)
    existing: int | None = connection.execute("SELECT id FROM blobs WHERE digest = ?", (name,)).get
    if existing is not None:
        return existing
    body = packer.compress_blob(text)
    connection.execute(
        "INSERT INTO blobs(digest, size, body) VALUES (?, ?, ?)", (name, len(body) + BLOB_ROW_BYTES, body)
    )
    return connection.last_insert_rowid()


def _blob_share(connection: apsw.Connection, key: int) -> float:
    """Return the session's share of the bytes of its blobs: a blob counts equally for each session that uses it, up
    to `MAX_COUNTED_SHARERS`."""
    share: float = connection.execute(
        f"""
        SELECT total(size * 1.0 / (SELECT count(*) FROM
            (SELECT DISTINCT event / {ID_STRIDE} FROM cuts WHERE blob = blobs.id LIMIT {MAX_COUNTED_SHARERS})))
        FROM blobs WHERE id IN (SELECT blob FROM cuts WHERE event BETWEEN ? AND ?)
        """,
        (key * ID_STRIDE, key * ID_STRIDE + ID_STRIDE - 1),
    ).get
    return share
