"""`GET /healthz`: whether the server can store messages, what waits for an answer, and how the bots are.

1. The response comes within a second, whatever is locked: checks run in the background, each with a time limit.
2. A degraded server has a part that cannot be used; `problems` says which, without names of tenants. The code is
   200 if that is only the store of a tenant or a bot, and 503 if messages cannot be stored or the server stops.
3. While the database cannot be used, the number of waiting messages is not known: `inbox` is null.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from foveal.errors import StoreError
from foveal.server import Service
from foveal.server.gateway_health import GatewayHealth
from foveal.server.http.shutdown import ShutdownState
from foveal.web.http_errors import encode_json

CHECK_TTL_S: Final = 1.0
"""The result of the checks is reused this long."""
MAX_CHECK_S: Final = 0.5
"""A check that takes longer counts as failed until it ends."""
MAX_OWED_S: Final = 300.0
"""Time after which an answer that a bot could not deliver makes the server degraded."""


class Health:
    """The endpoint."""

    def __init__(
        self, service: Service, shutdown: ShutdownState, gateways: Callable[[], Iterable[GatewayHealth]]
    ) -> None:
        self._service = service
        self._gateways = gateways
        self._shutdown = shutdown
        self._check: asyncio.Task[None] | None = None
        self._checked_at = float("-inf")
        self._problem = ""
        self._unanswered = 0
        self._oldest: float | None = None

    async def __call__(self, request: Request) -> Response:
        database = await self._database_problem()
        failing = len(self._service.runtime.failing_stores)
        stores = f"the stores of {failing} tenants cannot be used" if failing > 1 else ""
        stores = "the store of a tenant cannot be used" if failing == 1 else stores
        gateways = list(self._gateways())
        problems = [text for text in (database, stores, *map(self._gateway_problem, gateways)) if text]
        status = "stopping" if self._shutdown.has_begun else "degraded" if problems else "ok"
        body = self._counts(is_inbox_known=not database) | {"status": status, "problems": problems}
        body["gateways"] = {gateway.platform: self._gateway_body(gateway) for gateway in gateways}
        code = 503 if database or self._shutdown.has_begun else 200
        return Response(encode_json(body), status_code=code, media_type="application/json")

    def _counts(self, *, is_inbox_known: bool) -> dict[str, Any]:
        sessions = self._service.live_sessions
        return {
            "sessions_open": len(sessions),
            "turns_running": sum(session.is_busy for session in sessions),
            "inbox": self._unanswered if is_inbox_known else None,
            "inbox_oldest_s": self._age_s(self._oldest if is_inbox_known else None),
        }

    def _age_s(self, at: float | None) -> float | None:
        return None if at is None else round(max(0.0, self._service.runtime.clock() - at), 1)

    def _gateway_problem(self, gateway: GatewayHealth) -> str:
        """Return why a bot cannot be used, "" if it can."""
        if gateway.status == "refused":
            return gateway.last_error
        if (self._age_s(gateway.owed_oldest_at) or 0.0) > MAX_OWED_S:
            return f"{gateway.owed} answers of the {gateway.platform} bot could not be delivered yet"
        return ""

    def _gateway_body(self, gateway: GatewayHealth) -> dict[str, Any]:
        return {
            "status": gateway.status,
            "connected_since": _iso_time(gateway.connected_since),
            "last_update": _iso_time(gateway.last_update),
            "owed": gateway.owed,
            "owed_oldest_s": self._age_s(gateway.owed_oldest_at),
            "given_up": gateway.given_up,
            "refused": gateway.refused,
            "last_error": gateway.last_error,
        }

    async def _database_problem(self) -> str:
        """Return what is wrong with the service's own database, "" if nothing is. Requests share one check."""
        if self._check is None and time.monotonic() - self._checked_at >= CHECK_TTL_S:
            self._check = asyncio.create_task(self._check_database())
        if self._check is not None:
            _, late = await asyncio.wait([self._check], timeout=MAX_CHECK_S)
            if late:
                return "the database does not respond: it is locked or unreachable"
        return self._problem

    async def _check_database(self) -> None:
        """Write to the database, and count the messages that wait."""
        runtime = self._service.runtime
        try:
            await runtime.database.check_writable()
            self._unanswered, self._oldest = await runtime.inbox.unanswered()
            self._problem = ""
        except StoreError:
            self._problem = "the database cannot be written"
        finally:
            self._checked_at = time.monotonic()
            self._check = None


def _iso_time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
