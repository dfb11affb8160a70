"""The inspector's API: JSON and streams of one place with sessions, and the query strings as structs."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.core.engine.engine import Engine
from foveal.core.engine.operations import room_for_expansion
from foveal.core.engine.settings import SettingArguments, recorded_reserve, recorded_window, resolve_settings
from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Clipped,
    Compacted,
    Content,
    Dropped,
    Event,
    Instructed,
    Masked,
    Media,
    ModelSaid,
    Opaque,
    Opened,
    Pinned,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    handle,
    parts,
)
from foveal.core.view.steps import ShownMessage
from foveal.core.view.text_facts import string_values
from foveal.errors import BadSetting, FovealError, UnknownHandle
from foveal.inspector.open_logs import (
    MIN_OUTLINE_EVENTS,
    LogSnapshot,
    OpenLog,
    OpenLogs,
    inspected_settings,
)
from foveal.inspector.pages import MAX_PAGE_PROBLEMS
from foveal.inspector.sessions.source import SessionAction, SessionPage, SessionReader, SessionSource
from foveal.inspector.streams import (
    LOGIN_ENDED,
    Replays,
    StreamPosition,
    session_stream,
    sessions_stream,
)
from foveal.inspector.timeline.event_sentences import event_sentence, ranges_text
from foveal.inspector.timeline.message_text import TextWindow, shown_text, whole_text
from foveal.web.asgi_extensions import wait_for_client_end
from foveal.web.event_stream import encode_struct, event_stream_response
from foveal.web.http_errors import HttpError
from foveal.web.request_body import JSON_TYPE, read_body, read_query

if TYPE_CHECKING:
    from foveal.inspector.step_surprises import StepSurprises
    from foveal.inspector.timeline.builder import InspectedSettings
    from foveal.inspector.timeline.request_diff import RequestDiff
    from foveal.inspector.timeline.sent_request import InspectedRequest
    from foveal.inspector.timeline.timeline import Timeline
    from foveal.policies import PolicyTables

# ── Search for a text ────────────────────────────────────────────────────────────────────────────────────
# 1. A hit names a message and a version of it: -1 for the whole text as it was said, else the event that made the
#    version (a placeholder or a clip). When each version was visible is in the changes of the timeline.
# 2. The search is linear in the log and reads each event once, so the log may come in parts. Upper and lower case
#    are the same. Of the messages only those with the text are kept, because a clip can only show what they have.
# 3. Notices of dropped messages are not searched: they name ranges of events and quote nothing.

MIN_QUERY_CHARS: Final = 2
MAX_QUERY_CHARS: Final = 1_000
MAX_TEXT_HITS: Final = 500
"""Hits that are returned at most, the newest."""


class TextHits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The versions of messages that contain a text."""

    q: str
    hits: tuple[tuple[str, int], ...] = ()
    """The key of a message and the event that made the version, -1 for the whole text; newest first."""
    truncated: bool = False
    """Whether there are older hits."""


def search_log(events: Iterable[Event], q: str) -> TextHits:
    """Return where a text occurs; raises `BadSetting` for one that is too short or too long."""
    if not MIN_QUERY_CHARS <= len(q) <= MAX_QUERY_CHARS:
        raise BadSetting("q", q[:40], f"a text of {MIN_QUERY_CHARS} to {MAX_QUERY_CHARS:,} characters")
    newest: deque[tuple[str, int]] = deque(maxlen=MAX_TEXT_HITS + 1)
    newest.extend(_hits(events, q.lower()))
    found = list(reversed(newest))
    return TextHits(q=q, hits=tuple(found[:MAX_TEXT_HITS]), truncated=len(found) > MAX_TEXT_HITS)


def _hits(events: Iterable[Event], wanted: str) -> Iterator[tuple[str, int]]:
    containing: dict[int, ShownMessage] = {}
    for event in events:
        fact = event.fact
        match fact:
            case UserSaid() | ModelSaid() | ToolReturned() | Instructed():
                if any(wanted in text.lower() for text in _content_texts(fact.content)):
                    containing[event.seq] = ShownMessage(event.seq, fact)
                    yield event.handle, -1
            case Clipped():
                if _clip_contains(fact, containing.get(fact.target), wanted):
                    yield handle(fact.target), event.seq
            case _:
                if isinstance(fact, Masked | Compacted):
                    shown = (mask.target for mask in fact.masks if wanted in mask.text.lower())
                    yield from ((handle(target), event.seq) for target in dict.fromkeys(shown))
                if wanted in _other_text(fact).lower():
                    yield event.handle, -1


def _other_text(fact: AnyFact) -> str:
    match fact:
        case Compacted():
            return fact.summary
        case Pinned():
            return fact.text
        case _:
            return ""


def _clip_contains(fact: Clipped, message: ShownMessage | None, wanted: str) -> bool:
    if message is not None:
        return wanted in message.clipped_text(fact).lower()
    return any(wanted in piece.lower() for piece in fact.pieces if isinstance(piece, str))


def _content_texts(content: Content) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in parts(content):
        yield from _part_texts(part)


def _part_texts(part: AnyPart) -> Iterator[str]:
    match part:
        case Text() | Thinking():
            yield part.text
        case Call():
            yield part.name
            yield part.arguments
            if "\\" in part.arguments:  # the arguments are JSON: line breaks and other characters are escaped
                yield from string_values(part.arguments)
        case Opaque():
            yield bytes(part.native).decode("utf-8", "replace")
        case Media():
            pass


# ── The API ──────────────────────────────────────────────────────────────────────────────────────────────

MIN_GZIP_BYTES: Final = 100_000
MAX_NAMED_MESSAGES: Final = 6
"""Hidden messages that a sentence names; more are counted."""
GZIP_LEVEL: Final = 1
"""The fastest: pages wait for a timeline, mostly on the same machine."""
LOG: Final = logging.getLogger("foveal.inspector")
_UNREAD_SESSIONS: Final = "some sessions cannot be read now; the server's log has the reason"
_RUNNING: Final = (
    "a summary of this session is being written: wait for it, or cancel it on the page that started it"
)
_CANCELLED: Final = "the summary was cancelled; nothing was recorded"
T = TypeVar("T")


MAX_KEY_CHARS: Final = 8_192
"""Longest key of a session: it may contain the path of a file."""
MAX_PARAMETER_CHARS: Final = 1_000
MAX_TEXT_CHARS: Final = 1_000_000
"""Characters of a message that one response has."""
DEFAULT_TEXT_CHARS: Final = 200_000
MAX_SESSION_ROWS: Final = 200

_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]
_Seq = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Words = Annotated[str, msgspec.Meta(max_length=MAX_PARAMETER_CHARS)]
_Chars = Annotated[int, msgspec.Meta(ge=1, le=MAX_TEXT_CHARS)]


class InspectQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session that a request is about."""

    id: _Key


class InspectSessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_SESSION_ROWS)] = 50
    q: _Words = ""


class InspectTimelineQuery(InspectQuery, frozen=True, kw_only=True):
    first: _Seq = 0
    outline: bool = False
    """Whether an outline of all events will do; the answer may be the whole timeline."""


class InspectTextQuery(InspectQuery, frozen=True, kw_only=True):
    event: _Seq
    start: _Seq = msgspec.field(default=0, name="from")
    chars: _Chars = DEFAULT_TEXT_CHARS


class InspectShownQuery(InspectQuery, frozen=True, kw_only=True):
    key: Annotated[str, msgspec.Meta(max_length=MAX_PARAMETER_CHARS)]
    at: _Seq
    start: _Seq = msgspec.field(default=0, name="from")
    chars: _Chars = DEFAULT_TEXT_CHARS


class InspectRequestQuery(InspectQuery, frozen=True, kw_only=True):
    at: _Seq
    dialect: _Words = ""


class InspectDiffQuery(InspectQuery, frozen=True, kw_only=True):
    a: _Seq
    b: _Seq
    dialect: _Words = ""


class InspectLostQuery(InspectQuery, frozen=True, kw_only=True):
    event: _Seq
    """The compaction."""


class InspectRoomQuery(InspectQuery, frozen=True, kw_only=True):
    event: _Seq
    """The message or reduction that would be shown again."""
    pins: bool = False


class InspectStatementsQuery(InspectQuery, frozen=True, kw_only=True):
    at: _Seq


class InspectSearchQuery(InspectQuery, frozen=True, kw_only=True):
    q: _Words


class InspectWhatIfQuery(InspectQuery, frozen=True, kw_only=True):
    policy: _Words = ""
    window: Annotated[str, msgspec.Meta(pattern=r"^\d{0,20}$")] = ""
    """Tokens; "" for the recorded one. A window that no model has gets as far as the replay, which says why."""
    model: _Words = ""


class InspectLiveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)] = ""
    """"" for the list of sessions."""
    after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """The newest event that the page has."""
    generation: _Seq | None = None
    """`Timeline.generation` of what the page has."""


class InspectCall(NamedTuple):
    """A request of a caller that may see the sessions of `source`."""

    request: Request
    tenant: str
    source: SessionSource
    shows_store_errors: bool
    """Whether errors of stores are shown in full: they have paths of this machine."""

    async def open(self, key: str) -> SessionReader:
        """Return the reader of a session, which the request is about; raises `SessionMissing`."""
        reader = await self.source.open(key)
        self.request.state.objects = (f"session:{reader.about.id}",)
        return reader

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

    def __init__(self, policies: Callable[[], PolicyTables]) -> None:
        """`policies` returns the tables `[policies.NAME]` of the configuration."""
        self.stopping: asyncio.Event = asyncio.Event()
        """Set when streams must end."""
        self._policies = policies
        self._logs = OpenLogs()
        self._replays = Replays()
        self._surprises = Replays(waits=True)
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
        call.request.state.operation = action.operation
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
        from foveal.inspector.export_data import export_html  # loads the patterns of secrets

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
        query = read_query(call.request, InspectRoomQuery)
        settings = inspected_settings((await self._reader(call, query)).about)

        def find(log: LogSnapshot) -> ExpansionRoom:
            return expansion_room(log.events, query.event, pins=query.pins, settings=settings)

        return await self._answer(call, query, find)

    async def statements(self, call: InspectCall) -> Response:
        from foveal.inspector.timeline.sent_request import (  # loads the ledger
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
        policies = self._policies()

        def replay(report: Callable[[int, int], None], should_stop: Callable[[], bool]) -> WhatIf:
            return what_if(
                events, settings, choice, policies=policies, progress=report, should_stop=should_stop
            )

        return call.stream(self._replays.stream(replay, stopping=self.stopping))

    async def surprises(self, call: InspectCall) -> Response:
        log = await self._log(call, read_query(call.request, InspectQuery))
        events, generation = await log.events(), log.end.generation

        def measure(report: Callable[[int, int], None], should_stop: Callable[[], bool]) -> StepSurprises:
            # Loaded in the thread: the replay lab is large, and every first screen asks for this.
            from foveal.inspector.step_surprises import step_surprises

            known = log.surprises()
            found = known or step_surprises(events, progress=report, should_stop=should_stop)
            if generation == log.end.generation and not should_stop():
                log.keep_surprises(found)
            return found

        return call.stream(self._surprises.stream(measure, stopping=self.stopping))

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
        return await call.open(query.id)

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


# ── Room for a message that is shown again ─────────────────────────────────────────────────────────────


class ExpansionRoom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What makes room for a message that is shown again."""

    text: str
    """For people."""
    possible: bool = True
    """Whether the session would accept it."""


def expansion_room(
    log: Sequence[Event], seq: int, *, pins: bool, settings: InspectedSettings
) -> ExpansionRoom:
    """Return what makes room if event `seq` of a whole log is expanded, or pinned while it is hidden. Nothing is
    recorded: it is found out with a trial of the engine."""
    from foveal.inspector.sessions.actions import recorded_policy  # loads the sessions

    opened = next((event.fact for event in reversed(log) if isinstance(event.fact, Opened)), None)
    if opened is None or not (opened.model or settings.model):
        return ExpansionRoom(text="The log names no model, so its limit is not known.")
    given = SettingArguments(
        policy=recorded_policy(opened),
        window=settings.window or recorded_window(opened),
        reserve=recorded_reserve(opened) if settings.reserve is None else settings.reserve,
    )
    try:
        engine = Engine(resolve_settings(opened.model or settings.model, **given), log=log)
        reductions = room_for_expansion(engine, log, seq, pins=pins)
    except FovealError as problem:
        return ExpansionRoom(text=f"This is not possible now: {problem}", possible=False)
    if not reductions:
        return ExpansionRoom(text="There is room for it: no other message has to be hidden.")
    hidden = "; ".join(_hidden_text(event.fact) for event in reductions)
    return ExpansionRoom(text=f"To make room, the next request hides {hidden}.")


def _hidden_text(fact: AnyFact) -> str:
    """Return what a reduction would hide."""
    match fact:
        case Clipped():
            return f"a part of {handle(fact.target)}"
        case Dropped():
            return f"{ranges_text(fact.ranges)}, with a notice in their place"
        case Masked() | Compacted() if fact.masks:
            targets = list(dict.fromkeys(mask.target for mask in fact.masks))
            names = ", ".join(map(handle, targets[:MAX_NAMED_MESSAGES]))
            more = len(targets) - MAX_NAMED_MESSAGES
            what = f"{len(targets):,} {'message' if len(targets) == 1 else 'messages'}"
            return f"{what} ({names}{f' and {more:,} more' if more > 0 else ''})"
        case Compacted():
            return f"{ranges_text([(fact.first, fact.last)])}, with a summary in their place"
        case _:
            return event_sentence(fact)
