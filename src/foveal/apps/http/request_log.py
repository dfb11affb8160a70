"""The outermost layer: every request gets an id, an answer, a line in the log, and is counted."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import Final
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, answer, face_of
from foveal.apps.http.http_headers import answered, request_id
from foveal.apps.http.json_logs import tell
from foveal.apps.http.prometheus import PrometheusMetrics
from foveal.apps.http.tracing import Tracing

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestLogMiddleware:
    def __init__(self, app: ASGIApp, *, meters: PrometheusMetrics, tracing: Tracing | None) -> None:
        self._app = app
        self._meters = meters
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        seen = _Seen(scope, send, self._meters)
        tracing = self._tracing
        try:
            with nullcontext() if tracing is None else tracing.request(scope, seen.told):
                await self._answered(scope, receive, seen)
        finally:
            seen.end()

    async def _answered(self, scope: Scope, receive: Receive, seen: _Seen) -> None:
        try:
            await self._app(scope, receive, seen.send)
        except Exception as problem:  # noqa: BLE001 (the last place where it can be answered)
            tell("error", {"request": seen.id, "route": seen.route}, level=logging.ERROR, problem=problem)
            if not seen.status:
                refusal = HttpError(500, f"something went wrong here; the log has it under {seen.id}")
                await answer(refusal, face_of(scope["path"]))(scope, receive, seen.send)


class _Seen:
    """One request, as it is told on."""

    def __init__(self, scope: Scope, send: Send, meters: PrometheusMetrics) -> None:
        self.id = request_id(scope["headers"]) or uuid4().hex
        self.status = 0
        """0 before the answer has begun."""
        self._scope = scope
        self._send = send
        self._meters = meters
        self._bytes = 0
        self._stream = self._whole = False
        self._began = time.perf_counter()
        scope.setdefault("state", {})["request_id"] = self.id

    @property
    def route(self) -> str:
        """The pattern that the path fits: nothing of what is in it."""
        return getattr(self._scope.get("route"), "path", "unknown")

    @property
    def method(self) -> str:
        return self._scope["method"] if self._scope["method"] in METHODS else "OTHER"

    def told(self) -> tuple[str, str, int]:
        return self.method, self.route, self.status

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = answered(message.get("headers", ()), id=self.id)
            self._stream = any(
                value.startswith(b"text/event-stream") for name, value in headers if name == b"content-type"
            )
            if self._stream:
                self._meters.stream_began()
            message = {**message, "headers": headers}
        else:
            self._bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
        await self._send(message)

    def end(self) -> None:
        seconds = time.perf_counter() - self._began
        if self._stream:
            self._meters.stream_ended()
        self._meters.request(self.method, self.route, self.status, seconds)
        caller = self._scope["state"].get("caller")
        told = {
            "request": self.id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "ms": round(seconds * 1000, 1),
            "bytes": self._bytes,
        }
        if caller is not None:
            told["tenant"] = caller.tenant
        if not self._whole:
            told["broken_off"] = True
        tell("request", told)
