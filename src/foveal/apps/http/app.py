"""The server as one ASGI application: its routes, and the layers that every request passes.

Watching sees all of them, Closing knows what is in flight, Guard lets in who may come, and what a handler raises on
purpose is answered in the language of its path.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from foveal.apps.http import api, json_logs, proxy
from foveal.apps.http.api import schedule_endpoints
from foveal.apps.http.guard import CallerCache, Guard
from foveal.apps.http.http_errors import HttpError, answer, encoded, face_of, http_error_of
from foveal.apps.http.http_headers import is_loopback
from foveal.apps.http.prometheus import CONTENT_TYPE, PrometheusMetrics
from foveal.apps.http.request_log import RequestLogMiddleware
from foveal.apps.http.server_health import Health
from foveal.apps.http.shutdown import ShutdownMiddleware, ShutdownState
from foveal.apps.http.tracing import Tracing
from foveal.errors import FovealError, StoreError
from foveal.server import Service
from foveal.server.auth_tokens import AuthTokens

if TYPE_CHECKING:
    from foveal.server.jobs import JobWorker


def app(
    service: Service,
    *,
    upstreams: proxy.Upstreams,
    work: JobWorker | None,
    ending: ShutdownState | None = None,
) -> Starlette:
    """The whole server in front of a service. `ending` is for whoever ends it."""
    ground, ending = service.ground, ending or ShutdownState()
    meters, tracing = PrometheusMetrics(), Tracing.found()
    ground.watchers += [meters.watch, json_logs.watch, *([tracing.watch] if tracing is not None else [])]
    loopback = is_loopback(ground.config.get("server.host"))
    callers = CallerCache(AuthTokens(ground.database), loopback=loopback)
    made = Starlette(
        routes=[
            *proxy.routes(service, upstreams),
            *api.routes(service, work),
            *schedule_endpoints.routes(service, work),
            *_own(service, ending, meters),
        ],
        middleware=[
            Middleware(RequestLogMiddleware, meters=meters, tracing=tracing),
            Middleware(ShutdownMiddleware, ending=ending),
            Middleware(Guard, config=ground.config, callers=callers),
        ],
        exception_handlers={HttpError: _refused, FovealError: _failed, HTTPException: _other},
    )
    made.router.redirect_slashes = False
    return made


def _own(service: Service, ending: ShutdownState, meters: PrometheusMetrics) -> list[Route]:
    document = encoded(api.openapi())

    async def metrics(request: Request) -> Response:
        await service.ground.tell_waiting()
        return Response(meters.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(request: Request) -> Response:
        return Response(document, media_type="application/json")

    return [
        Route("/healthz", Health(service, ending).__call__, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
    ]


# ── what handlers raise ──────────────────────────────────────────────────────────────────────────────────


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HttpError)
    if isinstance(problem.__cause__, FovealError):
        _tell(request, problem, problem.__cause__)
    return answer(problem, face_of(request.url.path))


async def _failed(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, FovealError)
    refusal = http_error_of(problem)
    _tell(request, refusal, problem)
    return answer(refusal, face_of(request.url.path))


def _tell(request: Request, refusal: HttpError, problem: FovealError) -> None:
    """What is not the client's fault is told to whoever runs the server; what a store says has no word of a
    message, but places that are no client's business."""
    if refusal.status >= 500:
        fields = {"request": request.state.request_id, "status": refusal.status, "code": refusal.code}
        why = {"why": str(problem)} if isinstance(problem, StoreError) else {}
        json_logs.tell("refused", fields | why, level=logging.WARNING, problem=problem)


async def _other(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    nothing = "there is nothing at this path"
    if request.url.path.startswith("/v1/"):
        nothing += (
            ": of a provider's, chat/completions, responses, messages and models are; ask it for the others"
        )
    told = {404: nothing, 405: "this path does not know that method"}
    detail = told.get(problem.status_code, str(problem.detail))
    return answer(HttpError(problem.status_code, detail, headers=problem.headers), face_of(request.url.path))
