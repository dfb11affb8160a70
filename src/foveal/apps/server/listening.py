"""The socket that the server listens on, and the parser in front of the application."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from foveal.errors import FovealError

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
        from foveal.apps.server.protocol import Bounded
    except ImportError:
        return "h11"
    return Bounded


class _Server(uvicorn.Server):
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
    server = _Server(
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
