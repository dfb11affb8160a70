"""Sessions of a store's SQLite file, read without changing the file.

1. The file is opened read-only: it is not migrated, and its write-ahead log is not copied into it.
2. All calls see the state that the file had when it was opened, also while another process writes it.
3. Calls block the event loop while they read: this is for commands, not for servers.
"""

from __future__ import annotations

import os
from typing import Final

import apsw

from foveal.core.log.events import Event
from foveal.errors import StoreUnusable
from foveal.ports import Checkpoint, SessionInfo
from foveal.stores.compression import LinePacker
from foveal.stores.sqlite import queries
from foveal.stores.sqlite.connection import translate_errors
from foveal.stores.sqlite.schema import (
    FIRST_VERSION_WITH_CHECKPOINTS,
    ID_STRIDE,
    STORE_APPLICATION_ID,
    check_database,
)


class ReadOnlySqliteStore:
    """The part of `Store` that reads, on an existing file."""

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 5.0) -> None:
        """Open the file; raises `StoreUnusable` if it is not a store."""
        self.path: Final[str] = os.path.abspath(os.fspath(path))
        self._packer = LinePacker()
        with translate_errors(self.path):
            self._connection = open_read_only(self.path, timeout)
            try:
                self._connection.execute("BEGIN")
                check_database(self._connection, self.path)
                self._version: int = self._connection.pragma("user_version")
                if self._connection.pragma("application_id") != STORE_APPLICATION_ID:
                    raise StoreUnusable(f"{self.path} is empty: it is not a store; check the path")
            except BaseException:
                self._connection.close()
                raise

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        seqs = range(max(first, 0), ID_STRIDE if last is None else min(last + 1, ID_STRIDE))
        with translate_errors(self.path):
            key = queries.get_session(self._connection, session).key
            return queries.read(self._connection, self._packer, key, seqs)

    async def stored_bytes(self, session: str, *, first: int, last: int) -> list[int]:
        """Return the bytes that each event of a range takes in the file."""
        with translate_errors(self.path):
            key = queries.get_session(self._connection, session).key
            return queries.stored_bytes(self._connection, key, range(first, last + 1))

    async def checkpoint(self, session: str) -> Checkpoint | None:
        if self._version < FIRST_VERSION_WITH_CHECKPOINTS:
            return None
        with translate_errors(self.path):
            return queries.checkpoint(self._connection, session)

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]:
        with translate_errors(self.path):
            return queries.list_sessions(
                self._connection, limit=limit, before=before, with_erased=with_erased, memories=memories
            )

    async def close(self) -> None:
        self._connection.close()


def open_read_only(path: str, timeout: float) -> apsw.Connection:
    """Return a connection to an existing file that cannot change it."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(int(timeout * 1000))
    return connection
