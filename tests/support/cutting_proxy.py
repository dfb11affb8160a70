"""A TCP proxy in front of a PostgreSQL server that fails on command.

    with CuttingProxy(database_url) as proxy:
        connect(proxy.url)            # a URL with the host and port of the proxy
        proxy.cut_next_commit()       # the next COMMIT is carried out, and its reply is lost
        proxy.swallow()               # connections stay open, nothing passes
        proxy.restore()

The proxy runs in a thread of its own, so it serves other processes too, and its methods return when they have taken
effect. It reads the unencrypted protocol of PostgreSQL; `sslmode=disable` is in the URL.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

T = TypeVar("T")
Mode = Literal["pass", "swallow", "drop_replies", "drop_requests"]
CommitFault = Literal["reply_lost", "never_arrives", "arrives_late"]

COMMIT_TEXT = b"COMMIT\0"
"""The end of the client's message, as a simple query and as a message of the extended protocol."""
COMMITTED = b"C\0\0\0\x0bCOMMIT\0"
"""The server's reply to COMMIT."""
CHUNK_BYTES = 1 << 16


class CuttingProxy:
    """A proxy for one database; `connections` counts those that are open, `accepted` all."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting-proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._port = 0
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.mode: Mode = "pass"
        self.commit_faults: list[CommitFault] = []
        self.late_s = 0.2
        self.accepted = 0
        self.cut = 0
        """Commits that were cut."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The URL of the database through the proxy."""
        parts = urlsplit(self._target)
        user = parts.netloc.rpartition("@")[0]
        options = {name: value for name, value in parse_qsl(parts.query) if name not in ("host", "port")}
        options["sslmode"] = "disable"
        place = f"{user}@127.0.0.1:{self._port}" if user else f"127.0.0.1:{self._port}"
        return urlunsplit(parts._replace(netloc=place, query=urlencode(options, quote_via=quote)))

    @property
    def connections(self) -> int:
        return len(self._links)

    # ── Faults ───────────────────────────────────────────────────────────────────────────────────────────

    def restore(self) -> None:
        """Let everything pass again; connections that lost bytes are reset."""
        lossy = self.mode != "pass"
        self.mode, self.commit_faults = "pass", []
        if lossy:
            self.reset_all()
        self._call(self._listen())

    def refuse(self, *, reset: bool = True) -> None:
        """Refuse new connections, and reset those that are open."""
        self._call(self._stop_listening())
        if reset:
            self.reset_all()

    def reset_all(self) -> None:
        """Reset all open connections."""
        self._call(self._reset_all())

    def swallow(self) -> None:
        """Keep connections open and accept new ones, but let nothing pass."""
        self._call(self._set_mode("swallow"))

    def drop_replies(self) -> None:
        """Let requests reach the server, but no reply the client."""
        self._call(self._set_mode("drop_replies"))

    def drop_requests(self) -> None:
        """Let no request reach the server."""
        self._call(self._set_mode("drop_requests"))

    def cut_next_commit(self, fault: CommitFault = "reply_lost", *, times: int = 1) -> None:
        """Reset the connections of the next commits.

        `reply_lost`: after the server has committed. `never_arrives`: before the server gets COMMIT.
        `arrives_late`: at once, and the server gets COMMIT `late_s` seconds later."""
        self._call(self._add_faults([fault] * times))

    # ── Parts ────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port))
            self._listener.setblocking(False)
            self._port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _set_mode(self, mode: Mode) -> None:
        self.mode = mode

    async def _add_faults(self, faults: list[CommitFault]) -> None:
        self.commit_faults += faults

    async def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _close(self) -> None:
        await self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        # `asyncio.start_server` leaves the connections open that it accepts while it is closed, and a socket that
        # stays open is a warning in whatever test runs next.
        with suppress(BlockingIOError):
            connection, _ = listener.accept()
            self.accepted += 1
            link = _Link(self, connection)
            self._links.add(link)
            task = self._loop.create_task(link.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._forget(link))  # also if it is cancelled before it begins

    def _forget(self, link: _Link) -> None:
        self._links.discard(link)
        link.reset()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._target)
        options = dict(parse_qsl(parts.query))
        host = options.get("host") or parts.hostname or "localhost"
        port = int(options.get("port") or parts.port or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


class _Link:
    """One connection of a client with its connection to the server."""

    def __init__(self, proxy: CuttingProxy, connection: socket.socket) -> None:
        self._proxy = proxy
        self._connection = connection
        self._writers: list[asyncio.StreamWriter] = []

    def reset(self) -> None:
        for writer in self._writers:
            _reset(writer)
        if not self._writers:
            self._connection.close()

    async def run(self) -> None:
        """Connect to the server and pass bytes both ways until both sides have ended."""
        with suppress(OSError):
            requests, client = await asyncio.open_connection(sock=self._connection)
            self._writers.append(client)
            replies, server = await self._proxy.connect()
            self._writers.append(server)
            await asyncio.gather(self._pass_requests(requests, server), self._pass_replies(replies, client))

    async def _pass_requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        finds = _finder(COMMIT_TEXT)
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._proxy.mode in ("swallow", "drop_requests"):
                    continue
                faults = self._proxy.commit_faults
                if finds(chunk) and faults and faults[0] != "reply_lost":
                    self._proxy.cut += 1
                    if faults.pop(0) == "arrives_late":
                        await self._deliver_late(chunk, server)
                    break
                server.write(chunk)
                await server.drain()
            else:
                await _close(server)
                return
        self.reset()

    async def _deliver_late(self, chunk: bytes, server: asyncio.StreamWriter) -> None:
        _reset(self._writers[0])
        await asyncio.sleep(self._proxy.late_s)
        server.write(chunk)
        await server.drain()
        await asyncio.sleep(self._proxy.late_s)  # the server reads COMMIT before it sees the end

    async def _pass_replies(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        finds = _finder(COMMITTED)
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                faults = self._proxy.commit_faults
                if finds(chunk) and faults and faults[0] == "reply_lost":
                    faults.pop(0)
                    self._proxy.cut += 1
                    self.reset()
                    return
                if self._proxy.mode not in ("swallow", "drop_replies"):
                    client.write(chunk)
                    await client.drain()
        await _close(client)


def _finder(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that tells whether the pattern ends in a chunk; it may begin in the chunk before."""
    tail = b""

    def finds(chunk: bytes) -> bool:
        nonlocal tail
        text = tail + chunk
        tail = text[-len(pattern) + 1 :]
        return pattern in text

    return finds


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
