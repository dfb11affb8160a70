"""The inspector on this machine only: one user, one token per start, loopback.

1. The address that the command prints has a token that works until the command ends, in any number of browsers.
2. The address that is handed to a browser has another token, which works once: other users of this machine can see
   the arguments of a process.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foveal.inspector.app import (
    HTML_TYPE,
    INSPECT_PATH,
    BrowserLogins,
    Inspector,
    LoginRules,
    MemoryLogins,
)
from foveal.inspector.pages import error_page
from foveal.inspector.sessions.source import SessionSource
from foveal.web.http_errors import TITLES, HttpError, error_response
from foveal.web.http_headers import PAGE_SECURITY_HEADERS, RequestChecks, response_headers
from foveal.web.listener import run_server, url_of

if TYPE_CHECKING:
    from foveal.policies import PolicyTables

INSPECT_HOST: Final = "127.0.0.1"
MAX_LOCAL_BODY_BYTES: Final = 1_000_000
MAX_LOCAL_JSON_DEPTH: Final = 32
_TOKEN_BYTES: Final = 24
_HINT: Final = "Open the address that foveal inspect has printed: it has the token that this page needs."


class LoopbackCaller(NamedTuple):
    """The user who started the command."""

    tenant: str = "default"
    user: str = ""


class StartTokens:
    """The tokens of one start."""

    def __init__(self) -> None:
        self.printed: str = secrets.token_urlsafe(_TOKEN_BYTES)
        """For the address that the user sees."""
        self._single_use: set[str] = set()

    def single_use(self) -> str:
        """Return a new token that works once."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._single_use.add(token)
        return token

    async def check(self, token: str) -> bool:
        """Return whether a token may log in."""
        if token in self._single_use:
            self._single_use.discard(token)
            return True
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.printed.encode())


class LoopbackGuard:
    """ASGI middleware: checks each request, finds its login, and adds the security headers."""

    def __init__(self, app: ASGIApp, *, logins: BrowserLogins) -> None:
        self._app = app
        self._logins = logins
        self._checks = RequestChecks(max_body=MAX_LOCAL_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = response_headers(message["headers"], id="local", security=PAGE_SECURITY_HEADERS)
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._checks.check(scope["headers"])
        except HttpError as error:
            await error_response(error, "openai")(scope, receive, send_with_headers)
            return
        state = scope.setdefault("state", {})

        async def may_read_on() -> bool:
            return bool(self._logins.token_of(scope["headers"]))

        state["may_read_on"] = may_read_on
        state["caller"] = LoopbackCaller() if await may_read_on() else None
        state["max_depth"] = MAX_LOCAL_JSON_DEPTH
        await self._app(scope, self._checks.bounded(receive), send_with_headers)


class LoopbackServer:
    """The running server."""

    def __init__(
        self,
        source: SessionSource,
        listener: socket.socket,
        *,
        policies: Callable[[], PolicyTables] = dict,
    ) -> None:
        self._tokens = StartTokens()
        self._logins = BrowserLogins(MemoryLogins(self._tokens.check))
        self._listener = listener
        rules = LoginRules(_HINT, has_form=False, shows_store_errors=True)
        self._inspector = Inspector(lambda tenant, user: source, self._logins, rules, policies=policies)

    def url(self, *, session: str = "", is_single_use: bool = False) -> str:
        """Return an address that logs a browser in, and shows a session or the overview."""
        token = self._tokens.single_use() if is_single_use else self._tokens.printed
        query = urlencode({"token": token, **({"id": session} if session else {})})
        return f"{url_of(self._listener)}{INSPECT_PATH}/login?{query}"

    def app(self) -> ASGIApp:
        """Return the application."""
        pages = Starlette(
            routes=[Route("/", _to_inspector, methods=["GET"]), *self._inspector.routes()],
            exception_handlers={HTTPException: _on_error, Exception: _on_failure},
        )
        # Around everything: Starlette answers failures outside of its own middleware.
        return LoopbackGuard(pages, logins=self._logins)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests while the block runs."""
        async with run_server(self.app(), self._listener):
            try:
                yield
            finally:
                self._inspector.end_streams()
                await asyncio.sleep(0)  # streams see it before their connections are closed


async def _to_inspector(request: Request) -> Response:
    return RedirectResponse(f"{INSPECT_PATH}/", status_code=307)


async def _on_failure(request: Request, problem: Exception) -> Response:
    """Answer after a mistake in the inspector, which the server then prints."""
    detail = f"the inspector failed ({type(problem).__name__}); the terminal of foveal inspect shows where"
    return error_response(HttpError(500, detail, code="internal"), "openai")


async def _on_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    detail = {404: "there is nothing at this path", 405: "this path does not allow that method"}
    text = detail.get(problem.status_code, str(problem.detail))
    page = error_page(TITLES.get(problem.status_code, "Refused"), text)
    return Response(page, status_code=problem.status_code, media_type=HTML_TYPE)
