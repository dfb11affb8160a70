"""Outermost middleware: gives every request an id, a response, a log line and metrics."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import Final
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.server.http.json_logs import log_event
from foveal.server.http.prometheus import PrometheusMetrics
from foveal.server.http.tracing import Tracing
from foveal.web.asgi_extensions import offer_write_now, withdraw_write_now, write_now_of
from foveal.web.http_errors import HttpError, error_format, error_response
from foveal.web.http_headers import SECURITY_HEADERS, request_id, response_headers

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestLogMiddleware:
    """ASGI middleware; an exception that no other layer handles becomes a 500 here."""

    def __init__(self, app: ASGIApp, *, metrics: PrometheusMetrics, tracing: Tracing | None) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        logged = _LoggedRequest(scope, send, self._metrics)
        tracing = self._tracing
        try:
            with nullcontext() if tracing is None else tracing.request(scope, logged.result):
                await self._respond(scope, receive, logged)
        finally:
            logged.end()

    async def _respond(self, scope: Scope, receive: Receive, logged: _LoggedRequest) -> None:
        try:
            await self._app(scope, receive, logged.send)
        except Exception as problem:  # noqa: BLE001 (the last place where it can be answered)
            fields = {"request": logged.id, "route": logged.route}
            log_event("error", fields, level=logging.ERROR, problem=problem)
            if not logged.status:
                error = HttpError(500, f"internal error; the server's log has it under {logged.id}")
                await error_response(error, error_format(scope["path"]))(scope, receive, logged.send)


class _LoggedRequest:
    """One request with what is logged about it."""

    def __init__(self, scope: Scope, send: Send, metrics: PrometheusMetrics) -> None:
        self.id = request_id(scope["headers"]) or uuid4().hex
        self.status = 0
        """0 until the response begins."""
        self._scope = scope
        self._send = send
        self._metrics = metrics
        self._bytes = 0
        self._is_stream = self._is_complete = False
        self._began = time.perf_counter()
        scope.setdefault("state", {})["request_id"] = self.id
        self._write_now = write_now_of(scope)
        if self._write_now is not None:
            offer_write_now(scope, self.write_now)

    @property
    def route(self) -> str:
        """The pattern that matched the path: a label with few values, and without session ids."""
        return getattr(self._scope.get("route"), "path", "unknown")

    @property
    def method(self) -> str:
        """The HTTP method; a client can send any word, so others than `METHODS` are `OTHER`."""
        return self._scope["method"] if self._scope["method"] in METHODS else "OTHER"

    def result(self) -> tuple[str, str, int]:
        """Return method, route and status."""
        return self.method, self.route, self.status

    async def send(self, message: Message) -> None:
        """Pass a message on to the client, with the server's headers added to the first one."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # A route sets them for its pages; those of an upstream never count.
            security = self._scope["state"].get("security_headers", SECURITY_HEADERS)
            headers = response_headers(message.get("headers", ()), id=self.id, security=security)
            self._is_stream = any(
                value.startswith(b"text/event-stream") for name, value in headers if name == b"content-type"
            )
            if self._is_stream:
                self._metrics.stream_started()
            message = {**message, "headers": headers}
        else:
            self._bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
        await self._send(message)

    def write_now(self, body: bytes) -> bool:
        """Write a part of the body through the extension of the server, and count its bytes."""
        is_written = self._write_now is not None and self._write_now(body)
        if is_written:
            self._bytes += len(body)
        return is_written

    def end(self) -> None:
        """Count the request and write its log line."""
        seconds = time.perf_counter() - self._began
        withdraw_write_now(self._scope)
        if self._is_stream:
            self._metrics.stream_ended()
        self._metrics.count_request(self.method, self.route, self.status, seconds)
        caller = self._scope["state"].get("caller")
        fields = {
            "request": self.id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "ms": round(seconds * 1000, 1),
            "bytes": self._bytes,
        }
        if caller is not None:
            fields["tenant"] = caller.tenant
        if not self._is_complete:
            fields["broken_off"] = True
        log_event("request", fields)
