"""An HTTP server on this machine that can fail for a while: the base of the stand-ins of chat apps.

    server = InterruptedServer(app)
    await server.start()
    async with server.outage("hang"):      # see `kind` for what happens to requests meanwhile
        ...
    await server.stop()

During the outage "refused" the server does not listen and closes its connections. Of the other kinds it only knows
the name: the stand-in, which knows its requests, lets them fail.
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from aiohttp import web

OutageT = TypeVar("OutageT", bound=str)
SHUTDOWN_S: Final = 0.1
"""Time for requests that run when the server stops."""


class InterruptedServer(Generic[OutageT]):
    """Serves an application; `on_outage` is called when an outage begins."""

    def __init__(
        self, app: web.Application, on_outage: Callable[[OutageT], Awaitable[None]] | None = None
    ) -> None:
        self.kind: OutageT | None = None
        """The outage that lasts; None for none."""
        self.port = 0
        self._on_outage = on_outage
        self._has_ended = Event()
        self._runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_S, access_log=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        await self._runner.setup()
        await self._listen()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._has_ended.set()
        await self._runner.cleanup()

    @asynccontextmanager
    async def outage(self, kind: OutageT) -> AsyncIterator[None]:
        """Let requests fail while the block runs, those that wait for a response too."""
        self.kind = kind
        self._has_ended.clear()
        if kind == "refused":
            await self._site.stop()
            assert self._runner.server is not None
            for connection in list(self._runner.server.connections):
                connection.force_close()
        if self._on_outage is not None:
            await self._on_outage(kind)
        try:
            yield
        finally:
            self.kind = None
            self._has_ended.set()
            if kind == "refused":
                await self._listen()

    async def wait_for_end(self) -> None:
        """Wait until the outage has ended, or the server stops."""
        await self._has_ended.wait()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()


def cut_connection(request: web.Request) -> web.Response:
    """Close the connection of a request without a response; return what the server takes for one."""
    if request.transport is not None:
        request.transport.close()
    return web.Response()
