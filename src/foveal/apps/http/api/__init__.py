"""The native API: sessions over HTTP, described by an OpenAPI document that is made from the same table.

routes(service, work)   what the server's application mounts
openapi()               what it serves as /openapi.json
"""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from foveal.apps.http.api import schedule_endpoints
from foveal.apps.http.api.openapi import document
from foveal.apps.http.api.operation import Worker, routes_of
from foveal.apps.http.api.routes import OPERATIONS
from foveal.server import Service

__all__ = ["openapi", "routes"]


def routes(service: Service, work: Worker | None) -> list[Route]:
    return routes_of(OPERATIONS, service, work)


def openapi() -> dict[str, Any]:
    """The document, schedules included."""
    return document((*OPERATIONS, *schedule_endpoints.OPERATIONS))
