"""The server's tables in SQLite.

Some names predate the words of the code and stay for existing files: `rooms` holds the model and the agent of
each session, `errands` the jobs, and a column `face` the chat platform.
"""

from __future__ import annotations

from typing import Final

SQLITE_TABLES: Final = (
    # inbox
    """CREATE TABLE IF NOT EXISTS inbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, session TEXT NOT NULL, key TEXT NOT NULL,
        kind TEXT NOT NULL, content BLOB, dialect TEXT NOT NULL, at REAL NOT NULL, state TEXT NOT NULL,
        since INTEGER NOT NULL DEFAULT -1, why TEXT NOT NULL DEFAULT '', problem TEXT NOT NULL DEFAULT '',
        sort TEXT NOT NULL DEFAULT '', UNIQUE (tenant, session, key)) STRICT""",
    "CREATE INDEX IF NOT EXISTS inbox_open ON inbox(tenant, session, id) WHERE state <> 'done'",
    "CREATE INDEX IF NOT EXISTS inbox_done ON inbox(at) WHERE state = 'done'",
    """CREATE TABLE IF NOT EXISTS rooms (
        tenant TEXT NOT NULL, session TEXT NOT NULL, model TEXT NOT NULL, agent TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (tenant, session)) STRICT, WITHOUT ROWID""",
    # auth_tokens
    """CREATE TABLE IF NOT EXISTS tokens (
        id TEXT PRIMARY KEY, hash BLOB UNIQUE, tenant TEXT NOT NULL, label TEXT NOT NULL, created REAL NOT NULL,
        revoked REAL) WITHOUT ROWID""",
    # chats
    """CREATE TABLE IF NOT EXISTS chat_places (
        face TEXT NOT NULL, chat INTEGER NOT NULL, topic INTEGER NOT NULL, number INTEGER NOT NULL,
        moved_from INTEGER, PRIMARY KEY (face, chat, topic)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS chat_messages (
        face TEXT NOT NULL, key TEXT NOT NULL, chat INTEGER NOT NULL, session TEXT NOT NULL, state TEXT NOT NULL,
        at REAL NOT NULL, topic INTEGER NOT NULL DEFAULT 0, reply_to INTEGER NOT NULL DEFAULT 0,
        parts INTEGER NOT NULL DEFAULT 0, author INTEGER NOT NULL DEFAULT 0, place_name TEXT NOT NULL DEFAULT '',
        piece_of TEXT NOT NULL DEFAULT '', PRIMARY KEY (face, key)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS chat_messages_at ON chat_messages(at)",
    """CREATE TABLE IF NOT EXISTS chat_notices (
        face TEXT NOT NULL, chat INTEGER NOT NULL, topic INTEGER NOT NULL, notice TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (face, chat, topic, notice)) STRICT, WITHOUT ROWID""",
    # pairing
    """CREATE TABLE IF NOT EXISTS pairing_codes (
        face TEXT NOT NULL, code BLOB NOT NULL, until REAL NOT NULL, PRIMARY KEY (face, code)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS pairing_misses (
        face TEXT NOT NULL, user INTEGER NOT NULL, at REAL NOT NULL
    ) STRICT""",
    "CREATE INDEX IF NOT EXISTS pairing_misses_by_user ON pairing_misses (face, user)",
    """CREATE TABLE IF NOT EXISTS paired (
        face TEXT NOT NULL, user INTEGER NOT NULL, since REAL NOT NULL, PRIMARY KEY (face, user)
    ) STRICT, WITHOUT ROWID""",
    # jobs/queue
    """CREATE TABLE IF NOT EXISTS errands (
        place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
        session TEXT NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, prompt TEXT NOT NULL, schedule TEXT NOT NULL,
        at REAL NOT NULL, taken INTEGER NOT NULL DEFAULT 0, agent TEXT NOT NULL DEFAULT '',
        UNIQUE (tenant, session, kind, key))""",
    "CREATE INDEX IF NOT EXISTS errands_open ON errands (taken, place)",
    # jobs/schedule_store
    """CREATE TABLE IF NOT EXISTS schedules (
        tenant TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL, cron TEXT NOT NULL, zone TEXT NOT NULL,
        prompt TEXT NOT NULL, missed TEXT NOT NULL, enabled INTEGER NOT NULL, source TEXT NOT NULL,
        following REAL NOT NULL, due REAL, result TEXT NOT NULL DEFAULT '', agent TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (tenant, name)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS schedules_following ON schedules (enabled, following)",
    # proxy/digest_index
    "CREATE TABLE IF NOT EXISTS heads (tenant TEXT NOT NULL, session TEXT NOT NULL, digest BLOB NOT NULL,"
    " seq INTEGER NOT NULL, turn INTEGER NOT NULL, words BLOB, stale INTEGER NOT NULL DEFAULT 0,"
    " PRIMARY KEY (tenant, digest, session)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS heads_by_session ON heads(tenant, session, stale, seq)",
    "CREATE TABLE IF NOT EXISTS beside (tenant TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,"
    " words BLOB NOT NULL, PRIMARY KEY (tenant, session, name)) WITHOUT ROWID",
)
"""Statements that create the tables; they do nothing if the tables exist."""
_AGENT_TABLES: Final = ("rooms", "errands", "schedules")
SQLITE_UPGRADES: Final = {
    2: (  # topics of chats, answers of which a part is delivered, messages in pieces, notices
        """CREATE TABLE chat_places (
            face TEXT NOT NULL, chat INTEGER NOT NULL, topic INTEGER NOT NULL, number INTEGER NOT NULL,
            moved_from INTEGER, PRIMARY KEY (face, chat, topic)) STRICT, WITHOUT ROWID""",
        "INSERT INTO chat_places (face, chat, topic, number) SELECT face, chat, 0, number FROM chats",
        "DROP TABLE chats",
        "ALTER TABLE chat_messages ADD COLUMN topic INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chat_messages ADD COLUMN reply_to INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chat_messages ADD COLUMN parts INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chat_messages ADD COLUMN author INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chat_messages ADD COLUMN place_name TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE chat_messages ADD COLUMN piece_of TEXT NOT NULL DEFAULT ''",
    ),
    # agents of sessions and schedules
    3: tuple(f"ALTER TABLE {table} ADD COLUMN agent TEXT NOT NULL DEFAULT ''" for table in _AGENT_TABLES),
}
"""For each version of the schema, the statements that lead to it from the version before."""
SERVER_SCHEMA_VERSION: Final = max(SQLITE_UPGRADES)
_VIEWS_OF_CHATS: Final = (
    "CREATE TEMP VIEW chat_places AS SELECT face, chat, 0 AS topic, number, NULL AS moved_from FROM main.chats",
    """CREATE TEMP VIEW chat_messages AS SELECT *, 0 AS topic, 0 AS reply_to, 0 AS parts, 0 AS author,
        '' AS place_name, '' AS piece_of FROM main.chat_messages""",
)
_VIEWS_OF_AGENTS: Final = tuple(
    f"CREATE TEMP VIEW {table} AS SELECT *, '' AS agent FROM main.{table}" for table in _AGENT_TABLES
)
VIEWS_OF_OLD_VERSIONS: Final = {1: (*_VIEWS_OF_CHATS, *_VIEWS_OF_AGENTS), 2: _VIEWS_OF_AGENTS}
"""Views that show a file of an earlier version as the tables of this one, for a reader that changes nothing."""
