"""Requests in flight and how they end early: stop signals, refusal of new requests, revoked tokens.

1. The first SIGTERM or SIGINT begins the shutdown: new requests get a 503, running turns and requests may finish
   within `server.grace` seconds.
2. Requests that take longer are cancelled; the client gets an error in the format of its path before the connection
   closes. What was acknowledged is stored.
3. The second signal ends the wait at once. The third has its default effect and kills the process.
4. A drop-in request whose token is revoked is cancelled in the same way, on every server that shares the tokens.
   Streams of the API and of the inspector check their callers themselves.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.errors import StoreError
from foveal.server import Service
from foveal.web.http_errors import (
    HttpError,
    error_format,
    error_response,
    revoked_error,
    stream_error_event,
)

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
PATHS_DURING_SHUTDOWN: Final = frozenset({"/healthz", "/metrics"})
"""Paths that are answered until the process ends."""
MIN_FLUSH_S: Final = 2.0
"""Time for sending the rest of a response after its turn has ended, even if the grace period is over."""
FINAL_EVENT_TIMEOUT_S: Final = 2.0
"""Time for all cancelled requests to send their final error; a single one has half of it."""
REVOKED_CHECK_INTERVAL_S: Final = 1.0
"""Time between two checks of the tokens of all requests in flight, with one query."""


# ── Requests in flight ───────────────────────────────────────────────────────────────────────────────────


ValidTokens = Callable[[Collection[str]], Awaitable[set[str]]]
"""Returns those of some ids of tokens that are not revoked."""


async def _all_valid(ids: Collection[str]) -> set[str]:
    return set(ids)


class ShutdownState:
    """The requests in flight, and whether the shutdown has begun."""

    def __init__(self) -> None:
        self._valid_tokens: ValidTokens = _all_valid
        self.has_begun: bool = False
        self.is_cancelling: bool = False
        self._requests: dict[asyncio.Task[Any], Scope] = {}
        self._revoked: set[asyncio.Task[Any]] = set()
        """Requests that are cancelled because their token was revoked."""
        self._watch: asyncio.Task[None] | None = None
        self._request_ended = asyncio.Event()

    def begin(self) -> None:
        """Refuse requests from now on."""
        self.has_begun = True

    def check_tokens_with(self, valid_tokens: ValidTokens) -> None:
        """Let `valid_tokens` say which tokens of requests in flight are still valid."""
        self._valid_tokens = valid_tokens

    async def wait_until_idle(self) -> None:
        """Wait until no request is in flight."""
        while self._requests:
            self._request_ended.clear()
            await self._request_ended.wait()

    async def cancel_requests(self) -> None:
        """Cancel all requests in flight, and wait until they have ended."""
        self.is_cancelling = True
        for task in list(self._requests):
            task.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait_until_idle(), timeout=FINAL_EVENT_TIMEOUT_S)

    def add_request(self, scope: Scope) -> asyncio.Task[Any]:
        """Register the current task as a request, and return it."""
        task = asyncio.current_task()
        assert task is not None
        self._requests[task] = scope
        if self._watch is None:
            self._watch = asyncio.create_task(self._end_revoked())
        return task

    def remove_request(self, task: asyncio.Task[Any]) -> None:
        """Unregister a request that has ended."""
        del self._requests[task]
        self._revoked.discard(task)
        self._request_ended.set()

    def reason(self, task: asyncio.Task[Any]) -> HttpError | None:
        """Return why a request was cancelled; None if that was not done here."""
        if task in self._revoked:
            return revoked_error()
        return _stopping_error() if self.is_cancelling else None

    async def _end_revoked(self) -> None:
        """Cancel drop-in requests with revoked tokens, until no request is in flight."""
        try:
            while self._requests:
                await asyncio.sleep(REVOKED_CHECK_INTERVAL_S)
                tokens = {task: id for task, scope in self._requests.items() if (id := _drop_in_token(scope))}
                with suppress(StoreError):  # known tokens stay valid while the database is away
                    valid = await self._valid_tokens(sorted({*tokens.values()})) if tokens else set()
                    for task in tokens.keys() & self._requests.keys():
                        if tokens[task] not in valid:
                            self._revoked.add(task)
                            task.cancel()
        finally:
            self._watch = None


def _drop_in_token(scope: Scope) -> str:
    """Return the id of the token of a request that does not check it itself; "" if there is none."""
    caller = scope.get("state", {}).get("caller")
    has_own_check = scope["path"].startswith(("/api/", "/inspect/"))
    return "" if caller is None or has_own_check else str(caller.token_id)


class ShutdownMiddleware:
    """ASGI middleware that registers requests in a `ShutdownState`, and refuses them after shutdown has begun."""

    def __init__(self, app: ASGIApp, *, shutdown: ShutdownState) -> None:
        self._app = app
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PATHS_DURING_SHUTDOWN:
            await self._app(scope, receive, send)
            return
        if self._shutdown.has_begun:
            await error_response(_stopping_error(), error_format(scope["path"]))(scope, receive, send)
            return
        response, task = _ResponseInFlight(scope, send), self._shutdown.add_request(scope)
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            error = self._shutdown.reason(task)
            if error is None:
                raise
            task.uncancel()
            with suppress(TimeoutError):
                await asyncio.wait_for(response.end(error), timeout=FINAL_EVENT_TIMEOUT_S / 2)
        finally:
            self._shutdown.remove_request(task)


class _ResponseInFlight:
    """A response that is being sent; `end` cuts it short with an error."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._has_started = self._is_stream = self._is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_started = True
            types = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self._is_stream = any(value.startswith(b"text/event-stream") for value in types)
        elif not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    async def end(self, error: HttpError) -> None:
        """Send an error if one can still be sent: as the response, or as the last event of a stream."""
        format = error_format(self._scope["path"])
        if not self._has_started:
            await error_response(error, format)(self._scope, _receive_nothing, self.send)
        elif self._is_stream and not self._is_complete:
            event = stream_error_event(error, format)
            await self.send({"type": "http.response.body", "body": event})


async def _receive_nothing() -> Message:
    return {"type": "http.disconnect"}


def _stopping_error() -> HttpError:
    detail = "the server is stopping: what was acknowledged is stored; try again in a moment"
    return HttpError(503, detail, code="stopping", headers={"Retry-After": "5", "Connection": "close"})


# ── Signals and shutdown ─────────────────────────────────────────────────────────────────────────────────


class StopSignal:
    """Whether SIGTERM or SIGINT was received: once (`requested`) or twice (`forced`)."""

    def __init__(self) -> None:
        self.requested: asyncio.Event = asyncio.Event()
        self.forced: asyncio.Event = asyncio.Event()

    def listen(self) -> None:
        """Install the signal handlers in the running loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.request)

    def request(self) -> None:
        """Handle one signal; the second one removes the handlers, so the third kills the process."""
        if not self.requested.is_set():
            self.requested.set()
            return
        self.forced.set()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def shut_down(service: Service, shutdown: ShutdownState, stop: StopSignal, *, grace: float) -> None:
    """End the running turns within `grace` seconds, then the responses that are still being sent."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    shutdown.begin()
    turns = asyncio.create_task(service.end_turns(grace=grace))
    if not await _done_before(turns, stop.forced):
        for session in service.live_sessions:
            session.abort()
        await turns
    idle = asyncio.create_task(shutdown.wait_until_idle())
    remaining = 0.0 if stop.forced.is_set() else max(MIN_FLUSH_S, deadline - loop.time())
    await _done_before(idle, stop.forced, timeout=remaining)
    idle.cancel()
    await shutdown.cancel_requests()


async def finishes_before(work: Awaitable[Any], event: asyncio.Event) -> bool:
    """Return whether `work` finished before `event` was set; otherwise cancel it. Raises what `work` raises."""
    task = asyncio.ensure_future(work)
    if not await _done_before(task, event):
        task.cancel()
        await asyncio.wait([task])
        return False
    task.result()
    return True


async def _done_before(
    task: asyncio.Future[Any], event: asyncio.Event, *, timeout: float | None = None
) -> bool:
    """Wait for a task until an event is set or the time is over; return whether the task is done."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()
