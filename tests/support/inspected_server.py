"""The inspector of `foveal inspect` inside the test process: real sockets, a real store.

with InspectedServer(store) as server:
    server.client().get("/inspect/")
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from foveal.core.log.events import AnyFact, Instructed, ToolReturned, UserSaid
from foveal.inspector.loopback_server import LoopbackServer
from foveal.inspector.sessions.actions import SessionActor, StoreActor
from foveal.inspector.sessions.collection import SessionCollection
from foveal.recall.archive.listing import given_sources
from foveal.sessions.session import Session
from foveal.stores import open_store
from foveal.web.listener import bind
from support.threaded_server import ThreadedServer

DEADLINE_S = 60.0
TOKEN_HEADER = "X-Foveal-Inspect"


class InspectedServer(ThreadedServer):
    """The server, in a thread with its own event loop."""

    def __init__(
        self, *places: Path, window: int | None = None, port: int = 0, actor: SessionActor | None = None
    ) -> None:
        super().__init__()
        self._actor = actor
        self._places = places
        self._settings = {} if window is None else {"window": window}
        self._port = port
        self._clients: list[httpx.Client] = []
        self._reader: httpx.Client | None = None

    async def serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        sources = given_sources([str(place) for place in self._places])
        actor = self._actor or StoreActor(**self._settings)
        source = SessionCollection(sources, actor=actor, settings=self._settings)
        listener = bind("127.0.0.1", self._port)
        self.server = LoopbackServer(source, listener)
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with listener:
            async with self.server.running():
                self.ready.set()
                await self._stop.wait()
        await source.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, problem, trace)
        for client in self._clients:
            client.close()

    def visitor(self, **headers: str) -> httpx.Client:
        """A client that has not logged in."""
        client = httpx.Client(
            base_url=self.address, headers=headers, timeout=DEADLINE_S, trust_env=False, verify=False
        )
        self._clients.append(client)
        return client

    def client(self) -> httpx.Client:
        """A client that has logged in."""
        client = self.visitor()
        assert client.get(self.server.url()).status_code == 303
        return client

    def keys(self) -> dict[str, str]:
        """The keys of all sessions, by title."""
        self._reader = self._reader or self.client()
        rows = self._reader.get("/inspect/api/sessions").json()["sessions"]
        return {row.get("title", ""): row["key"] for row in rows}


def write_session(path: Path, id: str, facts: Sequence[AnyFact], *, title: str = "", **settings: Any) -> None:
    """Store a session with these facts; each result is followed by a fit, which may reduce something."""
    asyncio.run(_write(path, id, facts, title, settings))


async def _write(path: Path, id: str, facts: Sequence[AnyFact], title: str, settings: dict[str, Any]) -> None:
    async with open_store(str(path)) as store:
        given = {"model": "gpt-5", "begin": [Instructed(content="Be brief.")], **settings}
        session = await Session.open(store, id, **given)
        if title:
            await session.rename(title)
        for fact in facts:
            await session.append(fact)
            if isinstance(fact, UserSaid | ToolReturned) and session.last > 2:
                await session.fit()
        await session.close()


def page_token(page: str) -> str:
    """The write token of a page."""
    return page.partition('name="foveal-token" content="')[2].partition('"')[0]
