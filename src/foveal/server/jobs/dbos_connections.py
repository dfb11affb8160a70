"""Connections of the job engine to PostgreSQL.

DBOS takes any SQLAlchemy engine. This one adds what a lost network or a paused process needs:

1. A connection on which no reply arrives for `MAX_ENGINE_REPLY_S` is closed, and DBOS tries again on another.
2. The server ends a transaction that is idle for `MAX_ENGINE_IDLE_S`: a paused process keeps no rows locked.
3. After `refuse`, no connection is made. Threads of DBOS that wait for the database end with an error.

The URL with its password stays in this module: DBOS and SQLAlchemy never see it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
import sqlalchemy
from psycopg.waiting import Ready

T = TypeVar("T")

MAX_ENGINE_CONNECTIONS: Final = 6
"""Connections of the engine of one process."""
MAX_ENGINE_REPLY_S: Final = 30.0
MAX_ENGINE_IDLE_S: Final = 10


class EngineClosed(Exception):
    """The engine has stopped and makes no connections any more."""


class EngineConnections:
    """The SQLAlchemy engine of one process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._refused = False
        self.engine = sqlalchemy.create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_size=MAX_ENGINE_CONNECTIONS,
            max_overflow=0,
            pool_timeout=30,
            pool_pre_ping=True,
            use_native_hstore=False,
        )

    def refuse(self) -> None:
        """Make no new connections."""
        self._refused = True

    def close(self) -> None:
        self.refuse()
        self.engine.dispose()

    def _connect(self) -> WatchedEngineConnection:
        if self._refused:
            raise EngineClosed
        connection = WatchedEngineConnection.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=5,
            tcp_user_timeout=10_000,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            application_name="foveal jobs",
        )
        connection.execute(f"SET idle_in_transaction_session_timeout = '{MAX_ENGINE_IDLE_S}s'".encode())
        connection.autocommit = False
        return connection


class WatchedEngineConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when the server does not reply."""

    def __del__(self, *arguments: Any) -> None:
        # A thread of DBOS may hold a connection while the engine is disposed of: it ends with its last reference.
        if hasattr(self, "pgconn"):
            self.close()

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        try:
            return super().wait(_bounded(gen, time.monotonic() + MAX_ENGINE_REPLY_S), *arguments, **options)
        except _NoReply:
            self.close()
            # DBOS tries again after an error with these words.
            raise psycopg.OperationalError(
                f"server closed the connection unexpectedly: no reply for {MAX_ENGINE_REPLY_S:g} s"
            ) from None


class _NoReply(Exception):
    pass


def _bounded(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """Yield what `gen` yields until the deadline. While nothing arrives, psycopg sends `Ready.NONE` regularly."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready == Ready.NONE and time.monotonic() > deadline:
                raise _NoReply
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
