"""Whether the server is well: it can write what it would have to store, and it is not about to end."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.http.http_errors import encoded
from foveal.apps.http.shutdown import ShutdownState
from foveal.errors import StoreError
from foveal.server import Service

FRESH: Final = 1.0
"""Seconds for which what was found holds."""


class Health:
    def __init__(self, service: Service, ending: ShutdownState) -> None:
        self._service = service
        self._ending = ending
        self._lock = asyncio.Lock()
        self._looked = float("-inf")
        self._problem = ""
        self._inbox = 0

    async def __call__(self, request: Request) -> Response:
        async with self._lock:
            if time.monotonic() - self._looked >= FRESH:
                await self._look()
        status = "stopping" if self._ending.begun else self._problem or "ok"
        rooms = self._service.rooms
        found = {
            "status": status,
            "sessions_open": len(rooms),
            "turns_running": sum(room.busy for room in rooms),
            "inbox": self._inbox,
        }
        code = 200 if status == "ok" else 503
        return Response(encoded(found), status_code=code, media_type="application/json")

    async def _look(self) -> None:
        """Write something, to see that it can be done."""
        try:
            await self._service.ground.database.prove()
            self._inbox = sum(count for _, _, count in await self._service.ground.desk.waiting())
            self._problem = ""
        except StoreError:
            self._problem = "the store cannot be written"
        self._looked = time.monotonic()
