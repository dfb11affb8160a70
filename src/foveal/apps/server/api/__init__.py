"""The native API: sessions over HTTP, described by an OpenAPI document that is made from the same table.

routes(service, work)   what the server's application mounts
openapi()               what it serves as /openapi.json
"""

from __future__ import annotations

from typing import Any

from starlette.routing import Route

from foveal.apps.server import schedules_api
from foveal.apps.server.api.asking import Worker
from foveal.apps.server.api.document import document
from foveal.apps.server.api.endpoint import routes_of
from foveal.apps.server.api.table import OPERATIONS
from foveal.service import Service

__all__ = ["openapi", "routes"]


def routes(service: Service, work: Worker | None) -> list[Route]:
    return routes_of(OPERATIONS, service, work)


def openapi() -> dict[str, Any]:
    """The document, schedules included."""
    return document((*OPERATIONS, *schedules_api.OPERATIONS))
