"""The inspector's API: JSON and streams of one place with sessions."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.inspector.inspector_queries import (
    InspectDiffQuery,
    InspectLiveQuery,
    InspectQuery,
    InspectRequestQuery,
    InspectSearchQuery,
    InspectSessionsQuery,
    InspectShownQuery,
    InspectTextQuery,
    InspectTimelineQuery,
    InspectWhatIfQuery,
)
from foveal.apps.inspector.inspector_streams import Replays, session_stream, sessions_stream
from foveal.apps.inspector.open_logs import OpenLog, OpenLogs, inspected_settings
from foveal.core.log.events import Event, handle
from foveal.errors import UnknownHandle
from foveal.inspection.message_text import shown_text, whole_text
from foveal.inspection.request_diff import request_diff
from foveal.inspection.sent_request import sent_request
from foveal.inspection.session_source import SessionAction, SessionReader, SessionSource
from foveal.inspection.text_search import search_log
from foveal.web.event_stream import encode_struct, event_stream_response
from foveal.web.http_errors import HttpError
from foveal.web.request_structs import JSON_TYPE, read_body, read_query

MIN_GZIP_BYTES: Final = 100_000
GZIP_LEVEL: Final = 1
"""The fastest: pages wait for a timeline, mostly on the same machine."""


class InspectCall(NamedTuple):
    """A request of a caller that may see the sessions of `source`."""

    request: Request
    tenant: str
    source: SessionSource


class InspectorApi:
    """The handlers, and what they share: open logs, replays, and whether the server stops."""

    def __init__(self) -> None:
        self.stopping: asyncio.Event = asyncio.Event()
        """Set when streams must end."""
        self._logs = OpenLogs()
        self._replays = Replays()

    # ── Sessions ─────────────────────────────────────────────────────────────────────────────────────

    async def sessions(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectSessionsQuery)
        page = await call.source.rows(after=query.after, limit=query.limit, query=query.q)
        return _json({"sessions": page.rows, "next": page.next})

    async def timeline(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectTimelineQuery)
        log = await self._log(call, query)
        accepts_gzip = "gzip" in call.request.headers.get("accept-encoding", "")
        return await log.encoded_timeline(query.first, lambda made: _json(made, accepts_gzip=accepts_gzip))

    async def act(self, call: InspectCall) -> Response:
        reader = await self._reader(call, read_query(call.request, InspectQuery))
        return _json(await reader.act(await read_body(call.request, SessionAction)))

    async def export(self, call: InspectCall) -> Response:
        from foveal.apps.inspector.html_export import export_html  # loads the patterns of secrets

        log = await self._log(call, read_query(call.request, InspectQuery))
        page = await asyncio.to_thread(export_html, log.reader.about, await log.events())
        name = "".join(letter for letter in log.reader.about.id if letter.isascii() and letter.isalnum())
        headers = {"Content-Disposition": f'attachment; filename="foveal-{name[:40] or "session"}.html"'}
        # As a download it is never shown with the cookie of this server.
        return Response(page, headers=headers, media_type="text/html")

    # ── Messages and requests ────────────────────────────────────────────────────────────────────────

    async def text(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectTextQuery)
        found = await (await self._reader(call, query)).pick([query.event])
        if not found:
            raise UnknownHandle(f"no event has the handle {handle(query.event)!r}")
        return _json(await asyncio.to_thread(whole_text, found[0], start=query.start, max_chars=query.chars))

    async def shown(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectShownQuery)

        def show(events: list[Event]) -> Any:
            return shown_text(events, query.key, at=query.at, start=query.start, max_chars=query.chars)

        return await self._answer(call, query, show)

    async def request(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectRequestQuery)
        return await self._answer(
            call, query, lambda events: sent_request(events, at=query.at, dialect=query.dialect)
        )

    async def diff(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectDiffQuery)
        return await self._answer(
            call, query, lambda events: request_diff(events, a=query.a, b=query.b, dialect=query.dialect)
        )

    async def search(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectSearchQuery)
        return await self._answer(call, query, lambda events: search_log(events, query.q))

    # ── Streams ──────────────────────────────────────────────────────────────────────────────────────

    async def what_if(self, call: InspectCall) -> Response:
        from foveal.inspection.what_if import WhatIf, WhatIfChoice, what_if  # the replay lab is large

        query = read_query(call.request, InspectWhatIfQuery)
        choice = WhatIfChoice(query.policy, int(query.window) if query.window else None, query.model)
        log = await self._log(call, query)
        events, settings = await log.events(), inspected_settings(log.reader.about)

        def replay(report: Callable[[int, int], None], should_stop: Callable[[], bool]) -> WhatIf:
            return what_if(events, settings, choice, progress=report, should_stop=should_stop)

        return event_stream_response(self._replays.stream(replay, stopping=self.stopping))

    async def live(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectLiveQuery)
        last = call.request.headers.get("last-event-id", "")
        if not query.id:
            stream = sessions_stream(call.source, cursor=last, stopping=self.stopping)
            return event_stream_response(stream)
        log = await self._log(call, query)
        after = _event_id(last) if last else query.after
        return event_stream_response(session_stream(log, after=after, stopping=self.stopping))

    # ── Common ───────────────────────────────────────────────────────────────────────────────────────

    async def _reader(self, call: InspectCall, query: InspectQuery | InspectLiveQuery) -> SessionReader:
        return await call.source.open(query.id)

    async def _log(self, call: InspectCall, query: InspectQuery | InspectLiveQuery) -> OpenLog:
        return self._logs.of(call.tenant, await self._reader(call, query))

    async def _answer(
        self, call: InspectCall, query: InspectQuery, work: Callable[[list[Event]], msgspec.Struct]
    ) -> Response:
        """Return what a query over the whole log finds; it runs in a thread."""
        events = await (await self._log(call, query)).events()
        accepts_gzip = "gzip" in call.request.headers.get("accept-encoding", "")
        return await asyncio.to_thread(lambda: _json(work(events), accepts_gzip=accepts_gzip))


def _json(value: Any, *, accepts_gzip: bool = False) -> Response:
    body = encode_struct(value)
    if not accepts_gzip or len(body) < MIN_GZIP_BYTES:
        return Response(body, media_type=JSON_TYPE)
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(body, GZIP_LEVEL, mtime=0), headers=headers, media_type=JSON_TYPE)


def _event_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpError(400, "Last-Event-ID must be the id of an event of this stream", code="invalid_header")
    return int(text)
