"""Operations of the API: reading a request, calling its handler, writing the response.

1. An `ApiOperation` is one row of a table. The routes and the OpenAPI document are both made from it.
2. A body must be JSON and match its struct; so must the query string, with every parameter at most once. A handler
   sees only requests that were checked.
3. The tenant comes from `guard` and from nowhere else, and so does the user of a token that names one. What the
   path names is checked here (`check_access`), what a body or a list names in its handler, both by `UserAccess`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, Final, Generic, NamedTuple, Protocol, get_args, get_type_hints

from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from foveal.errors import FovealError, UnknownHandle
from foveal.ports import SessionInfo
from foveal.server import LiveSession, Service, Tenant
from foveal.server.audit import AuditedObject
from foveal.web.asgi_extensions import wait_for_client_end
from foveal.web.event_stream import MayReadOn
from foveal.web.http_errors import HttpError, http_error_of
from foveal.web.request_body import JSON_TYPE, BodyT, QueryT, read_body, read_query

# ── Requests and responses ───────────────────────────────────────────────────────────────────────────────


class UserAccess(NamedTuple):
    """What a caller reaches in its tenant: one decision for the API, the inspector and lists.

    1. A token without a user reaches everything of its tenant.
    2. A token that names a user reaches this user's memory, and the sessions whose only user this is. A session of
       no user is not among them: it is not known whose words it has.
    3. What calls models counts for the user of the token, so it needs a session that was created for this user.
    """

    tenant: Tenant
    user: str
    """The user whom the token names; "" if it may act for all users of its tenant."""

    async def reaches(self, session: str) -> bool:
        """Return whether the caller reaches a session, which need not exist."""
        users = self.tenant.runtime.inbox.users_of
        return not self.user or await users(self.tenant.name, session) == {self.user}

    async def check_session(self, session: str, *, spends: bool = False) -> None:
        """Raise `HttpError` if a session is of others, and `UnknownSession` if there is none. A request that
        `spends` needs a session that was created for the user."""
        if not self.user:
            return
        allowed = await self.reaches(session)
        if allowed and spends:
            setup = await self.tenant.runtime.inbox.session_setup(self.tenant.name, session)
            allowed = setup is not None and setup.user == self.user
        if not allowed:
            await self.tenant.session(session)  # raises if there is none
            raise self.refusal(f"session:{session}")

    def check_user(self, user: str) -> None:
        """Raise `HttpError` if the memory and the sessions of a user are of others."""
        if self.user not in ("", user):
            raise self.refusal(f"user:{user}")

    def check_unbound(self) -> None:
        """Raise `HttpError` for what belongs to the tenant as a whole, if the token names a user."""
        if self.user:
            raise self.refusal()

    def refusal(self, about: str = "") -> HttpError:
        """Return the error for what does not belong to the user of the token."""
        detail = f"this token belongs to the user {self.user!r} and reaches nothing of others"
        return HttpError(403, detail, code="other_user", about=about)

    async def sessions(self, *, limit: int, before: tuple[float, str] | None = None) -> list[SessionInfo]:
        """Return a page of the sessions that the caller reaches, the most recently active first; see
        `Store.sessions`."""
        return await self.tenant.sessions(limit=limit, before=before, user=self.user)


class Worker(Protocol):
    """Runs jobs in the background; a job is stored before the call returns."""

    async def run(self, tenant: str, session: str, prompt: str, *, key: str) -> None: ...

    async def request_summary(self, tenant: str, session: str, seq: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ApiCall(Generic[BodyT, QueryT]):
    """A checked request, as a handler gets it."""

    service: Service
    worker: Worker | None
    tenant_name: str
    """"" for an administrator."""
    bound_user: str
    """The user whom the token names; "" if it may act for all users of its tenant."""
    path_params: Mapping[str, str]
    headers: Mapping[str, str]
    may_read_on: MayReadOn
    client_end: Callable[[], Awaitable[None]]
    """Returns when the client has gone, or has ended its side of the connection."""
    body: BodyT
    query: QueryT
    state: State
    """The state of the request."""

    def audit_as(self, name: str, *, tenant: str | None = None) -> None:
        """Say what the request is about, and which tenant it concerns, for the audit trail."""
        self.state.audited = AuditedObject(name, tenant)

    @cached_property
    def tenant(self) -> Tenant:
        """The tenant of the caller."""
        return self.service.tenant(self.tenant_name)

    async def session(self) -> LiveSession:
        """Return the session that the path names; raises `UnknownSession`."""
        return await self.tenant.session(self.path_params["session"])

    @cached_property
    def access(self) -> UserAccess:
        """What the caller reaches in its tenant."""
        return UserAccess(self.tenant, self.bound_user)

    async def check_access(self, *, spends: bool) -> None:
        """Raise `HttpError` if the path names something that the caller does not reach."""
        if not self.bound_user:
            return
        if user := self.path_params.get("user"):
            self.access.check_user(user)
        if session := self.path_params.get("session"):
            await self.access.check_session(session, spends=spends)

    def require_worker(self) -> Worker:
        """Return the worker; raises `HttpError` if this server runs no background jobs."""
        if self.worker is None:
            raise HttpError(503, "this server runs no background jobs", code="no_background")
        return self.worker


# ── Operations ───────────────────────────────────────────────────────────────────────────────────────────

COMMON_ERRORS: Final = (400, 401, 403, 408, 413, 415, 421, 429, 431, 500, 503)
"""Statuses that any request may get: from the guard, or because the store cannot be used."""


@dataclass(frozen=True)
class ApiResult:
    """One way in which an operation succeeds."""

    description: str
    struct: Any = None
    """The struct of the body; None if the response has no body, or one that is not a JSON object."""
    _: KW_ONLY
    status: int = 200
    media_type: str = JSON_TYPE
    schema: Mapping[str, Any] | None = None
    """JSON schema of a body without a struct."""
    headers: Mapping[str, str] | None = None
    """Response headers, each with its description."""
    links: Mapping[str, str] | None = None
    """Path parameters of other operations, each with the place in this response where its value is."""


@dataclass(frozen=True, kw_only=True)
class ApiOperation(Generic[BodyT, QueryT]):
    """One operation of the API. The structs of its body and query are read from the handler's annotation."""

    id: str
    method: str = "GET"
    path: str
    summary: str
    """One sentence."""
    handler: Callable[[ApiCall[BodyT, QueryT]], Awaitable[Response]]
    results: tuple[ApiResult, ...]
    errors: tuple[int, ...] = ()
    """Statuses beside `COMMON_ERRORS`, and beside 404 if the path has a parameter."""
    request_headers: Mapping[str, str] | None = None
    """Headers that the operation reads, each with its description."""

    @cached_property
    def body(self) -> type[BodyT]:
        """The struct of the request body."""
        return self._structs[0]

    @cached_property
    def query(self) -> type[QueryT]:
        """The struct of the query string."""
        return self._structs[1]

    @cached_property
    def error_statuses(self) -> list[int]:
        """All error statuses, sorted."""
        not_found = {404} if self.path_params else set()
        return sorted({*COMMON_ERRORS, *not_found, *self.errors})

    @cached_property
    def path_params(self) -> list[str]:
        """Names of the parameters in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @cached_property
    def _structs(self) -> tuple[type[BodyT], type[QueryT]]:
        body, query = get_args(get_type_hints(self.handler)["call"])
        return body, query


# ── Routing ──────────────────────────────────────────────────────────────────────────────────────────────


def routes_for(
    operations: Sequence[ApiOperation[Any, Any]], service: Service, worker: Worker | None
) -> list[Route]:
    """Return one route for each path; it handles all methods of the path."""
    paths = dict.fromkeys(operation.path for operation in operations)
    return [
        Route(path, Endpoint(service, worker, [each for each in operations if each.path == path]))
        for path in paths
    ]


class Endpoint:
    """ASGI application for all operations on one path."""

    def __init__(
        self, service: Service, worker: Worker | None, operations: Sequence[ApiOperation[Any, Any]]
    ) -> None:
        self._service = service
        self._worker = worker
        self._operations = {operation.method: operation for operation in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        operation = self._operations.get(request.method)
        if operation is None:
            allowed = ", ".join(self._operations)
            raise HttpError(405, f"this path allows {allowed}", headers={"Allow": allowed})
        try:
            call = await self._call(request, operation)
            await call.check_access(spends=operation.method == "POST")
            response = await operation.handler(call)
        except HttpError as refused:
            if refused.about:
                request.state.audited = AuditedObject(refused.about)
            raise
        except FovealError as problem:
            raise _api_error(problem) from problem
        await response(scope, receive, send)

    async def _call(self, request: Request, operation: ApiOperation[Any, Any]) -> ApiCall[Any, Any]:
        return ApiCall(
            service=self._service,
            worker=self._worker,
            tenant_name=request.state.caller.tenant,
            bound_user=request.state.caller.user,
            path_params=request.path_params,
            headers=request.headers,
            may_read_on=request.state.may_read_on,
            client_end=partial(wait_for_client_end, request),
            body=await read_body(request, operation.body),
            query=read_query(request, operation.query),
            state=request.state,
        )


def _api_error(problem: FovealError) -> HttpError:
    """Return 422 for what matches its struct and is still not possible; 400 is for what does not match."""
    error = http_error_of(problem)
    if error.status == 400 or isinstance(problem, UnknownHandle):
        return HttpError(422, error.detail, code=error.code, members=error.members)
    return error
