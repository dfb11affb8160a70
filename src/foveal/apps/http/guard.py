"""Middleware that authenticates and limits requests before any handler sees them.

1. Host names this server, and the request is not sent by a page of another site (Origin, Sec-Fetch-Site).
2. The headers are of bounded size; the bytes of the body are counted as they arrive, whatever Content-Length says.
3. The request has a token, unless it needs none. The tenant comes from the token and from nowhere else.
4. Each token may make `server.rate` requests a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, error_format, error_response, http_error_of
from foveal.apps.http.http_headers import (
    Headers,
    header_value,
    headers_too_large,
    host_of,
    is_allowed_host,
    is_cross_site,
    is_loopback,
    token_of,
)
from foveal.config import Config
from foveal.errors import FovealError, StoreError
from foveal.server.auth_tokens import AuthTokens, TokenCaller
from foveal.server.rate_limit import RateLimiter

# ── Callers ───────────────────────────────────────────────────────────────────────────────────────

CALLER_TTL_S: Final = 1.0
"""A token that was looked up is cached this long, so a revoked token is accepted at most this long."""
MAX_OUTAGE_CALLER_S: Final = 600.0
"""While the database is away, a token that was valid this long ago is still accepted, so that clients of the proxy
can work on."""
MAX_CACHED_CALLERS: Final = 1_000
CALLER_WITHOUT_TOKEN: Final = TokenCaller(tenant="default")
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

    async def caller(self, headers: Headers) -> TokenCaller | None:
        """Return the caller; None if the request needs a token and has no valid one."""
        secret = token_of(headers)
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


class Guard:
    """ASGI middleware without buffering: streams pass through, and handlers see that a client disconnects."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: Config,
        callers: CallerCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._callers = callers
        self._clock = clock
        self._rate = RateLimiter(config.get("server.rate"))
        self._hosts = (*config.get("server.hosts"), config.get("server.host"))
        self._is_public = not is_loopback(config.get("server.host"))
        self._max_body: int = config.get("server.max_body")
        self._max_depth: int = config.get("server.max_depth")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._check(scope["headers"], scope["path"])
            caller = await self._caller(scope["headers"], scope["path"])
        except (HttpError, FovealError) as problem:
            error = problem if isinstance(problem, HttpError) else http_error_of(problem)
            await error_response(error, error_format(scope["path"]))(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"], state["max_depth"] = caller, self._max_depth
        await self._app(scope, self._bounded(receive), send)

    def _check(self, headers: Headers, path: str) -> None:
        if headers_too_large(headers):
            raise HttpError(431, "this request has too many headers, or too large ones", code="headers")
        if not is_allowed_host(host_of(headers), self._hosts, addresses=self._is_public):
            detail = "the Host header does not name this server: add the name to `server.hosts` if it should"
            raise HttpError(421, detail, code="wrong_host")
        if path not in PUBLIC_PATHS and is_cross_site(headers):
            raise HttpError(403, "a page of another site may not use this server", code="cross_site")
        if header_value(headers, b"content-encoding").lower() not in (b"", b"identity"):
            raise HttpError(415, "send the body without compression", code="compressed")
        length = header_value(headers, b"content-length")
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_large_error()

    async def _caller(self, headers: Headers, path: str) -> TokenCaller | None:
        if path in PUBLIC_PATHS:
            return None
        caller = await self._callers.caller(headers)
        if caller is None:
            raise _unauthorised_error(headers)
        wait = self._rate.take(caller.token_id, now=self._clock()) if caller.token_id else 0.0
        if wait:
            seconds = math.ceil(wait)
            detail = f"too many requests with this token: try again in {seconds} s"
            raise HttpError(429, detail, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
        return caller

    def _bounded(self, receive: Receive) -> Receive:
        """Return a `receive` that raises when the body exceeds `server.max_body` bytes."""
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise self._too_large_error()
            return message

        return bounded

    def _too_large_error(self) -> HttpError:
        return HttpError(
            413,
            f"the body has more than {self._max_body:,} bytes (`server.max_body`)",
            code="request_too_large",
        )


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
