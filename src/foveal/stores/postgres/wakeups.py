"""Wake-ups between processes through LISTEN and NOTIFY of a PostgreSQL database.

1. A wake-up is a hint that may be lost: a task that waits for one polls as well.
2. Each process listens on one connection. When that was lost and is back, all subscribers are called.
3. `notify` does not wait. Topics that arrive while a notification is being sent go out together with the next one,
   in a transaction of their own, because NOTIFY holds a lock of the whole server until its transaction has ended.
4. A pooler in transaction mode passes no notifications on. Then tasks wake up when they poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final
from uuid import uuid4

import psycopg

from foveal.errors import StoreError
from foveal.stores.postgres.connection import PostgresPool, SqlStatement

CHANNEL: Final = "foveal"
MAX_TOPICS_PER_NOTIFICATION: Final = 400
"""PostgreSQL allows 8,000 bytes per notification; a hashed topic takes 17."""
FIRST_RECONNECT_DELAY_S: Final = 0.1
MAX_RECONNECT_DELAY_S: Final = 5.0
LISTEN_CHECK_INTERVAL_S: Final = 20.0
"""Seconds of silence after which the listening connection is checked."""
LISTEN_CHECK_TIMEOUT_S: Final = 5.0

Callback = Callable[[], None]


class PostgresWakeups:
    """`Wakeups` of all processes that share a database. The connection opens with the first subscription."""

    def __init__(self, pool: PostgresPool, url: str, *, listens: bool = True) -> None:
        """`listens=False`: send and receive nothing, as if the notifications were lost."""
        self._pool = pool
        self._url = url
        self._listens = listens
        self._process = uuid4().hex[:8]
        self._callbacks: dict[str, list[Callback]] = {}
        self._pending: set[str] = set()
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._is_listening = False
        self._closed = False

    async def notify(self, topic: str) -> None:
        """Call the subscribers of a topic in all processes soon; does not wait for it."""
        name = _hash(topic)
        self._call(name)
        if self._listens and not self._closed:
            self._pending.add(name)
            if self._sender is None:
                self._sender = asyncio.create_task(self._send())

    def subscribe(self, topic: str, callback: Callback) -> Callback:
        """Call `callback` in the event loop after each `notify`; return a function that ends this."""
        name = _hash(topic)
        self._callbacks.setdefault(name, []).append(callback)
        if self._listener is None and self._listens and not self._closed:
            self._listener = asyncio.create_task(self._listen())
        return lambda: self._unsubscribe(name, callback)

    async def close(self) -> None:
        """Send what is pending, then stop listening."""
        self._closed = True
        if self._sender is not None:
            await asyncio.wait([self._sender])
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    def _unsubscribe(self, name: str, callback: Callback) -> None:
        callbacks = self._callbacks.get(name, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            self._callbacks.pop(name, None)

    def _call(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        for callback in self._callbacks.get(name, ()):
            loop.call_soon(callback)

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────────

    async def _send(self) -> None:
        try:
            while self._pending:
                names = [
                    self._pending.pop() for _ in range(min(len(self._pending), MAX_TOPICS_PER_NOTIFICATION))
                ]
                payload = " ".join([self._process, *names])
                with suppress(StoreError):  # the others poll
                    statement = SqlStatement("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
                    await self._pool.run(None, statement, durable=False)
        finally:
            self._sender = None

    # ── Listening ────────────────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        delay = FIRST_RECONNECT_DELAY_S
        while True:
            with suppress(psycopg.Error, OSError, TimeoutError):
                async with await self._connect() as connection:
                    delay, self._is_listening = FIRST_RECONNECT_DELAY_S, True
                    for name in list(self._callbacks):  # what came while no connection listened is lost
                        self._call(name)
                    await self._receive(connection)
            self._is_listening = False
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_RECONNECT_DELAY_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=round(LISTEN_CHECK_TIMEOUT_S),
            application_name="foveal wake-ups",
        )
        try:
            async with asyncio.timeout(LISTEN_CHECK_TIMEOUT_S):
                await connection.execute(f"LISTEN {CHANNEL}".encode())
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for notification in connection.notifies(timeout=LISTEN_CHECK_INTERVAL_S):
                process, *names = notification.payload.split()
                if process != self._process:  # its own subscribers were called by `notify`
                    for name in names:
                        self._call(name)
            async with asyncio.timeout(LISTEN_CHECK_TIMEOUT_S):
                await connection.execute("SELECT 1")


def _hash(topic: str) -> str:
    """Return a short name without text of a tenant; two topics with one name only wake a task in vain."""
    return blake2b(topic.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
