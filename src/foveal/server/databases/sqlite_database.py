"""The server's database in a SQLite file.

1. Several processes may share the file. Each uses one thread for it, so the event loop never waits for the disk.
2. Only the file's owner can read it. A file that Foveal did not create is refused and left unchanged.
3. Write transactions run one after the other, so a lock in a transaction is held from its beginning.

Some names of tables predate the words of the code and stay for existing files: `rooms` holds the model, the agent
and the user of each session, `errands` the jobs, and a column `face` the chat platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from foveal.errors import StoreError, StoreUnusable
from foveal.server.databases import Act, RowValues, Transaction
from foveal.stores.sqlite.connection import connect, create_file, translate_errors, use_wal
from foveal.stores.sqlite.store_files import open_read_only
from foveal.stores.sqlite.threads import WorkerThreads

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
        person TEXT NOT NULL DEFAULT '', PRIMARY KEY (tenant, session)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS memory_sessions (
        tenant TEXT NOT NULL, person TEXT NOT NULL, session TEXT NOT NULL,
        PRIMARY KEY (tenant, person, session)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS memory_sessions_by_session ON memory_sessions(tenant, session)",
    # budgets
    """CREATE TABLE IF NOT EXISTS spending (
        tenant TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL, start INTEGER NOT NULL,
        nanodollars INTEGER NOT NULL, tokens INTEGER NOT NULL,
        PRIMARY KEY (tenant, scope, key, start)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS spending_reservations (
        tenant TEXT NOT NULL, id TEXT NOT NULL, scope TEXT NOT NULL, key TEXT NOT NULL,
        nanodollars INTEGER NOT NULL, tokens INTEGER NOT NULL, until REAL NOT NULL,
        PRIMARY KEY (tenant, id, scope)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS spending_reservations_by_key ON spending_reservations(tenant, scope, key)",
    # auth_tokens
    """CREATE TABLE IF NOT EXISTS tokens (
        id TEXT PRIMARY KEY, hash BLOB UNIQUE, tenant TEXT NOT NULL, label TEXT NOT NULL, created REAL NOT NULL,
        revoked REAL, memory TEXT NOT NULL DEFAULT '', role TEXT NOT NULL DEFAULT 'tenant') WITHOUT ROWID""",
    # audit
    """CREATE TABLE IF NOT EXISTS audit (
        id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, at REAL NOT NULL, tenant TEXT NOT NULL,
        actor TEXT NOT NULL, action TEXT NOT NULL, object TEXT NOT NULL, outcome TEXT NOT NULL,
        address TEXT NOT NULL) STRICT""",
    "CREATE INDEX IF NOT EXISTS audit_at ON audit(at)",
    *(
        f"""CREATE TRIGGER IF NOT EXISTS audit_{name} BEFORE {change} ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"""
        for name, change in (("keeps_rows", "DELETE"), ("keeps_values", "UPDATE"))
    ),
    # daily_usage
    """CREATE TABLE IF NOT EXISTS daily_usage (
        tenant TEXT NOT NULL, day TEXT NOT NULL, person TEXT NOT NULL, model TEXT NOT NULL,
        calls INTEGER NOT NULL, input INTEGER NOT NULL, cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL,
        output INTEGER NOT NULL, dollars REAL NOT NULL, unpriced INTEGER NOT NULL,
        PRIMARY KEY (tenant, day, person, model)) STRICT, WITHOUT ROWID""",
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
    "CREATE INDEX IF NOT EXISTS chat_messages_kept ON chat_messages(face, chat) WHERE state = 'kept'",
    """CREATE TABLE IF NOT EXISTS chat_notices (
        face TEXT NOT NULL, chat INTEGER NOT NULL, topic INTEGER NOT NULL, notice TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (face, chat, topic, notice)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS chat_questions (
        face TEXT NOT NULL, id TEXT NOT NULL, session TEXT NOT NULL, key TEXT NOT NULL, tool TEXT NOT NULL,
        text TEXT NOT NULL, at REAL NOT NULL, until REAL NOT NULL, state TEXT NOT NULL, PRIMARY KEY (face, id)
    ) STRICT, WITHOUT ROWID""",
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
    # proxy/upstreams
    """CREATE TABLE IF NOT EXISTS learned_limits (
        upstream TEXT NOT NULL, model TEXT NOT NULL, features TEXT NOT NULL, kind TEXT NOT NULL,
        tokens INTEGER NOT NULL, teller BLOB NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (upstream, model, features, kind, tokens, teller)) STRICT, WITHOUT ROWID""",
    # browser_logins
    """CREATE TABLE IF NOT EXISTS browser_logins (
        id BLOB NOT NULL PRIMARY KEY, token TEXT NOT NULL, until REAL NOT NULL) STRICT, WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS browser_logins_by_token ON browser_logins(token, until)",
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
    4: ("ALTER TABLE rooms ADD COLUMN person TEXT NOT NULL DEFAULT ''",),  # users of sessions
    5: ("ALTER TABLE tokens ADD COLUMN memory TEXT NOT NULL DEFAULT ''",),  # memories of drop-in clients
    6: ("ALTER TABLE tokens ADD COLUMN role TEXT NOT NULL DEFAULT 'tenant'",),  # roles; audit, daily_usage
}
"""For each version of the schema, the statements that lead to it from the version before."""
SERVER_SCHEMA_VERSION: Final = max(SQLITE_UPGRADES)
_VIEWS_OF_CHATS: Final = (
    "CREATE TEMP VIEW chat_places AS SELECT face, chat, 0 AS topic, number, NULL AS moved_from FROM main.chats",
    """CREATE TEMP VIEW chat_messages AS SELECT *, 0 AS topic, 0 AS reply_to, 0 AS parts, 0 AS author,
        '' AS place_name, '' AS piece_of FROM main.chat_messages""",
)
_VIEWS_OF_AGENTS: Final = (
    "CREATE TEMP VIEW rooms AS SELECT *, '' AS agent, '' AS person FROM main.rooms",
    "CREATE TEMP VIEW errands AS SELECT *, '' AS agent FROM main.errands",
    "CREATE TEMP VIEW schedules AS SELECT *, '' AS agent FROM main.schedules",
)
_VIEW_OF_TOKENS: Final = (
    "CREATE TEMP VIEW tokens AS SELECT *, '' AS memory, 'tenant' AS role FROM main.tokens"
)
VIEWS_OF_OLD_VERSIONS: Final = {
    1: (*_VIEWS_OF_CHATS, *_VIEWS_OF_AGENTS, _VIEW_OF_TOKENS),
    2: (*_VIEWS_OF_AGENTS, _VIEW_OF_TOKENS),
    3: ("CREATE TEMP VIEW rooms AS SELECT *, '' AS person FROM main.rooms", _VIEW_OF_TOKENS),
    4: (_VIEW_OF_TOKENS,),
    5: ("CREATE TEMP VIEW tokens AS SELECT *, 'tenant' AS role FROM main.tokens",),
}
"""Views that show a file of an earlier version as the tables of this one, for a reader that changes nothing."""


T = TypeVar("T")

SERVER_APPLICATION_ID: Final = 0x466F7653
"""`FovS`: distinguishes this file from a store and from other programs' files."""


class SqliteDatabase:
    def __init__(
        self,
        path: Path,
        *,
        tables: Sequence[str] = SQLITE_TABLES,
        timeout: float = 5.0,
        is_read_only: bool = False,
    ) -> None:
        """`tables`: statements that create the tables; they must do nothing if the tables exist. A file that is
        opened read-only is left as it is: it may lack tables."""
        self.path = path
        self._is_read_only = is_read_only
        self._tables = tables
        self._timeout = timeout
        self._thread = WorkerThreads("foveal-database")
        self._connection: apsw.Connection | None = None
        self._closed = False
        self._is_durable: bool | None = None
        """Whether the connection waits for the disk; None if it was just opened."""

    async def write(
        self, act: Act[T], *, tenant: str | None = None, durable: bool = True, repeatable: bool = False
    ) -> T:
        """Run `act` in a write transaction and return its result."""
        self._check_open()
        return await self._thread.run(lambda: self._run_transaction("BEGIN IMMEDIATE", act, durable=durable))

    async def read(self, act: Act[T], *, tenant: str | None = None) -> T:
        """Run `act` in a read transaction: it sees one state of the database."""
        self._check_open()
        return await self._thread.run(lambda: self._run_transaction("BEGIN", act))

    async def check_writable(self) -> None:
        """Raise `StoreUnusable` if the database cannot be written now."""

        async def act(db: Transaction) -> None:
            # The version that is there: a process of a later version may have upgraded the file.
            ((version,),) = await db.fetch("PRAGMA user_version")
            await db.execute(f"PRAGMA user_version = {int(version)}")

        await self.write(act)

    async def remove_deleted_text(self) -> None:
        """Truncate the write-ahead log: only what the tables hold remains in the files."""

        def act() -> None:
            with translate_errors(str(self.path)), suppress(apsw.BusyError):
                self._open().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

        self._check_open()
        await self._thread.run(act)

    async def close(self) -> None:
        """Wait for running transactions, then close the file; closing twice does nothing."""
        if not self._closed:
            self._closed = True
            await self._thread.run(self._close)
            self._thread.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed")

    # ── Runs in the thread ───────────────────────────────────────────────────────────────────────────

    def _run_transaction(self, begin: str, act: Act[T], *, durable: bool | None = None) -> T:
        """`durable` is None for a transaction that writes nothing."""
        with translate_errors(str(self.path)):
            connection = self._open()
            if durable is not None:
                self._set_durable(connection, durable=durable)
            connection.execute(begin)
            try:
                result = _run_to_end(act, _SqliteTransaction(connection))
                connection.execute("COMMIT")
                return result
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _set_durable(self, connection: apsw.Connection, *, durable: bool) -> None:
        if durable is not self._is_durable:
            connection.pragma("synchronous", "full" if durable else "normal")
            self._is_durable = durable

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            if self._is_read_only:
                connection = open_read_only(str(self.path), self._timeout)
            else:
                create_file(str(self.path))
                connection = connect(str(self.path), self._timeout)
            try:
                version = _readable_version(connection, self.path)
                if not self._is_read_only:
                    self._prepare(connection)
                else:
                    for statement in VIEWS_OF_OLD_VERSIONS.get(version, ()):
                        connection.execute(statement)
            except BaseException:
                connection.close()
                raise
            self._connection, self._is_durable = connection, None
        return self._connection

    def _prepare(self, connection: apsw.Connection) -> None:
        use_wal(connection, self._timeout)
        connection.wal_autocheckpoint(1_000)
        connection.pragma("secure_delete", 1)
        connection.execute("BEGIN IMMEDIATE")
        try:
            if before := _schema_version(connection):
                for version in range(before + 1, SERVER_SCHEMA_VERSION + 1):
                    for statement in SQLITE_UPGRADES[version]:
                        connection.execute(statement)
            connection.pragma("application_id", SERVER_APPLICATION_ID)
            connection.pragma("user_version", max(before, SERVER_SCHEMA_VERSION))
            for statement in self._tables:
                connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _SqliteTransaction:
    """Its methods never wait, so `_run_to_end` can run an act without an event loop."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> list[RowValues]:
        return self._connection.execute(sql, values).fetchall()

    async def execute(self, sql: str, *values: Any) -> int:
        self._connection.execute(sql, values)
        return self._connection.changes()

    async def execute_many(self, sql: str, rows: Iterable[RowValues]) -> None:
        self._connection.executemany(sql, rows)

    async def lock(self, name: str) -> None:
        """Do nothing: no other write transaction runs."""

    async def try_lock(self, name: str) -> bool:
        return True

    async def check_lease(self, tenant: str, session: str) -> None:
        """Do nothing: file locks end with their process and cannot be taken over."""


def _run_to_end(act: Act[T], transaction: Transaction) -> T:
    coroutine = act(transaction)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("an act in a transaction awaits something else than its transaction")


def _readable_version(connection: apsw.Connection, path: Path) -> int:
    """Return the version of the file's schema, 0 for a new file; raises `StoreUnusable` for a foreign file."""
    connection.execute("BEGIN")  # one snapshot: another process may be creating the file
    application, version = connection.pragma("application_id"), _schema_version(connection)
    tables = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get
    connection.execute("COMMIT")
    if application != SERVER_APPLICATION_ID and (application or tables):
        raise StoreUnusable(
            f"{path} is a store or another program's SQLite file; choose another `server.folder`"
        )
    if version > SERVER_SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} was written by a later version of Foveal (its schema is {version}, this version knows "
            f"{SERVER_SCHEMA_VERSION}); it was left unchanged: upgrade Foveal to use it"
        )
    return version


def _schema_version(connection: apsw.Connection) -> int:
    """Return the version of the file's schema. A server of version 1 that still runs writes its own number into a
    file that was upgraded meanwhile, whenever it checks whether the file can be written."""
    version = int(connection.pragma("user_version"))
    if version != 1:
        return version
    columns = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('rooms')")}
    of_tokens = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('tokens')")}
    if "memory" in of_tokens:
        return 6 if "role" in of_tokens else 5
    if "agent" in columns:
        return 4 if "person" in columns else 3
    return 2 if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'chat_places'").get else 1
