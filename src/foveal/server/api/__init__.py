"""The native API: sessions, memories, schedules and administration over HTTP, with an OpenAPI document.

`routes` and `openapi` are made from the same operations.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.routing import Route

from foveal.server import Service
from foveal.server.api.admin_endpoints import ADMIN_OPERATIONS
from foveal.server.api.memory_endpoints import MEMORY_OPERATIONS
from foveal.server.api.openapi import openapi_document
from foveal.server.api.operation import ApiOperation, Worker, routes_for
from foveal.server.api.schedule_endpoints import SCHEDULE_OPERATIONS
from foveal.server.api.session_operations import SESSION_OPERATIONS

__all__ = ["API_OPERATIONS", "openapi", "routes"]

API_OPERATIONS: Final[tuple[ApiOperation[Any, Any], ...]] = (
    *SESSION_OPERATIONS,
    *MEMORY_OPERATIONS,
    *SCHEDULE_OPERATIONS,
    *ADMIN_OPERATIONS,
)


def routes(service: Service, worker: Worker | None) -> list[Route]:
    """Return all routes under `/api`."""
    return routes_for(API_OPERATIONS, service, worker)


def openapi() -> dict[str, Any]:
    """Return the document that the server serves as `/openapi.json`."""
    return openapi_document(API_OPERATIONS)
