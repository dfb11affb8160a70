"""`GET /healthz`: whether the server can store messages and is not stopping."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.http.http_errors import encode_json
from foveal.apps.http.shutdown import ShutdownState
from foveal.errors import StoreError
from foveal.server import Service

WRITE_CHECK_TTL_S: Final = 1.0
"""The result of a write check is reused this long."""


class Health:
    """Endpoint that answers 200 if the status is `ok`, and 503 otherwise."""

    def __init__(self, service: Service, shutdown: ShutdownState) -> None:
        self._service = service
        self._shutdown = shutdown
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._problem = ""
        self._inbox = 0

    async def __call__(self, request: Request) -> Response:
        async with self._lock:
            if time.monotonic() - self._checked_at >= WRITE_CHECK_TTL_S:
                await self._check()
        status = "stopping" if self._shutdown.has_begun else self._problem or "ok"
        sessions = self._service.live_sessions
        body = {
            "status": status,
            "sessions_open": len(sessions),
            "turns_running": sum(session.is_busy for session in sessions),
            "inbox": self._inbox,
        }
        code = 200 if status == "ok" else 503
        return Response(encode_json(body), status_code=code, media_type="application/json")

    async def _check(self) -> None:
        """Write to the database, and count the messages that wait."""
        try:
            await self._service.runtime.database.check_writable()
            self._inbox = sum(count for _, _, count in await self._service.runtime.inbox.unfinished())
            self._problem = ""
        except StoreError:
            self._problem = "the store cannot be written"
        self._checked_at = time.monotonic()
