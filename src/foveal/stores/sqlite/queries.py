"""Events in the tables of a store: what is done inside one transaction on one connection.

Nothing here waits, locks or knows of threads; `sqlite` does. Whoever calls holds a transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, pairwise
from math import isfinite
from typing import Final, NamedTuple

import apsw
import msgspec

from foveal.core.log.codec import decode, encode
from foveal.core.log.events import Erased, Event, kind
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.ports import Checkpoint, SessionInfo
from foveal.stores.compression import LARGE, CutText, LinePacker, PackedLine, digest
from foveal.stores.sqlite.schema import ROW, SPAN

BLOB: Final = 90
"""Bytes that a blob's row takes beside its body: its digest, twice, and what points to it."""


class EventRow(NamedTuple):
    """An event on its way into the tables."""

    at: float | None
    packed: PackedLine


def lines(packer: LinePacker, events: Sequence[Event]) -> list[EventRow]:
    """Events as they are stored; raises when they do not follow one another."""
    for before, after in pairwise(events):
        if after.seq != before.seq + 1:
            raise StoreError(f"event {after.seq} was given right after event {before.seq}; seqs are gapless")
    return [EventRow(_finite(event.at), packer.pack(encode(Event(0, event.fact)))) for event in events]


def _finite(at: float | None) -> float | None:
    return at if at is not None and isfinite(at) else None


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def append_one(cursor: apsw.Cursor, packer: LinePacker, key: int, event: Event) -> bool:
    """Add a small event to a known session, in one statement that is a transaction by itself. False when it is not
    that simple: `append` will do it, or say why not."""
    if event.at is None or not isfinite(event.at) or not 0 < event.seq < SPAN:
        return False
    line = encode(Event(0, event.fact))
    if len(line) > LARGE:
        return False
    body = packer.small(line)
    try:
        cursor.execute(
            "INSERT INTO events VALUES (?1 + 1, ?2, (SELECT total FROM events WHERE id = ?1) + ?3, ?4)",
            (key * SPAN + event.seq - 1, event.at, len(body) + ROW, body),
        )
    except apsw.ConstraintError:  # the seq is taken, or the one before it is missing
        return False
    return True


def append(
    connection: apsw.Connection,
    packer: LinePacker,
    session: str,
    first: int,
    new: Sequence[EventRow],
    now: float,
) -> int:
    """Add lines to a session, a new one if need be; its key."""
    key, total = _ready(connection, session, first, now if new[0].at is None else new[0].at)
    start = key * SPAN + first
    totals = accumulate((len(line.packed.body) + ROW for line in new), initial=total)
    next(totals)
    rows = ((start + nr, line.at, next(totals), line.packed.body) for nr, line in enumerate(new))
    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
    if new[-1].at is None:
        connection.execute("UPDATE sessions SET active = ? WHERE key = ?", (now, key))
    for place, line in enumerate(new):
        if line.packed.cuts:
            _keep_cuts(connection, packer, start + place, line.packed.cuts)
    return key


def _ready(connection: apsw.Connection, session: str, first: int, created: float) -> tuple[int, int]:
    """The key and the size of a session whose next seq is `first`; it is made when that is 0."""
    known = find(connection, session)
    end = known.end if known else 0
    if end != first:
        raise Conflict(session, given=first, next_seq=end)
    if known:
        return known.key, known.total
    connection.execute(
        "INSERT INTO sessions(id, created, active) VALUES (?, ?, ?)", (session, created, created)
    )
    return connection.last_insert_rowid(), 0


def _keep_cuts(connection: apsw.Connection, packer: LinePacker, event: int, cuts: Sequence[CutText]) -> None:
    rows = [(event, nr, cut.place, _keep_blob(connection, packer, cut.text)) for nr, cut in enumerate(cuts)]
    connection.executemany("INSERT INTO cuts VALUES (?, ?, ?, ?)", rows)


def _keep_blob(connection: apsw.Connection, packer: LinePacker, text: bytes) -> int:
    name = digest(text)
    known: int | None = connection.execute("SELECT id FROM blobs WHERE digest = ?", (name,)).get
    if known is not None:
        return known
    body = packer.deflate(text)
    connection.execute(
        "INSERT INTO blobs(digest, size, body) VALUES (?, ?, ?)", (name, len(body) + BLOB, body)
    )
    return connection.last_insert_rowid()


def rename(connection: apsw.Connection, session: str, title: str) -> None:
    connection.execute("UPDATE sessions SET title = ? WHERE key = ?", (title, known(connection, session).key))


def fork(connection: apsw.Connection, session: str, new: str, at: int, now: float) -> None:
    """Copy the rows of events and what they refer to; blobs are shared."""
    key, end, _ = known(connection, session)
    if taken := find(connection, new):
        raise Conflict(new, given=0, next_seq=taken.end)
    if not 0 <= at < end:
        raise StoreError(f"session {session!r} has events 0 to {end - 1}; it cannot be forked at {at}")
    connection.execute(
        "INSERT INTO sessions(id, created, active, erased) SELECT ?, ?, ?, erased FROM sessions WHERE key = ?",
        (new, now, now, key),
    )
    copy = connection.last_insert_rowid()
    moved = {"by": (copy - key) * SPAN, "first": key * SPAN, "last": key * SPAN + at}
    connection.execute(
        "INSERT INTO events SELECT id + :by, at, total, body FROM events"
        " WHERE id BETWEEN :first AND :last ORDER BY id",
        moved,
    )
    connection.execute(
        "INSERT INTO cuts SELECT event + :by, nr, place, blob FROM cuts WHERE event BETWEEN :first AND :last",
        moved,
    )
    connection.execute(
        "INSERT INTO checkpoints SELECT ?, seq, needed, state FROM checkpoints WHERE session = ? AND seq <= ?",
        (copy, key, at),
    )


def erase(connection: apsw.Connection, packer: LinePacker, session: str) -> int:
    """Put `Erased` facts in the place of all others, and remove the rest of what the session said."""
    key, end, _ = known(connection, session)
    first, last = key * SPAN, key * SPAN + end - 1
    total = 0
    for start in range(first, last + 1, _BATCH):
        left = _stubs(connection, packer, start, min(start + _BATCH - 1, last))
        totals = list(accumulate((len(body) + ROW for _, body in left), initial=total))
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


_BATCH: Final = 1_000


def _stubs(connection: apsw.Connection, packer: LinePacker, first: int, last: int) -> list[tuple[int, bytes]]:
    """The bodies that remain of events, each with its id. Without its cuts a line is still JSON, with
    empty strings: enough to tell the kind."""
    found = connection.execute(
        "SELECT events.id, coalesce(blobs.body, events.body), blobs.id IS NOT NULL FROM events"
        " LEFT JOIN cuts ON event = events.id AND nr = 0 AND length(events.body) = 0"
        " LEFT JOIN blobs ON blobs.id = blob WHERE events.id BETWEEN ? AND ? ORDER BY events.id",
        (first, last),
    )
    return [
        (id, _erased(packer, packer.inflate(body) if is_blob else packer.unpack(body)))
        for id, body, is_blob in found
    ]


def _erased(packer: LinePacker, line: bytes) -> bytes:
    fact = decode(line).fact
    left = fact if isinstance(fact, Erased) else Erased(was=kind(fact))
    return packer.pack(encode(Event(0, left))).body


def keep_checkpoint(connection: apsw.Connection, session: str, checkpoint: Checkpoint) -> None:
    needed = msgspec.msgpack.encode(checkpoint.needed)
    row = (known(connection, session).key, checkpoint.seq, needed, checkpoint.state)
    connection.execute("REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


class SessionRow(NamedTuple):
    """A session that exists."""

    key: int
    end: int
    """Its next seq."""
    total: int
    """Bytes of its events, without blobs."""


def find(connection: apsw.Connection, session: str) -> SessionRow | None:
    key: int | None = connection.execute("SELECT key FROM sessions WHERE id = ?", (session,)).get
    if key is None:
        return None
    last, total = connection.execute(
        "SELECT id, total FROM events WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1",
        (key * SPAN, key * SPAN + SPAN - 1),
    ).get
    return SessionRow(key, last % SPAN + 1, total)


def known(connection: apsw.Connection, session: str) -> SessionRow:
    found = find(connection, session)
    if found is None:
        raise UnknownSession(session)
    return found


def erased(connection: apsw.Connection, key: int) -> bool:
    return bool(connection.execute("SELECT erased FROM sessions WHERE key = ?", (key,)).get)


def read(connection: apsw.Connection, packer: LinePacker, key: int, seqs: range) -> list[Event]:
    """Events of one session that lie next to each other."""
    place = (key * SPAN + seqs.start, key * SPAN + seqs.stop - 1)
    found = connection.execute("SELECT id, at, body FROM events WHERE id BETWEEN ? AND ? ORDER BY id", place)
    cuts = connection.execute(
        "SELECT event, place, body FROM cuts JOIN blobs ON blobs.id = blob WHERE event BETWEEN ? AND ?"
        " ORDER BY event, nr",
        place,
    )
    return _events(packer, found, cuts)


def pick(connection: apsw.Connection, packer: LinePacker, key: int, seqs: Iterable[int]) -> list[Event]:
    """Single events of one session."""
    ids = json.dumps(sorted({key * SPAN + seq for seq in seqs if 0 <= seq < SPAN}))
    found = connection.execute(
        "SELECT events.id, at, body FROM json_each(?) CROSS JOIN events ON events.id = value ORDER BY events.id",
        (ids,),
    )
    cuts = connection.execute(
        "SELECT event, place, body FROM json_each(?) CROSS JOIN cuts ON event = value"
        " JOIN blobs ON blobs.id = blob ORDER BY event, nr",
        (ids,),
    )
    return _events(packer, found, cuts)


def _events(packer: LinePacker, found: apsw.Cursor, cuts: apsw.Cursor) -> list[Event]:
    pieces = {
        event: [CutText(place, packer.inflate(body)) for _, place, body in group]
        for event, group in groupby(cuts, key=lambda row: row[0])
    }
    return [
        Event(id % SPAN, decode(packer.unpack(body, pieces.get(id, ()))).fact, at) for id, at, body in found
    ]


def checkpoint(connection: apsw.Connection, session: str) -> Checkpoint | None:
    row: tuple[int, bytes, bytes] | None = connection.execute(
        "SELECT seq, needed, state FROM checkpoints WHERE session = ?", (known(connection, session).key,)
    ).get
    if row is None:
        return None
    seq, needed, state = row
    return Checkpoint(seq=seq, needed=msgspec.msgpack.decode(needed, type=tuple[int, ...]), state=state)


# ── listing ───────────────────────────────────────────────────────────────────────────────────────
# What a list of sessions shows, without reading their events.

_SELECT: Final = f"""
    SELECT sessions.id, title, created, coalesce(at, active) AS active, events.id % {SPAN} + 1, total, erased, key
    FROM sessions JOIN events ON events.id =
        (SELECT max(id) FROM events WHERE id BETWEEN key * {SPAN} AND key * {SPAN} + {SPAN} - 1)
"""


def one(connection: apsw.Connection, session: str) -> SessionInfo:
    row = connection.execute(f"{_SELECT} WHERE sessions.id = ?", (session,)).get
    if row is None:
        raise UnknownSession(session)
    return _info(row, _share(connection, row[-1]))


def all_of_them(connection: apsw.Connection) -> list[SessionInfo]:
    shares = dict(
        connection.execute(f"""
            WITH used AS (SELECT DISTINCT blob, event / {SPAN} AS session FROM cuts),
                 sharing AS (SELECT blob, count(*) AS sessions FROM used GROUP BY blob)
            SELECT session, sum(size * 1.0 / sessions)
            FROM used JOIN sharing USING (blob) JOIN blobs ON blobs.id = blob GROUP BY session
        """)
    )
    rows = connection.execute(f"{_SELECT} ORDER BY 4 DESC, key DESC")
    return [_info(row, shares.get(row[-1], 0.0)) for row in rows]


def _share(connection: apsw.Connection, key: int) -> float:
    """A session's part of its blobs: each divided among the sessions that have it."""
    share: float = connection.execute(
        f"""
        SELECT total(size * 1.0 / (SELECT count(DISTINCT event / {SPAN}) FROM cuts WHERE blob = blobs.id))
        FROM blobs WHERE id IN (SELECT blob FROM cuts WHERE event BETWEEN ? AND ?)
        """,
        (key * SPAN, key * SPAN + SPAN - 1),
    ).get
    return share


def _info(row: tuple[str, str, float, float, int, int, int, int], share: float) -> SessionInfo:
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
