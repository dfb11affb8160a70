"""The server as one ASGI application: routes, middleware and error handlers.

Middleware from the outside in: `RequestLogMiddleware` (id, log, metrics), `ShutdownMiddleware` (requests in
flight), `Guard` (authentication and limits), `AuditMiddleware` (the audit trail). Errors that handlers raise are
answered in the format of their path.

`GET /healthz` says whether the server can store messages, what waits for an answer, and how the bots are:

1. The response comes within a second, whatever is locked: checks run in the background, each with a time limit.
2. A degraded server has a part that cannot be used; `problems` says which, without names of tenants. The code is
   200 if that is only the store of a tenant or a bot, and 503 if messages cannot be stored or the server stops.
3. While the database cannot be used, the number of waiting messages is not known: `inbox` is null.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foveal.errors import FovealError, StoreError
from foveal.server import Service, api
from foveal.server.auth_tokens import AuthTokens
from foveal.server.daily_usage import usage_day
from foveal.server.http import json_logs
from foveal.server.http.guard import METRICS_PATH, AuditMiddleware, CallerCache, Guard, Pages
from foveal.server.http.json_logs import RequestLogMiddleware
from foveal.server.http.prometheus import CONTENT_TYPE, MAX_TENANT_LABELS, PrometheusMetrics
from foveal.server.http.shutdown import ShutdownMiddleware, ShutdownState
from foveal.server.http.tracing import Tracing
from foveal.server.proxy.routes import routes as proxy_routes
from foveal.server.proxy.upstreams import Upstreams
from foveal.web.http_errors import HttpError, encode_json, error_format, error_response, http_error_of
from foveal.web.http_headers import is_loopback

if TYPE_CHECKING:
    from foveal.server.gateways.gateway import GatewayHealth
    from foveal.server.jobs import JobWorker

CHECK_TTL_S: Final = 1.0
"""The result of the checks is reused this long."""
MAX_CHECK_S: Final = 0.5
"""A check that takes longer counts as failed until it ends."""
BUSIEST_PERIOD_S: Final = 30 * 86_400.0
"""Tenants that were the busiest in this time have labels of their own in the metrics."""
MAX_OWED_S: Final = 300.0
"""Time after which an answer that a bot could not deliver makes the server degraded."""


class Health:
    """The endpoint."""

    def __init__(
        self,
        service: Service,
        shutdown: ShutdownState,
        gateways: Callable[[], Iterable[GatewayHealth]],
        upstreams: Upstreams,
    ) -> None:
        self._service = service
        self._upstreams = upstreams
        self._gateways = gateways
        self._shutdown = shutdown
        self._check: asyncio.Task[None] | None = None
        self._checked_at = float("-inf")
        self._problem = ""
        self._unanswered = 0
        self._oldest: float | None = None

    async def __call__(self, request: Request) -> Response:
        database = await self._database_problem()
        failing = len(self._service.runtime.failing_stores)
        stores = f"the stores of {failing} tenants cannot be used" if failing > 1 else ""
        stores = "the store of a tenant cannot be used" if failing == 1 else stores
        gateways = list(self._gateways())
        problems = [text for text in (database, stores, *map(self._gateway_problem, gateways)) if text]
        status = "stopping" if self._shutdown.has_begun else "degraded" if problems else "ok"
        body = self._counts(is_inbox_known=not database) | {"status": status, "problems": problems}
        body["gateways"] = {gateway.platform: self._gateway_body(gateway) for gateway in gateways}
        if _is_from_this_machine(request):
            body["upstreams"] = self._upstreams.addresses()
        code = 503 if database or self._shutdown.has_begun else 200
        return Response(encode_json(body), status_code=code, media_type="application/json")

    def _counts(self, *, is_inbox_known: bool) -> dict[str, Any]:
        sessions = self._service.live_sessions
        return {
            "sessions_open": len(sessions),
            "turns_running": sum(session.is_busy for session in sessions),
            "inbox": self._unanswered if is_inbox_known else None,
            "inbox_oldest_s": self._age_s(self._oldest if is_inbox_known else None),
        }

    def _age_s(self, at: float | None) -> float | None:
        return None if at is None else round(max(0.0, self._service.runtime.clock() - at), 1)

    def _gateway_problem(self, gateway: GatewayHealth) -> str:
        """Return why a bot cannot be used, "" if it can."""
        if gateway.status == "refused":
            return gateway.last_error
        if (self._age_s(gateway.owed_oldest_at) or 0.0) > MAX_OWED_S:
            return f"{gateway.owed} answers of the {gateway.platform} bot could not be delivered yet"
        return ""

    def _gateway_body(self, gateway: GatewayHealth) -> dict[str, Any]:
        return {
            "status": gateway.status,
            "connected_since": _iso_time(gateway.connected_since),
            "last_update": _iso_time(gateway.last_update),
            "owed": gateway.owed,
            "owed_oldest_s": self._age_s(gateway.owed_oldest_at),
            "given_up": gateway.given_up,
            "refused": gateway.refused,
            "last_error": gateway.last_error,
        }

    async def _database_problem(self) -> str:
        """Return what is wrong with the service's own database, "" if nothing is. Requests share one check."""
        if self._check is None and time.monotonic() - self._checked_at >= CHECK_TTL_S:
            self._check = asyncio.create_task(self._check_database())
        if self._check is not None:
            _, late = await asyncio.wait([self._check], timeout=MAX_CHECK_S)
            if late:
                return "the database does not respond: it is locked or unreachable"
        return self._problem

    async def _check_database(self) -> None:
        """Write to the database, and count the messages that wait."""
        runtime = self._service.runtime
        try:
            await runtime.database.check_writable()
            self._unanswered, self._oldest = await runtime.inbox.unanswered()
            self._problem = ""
        except StoreError:
            self._problem = "the database cannot be written"
        finally:
            self._checked_at = time.monotonic()
            self._check = None


def _iso_time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def app(
    service: Service,
    *,
    upstreams: Upstreams,
    worker: JobWorker | None,
    shutdown: ShutdownState | None = None,
    gateways: Callable[[], Sequence[GatewayHealth]] = tuple,
    pages: Pages | None = None,
) -> Starlette:
    """Return the application for a service; pass `shutdown` to be able to end its requests.

    `gateways` returns how the chat bots are.
    """
    runtime, shutdown = service.runtime, shutdown or ShutdownState()
    metrics, tracing = PrometheusMetrics(), Tracing.create()
    runtime.add_observer(metrics.observe)
    runtime.add_observer(json_logs.log_service_event)
    if tracing is not None:
        runtime.add_observer(tracing.observe)
    loopback = is_loopback(runtime.config.get("server.host"))
    tokens = AuthTokens(runtime.database)
    callers = CallerCache(tokens, loopback=loopback)
    shutdown.check_tokens_with(tokens.valid)
    application = Starlette(
        routes=[
            *proxy_routes(service, upstreams),
            *api.routes(service, worker),
            *_server_routes(service, shutdown, metrics, gateways, upstreams),
            *(pages.routes() if pages else ()),
        ],
        middleware=[
            Middleware(RequestLogMiddleware, metrics=metrics, tracing=tracing),
            Middleware(ShutdownMiddleware, shutdown=shutdown),
            Middleware(Guard, config=lambda: runtime.config, callers=callers, pages=pages),
            Middleware(AuditMiddleware, trail=runtime.audit, callers=callers),
        ],
        exception_handlers={
            HttpError: _on_http_error,
            FovealError: _on_foveal_error,
            HTTPException: _on_starlette_error,
        },
    )
    application.router.redirect_slashes = False
    return application


def _is_from_this_machine(request: Request) -> bool:
    """Return whether a program of this machine asks; a proxy on it passes the name that its own clients know."""
    is_passed_on = any(name in request.headers for name in ("forwarded", "x-forwarded-for"))
    near = request.client is not None and is_loopback(request.client.host)
    return near and not is_passed_on and is_loopback(request.url.hostname or "")


def _server_routes(
    service: Service,
    shutdown: ShutdownState,
    metrics: PrometheusMetrics,
    gateways: Callable[[], Sequence[GatewayHealth]],
    upstreams: Upstreams,
) -> list[Route]:
    is_first_scrape = True

    async def get_metrics(request: Request) -> Response:
        await service.runtime.emit_inbox_count()
        metrics.tenants.update(await busiest_tenants())
        metrics.set_gateways(gateways(), now=service.runtime.clock())
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def busiest_tenants() -> list[str]:
        """Return the tenants with the most usage lately, once; none while the database cannot be used."""
        nonlocal is_first_scrape
        if not is_first_scrape:
            return []
        since = usage_day(service.runtime.clock() - BUSIEST_PERIOD_S)
        with suppress(StoreError):
            rows = await service.runtime.usage.rows(["tenant"], since=since)
            is_first_scrape = False
            return [str(row.tenant) for row in rows[:MAX_TENANT_LABELS]]
        return []

    async def get_openapi(request: Request) -> Response:
        return Response(_openapi_json(), media_type="application/json")

    return [
        Route("/healthz", Health(service, shutdown, gateways, upstreams).__call__, methods=["GET"]),
        Route(METRICS_PATH, get_metrics, methods=["GET"]),
        Route("/openapi.json", get_openapi, methods=["GET"]),
    ]


@cache
def _openapi_json() -> bytes:
    """Return the document of the API. Made at the first request for it: most servers have none."""
    return encode_json(api.openapi())


# ── Error handlers ───────────────────────────────────────────────────────────────────────────────────────


async def _on_http_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HttpError)
    if isinstance(problem.__cause__, FovealError):
        _log_server_error(request, problem, problem.__cause__)
    return error_response(problem, error_format(request.url.path))


async def _on_foveal_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, FovealError)
    error = http_error_of(problem)
    _log_server_error(request, error, problem)
    return error_response(error, error_format(request.url.path))


def _log_server_error(request: Request, error: HttpError, problem: FovealError) -> None:
    """Log an error that is not the client's fault.

    The message of a store error is logged too: it contains no text of a conversation, but paths of this
    machine, which the client must not see.
    """
    if error.status >= 500:
        fields = {"request": request.state.request_id, "status": error.status, "code": error.code}
        why = {"why": str(problem)} if isinstance(problem, StoreError) else {}
        json_logs.log_event("refused", fields | why, level=logging.WARNING, problem=problem)


async def _on_starlette_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    details = {404: "there is nothing at this path", 405: "this path does not allow that method"}
    detail = details.get(problem.status_code, str(problem.detail))
    error = HttpError(problem.status_code, detail, headers=problem.headers)
    return error_response(error, error_format(request.url.path))
