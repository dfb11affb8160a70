"""The tables of a store's file, and how files of earlier versions become files of this one.

A new file goes through the same steps as an old one: the schema is the list of steps. A step is never changed once
a release has shipped it; what should be different later is another step.

    sessions     one row a session; its last event tells how long it is
    events       one row an event; its id is the session's key × 2³² + seq, so that a session lies together;
                 `total` is the room that the session takes up to here
    blobs        large texts, once per content
    cuts         which blob belongs where in which event
    checkpoints  from where a session can be opened quickly: a cache
    …            the tables of `text_index`: a cache as well
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import apsw

from foveal.errors import StoreUnusable
from foveal.stores.sqlite.full_text import TextIndex

APPLICATION: Final = 0x466F7665
"""`Fove`: what tells our files from other programs' SQLite files."""

SPAN: Final = 1 << 32
"""How many events a session may have, and the distance of two sessions' ids."""


ROW: Final = 14
"""Bytes that an event's row takes beside its body: its id, its time, and its place in the page."""


_TABLES: Final = """
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    active REAL NOT NULL,
    erased INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at REAL,
    total INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE blobs (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE cuts (
    event INTEGER NOT NULL REFERENCES events(id),
    nr INTEGER NOT NULL,
    place INTEGER NOT NULL,
    blob INTEGER NOT NULL REFERENCES blobs(id),
    PRIMARY KEY (event, nr)
) STRICT, WITHOUT ROWID;
CREATE INDEX cuts_of_blob ON cuts(blob);
"""

_RULES: Final = f"""
CREATE TRIGGER seqs_are_gapless BEFORE INSERT ON events
WHEN NOT EXISTS (SELECT 1 FROM events WHERE id = NEW.id - 1) AND NOT
    (NEW.id % {SPAN} = 0 AND EXISTS (SELECT 1 FROM sessions WHERE key = NEW.id / {SPAN}))
BEGIN SELECT RAISE(ABORT, 'seqs are gapless'); END;
CREATE TRIGGER events_remain BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
"""

_CHECKPOINTS: Final = """
CREATE TABLE checkpoints (
    session INTEGER PRIMARY KEY REFERENCES sessions(key),
    seq INTEGER NOT NULL,
    needed BLOB NOT NULL,
    state BLOB NOT NULL
) STRICT
"""


def _log(connection: apsw.Connection) -> None:
    connection.execute(_TABLES)
    connection.execute(_RULES)


def _caches(connection: apsw.Connection) -> None:
    connection.execute(_CHECKPOINTS)
    TextIndex(connection).create()


STEPS: Final[tuple[Callable[[apsw.Connection], None], ...]] = (_log, _caches)
"""`STEPS[n]` makes a file of version n + 1 out of one of version n."""

VERSION: Final = len(STEPS)


def refuse_at_sight(path: str) -> None:
    """Raise when the first bytes of the file already say that it is not for us: SQLite then never touches it."""
    with open(path, "rb") as file:
        header = file.read(100)
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreUnusable(f"{path} is not a store, nor any other SQLite file: choose another path")
    version, application = struct.unpack_from(">4xI4xI", header, 56)
    refuse(path, application=application, version=version, has_tables=False)


def refuse_foreign(connection: apsw.Connection, path: str) -> None:
    """The same for what SQLite reads from the file and its log; only reads."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    refuse(path, application=application, version=version, has_tables=_has_tables(connection))


def refuse(path: str, *, application: int, version: int, has_tables: bool) -> None:
    """Raise when the file is another program's, or that of a later version of ours."""
    if application not in (0, APPLICATION) or (application == 0 and has_tables):
        raise StoreUnusable(
            f"{path} is the SQLite file of another program; choose another path for the store"
        )
    if application == APPLICATION and version > VERSION:
        raise StoreUnusable(
            f"{path} was written by a later version of Foveal (its schema is {version}, this version knows "
            f"{VERSION}); it was left as it is: upgrade Foveal to use it"
        )


def migrate(connection: apsw.Connection) -> None:
    """Bring an empty or older file to this version, in one transaction or not at all."""
    if connection.pragma("user_version") == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[connection.pragma("user_version") :]:  # somebody else may just have done it
            step(connection)
        connection.pragma("application_id", APPLICATION)
        connection.pragma("user_version", VERSION)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _has_tables(connection: apsw.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is not None
