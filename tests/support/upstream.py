"""The proxy between a real client and a local upstream, all in one process.

    with StandIn(window=6_000) as provider, ProxyServer(folder, openai=provider.openai) as proxy:
        client = openai.OpenAI(base_url=proxy.openai, api_key="sk-of-the-client")

`StandIn` (of `provider_stand_in`) is a correct upstream. `RawUpstream` is an incorrect one: it sends the bytes
of a script, waits where the script says so, and closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from foveal import config
from foveal.core.log import Event
from foveal.server import AuthTokens, Service
from foveal.server.http.app import app
from foveal.server.proxy.upstreams import Upstreams
from foveal.web.listener import bind, run_server, url_of
from support.raw_upstream import DEADLINE, Piece, RawUpstream, ReceivedRequest, Script, answer, stream_head
from support.threaded_server import ThreadedServer

__all__ = [
    "DEADLINE",
    "Piece",
    "ProxyServer",
    "RawUpstream",
    "ReceivedRequest",
    "Script",
    "answer",
    "stream_head",
    "until",
]

T = TypeVar("T")


def until(true: Callable[[], T], *, seconds: float = DEADLINE) -> T:
    """Wait until a function returns a true value, and return it."""
    end = monotonic() + seconds
    while not (answer := true()):
        assert monotonic() < end, "the condition did not become true"
        sleep(0.01)
    return answer


class ProxyServer(ThreadedServer):
    """The whole server in a thread with an event loop of its own. Tokens are estimated, unless somebody says
    otherwise: that saves a second."""

    def __init__(
        self,
        folder: Path,
        *,
        openai: str = "",
        anthropic: str = "",
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.url = ""
        flags = {name.replace("__", "."): value for name, value in settings.items()}
        urls = {"server.openai_url": openai, "server.anthropic_url": anthropic}
        self._flags = {
            "server.rate": 0,
            "tokenizer": "estimate",
            **flags,
            **{name: url for name, url in urls.items() if url},
        }
        self._environment = environment or {}

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)

    async def serve(self) -> None:
        self.folder.mkdir(exist_ok=True, parents=True)
        loaded = config.load(self.folder, flags=self._flags, environ={}, user_folder=self.folder)
        async with AsyncExitStack() as stack:
            place = self.folder / "server"
            opened = Service.open(loaded, folder=place, environment=self._environment)
            self.service = await stack.enter_async_context(opened)
            self.service_events: list[Any] = []
            self.service.runtime.add_observer(self.service_events.append)
            self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self.upstreams = Upstreams(self.service)
            stack.push_async_callback(self.upstreams.close)
            made = app(self.service, upstreams=self.upstreams, worker=None)
            listener = stack.enter_context(closing(bind("127.0.0.1", 0)))
            self.url = url_of(listener)
            async with run_server(made, listener):
                self.ready.set()
                await self._stop.wait()

    # ── For tests ────────────────────────────────────────────────────────────────────────────────────

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def do(self, act: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(act, self.loop).result(DEADLINE)

    def token(self, tenant: str) -> str:
        return self.do(AuthTokens(self.service.runtime.database).create(tenant, now=0.0))[1]

    def sessions(self, tenant: str = "default") -> list[str]:
        """Return the ids of a tenant's sessions, oldest first."""
        found = self.do(self.service.tenant(tenant).store.sessions())
        return [info.id for info in sorted(found, key=lambda info: info.created)]

    def events(self, session: str, tenant: str = "default") -> list[Event]:
        return self.do(self.service.tenant(tenant).store.read(session))


def summarising(folder: Path, **settings: Any) -> ProxyServer:
    """Return a server that has the client's model write each summary, whatever it costs."""
    return ProxyServer(folder, server__summary_cost_share=0, **settings)
