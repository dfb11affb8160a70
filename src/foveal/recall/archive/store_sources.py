"""Stores of Foveal as past sessions, read without a write.

1. Each call opens the SQLite file read-only and closes it again: a running agent can write meanwhile, and its
   write-ahead log does not grow because of a reader.
2. The file is not migrated, and its full-text index is not used, because bringing it up to date would write.
3. A PostgreSQL database is refused if its tables are missing or older, because opening it would create them.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import quote

import apsw

from foveal.core.log.events import Event, Opened
from foveal.errors import StoreUnusable
from foveal.ports import Checkpoint, SessionEnd, SessionInfo, Store
from foveal.recall.archive.source import (
    MAX_SOURCE_SESSIONS,
    RecallProblem,
    SessionDetails,
    SessionEntry,
    SessionLog,
    recorded_folder,
    session_handle,
    whole_title,
)
from foveal.stores import require_postgres
from foveal.stores.compression import LinePacker
from foveal.stores.sqlite import queries
from foveal.stores.sqlite.connection import translate_errors
from foveal.stores.sqlite.schema import (
    FIRST_VERSION_WITH_CHECKPOINTS,
    STORE_APPLICATION_ID,
    check_database,
)
from foveal.stores.sqlite.store_files import open_read_only

if TYPE_CHECKING:
    from foveal.stores.postgres.connection import PostgresPool

T = TypeVar("T")

_LOCK_TIMEOUT_S: Final = 2.0
"""Longest wait for a process that holds the file."""
_TITLE_EVENTS: Final = 20
"""Events at the beginning of a session among which a message for its title is looked for."""
_PACKED_RATIO: Final = 4
"""Bytes of text in one byte of a store, roughly."""


class _StoredSource(ABC):
    """The sessions of one store, from what the store says of them."""

    problems: Sequence[str] = ()

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._infos: dict[str, SessionInfo] = {}

    @abstractmethod
    async def _list(self) -> Sequence[SessionInfo]: ...

    @abstractmethod
    async def _end(self, session: str) -> SessionEnd: ...

    @abstractmethod
    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        """Return events of a session, ascending."""

    async def skim(self, session: str, seqs: range) -> list[Event]:
        """Return events of a session; long texts may be missing."""
        return await self.pick(session, seqs)

    @abstractmethod
    async def checkpoint(self, session: str) -> Checkpoint | None:
        """Return the checkpoint of a session, if it has one."""

    @abstractmethod
    async def memories(self) -> Sequence[SessionInfo]:
        """Return the logs of memories, the last changed first."""

    async def entries(self) -> list[SessionEntry]:
        infos = await self._list()
        self._infos = {info.id: info for info in infos}
        return [_store_entry(self.name, info) for info in infos]

    async def describe(self, entry: SessionEntry) -> SessionDetails:
        first = await self.pick(entry.key, range(_TITLE_EVENTS))
        return _store_details(self._infos.get(entry.key), first)

    async def open(self, entry: SessionEntry) -> SessionLog:
        end = await self._end(entry.key)
        if end.erased:
            raise RecallProblem(f"session {entry.key!r} was erased")
        return StoreLog(self, entry.key, end.next_seq)

    async def find_raw(self, entry: SessionEntry, words: Sequence[bytes]) -> frozenset[int] | None:
        return None  # the texts are compressed

    async def close(self) -> None:
        self._infos = {}  # an open store belongs to the caller


class StoreLog:
    """The events of a session in a store."""

    is_append_only = True
    is_lasting = False
    parts = 1

    def __init__(self, source: _StoredSource, session: str, end: int) -> None:
        self._source = source
        self._session = session
        self.end: Final = end

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        return await self._source.pick(self._session, seqs)

    async def skim(self, seqs: range) -> list[Event]:
        return await self._source.skim(self._session, seqs)

    async def checkpoint(self) -> Checkpoint | None:
        return await self._source.checkpoint(self._session)


class StoreSource(_StoredSource):
    """The sessions of a store that this process has open."""

    def __init__(self, store: Store, name: str) -> None:
        """`name` tells the store from others; it is shown, and part of the handles."""
        super().__init__(name)
        self.store: Final = store

    async def _list(self) -> Sequence[SessionInfo]:
        return await self.store.sessions(limit=MAX_SOURCE_SESSIONS, with_erased=False)

    async def memories(self) -> Sequence[SessionInfo]:
        return await self.store.sessions(limit=MAX_SOURCE_SESSIONS, memories=True)

    async def _end(self, session: str) -> SessionEnd:
        return await self.store.end(session)

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        return await self.store.pick(session, seqs)

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return await self.store.checkpoint(session)


# ── SQLite ───────────────────────────────────────────────────────────────────────────────────────────────


class SqliteSource(_StoredSource):
    """The sessions of one SQLite file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path.absolute()))

    async def _list(self) -> Sequence[SessionInfo]:
        return await self._query(
            lambda db: queries.list_sessions(db, limit=MAX_SOURCE_SESSIONS, before=None, with_erased=False)
        )

    async def memories(self) -> Sequence[SessionInfo]:
        return await self._query(
            lambda db: queries.list_sessions(
                db, limit=MAX_SOURCE_SESSIONS, before=None, with_erased=True, memories=True
            )
        )

    async def _end(self, session: str) -> SessionEnd:
        def work(db: apsw.Connection) -> SessionEnd:
            key, end, _ = queries.get_session(db, session)
            return SessionEnd(end, queries.is_erased(db, key))

        return await self._query(work)

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        def work(db: apsw.Connection) -> list[Event]:
            return queries.pick(db, LinePacker(), queries.get_session(db, session).key, seqs)

        return await self._query(work)

    async def skim(self, session: str, seqs: range) -> list[Event]:
        def work(db: apsw.Connection) -> list[Event]:
            return queries.skim(db, LinePacker(), queries.get_session(db, session).key, seqs)

        return await self._query(work)

    async def checkpoint(self, session: str) -> Checkpoint | None:
        def work(db: apsw.Connection) -> Checkpoint | None:
            is_older = db.pragma("user_version") < FIRST_VERSION_WITH_CHECKPOINTS
            return None if is_older else queries.checkpoint(db, session)

        return await self._query(work)

    async def _query(self, work: Callable[[apsw.Connection], T]) -> T:
        return await asyncio.to_thread(self._run, work)

    def _run(self, work: Callable[[apsw.Connection], T]) -> T:
        with translate_errors(self.name):
            before = _file_state(self.name)
            if before.is_idle:
                result = self._read(_open_idle(self.name), work)
                if _file_state(self.name) == before:
                    return result
            return self._read(open_read_only(self.name, _LOCK_TIMEOUT_S), work)

    def _read(self, connection: apsw.Connection, work: Callable[[apsw.Connection], T]) -> T:
        try:
            connection.execute("BEGIN")
            check_database(connection, self.name)
            if connection.pragma("application_id") != STORE_APPLICATION_ID:
                raise StoreUnusable(f"{self.name} is empty: it is not a store; check the path")
            return work(connection)
        finally:
            connection.close()


class _FileState(NamedTuple):
    """State of a SQLite file, by which a reader sees that a writer has come."""

    is_idle: bool
    """Whether it has neither a write-ahead log nor a journal: no process writes it."""
    modified_ns: int
    size: int


def _file_state(path: str) -> _FileState:
    try:
        status = os.stat(path)
    except OSError as problem:
        raise StoreUnusable(f"{path} cannot be read ({problem.strerror}): check the path") from None
    is_idle = not any(os.path.exists(path + suffix) for suffix in ("-wal", "-journal"))
    return _FileState(is_idle, status.st_mtime_ns, status.st_size)


def _open_idle(path: str) -> apsw.Connection:
    """Return a connection to a file that no process writes. Otherwise SQLite would create a write-ahead log beside
    the file and leave it there, or fail where it cannot create one."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(path)}?immutable=1", flags=flags)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────


class PostgresSource:
    """The sessions of one tenant in a PostgreSQL database."""

    problems: Sequence[str] = ()

    def __init__(self, url: str, tenant: str = "default") -> None:
        require_postgres()
        from foveal.stores.postgres.connection import PostgresPool, describe_url

        self.name: Final = f"{describe_url(url)}, tenant {tenant}"
        self._pool = PostgresPool(url, connections=2)
        self._tenant = tenant
        self._source: StoreSource | None = None

    async def entries(self) -> list[SessionEntry]:
        return await (await self.opened()).entries()

    async def describe(self, entry: SessionEntry) -> SessionDetails:
        return await (await self.opened()).describe(entry)

    async def open(self, entry: SessionEntry) -> SessionLog:
        return await (await self.opened()).open(entry)

    async def find_raw(self, entry: SessionEntry, words: Sequence[bytes]) -> None:
        """Return None: the texts are compressed."""

    async def close(self) -> None:
        await self._pool.close()

    async def opened(self) -> StoreSource:
        """Return the source of the open store; raises `StoreUnusable` if the database cannot be read."""
        if self._source is None:
            await self._pool.open()
            await _require_tables(self._pool)
            from foveal.stores.postgres.store import PostgresStore

            self._source = StoreSource(PostgresStore(self._pool, self._tenant), self.name)
        return self._source


async def _require_tables(pool: PostgresPool) -> None:
    """Raise `StoreUnusable` if the database lacks tables of this version, which a store would create."""
    from foveal.stores.postgres.schema import STORE_MIGRATIONS, schema_version

    version, newest = await schema_version(pool, "store"), STORE_MIGRATIONS[-1].version
    if version < newest:
        raise StoreUnusable(
            f"{pool.name} has no sessions that can be read: its store schema is {version}, this version needs"
            f" {newest}; it was left as it is: check the URL, or run `foveal database migrate`"
        )


# ── What a store says of a session ───────────────────────────────────────────────────────────────────────


def _store_entry(place: str, info: SessionInfo) -> SessionEntry:
    return SessionEntry(
        handle=session_handle(place, info.id),
        key=info.id,
        name=info.id,
        active=info.active,
        version=(info.events, info.active),
        size=_PACKED_RATIO * info.bytes,
    )


def _store_details(info: SessionInfo | None, first: Sequence[Event]) -> SessionDetails:
    opened = first[0].fact if first else None
    return SessionDetails(
        kind="foveal",
        title=whole_title(info.title if info else "", [(event.fact, event.at) for event in first]),
        folder=recorded_folder(opened),
        events=info.events if info else None,
        created=info.created if info else None,
        model=opened.model if isinstance(opened, Opened) else "",
    )
