"""ASGI extension that tells whether a client has ended its side of the connection.

`BoundedProtocol` answers a client that ends its side after a complete request, so the application gets no
`http.disconnect` then. A browser ends its side only when it drops the request; a handler for pages can ask here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.types import Scope

CLIENT_CHECK_INTERVAL_S: Final = 0.25
"""Seconds between two looks whether the client has ended its side."""
_EXTENSION_NAME: Final = "foveal.client_ended"


def mark_client_ended(scope: Scope) -> None:
    """Record that the client has ended its side."""
    # The dictionary is changed in place: middleware may have copied the scope around it.
    scope.setdefault("extensions", {})[_EXTENSION_NAME] = True


async def wait_for_client_end(request: Request) -> None:
    """Return when the client has disconnected or ended its side; the body must have been read."""
    while _EXTENSION_NAME not in (request.scope.get("extensions") or {}):
        with suppress(TimeoutError):
            message = await asyncio.wait_for(request.receive(), CLIENT_CHECK_INTERVAL_S)
            if message["type"] == "http.disconnect":
                return
