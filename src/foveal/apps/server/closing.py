"""How the server ends: nothing new is begun, what is in flight gets time, and what takes longer is told so in its
own language before its connection closes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.apps.server.refusals import Refusal, answer, face_of, last_words

OPEN: Final = frozenset({"/healthz", "/metrics"})
"""Paths that are answered to the end."""
LAST: Final = 2.0
"""Seconds that a client has to take the last words."""


class Ending:
    """What is in flight, and whether the end has begun."""

    def __init__(self) -> None:
        self.begun = False
        self.cutting = False
        self._flights: set[asyncio.Task[Any]] = set()
        self._landed = asyncio.Event()

    def begin(self) -> None:
        """From now on requests are refused."""
        self.begun = True

    async def landed(self) -> None:
        """Until nothing is in flight."""
        while self._flights:
            self._landed.clear()
            await self._landed.wait()

    async def cut(self) -> None:
        """End what is still in flight."""
        self.cutting = True
        for flight in list(self._flights):
            flight.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.landed(), timeout=LAST)

    def took_off(self) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        self._flights.add(task)
        return task

    def has_landed(self, task: asyncio.Task[Any]) -> None:
        self._flights.discard(task)
        self._landed.set()


class Closing:
    """The layer that keeps an `Ending` informed."""

    def __init__(self, app: ASGIApp, *, ending: Ending) -> None:
        self._app = app
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        if self._ending.begun:
            await answer(_stopping(), face_of(scope["path"]))(scope, receive, send)
            return
        flight, task = _Flight(scope, send), self._ending.took_off()
        try:
            await self._app(scope, receive, flight.send)
        except asyncio.CancelledError:
            if not self._ending.cutting:
                raise
            task.uncancel()
            with suppress(TimeoutError):
                await asyncio.wait_for(flight.end(), timeout=LAST / 2)
        finally:
            self._ending.has_landed(task)


class _Flight:
    """One answer on its way."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._started = self._stream = self._done = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self._stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        elif not message.get("more_body", False):
            self._done = True
        await self._send(message)

    async def end(self) -> None:
        """Say that it ends here, if there is a way to say so."""
        face = face_of(self._scope["path"])
        if not self._started:
            await answer(_stopping(), face)(self._scope, _nothing, self.send)
        elif self._stream and not self._done:
            await self.send({"type": "http.response.body", "body": last_words(_stopping(), face)})


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _stopping() -> Refusal:
    told = "the server is stopping: what was acknowledged is stored; try again in a moment"
    return Refusal(503, told, code="stopping", headers={"Retry-After": "5", "Connection": "close"})
