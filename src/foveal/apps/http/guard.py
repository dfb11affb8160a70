"""The door: who may come in, and with how much. What it refuses, no handler ever sees.

1. The request is meant for this server (Host), and no other site's page sends it (Origin, Sec-Fetch-Site).
2. Its headers are of a sane size, and its body is counted as it comes, whether or not its length was told.
3. It has a token, unless it needs none; the tenant comes from the token and from nowhere else.
4. Each token has so many requests a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, answer, face_of, http_error_of
from foveal.apps.http.http_headers import (
    Headers,
    first,
    host_of,
    is_cross_site,
    is_loopback,
    is_ours,
    secret_of,
    too_large,
)
from foveal.config import Config
from foveal.errors import FovealError
from foveal.server.auth_tokens import AuthTokens, RateLimiter, TokenCaller

# ── callers ───────────────────────────────────────────────────────────────────────────────────────
# Who makes a request. What was looked up is remembered for a moment, so that a request costs no look into the
# file, and a token that was revoked is good for that moment at the most.

MOMENT: Final = 1.0
"""Seconds."""
MOST: Final = 1_000
CALLER_WITHOUT_TOKEN: Final = TokenCaller(tenant="default")
"""Whoever asks while no token was ever made."""


class CallerCache:
    def __init__(
        self, tokens: AuthTokens, *, loopback: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`loopback`: the server listens on this machine only, where nobody needs a token before there is one."""
        self._tokens = tokens
        self._loopback = loopback
        self._clock = clock
        self._known: dict[str, tuple[TokenCaller, float]] = {}
        self._asked = float("-inf")
        self._needed = False

    async def caller(self, headers: Headers) -> TokenCaller | None:
        """Who it is; None for somebody who needs a token and has none that is good."""
        secret = secret_of(headers)
        found = await self._owner(secret) if secret else None
        if secret:  # whoever has one speaks of a token that was made: what is remembered of none is old
            self._asked = float("-inf")
        if found is not None or await self.needed():
            return found
        return CALLER_WITHOUT_TOKEN

    async def needed(self) -> bool:
        """Whether a request needs a token. Once it does, it always will."""
        if not self._needed and self._clock() - self._asked >= MOMENT:
            self._needed = not self._loopback or await self._tokens.any()
            self._asked = self._clock()
        return self._needed

    async def _owner(self, secret: str) -> TokenCaller | None:
        known = self._known.get(secret)
        if known is not None and self._clock() - known[1] < MOMENT:
            return known[0]
        found = await self._tokens.tenant_of(secret)
        self._known.pop(secret, None)
        if found is not None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[secret] = found, self._clock()
        return found


# ── guard ─────────────────────────────────────────────────────────────────────────────────────────

OPEN_PATHS: Final = frozenset({"/healthz", "/openapi.json"})
"""Paths for everybody."""


class Guard:
    """A layer of ASGI: nothing is held back, so that streams pass as they come and hang-ups are seen."""

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
        self._abroad = not is_loopback(config.get("server.host"))
        self._max_body: int = config.get("server.max_body")
        self._max_depth: int = config.get("server.max_depth")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._check(scope["headers"], scope["path"])
            caller = await self._caller(scope["headers"], scope["path"])
        except (HttpError, FovealError) as problem:
            refusal = problem if isinstance(problem, HttpError) else http_error_of(problem)
            await answer(refusal, face_of(scope["path"]))(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"], state["max_depth"] = caller, self._max_depth
        await self._app(scope, self._counted(receive), send)

    def _check(self, headers: Headers, path: str) -> None:
        if too_large(headers):
            raise HttpError(431, "the headers of this request are too many or too large", code="headers")
        if not is_ours(host_of(headers), self._hosts, addresses=self._abroad):
            told = "this server is not called by that name: add it to `server.hosts` if it should be"
            raise HttpError(421, told, code="wrong_host")
        if path not in OPEN_PATHS and is_cross_site(headers):
            raise HttpError(403, "a page of another site may not use this server", code="cross_site")
        if first(headers, b"content-encoding").lower() not in (b"", b"identity"):
            raise HttpError(415, "send the body as it is, without compressing it", code="compressed")
        length = first(headers, b"content-length")
        if length.isdigit() and int(length[:20]) > self._max_body:
            raise self._too_much()

    async def _caller(self, headers: Headers, path: str) -> TokenCaller | None:
        if path in OPEN_PATHS:
            return None
        caller = await self._callers.caller(headers)
        if caller is None:
            raise _stranger(headers)
        wait = self._rate.wait(caller.token_id, now=self._clock()) if caller.token_id else 0.0
        if wait:
            seconds = math.ceil(wait)
            told = f"too many requests with this token: try again in {seconds} s"
            raise HttpError(429, told, code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
        return caller

    def _counted(self, receive: Receive) -> Receive:
        """What comes from the client, until it is too much."""
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self._max_body:
                raise self._too_much()
            return message

        return counted

    def _too_much(self) -> HttpError:
        return HttpError(
            413,
            f"the body has more than {self._max_body:,} bytes (`server.max_body`)",
            code="request_too_large",
        )


def _stranger(headers: Headers) -> HttpError:
    """What somebody is told who has no token, or none that is good."""
    code, told = (
        "no_token",
        "this needs a token: Authorization: Bearer fv_… (`foveal token create` makes one)",
    )
    if secret_of(headers):
        code, told = "unknown_token", "this token is not known here, or was revoked"
    elif first(headers, b"authorization") or first(headers, b"x-api-key"):
        told += "; a provider's key of your own may stay where it is: then the token goes into X-Foveal-Token"
    return HttpError(401, told, code=code, headers={"WWW-Authenticate": "Bearer"})
