"""Operations of the API: reading a request, calling its handler, writing the response.

1. An `Operation` is one row of a table. The routes and the OpenAPI document are both made from it.
2. A body must be JSON and match its struct; so must the query string, with every parameter at most once. A handler
   sees only requests that were checked.
3. The tenant comes from `guard` and from nowhere else.
4. A request that does not match its struct gets a 400 with a sentence for people, made from the struct's types,
   bounds and pattern descriptions:

       id must be text, 1 to 200 characters: letters, digits and . _ ~ : @ -, a letter or digit first; or null
       there is no field 'txt' here; known are background, content, key, stream, text
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from typing import Any, Final, Generic, Protocol, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import inspect
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, http_error_of
from foveal.apps.http.request_body import read_bytes, read_struct
from foveal.core.log.codec import plain
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, UnknownHandle
from foveal.server import LiveSession, Service, Tenant

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
QueryT = TypeVar("QueryT", bound=msgspec.Struct)
JSON_TYPE: Final = "application/json"
INVALID_BODY: Final = "invalid_body"
"""Error code of a body that does not match its struct."""
MAX_QUOTED_CHARS: Final = 64
"""Characters of a client's own text that an error quotes."""


# ── Validation errors ────────────────────────────────────────────────────────────────────────────────────
# The patterns match the messages of msgspec.

_FIELD: Final = re.compile(r" - at `\$\.(\w+)[^`]*`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`\Z")
_GOT: Final = re.compile(r"got `(\w+)`")
_JSON_TYPE_NAMES: Final = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
"""msgspec's names of JSON types, and the words for people."""


def explain_validation_error(message: str, struct: type[msgspec.Struct], *, part: str = "field") -> str:
    """Return msgspec's `message` as a sentence; `part` is the word for a field of the struct."""
    fields = _field_types(struct)
    if unknown := _UNKNOWN.fullmatch(message):
        name = one_line(unknown[1], width=MAX_QUOTED_CHARS)
        known = ", ".join(sorted(fields)) or "none"
        return f"there is no {part} {name!r} here; known are {known}"
    if missing := _MISSING.fullmatch(message):
        return f"the {part} {missing[1]} is missing: it must be {describe_type(fields[missing[1]])}"
    got = _GOT.search(message)
    found = (
        f", not {_JSON_TYPE_NAMES[got[1]]}" if got and got[1] in _JSON_TYPE_NAMES and part == "field" else ""
    )
    at = _FIELD.search(message)
    if at is None:
        return f"the body must be an object{found}" if found else message
    if "[" in at[0]:
        found = ""  # the type is that of one entry, and the sentence describes the list
    return f"{at[1]} must be {describe_type(fields[at[1]])}{found}"


@cache
def _field_types(struct: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field.type for field in info.fields}


def describe_type(kind: inspect.Type) -> str:
    """Return what a value of a type must be, in words."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            description = (extra or {}).get("description", "")
            return ": ".join(filter(None, (describe_type(inner), description)))
        case inspect.UnionType(types=types):
            return "; or ".join(describe_type(each) for each in types)
        case inspect.StrType(min_length=low, max_length=high):
            return f"text{_bounds(low, high, unit=' characters')}"
        case inspect.ListType(item_type=item, min_length=low, max_length=high):
            items = "objects" if isinstance(item, inspect.DictType) else f"({describe_type(item)})"
            return f"a list of {items}{_bounds(low, high)}"
        case inspect.IntType(ge=low, le=high):
            return f"a whole number{_bounds(low, high)}"
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
    return _JSON_TYPE_NAMES["object"]


def _bounds(low: int | None, high: int | None, *, unit: str = "") -> str:
    match low, high:
        case None, None:
            return ""
        case None, _:
            return f", at most {high:,}{unit}"
        case 1, None:
            return ", not empty"
        case _, None:
            return f", at least {low:,}{unit}"
    return f", {low:,} to {high:,}{unit}"


# ── Requests and responses ───────────────────────────────────────────────────────────────────────────────


class Worker(Protocol):
    """Runs jobs in the background; a job is stored before the call returns."""

    async def run(self, tenant: str, session: str, prompt: str, *, key: str) -> None: ...

    async def request_summary(self, tenant: str, session: str, seq: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ApiCall(Generic[BodyT, QueryT]):
    """A checked request, as a handler gets it."""

    service: Service
    worker: Worker | None
    tenant: Tenant
    path_params: Mapping[str, str]
    headers: Mapping[str, str]
    body: BodyT
    query: QueryT

    async def session(self) -> LiveSession:
        """Return the session that the path names; raises `UnknownSession`."""
        return await self.tenant.session(self.path_params["session"])

    def require_worker(self) -> Worker:
        """Return the worker; raises `HttpError` if this server runs no background jobs."""
        if self.worker is None:
            raise HttpError(503, "this server runs no background jobs", code="no_background")
        return self.worker


async def read_body(request: Request, struct: type[BodyT]) -> BodyT:
    """Return the body as a struct; an empty body counts as `{}` if no field is required."""
    if not msgspec.structs.fields(struct):
        return struct()
    if not any(field.required for field in msgspec.structs.fields(struct)) and not await read_bytes(request):
        return struct()
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON_TYPE and not (
        content_type.startswith("application/") and content_type.endswith("+json")
    ):
        raise HttpError(
            415,
            f"the body must be {JSON_TYPE}; the request says {content_type or 'nothing'}",
            code="not_json",
        )
    try:
        return await read_struct(request, struct)
    except HttpError as error:
        if error.code != INVALID_BODY:
            raise
        raise HttpError(400, explain_validation_error(error.detail, struct), code=INVALID_BODY) from None


def read_query(request: Request, struct: type[QueryT]) -> QueryT:
    """Return the query string as a struct."""
    items = request.query_params.multi_items()
    parameters = dict(items)
    if len(parameters) < len(items):
        raise HttpError(400, "the query has a parameter more than once", code="invalid_query")
    try:
        return msgspec.convert(parameters, struct, strict=False)
    except msgspec.ValidationError as problem:
        explanation = explain_validation_error(str(problem), struct, part="parameter")
        raise HttpError(400, f"in the query: {explanation}", code="invalid_query") from None


def json_response(
    value: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a struct as a JSON response."""
    return Response(encode_struct(value), status_code=status, headers=headers, media_type=JSON_TYPE)


def encode_struct(value: Any) -> bytes:
    """Return a struct as JSON; a lone surrogate, which UTF-8 cannot hold, becomes a JSON escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(plain(value)).encode()


# ── Operations ───────────────────────────────────────────────────────────────────────────────────────────

COMMON_ERRORS: Final = (400, 401, 403, 408, 413, 415, 421, 429, 431, 500, 503)
"""Statuses that any request may get: from the guard, or because the store cannot be used."""


@dataclass(frozen=True)
class OperationResult:
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
class Operation(Generic[BodyT, QueryT]):
    """One operation of the API. The structs of its body and query are read from the handler's annotation."""

    id: str
    method: str = "GET"
    path: str
    summary: str
    """One sentence."""
    handler: Callable[[ApiCall[BodyT, QueryT]], Awaitable[Response]]
    results: tuple[OperationResult, ...]
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
    operations: Sequence[Operation[Any, Any]], service: Service, worker: Worker | None
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
        self, service: Service, worker: Worker | None, operations: Sequence[Operation[Any, Any]]
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
            response = await operation.handler(await self._call(request, operation))
        except FovealError as problem:
            raise _api_error(problem) from problem
        await response(scope, receive, send)

    async def _call(self, request: Request, operation: Operation[Any, Any]) -> ApiCall[Any, Any]:
        return ApiCall(
            service=self._service,
            worker=self._worker,
            tenant=self._service.tenant(request.state.caller.tenant),
            path_params=request.path_params,
            headers=request.headers,
            body=await read_body(request, operation.body),
            query=read_query(request, operation.query),
        )


def _api_error(problem: FovealError) -> HttpError:
    """Return 422 for what matches its struct and is still not possible; 400 is for what does not match."""
    error = http_error_of(problem)
    if error.status == 400 or isinstance(problem, UnknownHandle):
        return HttpError(422, error.detail, code=error.code, members=error.members)
    return error
