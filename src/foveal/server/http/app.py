"""The server as one ASGI application: routes, middleware and error handlers.

Middleware from the outside in: `RequestLogMiddleware` (id, log, metrics), `ShutdownMiddleware` (requests in
flight), `Guard` (authentication and limits). Errors that handlers raise are answered in the format of their
path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from foveal.errors import FovealError, StoreError
from foveal.server import Service, api
from foveal.server.auth_tokens import AuthTokens
from foveal.server.gateway_health import GatewayHealth
from foveal.server.http import json_logs
from foveal.server.http.guard import CallerCache, Guard, Pages
from foveal.server.http.health import Health
from foveal.server.http.prometheus import CONTENT_TYPE, PrometheusMetrics
from foveal.server.http.request_log import RequestLogMiddleware
from foveal.server.http.shutdown import ShutdownMiddleware, ShutdownState
from foveal.server.http.tracing import Tracing
from foveal.server.proxy import routes as proxy
from foveal.web.http_errors import HttpError, encode_json, error_format, error_response, http_error_of
from foveal.web.http_headers import is_loopback

if TYPE_CHECKING:
    from foveal.server.jobs import JobWorker


def app(
    service: Service,
    *,
    upstreams: proxy.Upstreams,
    worker: JobWorker | None,
    shutdown: ShutdownState | None = None,
    gateways: Callable[[], Sequence[GatewayHealth]] = tuple,
    pages: Pages | None = None,
    page_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the application for a service; pass `shutdown` to be able to end its requests.

    `gateways` returns how the chat bots are. `page_routes` are the routes of `pages`.
    """
    runtime, shutdown = service.runtime, shutdown or ShutdownState()
    metrics, tracing = PrometheusMetrics(), Tracing.create()
    runtime.add_observer(metrics.observe)
    runtime.add_observer(json_logs.log_service_event)
    if tracing is not None:
        runtime.add_observer(tracing.observe)
    loopback = is_loopback(runtime.config.get("server.host"))
    callers = CallerCache(AuthTokens(runtime.database), loopback=loopback)
    application = Starlette(
        routes=[
            *proxy.routes(service, upstreams),
            *api.routes(service, worker),
            *_server_routes(service, shutdown, metrics, gateways),
            *page_routes,
        ],
        middleware=[
            Middleware(RequestLogMiddleware, metrics=metrics, tracing=tracing),
            Middleware(ShutdownMiddleware, shutdown=shutdown),
            Middleware(Guard, config=runtime.config, callers=callers, pages=pages),
        ],
        exception_handlers={
            HttpError: _on_http_error,
            FovealError: _on_foveal_error,
            HTTPException: _on_starlette_error,
        },
    )
    application.router.redirect_slashes = False
    return application


def _server_routes(
    service: Service,
    shutdown: ShutdownState,
    metrics: PrometheusMetrics,
    gateways: Callable[[], Sequence[GatewayHealth]],
) -> list[Route]:
    document = encode_json(api.openapi())

    async def get_metrics(request: Request) -> Response:
        await service.runtime.emit_inbox_count()
        metrics.set_gateways(gateways(), now=service.runtime.clock())
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def get_openapi(request: Request) -> Response:
        return Response(document, media_type="application/json")

    return [
        Route("/healthz", Health(service, shutdown, gateways).__call__, methods=["GET"]),
        Route("/metrics", get_metrics, methods=["GET"]),
        Route("/openapi.json", get_openapi, methods=["GET"]),
    ]


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
