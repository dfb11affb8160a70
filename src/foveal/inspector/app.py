"""The inspector as routes of an HTTP application, for `foveal inspect` and `foveal serve`.

1. The application around it checks each request (Host, Origin, sizes) and sets `state.caller`: None if the browser
   has not logged in. Pages then redirect to the login, and the API answers 401. `state.may_read_on` says whether a
   stream may go on.
2. What a caller sees are the sessions that `sources` returns for its tenant and user. Every page and every call of
   the API reads and changes sessions and memories through this source, and through nothing else.
3. Links are relative, so a reverse proxy can add a prefix.
4. For an audit trail around it, requests say what they did: `state.objects` names the session or the owners of the
   memories that a request is about, also of one that was refused, `state.operation` is what was performed in a
   session, and `state.login_token` the token that was typed.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from foveal.errors import FovealError, StoreError, UnknownHandle
from foveal.inspector.api import InspectCall, InspectorApi, InspectQuery
from foveal.inspector.pages import (
    FIRST_LOG_ROWS,
    FIRST_SESSION_ROWS,
    MAIN_SCRIPT,
    PageFrame,
    error_page,
    login_page,
    main_script,
    memory_page,
    overview_page,
    session_page,
    static_file,
)
from foveal.inspector.sessions.source import MemoryChange, NotWritable, SessionMissing, SessionSource
from foveal.web.http_errors import HttpError, error_response, http_error_of
from foveal.web.http_headers import PAGE_SECURITY_HEADERS, Headers, header_value, header_values, token_of
from foveal.web.request_body import read_query

if TYPE_CHECKING:
    from foveal.policies import PolicyTables

# ── Logins ───────────────────────────────────────────────────────────────────────────────────────────────
# 1. The cookie holds a random id, never the token. A `LoginKeeper` keeps the ids: that of `foveal inspect` in
#    memory, that of a server in its database, where all machines find them.
# 2. The cookie has no `Path`, so it is sent below the folder of the login page only, whatever prefix a proxy
#    adds. Its name has the port, because browsers send cookies to all ports of a host.
# 3. A page that changes something sends its write token in a header besides the cookie. Other sites cannot read
#    it.

WRITE_TOKEN_HEADER: Final = "X-Foveal-Inspect"
MAX_BROWSER_LOGINS: Final = 1_000
"""Logins that are kept; the oldest ends first."""
_ID_BYTES: Final = 32
_HOST_PORT: Final = re.compile(rb":(\d{1,5})$")

CheckToken = Callable[[str], Awaitable[bool]]


class LoginKeeper(Protocol):
    """Keeps the logins, by their ids."""

    async def add(self, id: str, token: str) -> bool:
        """Keep a login with a token; return False if the token is wrong."""
        ...

    async def remove(self, id: str) -> None:
        """End a login."""
        ...

    async def has(self, id: str) -> bool:
        """Return whether a login is valid now."""
        ...

    def token_of(self, id: str) -> str:
        """Return what stands for the token of a login; "" if there is no such login."""
        ...


class MemoryLogins:
    """A `LoginKeeper` of one process."""

    def __init__(self, check: CheckToken) -> None:
        """`check` returns whether a token may log in now."""
        self._check = check
        self._tokens: OrderedDict[str, str] = OrderedDict()

    async def add(self, id: str, token: str) -> bool:
        if not await self._check(token):
            return False
        self._tokens[id] = token
        if len(self._tokens) > MAX_BROWSER_LOGINS:
            self._tokens.popitem(last=False)
        return True

    async def remove(self, id: str) -> None:
        self._tokens.pop(id, None)

    async def has(self, id: str) -> bool:
        return id in self._tokens

    def token_of(self, id: str) -> str:
        return self._tokens.get(id, "")


class BrowserLogins:
    """The browsers that have logged in."""

    def __init__(self, keeper: LoginKeeper) -> None:
        self._keeper = keeper
        self._key = secrets.token_bytes(_ID_BYTES)

    async def log_in(self, token: str, headers: Headers) -> str:
        """Return the `Set-Cookie` value for a browser; "" if the token is wrong."""
        id = secrets.token_urlsafe(_ID_BYTES)
        if not token or not await self._keeper.add(id, token):
            return ""
        is_https = header_value(headers, b"origin").lower().startswith(b"https://")
        return f"{_cookie_name(headers)}={id}; HttpOnly; SameSite=Strict{'; Secure' if is_https else ''}"

    async def log_out(self, headers: Headers) -> str:
        """End a login, and return the `Set-Cookie` value that removes the cookie."""
        await self._keeper.remove(self._id_of(headers))
        return f"{_cookie_name(headers)}=; HttpOnly; SameSite=Strict; Max-Age=0"

    def token_of(self, headers: Headers) -> str:
        """Return what stands for the token with which the browser has logged in; "" if it has not."""
        id = self._id_of(headers)
        return self._keeper.token_of(id) if id else ""

    async def write_token(self, headers: Headers) -> str:
        """Return the token that pages of this browser send with each change. The id of a login is a secret that all
        machines know; without a login, that of this process is used."""
        id = self._id_of(headers)
        key = id.encode() if id and await self._keeper.has(id) else self._key
        return hmac.new(key, b"write token", "sha256").hexdigest()

    async def is_write_token(self, given: str, headers: Headers) -> bool:
        """Return whether a page of this browser sent its own write token."""
        own = await self.write_token(headers)
        return hmac.compare_digest(given.encode("utf-8", "replace"), own.encode())

    def _id_of(self, headers: Headers) -> str:
        # `http.cookies` reads nothing if any cookie is malformed, and browsers send those of other programs on the
        # same machine too.
        name = _cookie_name(headers).encode()
        for value in header_values(headers, b"cookie"):
            for cookie in value.split(b";"):
                found, _, id = cookie.strip().partition(b"=")
                if found == name:
                    return id.decode("latin-1")
        return ""


def _cookie_name(headers: Headers) -> str:
    port = _HOST_PORT.search(header_value(headers, b"host"))
    return f"foveal_inspect_{port[1].decode()}" if port else "foveal_inspect"


# ── Pages and the API ────────────────────────────────────────────────────────────────────────────────────

INSPECT_PATH: Final = "/inspect"
MAX_FORM_BYTES: Final = 10_000
MAX_MEMORY_QUERY_CHARS: Final = 500
HTML_TYPE: Final = "text/html"
_MISSING_SESSION: Final = "there is no session with this id, or it was erased"
_UNREAD_MEMORIES: Final = "some memories cannot be read now; the server's log has the reason"
LOG: Final = logging.getLogger("foveal.inspector")

Handler = Callable[[InspectCall], Awaitable[Response]]


class LoginRules(NamedTuple):
    """How browsers log in."""

    hint: str
    """What the login page says."""
    has_form: bool
    """Whether a token can be typed; otherwise it comes with the address that the command has printed."""
    shows_store_errors: bool = False
    """Whether errors of stores are shown in full: they have paths of this machine."""


class Inspector:
    """The pages and the API; also the `Pages` that the server's guard asks."""

    def __init__(
        self,
        sources: Callable[[str, str], SessionSource],
        logins: BrowserLogins,
        rules: LoginRules,
        *,
        policies: Callable[[], PolicyTables] = dict,
    ) -> None:
        """`sources` returns the place with the sessions that a user of a tenant reaches ("" for a caller that
        reaches those of all users), `policies` the tables `[policies.NAME]` of the configuration, for what-if."""
        self._sources = sources
        self._logins = logins
        self._rules = rules
        self._policies = policies
        self._api = InspectorApi(policies)

    def owns(self, path: str) -> bool:
        """Return whether a path belongs to the inspector."""
        return path == INSPECT_PATH or path.startswith(f"{INSPECT_PATH}/")

    def token_of(self, headers: Headers) -> str:
        """Return what stands for the token with which the browser has logged in; "" if it has not."""
        return self._logins.token_of(headers)

    def end_streams(self) -> None:
        """End all streams, because the server stops."""
        self._api.stopping.set()

    def routes(self) -> list[Route]:
        """Return the routes, with their full paths."""
        api = self._api
        reads: dict[str, Handler] = {
            "sessions": api.sessions,
            "timeline": api.timeline,
            "text": api.text,
            "shown": api.shown,
            "request": api.request,
            "diff": api.diff,
            "search": api.search,
            "lost": api.lost,
            "room": api.room,
            "statements": api.statements,
            "writers": api.writers,
            "whatif": api.what_if,
            "surprises": api.surprises,
            "live": api.live,
            "export": api.export,
        }
        prefix = INSPECT_PATH
        return [
            Route(prefix, self._page(_to_overview), methods=["GET"]),
            Route(f"{prefix}/", self._page(self._overview), methods=["GET"]),
            Route(f"{prefix}/session", self._page(self._session), methods=["GET"]),
            Route(f"{prefix}/memory", self._page(self._memory), methods=["GET", "POST"]),
            Route(f"{prefix}/login", self._page(self._login), methods=["GET", "POST"]),
            Route(f"{prefix}/logout", self._page(self._log_out), methods=["POST"]),
            Route(f"{prefix}/static/{{name}}", self._page(_static), methods=["GET"]),
            *(
                Route(f"{prefix}/api/{name}", self._endpoint(handler), methods=["GET"])
                for name, handler in reads.items()
            ),
            Route(f"{prefix}/api/act", self._endpoint(api.act, is_change=True), methods=["POST"]),
        ]

    # ── Pages ────────────────────────────────────────────────────────────────────────────────────────

    async def _overview(self, request: Request) -> Response:
        if (call := self._call(request)) is None:
            return _redirect("login")
        page = await call.rows(limit=FIRST_SESSION_ROWS)
        return _html(overview_page(page, await self._frame(request)))

    async def _session(self, request: Request) -> Response:
        if (call := self._call(request)) is None:
            return _redirect(f"login?{urlencode({'id': read_query(request, InspectQuery).id})}")
        reader = await call.open(read_query(request, InspectQuery).id)
        end = (await reader.end()).next_seq
        events = await reader.read(max(0, end - FIRST_LOG_ROWS), max(0, end - 1))
        self._api.expect_outline(call.tenant, reader, end)
        return _html(
            session_page(reader.about, events, await self._frame(request), policies=self._policies())
        )

    async def _memory(self, request: Request) -> Response:
        """Show the memories, or carry out what a button of the page asks for."""
        if (call := self._call(request)) is None:
            return _redirect("login")
        if request.method == "GET":
            query = request.query_params.get("q", "")[:MAX_MEMORY_QUERY_CHARS]
            listed = await call.source.memories()
            request.state.objects = tuple(f"user:{memory.owner}" for memory in listed.memories)
            if listed.problems and not call.shows_store_errors:
                listed = listed._replace(problems=(_UNREAD_MEMORIES,))
            return _html(memory_page(listed, await self._frame(request), query=query))
        form = await _form(request)
        await self._require_write_token(form.pop("write_token", ""), request.scope["headers"])
        try:
            change = msgspec.convert(form, MemoryChange)
        except msgspec.ValidationError as problem:
            raise HttpError(422, f"the form cannot be used: {problem}", code="bad_form") from None
        request.state.operation = change.action
        request.state.objects = (f"user:{await call.source.change_memory(change)}",)
        return _redirect(f"memory#{quote(change.memory, safe='')}")

    async def _login(self, request: Request) -> Response:
        """Log in by the form, or by an address with a token where there is no form."""
        rules, headers = self._rules, request.scope["headers"]
        given = (await _form(request)) if request.method == "POST" else dict(request.query_params)
        token = given.get("token", "") if (request.method == "POST") == rules.has_form else ""
        request.state.login_token = token.strip()
        session = given.get("id", "")
        wanted = f"session?id={quote(session, safe='')}" if session else "./"
        if cookie := await self._logins.log_in(token.strip(), headers):
            response = _redirect(wanted)
            response.headers["Set-Cookie"] = cookie
            return response
        if not token and self._call(request) is not None:
            return _redirect(wanted)
        problem = "This token is unknown, used up or revoked." if token else ""
        page = login_page(rules.hint, has_form=rules.has_form, problem=problem, session=session)
        return _html(page, status=401 if token or not rules.has_form else 200)

    async def _log_out(self, request: Request) -> Response:
        headers = request.scope["headers"]
        await self._require_write_token((await _form(request)).get("write_token", ""), headers)
        response = _redirect("login")
        response.headers["Set-Cookie"] = await self._logins.log_out(headers)
        return response

    async def _frame(self, request: Request) -> PageFrame:
        headers = request.scope["headers"]
        can_log_out = self._rules.has_form and bool(self._logins.token_of(headers))
        command = "foveal serve" if self._rules.has_form else "foveal inspect"
        return PageFrame(await self._logins.write_token(headers), command, can_log_out)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────

    def _call(self, request: Request) -> InspectCall | None:
        caller = request.state.caller
        if caller is None:
            return None
        shows_errors = self._rules.shows_store_errors
        return InspectCall(request, caller.tenant, self._sources(caller.tenant, caller.user), shows_errors)

    def _page(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            request.state.security_headers = PAGE_SECURITY_HEADERS
            try:
                return await handler(request)
            except (HttpError, FovealError) as problem:
                error = self._error_of(problem, request)
                return _html(error_page(error.title, error.detail), status=error.status)

        return respond

    def _endpoint(self, handler: Handler, *, is_change: bool = False) -> Callable[[Request], Any]:
        async def respond(request: Request) -> Response:
            request.state.security_headers = PAGE_SECURITY_HEADERS
            try:
                call = self._call(request)
                if call is None:
                    raise HttpError(401, self._rules.hint, code="not_logged_in")
                headers = request.scope["headers"]
                # A program sends a token of the server and no cookie; its requests come from no page.
                if is_change and (self._logins.token_of(headers) or not token_of(headers)):
                    await self._require_write_token(request.headers.get(WRITE_TOKEN_HEADER, ""), headers)
                return await handler(call)
            except (HttpError, FovealError) as problem:
                return error_response(self._error_of(problem, request), "openai")

        return respond

    async def _require_write_token(self, given: str, headers: Headers) -> None:
        """Raise `HttpError` unless a page of this server sends the request: a cookie alone comes from any page."""
        if not await self._logins.is_write_token(given, headers):
            detail = f"the header {WRITE_TOKEN_HEADER} must have the token of the page: reload the page"
            raise HttpError(403, detail, code="no_write_token")

    def _error_of(self, problem: HttpError | FovealError, request: Request) -> HttpError:
        match problem:
            case HttpError():
                if problem.about:
                    request.state.objects = (problem.about,)
                return problem
            case SessionMissing():
                detail = str(problem) if self._rules.shows_store_errors else _MISSING_SESSION
                return HttpError(404, detail, code="unknown_session")
            case UnknownHandle():
                return HttpError(404, str(problem), code="unknown_handle")
            case NotWritable():
                return HttpError(409, str(problem), code="not_writable")
            case StoreError():
                LOG.warning("the inspector cannot read a store: %s", problem)
                if self._rules.shows_store_errors:
                    return HttpError(503, str(problem), code="store")
        error = http_error_of(problem)
        # Errors without a status of their own say what is not possible, not that the server is broken.
        return HttpError(422, error.detail, code=error.code) if error.status == 500 else error


async def _to_overview(request: Request) -> Response:
    return RedirectResponse("inspect/", status_code=307)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    found = main_script() if name == MAIN_SCRIPT else static_file(name)
    if found is None:
        raise HttpError(404, "there is no such file")
    # Checked on each load: a new version of Foveal must not run with the scripts of the one before.
    headers = {"ETag": found.tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raises `HttpError`."""
    from urllib.parse import parse_qsl

    body = b""
    try:
        async for part in request.stream():  # browsers that have not logged in send forms too
            body += part
            if len(body) > MAX_FORM_BYTES:
                raise HttpError(413, "the form is too large", code="request_too_large")
    except ClientDisconnect:
        raise HttpError(400, "the connection ended before the body did", code="incomplete") from None
    return dict(parse_qsl(body.decode("latin-1"), errors="replace"))


def _redirect(to: str) -> Response:
    return RedirectResponse(to, status_code=303)


def _html(page: str, *, status: int = 200) -> Response:
    return Response(page, status_code=status, media_type=HTML_TYPE)
