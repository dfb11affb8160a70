"""Middleware that authenticates, limits and records requests before any handler sees them.

1. `foveal.web.http_headers` checks Host, Origin and sizes.
2. The request has a token, unless it needs none. The tenant comes from the token and from nowhere else. A browser
   that has logged in sends a cookie in place of the token, which counts on `Pages` only.
3. The role of the token allows the path: numbers and administration are not for tenants, and conversations are for
   them alone.
4. Each token may make `server.rate` requests a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import unquote

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.config import Config
from foveal.errors import FovealError, StoreError
from foveal.server.api.admin_endpoints import ADMIN_API_PATH
from foveal.server.audit import WITHOUT_TOKEN, AuditAction, AuditedObject, AuditOutcome, AuditTrail
from foveal.server.auth_tokens import DEFAULT_TENANT, LOGIN_PREFIX, AuthTokens, TokenCaller, TokenRole
from foveal.server.rate_limit import RateLimiter
from foveal.web.event_stream import MayReadOn
from foveal.web.http_errors import HttpError, error_format, error_response, http_error_of
from foveal.web.http_headers import (
    Headers,
    RequestChecks,
    header_value,
    is_loopback,
    token_of,
)

# ── Callers ───────────────────────────────────────────────────────────────────────────────────────

CALLER_TTL_S: Final = 1.0
"""A token that was looked up is cached this long, so a revoked token is accepted at most this long."""
MAX_OUTAGE_CALLER_S: Final = 600.0
"""While the database is away, a token that was valid this long ago is still accepted, so that clients of the proxy
can work on."""
MAX_CACHED_CALLERS: Final = 1_000
CALLER_WITHOUT_TOKEN: Final = TokenCaller(tenant=DEFAULT_TENANT)
"""The caller of every request while no token was ever created."""


class CallerCache:
    """Finds the caller of a request by its token; the cache saves a database read per request."""

    def __init__(
        self, tokens: AuthTokens, *, loopback: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`loopback`: the server listens on loopback only, where no token is needed until the first is created."""
        self._tokens = tokens
        self._loopback = loopback
        self._clock = clock
        self._cached: dict[str, tuple[TokenCaller, float]] = {}
        self._checked_at = self._answered_at = float("-inf")
        """When it was last checked whether tokens are needed, and when the database last said so."""
        self._is_token_needed = False

    async def caller(self, secret: str) -> TokenCaller | None:
        """Return the caller with a token; None if the request needs a token and this is no valid one."""
        found = await self._owner(secret) if secret else None
        if secret:  # the client may know of a first token that was created since the last check
            self._checked_at = float("-inf")
        if found is not None or await self.is_token_needed():
            return found
        return CALLER_WITHOUT_TOKEN

    async def is_token_needed(self) -> bool:
        """Return whether requests need a token: on a public address always, on loopback from the first token on."""
        if not self._is_token_needed and self._clock() - self._checked_at >= CALLER_TTL_S:
            try:
                self._is_token_needed = not self._loopback or await self._tokens.any_exist()
            except StoreError:
                if self._clock() - self._answered_at > MAX_OUTAGE_CALLER_S:
                    raise
            else:
                self._checked_at = self._answered_at = self._clock()
        return self._is_token_needed

    async def _owner(self, secret: str) -> TokenCaller | None:
        known = self._cached.get(secret)
        if known is not None and self._clock() - known[1] < CALLER_TTL_S:
            return known[0]
        try:
            found = await self._tokens.authenticate(secret)
        except StoreError:
            if known is not None and self._clock() - known[1] < MAX_OUTAGE_CALLER_S:
                return known[0]
            raise
        self._cached.pop(secret, None)
        if found is not None:
            if len(self._cached) >= MAX_CACHED_CALLERS:
                self._cached.clear()
            self._cached[secret] = found, self._clock()
        return found


# ── Guard ─────────────────────────────────────────────────────────────────────────────────────────

PUBLIC_PATHS: Final = frozenset({"/healthz", "/openapi.json"})
"""Paths that need no token."""
METRICS_PATH: Final = "/metrics"


def roles_of(path: str) -> tuple[TokenRole, ...]:
    """Return the roles that may use a path."""
    if path == METRICS_PATH:
        return "admin", "metrics"
    is_admin = path == ADMIN_API_PATH or path.startswith(f"{ADMIN_API_PATH}/")
    return ("admin",) if is_admin else ("tenant",)


class Pages(Protocol):
    """Pages for browsers, which log in with a cookie because they cannot send a token with each request."""

    def owns(self, path: str) -> bool:
        """Return whether a path is one of the pages: they answer requests without a caller themselves."""
        ...

    def token_of(self, headers: Headers) -> str:
        """Return what stands for the token with which the browser has logged in; "" if it has not."""
        ...

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes of the pages, with their full paths."""
        ...


class Guard:
    """ASGI middleware without buffering: streams pass through, and handlers see that a client disconnects."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: Callable[[], Config],
        callers: CallerCache,
        pages: Pages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`config` returns the configuration as it is now."""
        self._app = app
        self._callers = callers
        self._pages = pages
        self._clock = clock
        self._current_config = config
        self._read_settings(config())

    def _read_settings(self, config: Config) -> None:
        self._config = config
        self._rate = RateLimiter(config.get("server.rate"))
        self._checks = RequestChecks(
            hosts=(*config.get("server.hosts"), config.get("server.host")),
            addresses=not is_loopback(config.get("server.host")),
            max_body=config.get("server.max_body"),
            body_setting="server.max_body",
        )
        self._max_depth: int = config.get("server.max_depth")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if (config := self._current_config()) is not self._config:
            self._read_settings(config)
        try:
            self._checks.check(scope["headers"], any_site=scope["path"] in PUBLIC_PATHS)
            caller = await self._caller(scope["headers"], scope["path"])
        except (HttpError, FovealError) as problem:
            error = problem if isinstance(problem, HttpError) else http_error_of(problem)
            await error_response(error, error_format(scope["path"]))(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"], state["max_depth"] = caller, self._max_depth
        state["may_read_on"] = self._stream_check(scope["headers"], scope["path"], caller)
        await self._app(scope, self._checks.bounded(receive), send)

    def _stream_check(self, headers: Headers, path: str, caller: TokenCaller | None) -> MayReadOn:
        """Return what says whether a stream may go on: a token can be revoked, and a browser log out."""

        async def may_read_on() -> bool:
            try:
                return await self._known_caller(headers, path) == caller
            except FovealError:  # the database has not answered for a long time
                return False

        return may_read_on

    async def _known_caller(self, headers: Headers, path: str) -> TokenCaller | None:
        token = token_of(headers)
        if token.startswith(LOGIN_PREFIX):  # a login counts as a cookie only
            return None
        if not token and self._pages is not None and self._pages.owns(path):
            token = self._pages.token_of(headers)
        return await self._callers.caller(token)

    async def _caller(self, headers: Headers, path: str) -> TokenCaller | None:
        if path in PUBLIC_PATHS:
            return None
        caller = await self._known_caller(headers, path)
        if caller is None:
            if self._pages is not None and self._pages.owns(path):
                return None
            raise _unauthorised_error(headers)
        if caller.token_id and caller.role not in roles_of(path):
            raise _role_error(caller.role, path)
        wait = self._rate.take(caller.token_id, now=self._clock()) if caller.token_id else 0.0
        if wait:
            seconds = math.ceil(wait)
            detail = f"too many requests with this token: try again in {seconds} s"
            raise HttpError(429, detail, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
        return caller


def _role_error(role: TokenRole, path: str) -> HttpError:
    """Return the error for a token whose role does not allow the path."""
    allowed = roles_of(path)
    needed = "of a tenant" if "tenant" in allowed else f"with the role {' or '.join(allowed)}"
    create = "" if "tenant" in allowed else f" --role {allowed[-1]}"
    detail = (
        f"this token has the role {role}, and this path needs a token {needed}: "
        f"`foveal token create{create}` creates one"
    )
    return HttpError(403, detail, code="wrong_role")


def _unauthorised_error(headers: Headers) -> HttpError:
    """Return the error for a request without a valid token."""
    code, detail = (
        "no_token",
        "this request needs a token: Authorization: Bearer fv_… (`foveal token create` creates one)",
    )
    if token_of(headers):
        code, detail = "unknown_token", "this token is unknown or revoked"
    elif header_value(headers, b"authorization") or header_value(headers, b"x-api-key"):
        detail += "; if the client sends a provider's key there, put the token into X-Foveal-Token"
    return HttpError(401, detail, code=code, headers={"WWW-Authenticate": "Bearer"})


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
    """Records requests to the API and the inspector in the audit trail, inside the guard, which knows the caller.

    1. The row is written before the first byte of the response. If it cannot be written, the client gets the error
       in place of the response, except for reads: their rows wait.
    2. The route says what a request does, and its path with whom. A request that creates something names it in the
       header `Location`, or its handler names it in the state of the request (`audited`). The inspector says there
       which session or whose memories it is about (`objects`, a row for each), which operation was performed
       (`operation`) and which token was typed (`login_token`).
    3. Drop-in requests and turns pass without any work.
    """

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
        if action is None:
            return
        for object in state.get("objects") or [_object(scope, start) if audited is None else audited.name]:
            await self._trail.record(
                action,
                object,
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
