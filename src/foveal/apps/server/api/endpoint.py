"""All operations on one path, as an ASGI application: what is asked for is read, carried out and answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from foveal.apps.server.api.asking import Ask, Worker, read_body, read_query
from foveal.apps.server.api.operations import Operation
from foveal.apps.server.refusals import Refusal, refusal_of
from foveal.errors import FovealError, UnknownHandle
from foveal.service import Service


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
            raise Refusal(405, f"this path knows {allowed}", headers={"Allow": allowed})
        try:
            response = await operation.handler(await self._ask(request, operation))
        except FovealError as problem:
            raise _refused(problem) from problem
        await response(scope, receive, send)

    async def _ask(self, request: Request, operation: Operation[Any, Any]) -> Ask[Any, Any]:
        return Ask(
            service=self._service,
            work=self._work,
            tenant=self._service.tenant(request.state.caller.tenant),
            names=request.path_params,
            headers=request.headers,
            body=await read_body(request, operation.body),
            query=read_query(request, operation.query),
        )


def _refused(problem: FovealError) -> Refusal:
    """What fits its form and is still not possible is 422 here; 400 is for what does not fit."""
    refusal = refusal_of(problem)
    if refusal.status == 400 or isinstance(problem, UnknownHandle):
        return Refusal(422, refusal.detail, code=refusal.code, numbers=refusal.numbers)
    return refusal
