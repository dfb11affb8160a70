"""The inspector's API: JSON and streams of one place with sessions."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.core.log.events import handle
from foveal.errors import UnknownHandle
from foveal.inspector.open_logs import (
    MIN_OUTLINE_EVENTS,
    LogSnapshot,
    OpenLog,
    OpenLogs,
    inspected_settings,
)
from foveal.inspector.pages import MAX_PAGE_PROBLEMS
from foveal.inspector.queries import (
    InspectDiffQuery,
    InspectLiveQuery,
    InspectLostQuery,
    InspectQuery,
    InspectRequestQuery,
    InspectRoomQuery,
    InspectSearchQuery,
    InspectSessionsQuery,
    InspectShownQuery,
    InspectStatementsQuery,
    InspectTextQuery,
    InspectTimelineQuery,
    InspectWhatIfQuery,
)
from foveal.inspector.sessions.source import SessionAction, SessionPage, SessionReader, SessionSource
from foveal.inspector.streams import (
    LOGIN_ENDED,
    Replays,
    StreamPosition,
    session_stream,
    sessions_stream,
)
from foveal.inspector.text_search import search_log
from foveal.inspector.timeline.message_text import TextWindow, shown_text, whole_text
from foveal.web.asgi_extensions import wait_for_client_end
from foveal.web.event_stream import encode_struct, event_stream_response
from foveal.web.http_errors import HttpError
from foveal.web.request_body import JSON_TYPE, read_body, read_query

if TYPE_CHECKING:
    from foveal.inspector.timeline.request_diff import RequestDiff
    from foveal.inspector.timeline.sent_request import InspectedRequest
    from foveal.inspector.timeline.timeline import Timeline

MIN_GZIP_BYTES: Final = 100_000
GZIP_LEVEL: Final = 1
"""The fastest: pages wait for a timeline, mostly on the same machine."""
LOG: Final = logging.getLogger("foveal.inspector")
_UNREAD_SESSIONS: Final = "some sessions cannot be read now; the server's log has the reason"
_RUNNING: Final = (
    "a summary of this session is being written: wait for it, or cancel it on the page that started it"
)
_CANCELLED: Final = "the summary was cancelled; nothing was recorded"
T = TypeVar("T")


class InspectCall(NamedTuple):
    """A request of a caller that may see the sessions of `source`."""

    request: Request
    tenant: str
    source: SessionSource
    shows_store_errors: bool
    """Whether errors of stores are shown in full: they have paths of this machine."""

    async def rows(self, *, after: str = "", limit: int, query: str = "") -> SessionPage:
        """Return a page of sessions, with the problems as far as the caller may see them."""
        page = await self.source.rows(after=after, limit=limit, query=query)
        hides = bool(page.problems) and not self.shows_store_errors
        return page._replace(problems=(_UNREAD_SESSIONS,)) if hides else page

    def stream(self, events: AsyncGenerator[bytes, None]) -> Response:
        """Return a stream that ends when the login does."""
        return event_stream_response(
            events, may_read_on=self.request.state.may_read_on, last_event=LOGIN_ENDED
        )


class InspectorApi:
    """The handlers, and what they share: open logs, replays, and whether the server stops."""

    def __init__(self) -> None:
        self.stopping: asyncio.Event = asyncio.Event()
        """Set when streams must end."""
        self._logs = OpenLogs()
        self._replays = Replays()
        self._compactions = RunningCompactions()
        self._expected: set[asyncio.Future[Timeline]] = set()

    def expect_outline(self, tenant: str, reader: SessionReader, events: int) -> None:
        """Begin to read a long log: its page asks for the outline as soon as its script runs."""
        if events < MIN_OUTLINE_EVENTS:
            return
        work = asyncio.ensure_future(self._logs.of(tenant, reader).outline())
        self._expected.add(work)  # the event loop keeps weak references only
        work.add_done_callback(self._forget)

    def _forget(self, work: asyncio.Future[Timeline]) -> None:
        self._expected.discard(work)
        if not work.cancelled() and (problem := work.exception()) is not None:
            LOG.info(
                "the outline of a session was not made: %s", problem
            )  # the page gets it with its own request

    # ── Sessions ─────────────────────────────────────────────────────────────────────────────────────

    async def sessions(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectSessionsQuery)
        page = await call.rows(after=query.after, limit=query.limit, query=query.q)
        return _json(
            {
                "sessions": page.rows,
                "next": page.next,
                "searching": page.searching,
                "problems": page.problems[:MAX_PAGE_PROBLEMS],
            }
        )

    async def timeline(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectTimelineQuery)
        log = await self._log(call, query)
        accepts_gzip = "gzip" in call.request.headers.get("accept-encoding", "")
        made = await log.outline() if query.outline else await log.timeline(query.first)
        return await asyncio.to_thread(_json, made, accepts_gzip=accepts_gzip)

    async def act(self, call: InspectCall) -> Response:
        reader = await self._reader(call, read_query(call.request, InspectQuery))
        action = await read_body(call.request, SessionAction)
        if action.operation != "compact":
            return _json(await reader.act(action))
        session = call.tenant, reader.about.key
        return _json(
            await self._compactions.run(
                session, reader.act(action), request=call.request, stopping=self.stopping
            )
        )

    async def writers(self, call: InspectCall) -> Response:
        reader = await self._reader(call, read_query(call.request, InspectQuery))
        return _json({"writers": await reader.writers()})

    async def export(self, call: InspectCall) -> Response:
        from foveal.inspector.html_export import export_html  # loads the patterns of secrets

        log = await self._log(call, read_query(call.request, InspectQuery))
        events, timeline = await log.events(), await log.timeline()
        page = await asyncio.to_thread(export_html, log.reader.about, events, timeline=timeline)
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
        return _json(await asyncio.to_thread(whole_text, found[0], TextWindow(query.start, query.chars)))

    async def shown(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectShownQuery)

        def show(log: LogSnapshot) -> Any:
            with log.views.at(log.events, query.at) as view:
                window = TextWindow(query.start, query.chars)
                return shown_text(log.events, query.key, at=query.at, view=view, window=window)

        return await self._answer(call, query, show)

    async def request(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectRequestQuery)

        def describe(log: LogSnapshot) -> InspectedRequest:
            from foveal.inspector.timeline.sent_request import sent_request  # loads the providers

            return sent_request(log.events, at=query.at, dialect=query.dialect, views=log.views)

        return await self._answer(call, query, describe)

    async def diff(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectDiffQuery)

        def compare(log: LogSnapshot) -> RequestDiff:
            from foveal.inspector.timeline.request_diff import (
                request_diff,  # loads the providers and the replay lab
            )

            return request_diff(log.events, a=query.a, b=query.b, dialect=query.dialect, views=log.views)

        return await self._answer(call, query, compare)

    async def search(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectSearchQuery)
        return await self._answer(call, query, lambda log: search_log(log.events, query.q))

    async def lost(self, call: InspectCall) -> Response:
        from foveal.inspector.timeline.lost_details import LostDetails, lost_details  # loads the ledger

        query = read_query(call.request, InspectLostQuery)

        def find(log: LogSnapshot) -> LostDetails:
            return lost_details(log.events, query.event, views=log.views)

        return await self._answer(call, query, find)

    async def room(self, call: InspectCall) -> Response:
        from foveal.inspector.expansion_room import ExpansionRoom, expansion_room  # loads the engine

        query = read_query(call.request, InspectRoomQuery)
        settings = inspected_settings((await self._reader(call, query)).about)

        def find(log: LogSnapshot) -> ExpansionRoom:
            return expansion_room(log.events, query.event, pins=query.pins, settings=settings)

        return await self._answer(call, query, find)

    async def statements(self, call: InspectCall) -> Response:
        from foveal.inspector.timeline.shown_statements import (  # loads the ledger
            ShownStatements,
            shown_statements,
        )

        query = read_query(call.request, InspectStatementsQuery)

        def find(log: LogSnapshot) -> ShownStatements:
            return shown_statements(log.events, at=query.at, views=log.views)

        return await self._answer(call, query, find)

    # ── Streams ──────────────────────────────────────────────────────────────────────────────────────

    async def what_if(self, call: InspectCall) -> Response:
        from foveal.inspector.what_if import WhatIf, WhatIfChoice, what_if  # the replay lab is large

        query = read_query(call.request, InspectWhatIfQuery)
        choice = WhatIfChoice(query.policy, int(query.window) if query.window else None, query.model)
        log = await self._log(call, query)
        events, settings = await log.events(), inspected_settings(log.reader.about)

        def replay(report: Callable[[int, int], None], should_stop: Callable[[], bool]) -> WhatIf:
            return what_if(events, settings, choice, progress=report, should_stop=should_stop)

        return call.stream(self._replays.stream(replay, stopping=self.stopping))

    async def live(self, call: InspectCall) -> Response:
        query = read_query(call.request, InspectLiveQuery)
        last = call.request.headers.get("last-event-id", "")
        if not query.id:
            return call.stream(sessions_stream(call.source, cursor=last, stopping=self.stopping))
        log = await self._log(call, query)
        after = _event_id(last) if last else StreamPosition(query.after, query.generation)
        return call.stream(session_stream(log, after=after, stopping=self.stopping))

    # ── Common ───────────────────────────────────────────────────────────────────────────────────────

    async def _reader(self, call: InspectCall, query: InspectQuery | InspectLiveQuery) -> SessionReader:
        return await call.source.open(query.id)

    async def _log(self, call: InspectCall, query: InspectQuery | InspectLiveQuery) -> OpenLog:
        return self._logs.of(call.tenant, await self._reader(call, query))

    async def _answer(
        self, call: InspectCall, query: InspectQuery, work: Callable[[LogSnapshot], msgspec.Struct]
    ) -> Response:
        """Return what a query over the whole log finds; it runs in a thread."""
        log = await (await self._log(call, query)).snapshot()
        accepts_gzip = "gzip" in call.request.headers.get("accept-encoding", "")
        return await asyncio.to_thread(lambda: _json(work(log), accepts_gzip=accepts_gzip))


def _json(value: Any, *, accepts_gzip: bool = False) -> Response:
    body = encode_struct(value)
    if not accepts_gzip or len(body) < MIN_GZIP_BYTES:
        return Response(body, media_type=JSON_TYPE)
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(body, GZIP_LEVEL, mtime=0), headers=headers, media_type=JSON_TYPE)


def _event_id(text: str) -> StreamPosition:
    position = StreamPosition.parse(text)
    if position is None:
        raise HttpError(400, "Last-Event-ID must be the id of an event of this stream", code="invalid_header")
    return position


# ── Compactions that pages start ─────────────────────────────────────────────────────────────────────────


class RunningCompactions:
    """The compactions that pages have started: one at a time for a session, and none without its page.

    A model can write for minutes. When the client of the request disconnects, or the server stops, the compaction
    is cancelled: nothing is recorded, and its provider is closed."""

    def __init__(self) -> None:
        self._sessions: set[tuple[str, str]] = set()

    async def run(
        self,
        session: tuple[str, str],
        work: Coroutine[Any, Any, T],
        *,
        request: Request,
        stopping: asyncio.Event,
    ) -> T:
        """Return what `work` returns; raises `HttpError` if one is running, or if it was cancelled."""
        if session in self._sessions:
            work.close()
            raise HttpError(409, _RUNNING, code="compaction_running")
        self._sessions.add(session)
        try:
            return await _while_connected(work, request, stopping)
        finally:
            self._sessions.discard(session)


async def _while_connected(work: Coroutine[Any, Any, T], request: Request, stopping: asyncio.Event) -> T:
    task = asyncio.ensure_future(work)
    ends = [asyncio.ensure_future(wait_for_client_end(request)), asyncio.ensure_future(stopping.wait())]
    try:
        await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, *ends):
            each.cancel()  # does nothing to one that is done
        await asyncio.wait({task, *ends})  # the provider is closed then
    if task.cancelled():
        raise HttpError(409, _CANCELLED, code="cancelled")
    return task.result()
