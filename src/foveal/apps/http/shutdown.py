"""How the server ends: nothing new is begun, what is in flight gets time, and what takes longer is told so in its
own language before its connection closes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, answer, face_of, last_words
from foveal.server import Service

OPEN: Final = frozenset({"/healthz", "/metrics"})
"""Paths that are answered to the end."""
LAST: Final = 2.0
"""Seconds that a client has to take the last words."""


class ShutdownState:
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


class ShutdownMiddleware:
    """The layer that keeps an `Ending` informed."""

    def __init__(self, app: ASGIApp, *, ending: ShutdownState) -> None:
        self._app = app
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        if self._ending.begun:
            await answer(_stopping(), face_of(scope["path"]))(scope, receive, send)
            return
        flight, task = _RequestInFlight(scope, send), self._ending.took_off()
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


class _RequestInFlight:
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


def _stopping() -> HttpError:
    told = "the server is stopping: what was acknowledged is stored; try again in a moment"
    return HttpError(503, told, code="stopping", headers={"Retry-After": "5", "Connection": "close"})


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────
# Signals, and what they set in motion: what runs may finish, what takes too long is stopped and stored.

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
TRICKLE: Final = 2.0
"""Seconds that answers get, after the turns that they tell of have ended, to be sent to their end."""


class StopSignal:
    """Whether the end was asked for: once, it takes its time; twice, it does not; the third signal kills."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.add_signal_handler(each, self.ask)

    def ask(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
            return
        self.hurried.set()
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.remove_signal_handler(each)


async def end(service: Service, ending: ShutdownState, stop: StopSignal, *, grace: float) -> None:
    """Bring to an end what runs: turns first, then the answers that are still being sent."""
    loop = asyncio.get_running_loop()
    until = loop.time() + grace
    ending.begin()
    turns = asyncio.create_task(service.end_turns(grace=grace))
    if not await _before(turns, stop.hurried):
        for room in service.rooms:
            room.give_up()
        await turns
    flights = asyncio.create_task(ending.landed())
    left = 0.0 if stop.hurried.is_set() else max(TRICKLE, until - loop.time())
    await _before(flights, stop.hurried, timeout=left)
    flights.cancel()
    await ending.cut()


async def first_of(act: Awaitable[Any], event: asyncio.Event) -> bool:
    """Whether something was done before an event came; what was not done is given up. Raises what it raises."""
    task = asyncio.ensure_future(act)
    if not await _before(task, event):
        task.cancel()
        await asyncio.wait([task])
        return False
    task.result()
    return True


async def _before(task: asyncio.Future[Any], event: asyncio.Event, *, timeout: float | None = None) -> bool:
    """Wait for a task, but not longer than an event or a time; whether it is done."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()
