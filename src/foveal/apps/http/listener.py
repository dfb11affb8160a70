"""The socket that the server listens on, and the parser in front of the application."""

from __future__ import annotations

import asyncio
import errno
import socket
from asyncio import TimerHandle, Transport
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from foveal.apps.http.http_errors import HttpError, encoded, written
from foveal.apps.http.http_headers import LARGEST, SECURITY
from foveal.errors import FovealError

# ── protocol ──────────────────────────────────────────────────────────────────────────────────────
# HTTP as it comes from the network, with bounds that the parser itself does not have: on what comes before a body,
# and on how long that and the body may take.
#
# 1. The headers of a request must be there within `PATIENCE` seconds.
# 2. Of a body at least `SLOWEST` bytes must come every `TRICKLE` seconds, or its end, unless we do not read them.
# 3. What is left of a body that nobody wants any more is passed over for that time, and then the connection ends.

PATIENCE: Final = 30.0
TRICKLE: Final = 30.0
SLOWEST: Final = 16 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, which is written in C for the most part."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._awaited: Literal["headers", "body", ""] = ""
        """What must come now."""
        self._come = 0
        """Bytes of it since it was last looked at, without those that came together with its beginning."""
        self._begun = False
        """It has begun in what is being read."""
        self._unwanted = False
        """It was seen before that the body comes after its answer."""
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect("headers")
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect("")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaited or self.transport.is_closing():
            return
        if not self._begun:
            self._come += len(data)
        self._begun = False
        if self._awaited == "headers" and self._come > LARGEST:
            self._refuse(431, "the headers of this request are too large")
        elif self._timer is None:
            self._look_later()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect("headers")

    def on_headers_complete(self) -> None:
        self._expect("body")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect("")
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for another protocol gets this one."""

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────

    def _expect(self, part: Literal["headers", "body", ""]) -> None:
        """This comes from here on. The clock is set when what has come is read, and the part still not whole:
        most requests come in one piece."""
        self._awaited = part
        self._come = 0
        self._begun = True
        self._unwanted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = self.loop.call_later(TRICKLE if self._awaited == "body" else PATIENCE, self._look)

    def _look(self) -> None:
        """So much time has passed: has enough come?"""
        self._timer = None
        if self._awaited == "headers":
            self._refuse(408, "the headers of this request did not come in time")
        elif self.cycle.response_started and self._unwanted:
            self.transport.close()
        elif self._come >= SLOWEST or self.flow.read_paused or self.cycle.response_started:
            self._unwanted = self.cycle.response_started
            self._come = 0
            self._look_later()
        else:
            self._refuse(408, "the body of this request did not come in time")

    def _refuse(self, status: int, detail: str) -> None:
        """Say no in place of the application."""
        self._expect("")
        if not self.transport.is_closing():
            self.transport.write(_answer(status, detail))
            self.transport.close()


def _answer(status: int, detail: str) -> bytes:
    refusal = HttpError(status, detail)
    body = encoded(written(refusal, "problem"))
    headers = (
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"cache-control", b"no-store"),
        *SECURITY,
    )
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} {refusal.title}\r\n".encode() + lines + b"\r\n" + body


# ── listening ─────────────────────────────────────────────────────────────────────────────────────

BACKLOG: Final = 2_048
KEEP_ALIVE: Final = 75
"""Seconds that a connection may idle: longer than clients keep theirs, so that we are not the one to close it."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address, and will listen when the server does; port 0 takes a free one. Raises
    `FovealError`."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as problem:
        raise FovealError(f"there is no address {host!r} ({problem}): set `server.host`") from None
    made = socket.socket(family, kind, proto)
    try:
        if port:  # or a server that was just ended would have to be waited for
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.settimeout(0)
    except OSError as problem:
        made.close()
        raise FovealError(_why(problem, host, port)) from None
    return made


def _why(problem: OSError, host: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken by another program: choose one with --port, 0 for any free one"
        )
    if problem.errno == errno.EACCES:
        return f"port {port} needs more rights than this program has: choose one above 1023 with --port"
    return (
        f"nothing can listen on {host}, port {port} ({problem.strerror}): set `server.host` and `server.port`"
    )


def url_of(listening: socket.socket) -> str:
    """The address to call, as a person would write it."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _protocol() -> Any:
    """The faster one, if httptools is there; the one in pure Python has bounds of its own."""
    try:
        pass
    except ImportError:
        return "h11"
    return BoundedProtocol


class _UvicornServer(uvicorn.Server):
    """Signals are the program's business."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _failed(task: asyncio.Task[None], on: socket.socket) -> str:
    """Why a server did not begin: another one was faster."""
    problem = task.exception()
    host, port = on.getsockname()[:2]
    return _why(problem if isinstance(problem, OSError) else OSError(0, str(problem)), host, port)


@asynccontextmanager
async def listening(app: ASGIApp, on: socket.socket) -> AsyncIterator[None]:
    """Answer requests while the block runs; whoever leaves it has seen to what was in flight."""
    config: Any = {"http": _protocol(), "ws": "none", "lifespan": "off", "loop": "none"}
    server = _UvicornServer(
        uvicorn.Config(
            app,
            **config,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[on]))
    try:
        while not server.started:
            if task.done():
                raise FovealError(_failed(task, on))
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([task])
