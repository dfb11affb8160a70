"""Erasing a session: its texts are replaced in every event."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

import apsw

from foveal.stores.compression import LinePacker
from foveal.stores.event_rows import erase_line
from foveal.stores.sqlite.queries import get_session
from foveal.stores.sqlite.schema import EVENT_ROW_BYTES, ID_STRIDE

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
