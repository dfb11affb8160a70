"""Events in the tables of a store: what is done inside one transaction on one connection.

Nothing here waits, locks or knows of threads; `sqlite` does. Whoever calls holds a transaction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import apsw
import msgspec

from foveal.codec import decode, encode
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.events import Erased, Event, kind
from foveal.ports import Checkpoint
from foveal.stores.blobs import Cut, Packed, Packer, digest
from foveal.stores.schema import SPAN

ROW: Final = 14
"""Bytes that an event's row takes beside its body: its id, its time, and its place in the page."""
BLOB: Final = 90
"""Bytes that a blob's row takes beside its body: its digest, twice, and what points to it."""


class Line(NamedTuple):
    """An event on its way into the tables."""

    at: float | None
    packed: Packed


def lines(packer: Packer, events: Sequence[Event]) -> list[Line]:
    """Events as they are stored; raises when they do not follow one another."""
    for before, after in zip(events, events[1:], strict=False):
        if after.seq != before.seq + 1:
            raise StoreError(f"event {after.seq} was given right after event {before.seq}; seqs are gapless")
    return [Line(_finite(event.at), packer.pack(encode(Event(0, event.fact)))) for event in events]


def _finite(at: float | None) -> float | None:
    return at if at is not None and math.isfinite(at) else None


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def append(
    connection: apsw.Connection, packer: Packer, session: str, first: int, new: Sequence[Line], now: float
) -> None:
    times = [line.at for line in new if line.at is not None] or [now]
    size = sum(len(line.packed.body) + ROW for line in new)
    key = _advance(connection, session, first, len(new), times[-1], size)
    if key is None:
        key = _begin(connection, session, first, len(new), times, size)
    start = key * SPAN + first
    if len(new) == 1:
        connection.execute("INSERT INTO events VALUES (?, ?, ?)", (start, new[0].at, new[0].packed.body))
    else:
        rows = ((start + place, line.at, line.packed.body) for place, line in enumerate(new))
        connection.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
    for place, line in enumerate(new):
        if line.packed.cuts:
            _keep_cuts(connection, packer, start + place, line.packed.cuts)


def _advance(
    connection: apsw.Connection, session: str, first: int, count: int, active: float, size: int
) -> int | None:
    """Move a session on by `count` events if `first` is its next; None when it is not, or there is none."""
    key: int | None = connection.execute(
        "UPDATE sessions SET next = next + ?, active = ?, bytes = bytes + ? WHERE id = ? AND next = ? RETURNING key",
        (count, active, size, session, first),
    ).get
    return key


def _begin(
    connection: apsw.Connection, session: str, first: int, count: int, times: list[float], size: int
) -> int:
    known: int | None = connection.execute("SELECT next FROM sessions WHERE id = ?", (session,)).get
    if known is not None or first != 0:
        raise Conflict(session, given=first, next_seq=known or 0)
    connection.execute(
        "INSERT INTO sessions(id, created, active, next, bytes) VALUES (?, ?, ?, ?, ?)",
        (session, times[0], times[-1], count, size),
    )
    return connection.last_insert_rowid()


def _keep_cuts(connection: apsw.Connection, packer: Packer, event: int, cuts: Sequence[Cut]) -> None:
    rows = [(event, nr, cut.place, _keep_blob(connection, packer, cut.text)) for nr, cut in enumerate(cuts)]
    connection.executemany("INSERT INTO cuts VALUES (?, ?, ?, ?)", rows)


def _keep_blob(connection: apsw.Connection, packer: Packer, text: bytes) -> int:
    name = digest(text)
    known: int | None = connection.execute("SELECT id FROM blobs WHERE digest = ?", (name,)).get
    if known is not None:
        return known
    body = packer.deflate(text)
    connection.execute("INSERT INTO blobs(digest, size, body) VALUES (?, ?, ?)", (name, len(body) + BLOB, body))
    return connection.last_insert_rowid()


def rename(connection: apsw.Connection, session: str, title: str) -> None:
    connection.execute("UPDATE sessions SET title = ? WHERE key = ?", (title, key_of(connection, session)))


def fork(connection: apsw.Connection, session: str, new: str, at: int, now: float) -> None:
    """Copy the rows of events and what they refer to; blobs are shared."""
    key, end = _key_and_end(connection, session)
    taken: int | None = connection.execute("SELECT next FROM sessions WHERE id = ?", (new,)).get
    if taken is not None:
        raise Conflict(new, given=0, next_seq=taken)
    if not 0 <= at < end:
        raise StoreError(f"session {session!r} has events 0 to {end - 1}; it cannot be forked at {at}")
    connection.execute(
        "INSERT INTO sessions(id, created, active, next, erased) SELECT ?, ?, ?, ?, erased FROM sessions WHERE key = ?",
        (new, now, now, at + 1, key),
    )
    copy = connection.last_insert_rowid()
    moved = {"by": (copy - key) * SPAN, "first": key * SPAN, "last": key * SPAN + at}
    connection.execute(
        "INSERT INTO events SELECT id + :by, at, body FROM events WHERE id BETWEEN :first AND :last ORDER BY id", moved
    )
    connection.execute(
        "INSERT INTO cuts SELECT event + :by, nr, place, blob FROM cuts WHERE event BETWEEN :first AND :last", moved
    )
    connection.execute(
        "INSERT INTO checkpoints SELECT ?, seq, needed, state FROM checkpoints WHERE session = ? AND seq <= ?",
        (copy, key, at),
    )
    _recount(connection, copy)


def _recount(connection: apsw.Connection, key: int) -> None:
    connection.execute(
        "UPDATE sessions SET bytes = (SELECT coalesce(sum(length(body) + ?), 0) FROM events WHERE id BETWEEN ? AND ?)"
        " WHERE key = ?",
        (ROW, key * SPAN, key * SPAN + SPAN - 1, key),
    )


def erase(connection: apsw.Connection, packer: Packer, session: str) -> int:
    """Put `Erased` facts in the place of all others, and remove the rest of what the session said."""
    key, end = _key_and_end(connection, session)
    first, last = key * SPAN, key * SPAN + end - 1
    for start in range(0, end, _BATCH):
        found = read(connection, packer, key, range(start, min(start + _BATCH, end)))
        bodies = ((_erased(packer, event), first + event.seq) for event in found)
        connection.executemany("UPDATE events SET body = ? WHERE id = ?", bodies)
    orphans = "SELECT blob FROM cuts WHERE event BETWEEN ?1 AND ?2"
    connection.execute(
        f"DELETE FROM blobs WHERE id IN ({orphans}) AND NOT EXISTS "
        "(SELECT 1 FROM cuts WHERE blob = blobs.id AND NOT event BETWEEN ?1 AND ?2)",
        (first, last),
    )
    connection.execute("DELETE FROM cuts WHERE event BETWEEN ? AND ?", (first, last))
    connection.execute("DELETE FROM checkpoints WHERE session = ?", (key,))
    connection.execute("UPDATE sessions SET title = '', erased = 1 WHERE key = ?", (key,))
    _recount(connection, key)
    return key


_BATCH: Final = 256


def _erased(packer: Packer, event: Event) -> bytes:
    fact = event.fact if isinstance(event.fact, Erased) else Erased(was=kind(event.fact))
    return packer.pack(encode(Event(0, fact))).body


def keep_checkpoint(connection: apsw.Connection, session: str, checkpoint: Checkpoint) -> None:
    needed = msgspec.msgpack.encode(checkpoint.needed)
    row = (key_of(connection, session), checkpoint.seq, needed, checkpoint.state)
    connection.execute("REPLACE INTO checkpoints VALUES (?, ?, ?, ?)", row)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def key_of(connection: apsw.Connection, session: str) -> int:
    return _key_and_end(connection, session)[0]


def _key_and_end(connection: apsw.Connection, session: str) -> tuple[int, int]:
    row: tuple[int, int] | None = connection.execute(
        "SELECT key, next FROM sessions WHERE id = ?", (session,)
    ).get
    if row is None:
        raise UnknownSession(session)
    return row


def read(connection: apsw.Connection, packer: Packer, key: int, seqs: range) -> list[Event]:
    """Events of one session that lie next to each other."""
    place = (key * SPAN + seqs.start, key * SPAN + seqs.stop - 1)
    found = connection.execute("SELECT id, at, body FROM events WHERE id BETWEEN ? AND ? ORDER BY id", place)
    cuts = connection.execute(
        "SELECT event, place, body FROM cuts JOIN blobs ON blobs.id = blob WHERE event BETWEEN ? AND ?"
        " ORDER BY event, nr",
        place,
    )
    return _events(packer, found, cuts)


def pick(connection: apsw.Connection, packer: Packer, key: int, seqs: Iterable[int]) -> list[Event]:
    """Single events of one session."""
    ids = json.dumps(sorted({key * SPAN + seq for seq in seqs if 0 <= seq < SPAN}))
    found = connection.execute(
        "SELECT id, at, events.body FROM json_each(?) CROSS JOIN events ON id = value ORDER BY id", (ids,)
    )
    cuts = connection.execute(
        "SELECT event, place, body FROM json_each(?) CROSS JOIN cuts ON event = value"
        " JOIN blobs ON blobs.id = blob ORDER BY event, nr",
        (ids,),
    )
    return _events(packer, found, cuts)


def _events(packer: Packer, found: apsw.Cursor, cuts: apsw.Cursor) -> list[Event]:
    pieces = {
        event: [Cut(place, packer.inflate(body)) for _, place, body in group]
        for event, group in groupby(cuts, key=lambda row: row[0])
    }
    return [
        Event(id % SPAN, decode(packer.unpack(body, pieces.get(id, ()))).fact, at) for id, at, body in found
    ]


def checkpoint(connection: apsw.Connection, session: str) -> Checkpoint | None:
    row: tuple[int, bytes, bytes] | None = connection.execute(
        "SELECT seq, needed, state FROM checkpoints WHERE session = ?", (key_of(connection, session),)
    ).get
    if row is None:
        return None
    seq, needed, state = row
    return Checkpoint(seq=seq, needed=msgspec.msgpack.decode(needed, type=tuple[int, ...]), state=state)
