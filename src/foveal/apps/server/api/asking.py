"""One request to the API, read and checked before its handler sees it, and the answer written.

Bodies must be JSON and fit their struct; query strings likewise, every parameter at most once. The caller's tenant
comes from the guard and from nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.server.api.forms import in_words
from foveal.apps.server.bodies import body_as, read
from foveal.apps.server.refusals import Refusal
from foveal.codec import plain
from foveal.service import Room, Service, Tenant

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
class Ask(Generic[BodyT, QueryT]):
    """What a handler works with."""

    service: Service
    work: Worker | None
    tenant: Tenant
    names: Mapping[str, str]
    """What stands in the path."""
    headers: Mapping[str, str]
    body: BodyT
    query: QueryT

    async def room(self) -> Room:
        """The session that the path names; raises `UnknownSession`."""
        return await self.tenant.room(self.names["session"])

    def worker(self) -> Worker:
        """Who does things in the background; refuses when nobody does."""
        if self.work is None:
            raise Refusal(503, "this server does nothing in the background", code="no_background")
        return self.work


async def read_body(request: Request, form: type[BodyT]) -> BodyT:
    """The body as a struct; nothing at all is as good as an object without fields, where none is required."""
    if not msgspec.structs.fields(form):
        return form()
    if not any(field.required for field in msgspec.structs.fields(form)) and not await read(request):
        return form()
    sort = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sort != JSON and not (sort.startswith("application/") and sort.endswith("+json")):
        raise Refusal(415, f"the body must be {JSON}; the request says {sort or 'nothing'}", code="not_json")
    try:
        return await body_as(request, form)
    except Refusal as refusal:
        if refusal.code != INVALID:
            raise
        raise Refusal(400, in_words(refusal.detail, form), code=INVALID) from None


def read_query(request: Request, form: type[QueryT]) -> QueryT:
    given = request.query_params.multi_items()
    once = dict(given)
    if len(once) < len(given):
        raise Refusal(400, "a parameter stands in the query more than once", code="invalid_query")
    try:
        return msgspec.convert(once, form, strict=False)
    except msgspec.ValidationError as problem:
        told = in_words(str(problem), form, part="parameter")
        raise Refusal(400, f"in the query: {told}", code="invalid_query") from None


def answer(value: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(value), status_code=status, headers=headers, media_type=JSON)


def encoded(value: Any) -> bytes:
    """A struct as JSON; half a surrogate pair, which is not UTF-8, is written as JSON's own escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(plain(value)).encode()
