"""Tables of a store's SQLite file, and the migrations that create them.

A new file runs the same migrations as an old one: the schema is the list of migrations. A migration never changes
after a release has shipped it; a later change is another migration.

    sessions     one row per session; the id of its last event gives its length; `active` is the time of its newest
                 event, or up to `ACTIVE_LAG_S` before it
    events       one row per event; its id is the session's key × 2³² + seq, so that a session's rows are adjacent;
                 `total` is the number of bytes that the session takes up to and including this event
    blobs        large texts, once per content
    cuts         which blob belongs at which offset (`place`) of which event
    checkpoints  from where a session can be opened without reading all of it: a cache
    …            the tables of `full_text`: a cache as well
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import apsw

from foveal.errors import StoreUnusable
from foveal.stores.sqlite.full_text import FullTextIndex

STORE_APPLICATION_ID: Final = 0x466F7665
"""`Fove`: identifies a store among SQLite files."""

ID_STRIDE: Final = 1 << 32
"""Distance between the event ids of two sessions, and so the maximum number of events of a session."""

EVENT_ROW_BYTES: Final = 14
"""Bytes of an event's row beside its body: its id, its time, and its pointer in the page."""

ACTIVE_LAG_S: Final = 1.0
"""How far `sessions.active` may be behind the time of the session's newest event: several appends within a second
write the session's row once."""

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
    (NEW.id % {ID_STRIDE} = 0 AND EXISTS (SELECT 1 FROM sessions WHERE key = NEW.id / {ID_STRIDE}))
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


_ACTIVITY: Final = f"""
UPDATE sessions SET active = coalesce((SELECT at FROM events
    WHERE id BETWEEN key * {ID_STRIDE} AND key * {ID_STRIDE} + {ID_STRIDE - 1} ORDER BY id DESC LIMIT 1), active);
CREATE INDEX sessions_by_activity ON sessions(erased, active);
CREATE TRIGGER activity_is_current AFTER INSERT ON events
WHEN NEW.at NOT BETWEEN (SELECT active FROM sessions WHERE key = NEW.id / {ID_STRIDE})
    AND (SELECT active FROM sessions WHERE key = NEW.id / {ID_STRIDE}) + {ACTIVE_LAG_S}
BEGIN UPDATE sessions SET active = NEW.at WHERE key = NEW.id / {ID_STRIDE}; END;
"""


def _create_log(connection: apsw.Connection) -> None:
    connection.execute(_TABLES)
    connection.execute(_RULES)


def _create_caches(connection: apsw.Connection) -> None:
    connection.execute(_CHECKPOINTS)
    FullTextIndex(connection).create()


def _index_activity(connection: apsw.Connection) -> None:
    connection.execute(_ACTIVITY)


MIGRATIONS: Final[tuple[Callable[[apsw.Connection], None], ...]] = (
    _create_log,
    _create_caches,
    _index_activity,
)
"""`MIGRATIONS[n]` turns a file of version n into one of version n + 1."""

STORE_SCHEMA_VERSION: Final = len(MIGRATIONS)
FIRST_VERSION_WITH_CHECKPOINTS: Final = 2
"""An older file that is only read has no table for them."""


def check_header(path: str) -> None:
    """Raise `StoreUnusable` if the first 100 bytes show that the file is not a store of this version.

    A file that is refused here is never opened by SQLite."""
    with open(path, "rb") as file:
        header = file.read(100)
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreUnusable(f"{path} is not a store, nor any other SQLite file: choose another path")
    version, application = struct.unpack_from(">4xI4xI", header, 56)
    _check_identity(path, application=application, version=version, has_tables=False)


def check_database(connection: apsw.Connection, path: str) -> None:
    """Raise `StoreUnusable` if the file and its write-ahead log are not a store of this version.

    It only reads, and the caller begins the transaction: the answers must be of one moment."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    _check_identity(path, application=application, version=version, has_tables=_has_tables(connection))


def _check_identity(path: str, *, application: int, version: int, has_tables: bool) -> None:
    """Raise `StoreUnusable` if the file is another program's or was written by a later version of Foveal."""
    if application not in (0, STORE_APPLICATION_ID) or (application == 0 and has_tables):
        raise StoreUnusable(
            f"{path} is the SQLite file of another program; choose another path for the store"
        )
    if application == STORE_APPLICATION_ID and version > STORE_SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} was written by a later version of Foveal (its schema is {version}, this version knows "
            f"{STORE_SCHEMA_VERSION}); it was left as it is: upgrade Foveal to use it"
        )


def migrate(connection: apsw.Connection) -> None:
    """Migrate an empty or older file to this version, in one transaction."""
    if connection.pragma("user_version") == STORE_SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read the version again: another process may have migrated the file before this transaction began.
        for migration in MIGRATIONS[connection.pragma("user_version") :]:
            migration(connection)
        connection.pragma("application_id", STORE_APPLICATION_ID)
        connection.pragma("user_version", STORE_SCHEMA_VERSION)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _has_tables(connection: apsw.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is not None
