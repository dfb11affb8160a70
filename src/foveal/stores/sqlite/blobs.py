"""Large texts, stored once per content."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from foveal.stores.compression import CutText, LinePacker, digest
from foveal.stores.event_rows import BLOB_ROW_BYTES, MAX_COUNTED_SHARERS
from foveal.stores.sqlite.schema import ID_STRIDE


def insert_cuts(connection: apsw.Connection, packer: LinePacker, event: int, cuts: Sequence[CutText]) -> None:
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


def blob_share(connection: apsw.Connection, key: int) -> float:
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
