"""What a list of sessions shows, without reading their events."""

from __future__ import annotations

from typing import Final

import apsw

from foveal.errors import UnknownSession
from foveal.ports import SessionInfo
from foveal.stores.schema import SPAN

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
