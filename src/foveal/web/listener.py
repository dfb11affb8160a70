"""Socket of the server, and uvicorn running on it."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from foveal.errors import FovealError

SOCKET_BACKLOG: Final = 2_048
KEEP_ALIVE_S: Final = 75
"""Idle time of a connection: longer than clients keep theirs, so the client closes it and not the server."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address; port 0 takes a free port. Raises `FovealError`."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as problem:
        raise FovealError(f"there is no address {host!r} ({problem}): set `server.host`") from None
    listener = socket.socket(family, kind, proto)
    try:
        if port:  # without it, a restart fails until the connections of the old server have timed out
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.settimeout(0)
    except OSError as problem:
        listener.close()
        raise FovealError(_bind_error_text(problem, host, port)) from None
    return listener


def _bind_error_text(problem: OSError, host: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is used by another program: choose another with --port (0: any free one)"
        )
    if problem.errno == errno.EACCES:
        return f"this program may not use port {port}: choose one above 1023 with --port"
    return f"cannot listen on {host}, port {port} ({problem.strerror}): set `server.host` and `server.port`"


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket; a wildcard address becomes loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _protocol() -> Any:
    """Return the bounded httptools protocol, or uvicorn's h11, which has limits, if httptools is missing."""
    try:
        from foveal.web.bounded_protocol import BoundedProtocol
    except ImportError:
        return "h11"
    return BoundedProtocol


class _UvicornServer(uvicorn.Server):
    """Leaves signals to `foveal serve`."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _start_error_text(task: asyncio.Task[None], listener: socket.socket) -> str:
    """Return why uvicorn did not start: another process began to listen after `bind`."""
    problem = task.exception()
    host, port = listener.getsockname()[:2]
    error = problem if isinstance(problem, OSError) else OSError(0, str(problem))
    return _bind_error_text(error, host, port)


def _stop_listening(server: uvicorn.Server) -> None:
    for listening in server.servers:
        listening.close()


@asynccontextmanager
async def run_server(app: ASGIApp, listener: socket.socket) -> AsyncIterator[Callable[[], None]]:
    """Answer requests while the block runs; the caller ends the requests in flight before it leaves the block.

    Yields a function that closes the listening socket, so that new connections are refused."""
    config: Any = {"http": _protocol(), "ws": "none", "lifespan": "off", "loop": "none"}
    server = _UvicornServer(
        uvicorn.Config(
            app,
            **config,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=SOCKET_BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:  # uvicorn has no event to wait for
            if task.done():
                raise FovealError(_start_error_text(task, listener))
            await asyncio.sleep(0.005)
        yield partial(_stop_listening, server)
    finally:
        server.should_exit = True
        await asyncio.wait([task])
