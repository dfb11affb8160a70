"""Log of the server: one JSON line per request, turn, reduction and error.

1. A line never contains the text of a message, a header, an API key or a query.
2. So an error is logged as its type and the code locations that it passed, without its message.
3. Lines of other libraries are logged in the same way, because their messages may contain anything.

`RequestLogMiddleware`, the outermost one, gives every request an id, a response, a log line and metrics.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TextIO

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.core.log.events import REDUCTIONS, CompactionFailed, Overflowed, kind
from foveal.server.http.prometheus import PrometheusMetrics
from foveal.server.http.tracing import Tracing
from foveal.server.runtime import (
    EventsStored,
    IllegalRequestMade,
    ProxyRequestEnded,
    ServiceEvent,
    SoftLimitReached,
    SummaryRequestEnded,
    TurnEnded,
    UsageNotUnderstood,
)
from foveal.web.asgi_extensions import offer_write_now, withdraw_write_now, write_now_of
from foveal.web.http_errors import HttpError, error_format, error_response
from foveal.web.http_headers import SECURITY_HEADERS, request_id, response_headers

LOGGER_NAME: Final = "foveal.server"
MAX_STACK_PLACES: Final = 12
"""Innermost code locations that are logged for an error."""
OWN_LOGGER_PREFIX: Final = "foveal."
"""Loggers of Foveal itself: their messages are logged."""
MAX_FIELD_CHARS: Final = 200
"""Clients choose names such as the session id, so every text is cut to this length."""
_LOGGED_FACTS: Final = (*REDUCTIONS, CompactionFailed, Overflowed)
_log: Final = logging.getLogger(LOGGER_NAME)


def log_event(
    event: str,
    fields: Mapping[str, Any] | None = None,
    *,
    level: int = logging.INFO,
    problem: BaseException | None = None,
) -> None:
    """Write one line; `fields` are numbers and short names, never text of a message."""
    if _log.isEnabledFor(level):
        logged = {name: _short(value) for name, value in (fields or {}).items()}
        if problem is not None:
            logged |= {"error": type(problem).__name__, "places": stack_places(problem)}
        # `Logger.log` would search the stack for the caller, which these lines do not name.
        extra = {"fields": logged}
        _log.handle(_log.makeRecord(LOGGER_NAME, level, "", 0, event, (), None, extra=extra))


def log_service_event(service_event: ServiceEvent) -> None:
    """Log a service event."""
    where = {"tenant": service_event.tenant, "session": service_event.session}
    match service_event:
        case TurnEnded():
            level = logging.WARNING if service_event.why == "failed" else logging.INFO
            log_event("turn", where | _turn_fields(service_event), level=level)
        case ProxyRequestEnded():
            level = logging.WARNING if service_event.status >= 500 else logging.INFO
            log_event("exchange", where | _exchange_fields(service_event), level=level)
        case SoftLimitReached(scope=scope, limit=limit, spent=spent):
            fields = {"scope": scope, "limit": limit, "spent": spent}
            log_event("soft_limit", where | fields, level=logging.WARNING)
        case SummaryRequestEnded():
            level = logging.INFO if service_event.status == 200 else logging.WARNING
            fields = {"dialect": service_event.dialect, "status": service_event.status}
            log_event("summary", where | fields, level=level)
        case IllegalRequestMade():
            fields = {"dialect": service_event.dialect, "origin": service_event.origin}
            log_event(
                "illegal_request",
                where | fields | {"faults": "; ".join(service_event.faults)},
                level=logging.WARNING,
            )
        case UsageNotUnderstood():
            fields = {"dialect": service_event.dialect, "fields": service_event.fields}
            log_event("unknown_usage", where | fields, level=logging.WARNING)
        case EventsStored():
            facts = [event.fact for event in service_event.events if isinstance(event.fact, _LOGGED_FACTS)]
            if facts:
                log_event("reduced", where | Counter(map(kind, facts)))


def _turn_fields(turn: TurnEnded) -> dict[str, Any]:
    fields = {"turn": turn.turn, "model": turn.model, "why": turn.why, "ms": _ms(turn.seconds)}
    return fields | ({"error": turn.problem} if turn.problem else {})


def _exchange_fields(done: ProxyRequestEnded) -> dict[str, Any]:
    fields = {
        "dialect": done.dialect,
        "model": done.model,
        "status": done.status,
        "ms": _ms(done.seconds),
        "added_ms": _ms(done.added_seconds),
        "tokens": done.tokens,
        "whole": done.unreduced_tokens,
        "recovered": done.overflow_retries,
        "streamed": done.streamed,
    }
    told = {"error": done.error, "not_managed": done.not_managed}
    return fields | {name: text for name, text in told.items() if text}


def stack_places(problem: BaseException) -> list[str]:
    """Return the code locations that an error passed, as `file:line function`."""
    frames = traceback.extract_tb(problem.__traceback__)[-MAX_STACK_PLACES:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def _short(value: Any) -> Any:
    return value[:MAX_FIELD_CHARS] if isinstance(value, str) else value


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


# ── Formatting ───────────────────────────────────────────────────────────────────────────────────────────


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"at": at.replace("+00:00", "Z"), "level": record.levelname.lower()}
        if record.name == LOGGER_NAME:
            line |= {"event": str(record.msg), **getattr(record, "fields", {})}
        elif record.name.startswith(OWN_LOGGER_PREFIX):
            line |= {"event": "note", "logger": record.name, "note": _short(record.getMessage())}
        else:
            line |= {"event": "library", "logger": record.name, "line": f"{record.module}:{record.lineno}"}
            # Many libraries put the error into the message only: then it is the one that is being handled now.
            problem = (record.exc_info or sys.exc_info())[1]
            if problem is not None:
                line |= {"error": type(problem).__name__, "places": stack_places(problem)}
        return msgspec.json.encode(line, enc_hook=str).decode()


def log_to_stderr(stream: TextIO | None = None) -> None:
    """Replace all handlers of the process by one that writes JSON lines; libraries log from WARNING on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    for other in list(root.handlers):
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("foveal").setLevel(logging.INFO)
    # No line contains these; without them, a record is made in half the time.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Both log every attempt of an outage. Their errors reach Foveal, which logs an outage once and with its reason.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    logging.getLogger("dbos").setLevel(logging.ERROR)


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
        self.id = request_id(scope["headers"]) or token_hex(16)
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
