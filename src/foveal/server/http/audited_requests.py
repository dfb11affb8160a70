"""Middleware that records requests to the API and the inspector in the audit trail.

1. The row is written before the first byte of the response. If it cannot be written, the client gets the error in
   place of the response, except for reads: their rows wait.
2. The route says what a request does, and its path with whom. A request that creates something names it in the
   header `Location`, or its handler names it in the state of the request (`audited`). The inspector says there
   which session it has opened (`session_id`), which operation was performed (`operation`) and which token was
   typed (`login_token`).
3. Drop-in requests and turns pass without any work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.errors import StoreError
from foveal.server.api.admin_endpoints import ADMIN_API_PATH
from foveal.server.audit import WITHOUT_TOKEN, AuditAction, AuditedObject, AuditOutcome, AuditTrail
from foveal.server.auth_tokens import TokenCaller
from foveal.server.http.guard import CallerCache
from foveal.web.http_errors import error_format, error_response, http_error_of

AUDITED_PREFIXES: Final = ("/api/", "/inspect/")
_UNRECORDED: Final = frozenset(
    {
        ("POST", "/api/sessions/{session}/turns"),
        ("POST", "/api/sessions/{session}/turns/{turn}/stop"),
        ("POST", "/api/sessions/{session}/again"),
        ("GET", "/inspect/login"),
        ("GET", "/inspect/static/{name}"),
    }
)
_ACTIONS: Final[Mapping[tuple[str, str], AuditAction]] = MappingProxyType(
    {
        ("POST", "/inspect/login"): "login",
        ("POST", "/inspect/logout"): "logout",
        ("POST", "/api/admin/tokens"): "token",
        ("DELETE", "/api/admin/tokens/{token}"): "token",
        ("DELETE", "/api/sessions/{session}"): "erase",
        ("DELETE", "/api/memory/{user}"): "erase",
        ("DELETE", "/api/users/{user}"): "erase",
    }
)
_LAST_PARTS: Final[Mapping[str, AuditAction]] = MappingProxyType({"export": "export", "undo": "undo"})
"""Actions by the last part of a route; any other request reads or changes."""
_OBJECTS: Final = ("session", "user", "token", "schedule")
"""Parameters of paths that name what a request is about."""
_CREATED: Final = MappingProxyType({"/api/sessions": "session", "/api/admin/tokens": "token"})
"""What `Location` names, by the beginning of its path."""


def action_of(method: str, route: str, *, operation: str = "") -> AuditAction | None:
    """Return what a request does; None if it is not recorded. `operation` is that of an action of the inspector."""
    if (method, route) in _UNRECORDED:
        return None
    named = _ACTIONS.get((method, route)) or _LAST_PARTS.get(operation or route.rpartition("/")[2])
    return named or ("read" if method in ("GET", "HEAD") else "change")


class AuditMiddleware:
    """ASGI middleware inside the guard, which says who the caller is."""

    def __init__(self, app: ASGIApp, *, trail: AuditTrail, callers: CallerCache) -> None:
        self._app = app
        self._trail = trail
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(AUDITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        is_refused = False

        async def send_recorded(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start":
                try:
                    await self._record(scope, message)
                except StoreError as problem:
                    is_refused = True
                    error = error_response(http_error_of(problem), error_format(scope["path"]))
                    await error(scope, receive, send)
            if not is_refused:
                await send(message)

        await self._app(scope, receive, send_recorded)

    async def _record(self, scope: Scope, start: Message) -> None:
        state, route = scope["state"], getattr(scope.get("route"), "path", "")
        action = action_of(scope["method"], route, operation=state.get("operation", "")) if route else None
        caller, outcome = state.get("caller"), _outcome(start["status"])
        if action == "login":
            token = state.get("login_token", "")
            if not token:
                return  # an empty form
            caller = await self._callers.caller(token) if outcome == "ok" else None
        elif caller is None:
            return  # a page for browsers that have not logged in
        audited: AuditedObject | None = state.get("audited")
        if action is not None:
            await self._trail.record(
                action,
                _object(scope, start) if audited is None else audited.name,
                tenant=_tenant(caller, audited),
                actor="" if caller is None else caller.token_id or WITHOUT_TOKEN,
                outcome=outcome,
                address=(scope.get("client") or ("",))[0],
            )


def _tenant(caller: TokenCaller | None, audited: AuditedObject | None) -> str:
    if audited is not None and audited.tenant is not None:
        return audited.tenant
    return "" if caller is None else caller.tenant


def _outcome(status: int) -> AuditOutcome:
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def _object(scope: Scope, start: Message) -> str:
    """Return what a request is about, as the trail names it; "" if that is a list."""
    named: Mapping[str, str] = scope.get("path_params", {})
    if session := scope["state"].get("session_id"):
        return f"session:{session}"
    for kind in _OBJECTS:
        if kind in named:
            return f"{kind}:{named[kind]}"
    places = [value.decode("latin-1") for name, value in start["headers"] if name == b"location"]
    for place in places:
        above, _, name = place.rpartition("/")
        if above in _CREATED:
            return f"{_CREATED[above]}:{unquote(name)}"
    above, _, name = scope["path"].rpartition("/")
    return f"admin:{name}" if above == ADMIN_API_PATH else ""
