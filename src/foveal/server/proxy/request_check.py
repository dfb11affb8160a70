"""Checks of the requests that the proxy writes itself, reported as service events.

This server writes reduced requests and requests for summaries, so their faults are faults of the server. A request
that is forwarded as it arrived is the client's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from foveal.core.log.events import Dialect
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.cache_marks import count_cache_marks_in_json
from foveal.core.wire.common import Json
from foveal.core.wire.legality import request_faults
from foveal.server.runtime import (
    IllegalRequestMade,
    ServiceEvent,
    SummaryRequestEnded,
    UsageNotUnderstood,
)
from foveal.transport.client_request import ClientRequest

MAX_REPORTED_FAULTS: Final = 3


class RequestCheck:
    """Checks the requests of one tenant."""

    def __init__(self, tenant: str, emit: Callable[[ServiceEvent], None]) -> None:
        self._tenant = tenant
        self._emit = emit

    def reduced_request(
        self,
        session: str,
        request: ClientRequest,
        messages: Sequence[Json],
        thinking: ThinkingCheck | None = None,
    ) -> None:
        """Report the faults of a reduced request, unless the client's own request has faults as well. With
        `thinking`, the model binds it to what comes before it."""
        beside = request.system, request.tools
        faults = _faults(request.dialect, messages, *beside, thinking)
        if faults and (thinking is not None or not _faults(request.dialect, request.messages, *beside)):
            self._report(session, request.dialect, "reduced", faults)

    def summary_request(
        self,
        session: str,
        dialect: Dialect,
        messages: Sequence[Json],
        fields: Mapping[str, Any],
        thinking: ThinkingCheck | None = None,
    ) -> None:
        """Report the faults of a request for a summary; `fields` are those beside its messages. With `thinking`,
        the model binds it to what comes before it."""
        system, tools = (bytes(fields.get(name, b"")) for name in ("system", "tools"))
        if faults := _faults(dialect, messages, system, tools, thinking):
            self._report(session, dialect, "summary", faults)

    def summary_ended(self, session: str, dialect: Dialect, status: int) -> None:
        """Report how upstream answered a request for a summary."""
        self._emit(SummaryRequestEnded(tenant=self._tenant, session=session, dialect=dialect, status=status))

    def usage_not_understood(self, session: str, dialect: Dialect, fields: str) -> None:
        """Report that upstream's usage was ignored; `fields` names what it had."""
        self._emit(UsageNotUnderstood(tenant=self._tenant, session=session, dialect=dialect, fields=fields))

    def _report(
        self, session: str, dialect: Dialect, origin: Literal["reduced", "summary"], faults: list[str]
    ) -> None:
        self._emit(
            IllegalRequestMade(
                tenant=self._tenant,
                session=session,
                dialect=dialect,
                origin=origin,
                faults=tuple(faults[:MAX_REPORTED_FAULTS]),
            )
        )


def _faults(
    dialect: Dialect,
    messages: Sequence[Json],
    system: bytes,
    tools: bytes,
    thinking: ThinkingCheck | None = None,
) -> list[str]:
    read = _marked if thinking is None else _decoded
    return request_faults(dialect, messages, system=read(system), tools=read(tools), thinking=thinking)


def _marked(field: bytes) -> Any:
    """Return the value of a field that has cache marks; None for any other, which need not be decoded."""
    return _decoded(field) if count_cache_marks_in_json(field) else None


def _decoded(field: bytes) -> Any:
    return msgspec.json.decode(field) if field else None
