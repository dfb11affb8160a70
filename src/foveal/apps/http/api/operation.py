"""What does not fit its form, in a sentence for people. What a field must be is read off the struct: its type, its
bounds, and the description of its pattern.

    id must be text, 1 to 200 characters: letters, digits and . _ ~ : @ -, a letter or digit first; or null
    there is no field 'txt' here; known are background, content, key, stream, text
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from foveal.apps.http.http_errors import HttpError, http_error_of
from foveal.apps.http.request_body import body_as, read
from foveal.core.log.codec import plain
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, UnknownHandle
from foveal.server import LiveSession, Service, Tenant

_SHOWN: Final = 64
"""Characters of a client's own words that are said back to it."""
_FIELD: Final = re.compile(r" - at `\$\.(\w+)[^`]*`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`\Z")
_GOT: Final = re.compile(r"got `(\w+)`")
_KINDS: Final = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
"""What msgspec calls the sorts of JSON values, and what people do."""


def in_words(problem: str, form: type[msgspec.Struct], *, part: str = "field") -> str:
    """What is wrong, from what msgspec says of it; `part` is what one of the form's fields is called."""
    fields = _fields(form)
    if unknown := _UNKNOWN.fullmatch(problem):
        name = one_line(unknown[1], width=_SHOWN)
        known = ", ".join(sorted(fields)) or "none"
        return f"there is no {part} {name!r} here; known are {known}"
    if missing := _MISSING.fullmatch(problem):
        return f"the {part} {missing[1]} is missing: it must be {must_be(fields[missing[1]])}"
    got = _GOT.search(problem)
    came = f", not {_KINDS[got[1]]}" if got and got[1] in _KINDS and part == "field" else ""
    at = _FIELD.search(problem)
    if at is None:
        return f"the body must be an object{came}" if came else problem
    if "[" in at[0]:
        came = ""  # that is one entry, and the sentence is about the list
    return f"{at[1]} must be {must_be(fields[at[1]])}{came}"


@cache
def _fields(form: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    told = inspect.type_info(form)
    assert isinstance(told, inspect.StructType)
    return {field.encode_name: field.type for field in told.fields}


def must_be(kind: inspect.Type) -> str:
    """What a value of this kind is, in words."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            told = (extra or {}).get("description", "")
            return ": ".join(filter(None, (must_be(inner), told)))
        case inspect.UnionType(types=types):
            return "; or ".join(must_be(each) for each in types)
        case inspect.StrType(min_length=least, max_length=most):
            return f"text{_bounds(least, most, unit=' characters')}"
        case inspect.ListType(min_length=least, max_length=most):
            return f"a list of objects{_bounds(least, most)}"
        case inspect.IntType(ge=least, le=most):
            return f"a whole number{_bounds(least, most)}"
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
    return _KINDS["object"]


def _bounds(least: int | None, most: int | None, *, unit: str = "") -> str:
    match least, most:
        case None, None:
            return ""
        case None, _:
            return f", at most {most:,}{unit}"
        case 1, None:
            return ", not empty"
        case _, None:
            return f", at least {least:,}{unit}"
    return f", {least:,} to {most:,}{unit}"


# ── asking ────────────────────────────────────────────────────────────────────────────────────────
# One request to the API, read and checked before its handler sees it, and the answer written.
#
# Bodies must be JSON and fit their struct; query strings likewise, every parameter at most once. The caller's tenant
# comes from the guard and from nowhere else.

BodyT = TypeVar("BodyT", bound=msgspec.Struct)
QueryT = TypeVar("QueryT", bound=msgspec.Struct)
JSON: Final = "application/json"
INVALID: Final = "invalid_body"
"""The code of a body that does not have the form that it must have."""


class Worker(Protocol):
    """Who does things in the background; what it has taken on is stored."""

    async def run(self, tenant: str, session: str, prompt: str, *, key: str) -> None: ...

    async def compact(self, tenant: str, session: str, seq: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ApiCall(Generic[BodyT, QueryT]):
    """What a handler works with."""

    service: Service
    work: Worker | None
    tenant: Tenant
    names: Mapping[str, str]
    """What stands in the path."""
    headers: Mapping[str, str]
    body: BodyT
    query: QueryT

    async def room(self) -> LiveSession:
        """The session that the path names; raises `UnknownSession`."""
        return await self.tenant.room(self.names["session"])

    def worker(self) -> Worker:
        """Who does things in the background; refuses when nobody does."""
        if self.work is None:
            raise HttpError(503, "this server does nothing in the background", code="no_background")
        return self.work


async def read_body(request: Request, form: type[BodyT]) -> BodyT:
    """The body as a struct; nothing at all is as good as an object without fields, where none is required."""
    if not msgspec.structs.fields(form):
        return form()
    if not any(field.required for field in msgspec.structs.fields(form)) and not await read(request):
        return form()
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON and not (
        content_type.startswith("application/") and content_type.endswith("+json")
    ):
        raise HttpError(
            415, f"the body must be {JSON}; the request says {content_type or 'nothing'}", code="not_json"
        )
    try:
        return await body_as(request, form)
    except HttpError as refusal:
        if refusal.code != INVALID:
            raise
        raise HttpError(400, in_words(refusal.detail, form), code=INVALID) from None


def read_query(request: Request, form: type[QueryT]) -> QueryT:
    given = request.query_params.multi_items()
    once = dict(given)
    if len(once) < len(given):
        raise HttpError(400, "a parameter stands in the query more than once", code="invalid_query")
    try:
        return msgspec.convert(once, form, strict=False)
    except msgspec.ValidationError as problem:
        told = in_words(str(problem), form, part="parameter")
        raise HttpError(400, f"in the query: {told}", code="invalid_query") from None


def answer(value: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(value), status_code=status, headers=headers, media_type=JSON)


def encoded(value: Any) -> bytes:
    """A struct as JSON; half a surrogate pair, which is not UTF-8, is written as JSON's own escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(plain(value)).encode()


# ── operations ────────────────────────────────────────────────────────────────────────────────────
# What an operation of the API is: one row of a table from which both the routes and the document are made.

EVERYWHERE: Final = (400, 401, 403, 408, 413, 415, 421, 429, 431, 500, 503)
"""What any request may be answered: by the guard, or because a store cannot be used."""


@dataclass(frozen=True, kw_only=True)
class OperationResult:
    """One way in which an operation succeeds."""

    status: int = 200
    what: str
    shape: Any = None
    """The struct of the body; None when there is none, or when it is no JSON object."""
    media: str = JSON
    schema: Mapping[str, Any] | None = None
    """In place of a struct's."""
    headers: Mapping[str, str] | None = None
    """Names, each with what it says."""
    gives: Mapping[str, str] | None = None
    """What stands in other paths, each with where it is found here."""


@dataclass(frozen=True, kw_only=True)
class Operation(Generic[BodyT, QueryT]):
    id: str
    method: str
    path: str
    what: str
    """One sentence."""
    handler: Callable[[ApiCall[BodyT, QueryT]], Awaitable[Response]]
    body: type[BodyT]
    query: type[QueryT]
    answers: tuple[OperationResult, ...]
    errors: tuple[int, ...] = ()
    """Statuses beside those that any request may have."""
    tag: str = "sessions"
    """What it belongs to."""
    reads: Mapping[str, str] | None = None
    """Headers that it looks at, each with what it is for."""


# ── endpoint ──────────────────────────────────────────────────────────────────────────────────────
# All operations on one path, as an ASGI application: what is asked for is read, carried out and answered.


def routes_of(
    operations: Sequence[Operation[Any, Any]], service: Service, work: Worker | None
) -> list[Route]:
    """One route for each path; it knows all methods of the path."""
    paths = dict.fromkeys(operation.path for operation in operations)
    return [
        Route(path, Endpoint(service, work, [each for each in operations if each.path == path]))
        for path in paths
    ]


class Endpoint:
    def __init__(
        self, service: Service, work: Worker | None, operations: Sequence[Operation[Any, Any]]
    ) -> None:
        self._service = service
        self._work = work
        self._operations = {operation.method: operation for operation in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        operation = self._operations.get(request.method)
        if operation is None:
            allowed = ", ".join(self._operations)
            raise HttpError(405, f"this path knows {allowed}", headers={"Allow": allowed})
        try:
            response = await operation.handler(await self._ask(request, operation))
        except FovealError as problem:
            raise _refused(problem) from problem
        await response(scope, receive, send)

    async def _ask(self, request: Request, operation: Operation[Any, Any]) -> ApiCall[Any, Any]:
        return ApiCall(
            service=self._service,
            work=self._work,
            tenant=self._service.tenant(request.state.caller.tenant),
            names=request.path_params,
            headers=request.headers,
            body=await read_body(request, operation.body),
            query=read_query(request, operation.query),
        )


def _refused(problem: FovealError) -> HttpError:
    """What fits its form and is still not possible is 422 here; 400 is for what does not fit."""
    refusal = http_error_of(problem)
    if refusal.status == 400 or isinstance(problem, UnknownHandle):
        return HttpError(422, refusal.detail, code=refusal.code, numbers=refusal.numbers)
    return refusal
