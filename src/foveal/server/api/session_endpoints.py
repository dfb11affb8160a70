"""Endpoints of sessions: create, list, read, export, and change without the model."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from foveal import transcripts
from foveal.core import wire
from foveal.core.engine.operations import OperationRequest
from foveal.core.log.events import AnyFact, Compacted, DialectName, ModelSaid, UserSaid, kind, parse_handle
from foveal.errors import ProviderError, UnknownHandle
from foveal.ports import SessionInfo
from foveal.providers import LOCAL_SERVICE, selection
from foveal.providers.local import download
from foveal.providers.selection import FACTORY_VARIABLE
from foveal.server import LiveSession
from foveal.server.api import schemas
from foveal.server.api.operation import ApiCall
from foveal.server.api.schemas import (
    ApiSessions,
    CompactBody,
    DropBody,
    EmptyBody,
    EventsQuery,
    ExportQuery,
    ForkBody,
    ListQuery,
    MarkBody,
    NewMessages,
    NewSession,
    NewTitle,
    PinBody,
    SearchQuery,
    SupersedeBody,
    UndoBody,
)
from foveal.server.chat_records import find_place
from foveal.server.inbox import SessionSetup
from foveal.server.runtime import Runtime
from foveal.sessions.log_reader import fold_view, read_slices
from foveal.web.http_errors import HttpError
from foveal.web.request_body import JSON_TYPE, json_response

# ── Models that a client may choose ──────────────────────────────────────────────────────────────────────
# Never an address, and never a path of this machine.


def check_model(name: str, runtime: Runtime) -> None:
    """Raise `HttpError` unless clients may choose this model; "" is the server's own."""
    allowed: list[str] = runtime.config.get("server.models")
    if not name or any(fnmatchcase(name, pattern) for pattern in allowed):
        return
    if allowed or not _is_offered(name, runtime):
        detail = f"{name!r} is not among the models of this server; {offered_models_text(runtime)}"
        raise HttpError(422, detail, code="model_not_allowed")


def offered_models_text(runtime: Runtime) -> str:
    """Return which models a client may choose, in words."""
    allowed: list[str] = runtime.config.get("server.models")
    local = [f"{LOCAL_SERVICE}/{known}" for known in download.KNOWN_WEIGHTS]
    named = (
        allowed
        or [f"{service}/MODEL" for service in selection.SERVICES if _is_configured(service, runtime)] + local
    )
    return f"it has {', '.join(named)}, and its own when `model` is not given"


def _is_offered(name: str, runtime: Runtime) -> bool:
    """Return whether the service of a model is configured on this server.

    Otherwise a client could make the server send requests to any service that listens on this machine.
    """
    if FACTORY_VARIABLE in runtime.environment and name.partition("/")[0].lower() not in (
        *selection.SERVICES,
        LOCAL_SERVICE,
    ):
        return True  # only the provider factory knows the name
    try:
        service, model = selection.split_model_name(name, _environment(runtime))
    except ProviderError:
        return False
    return model in download.KNOWN_WEIGHTS if service == LOCAL_SERVICE else _is_configured(service, runtime)


def _is_configured(service: str, runtime: Runtime) -> bool:
    """Return whether a service is configured: by a key, by an address, or as that of the server's own model."""
    try:
        own, _ = selection.split_model_name(runtime.config.model or None, _environment(runtime))
    except ProviderError:
        own = ""
    return service == own or selection.is_configured(service, _environment(runtime))


def _environment(runtime: Runtime) -> Mapping[str, str]:
    """Return the environment as providers see it: the setting `base_url` counts as OPENAI_BASE_URL."""
    address = runtime.config.get("base_url")
    return {**runtime.environment, "OPENAI_BASE_URL": address} if address else runtime.environment


# ── Create, rename, fork, delete ─────────────────────────────────────────────────────────────────────────


async def create_session(call: ApiCall[NewSession, EmptyBody]) -> Response:
    given = call.body
    user = given.user or call.bound_user
    call.access.check_user(user)
    if given.id:
        call.audit_as(f"session:{given.id}")
    if given.continue_from:
        await call.access.check_session(given.continue_from)
    check_model(given.model, call.service.runtime)
    if user and find_place(call.tenant.name, given.id or "") is not None:
        detail = "this is the id of a bot's chat, whose users are those who write there: leave out `user`"
        raise HttpError(422, detail, code="other_user")
    try:
        session = await call.tenant.create(
            given.id or "",
            SessionSetup(given.model, given.agent, user),
            title=given.title,
            system=given.system,
            continue_from=given.continue_from or "",
            carry=given.carry,
        )
    except ProviderError as problem:  # no request was made yet: the name is wrong, or a key is missing
        if not given.model:
            raise
        offered = offered_models_text(call.service.runtime)
        detail = f"{given.model!r} cannot be used here ({problem.code}); {offered}"
        raise HttpError(422, detail, code="model_not_available") from None
    return await _session_response(session, status=201)


async def get_session(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return await _session_response(await call.session())


async def rename_session(call: ApiCall[NewTitle, EmptyBody]) -> Response:
    session = await call.session()
    await session.rename(call.body.title)
    return await _session_response(session)


async def fork_session(call: ApiCall[ForkBody, EmptyBody]) -> Response:
    at = None if call.body.at is None else parse_handle(call.body.at)
    new = await call.tenant.fork(call.path_params["session"], call.body.id or "", at=at)
    call.audit_as(f"session:{call.path_params['session']} forked, session:{new.id}")
    return await _session_response(new, status=201)


async def delete_session(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    await call.tenant.delete(call.path_params["session"])
    return Response(status_code=204)


async def _session_response(session: LiveSession, *, status: int = 200) -> Response:
    location = {"Location": f"/api/sessions/{quote(session.id, safe='')}"} if status == 201 else None
    info = await session.info()
    opened = schemas.opened_session_to_api(
        info, agent=session.agent_name, model=session.model, user=session.user
    )
    return json_response(opened, status=status, headers=location)


# ── List ─────────────────────────────────────────────────────────────────────────────────────────────────


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last session of a page.

    Sessions that become active later sort before it, so no session occurs on two pages.
    """

    active: float
    id: str


async def list_sessions(call: ApiCall[EmptyBody, ListQuery]) -> Response:
    last = _decode_cursor(call.query.after) if call.query.after else None
    before = None if last is None else (last.active, last.id)
    found = await call.access.sessions(limit=call.query.limit + 1, before=before)
    page, more = found[: call.query.limit], len(found) > call.query.limit
    agents = await call.tenant.agents([info.id for info in page])
    return json_response(
        ApiSessions(
            sessions=[schemas.session_to_api(info, agents.get(info.id, "")) for info in page],
            next=_encode_cursor(page[-1]) if more else None,
        )
    )


def _encode_cursor(info: SessionInfo) -> str:
    return urlsafe_b64encode(msgspec.json.encode(Cursor(info.active, info.id))).decode()


def _decode_cursor(text: str) -> Cursor:
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode("ascii")), type=Cursor)
    except ValueError:
        raise HttpError(
            422, "`after` must be the `next` of the previous page", code="invalid_cursor"
        ) from None


# ── Read ─────────────────────────────────────────────────────────────────────────────────────────────────

NDJSON_TYPE: Final = "application/x-ndjson"
EXPORT_PART_BYTES: Final = 64 * 1024
EVENTS_PER_READ: Final = 4
"""Events per read of the store: few, because one event may be as large as a request body."""
MAX_PAGE_BYTES: Final = 4_000_000
"""A page of events ends when it is larger than this."""


async def get_context(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return json_response(await (await call.session()).report(with_statements=True))


async def get_usage(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return json_response(schemas.usage_to_api(await (await call.session()).usage()))


async def list_events(call: ApiCall[EmptyBody, EventsQuery]) -> Response:
    session, query = await call.session(), call.query
    stored = (await session.end()).next_seq
    end = stored if query.last is UNSET else min(stored, query.last + 1)
    page: list[schemas.ApiEvent] = []
    size, first = 0, query.first
    while first < end and len(page) < query.limit and size < MAX_PAGE_BYTES:
        count = min(EVENTS_PER_READ, query.limit - len(page), end - first)
        read = await session.events(first=first, last=first + count - 1)
        if not read:
            break
        for event in map(schemas.event_to_api, read):
            if size >= MAX_PAGE_BYTES:
                break
            page.append(event)
            size += len(bytes(event.fact))
            first = event.seq + 1
    return json_response(schemas.ApiEvents(events=page, next=first if page and first < end else None))


async def get_event(call: ApiCall[EmptyBody, EmptyBody]) -> Response:
    session, name = await call.session(), call.path_params["handle"]
    seq = parse_handle(name)
    found = await session.events(first=seq, last=seq) if seq is not None else []
    if not found:
        raise HttpError(404, f"there is no event {name!r} in this session", code="unknown_handle")
    return json_response(
        schemas.ApiWholeEvent(
            event=schemas.event_to_api(found[0]),
            original=await session.session.original(found[0].seq),
            shown=await session.session.why(found[0].seq),
        )
    )


async def search_session(call: ApiCall[EmptyBody, SearchQuery]) -> Response:
    session = await call.session()
    found = await session.search(call.query.q, limit=call.query.limit)
    among = await session.session.pick([hit.seq for hit in found])
    return json_response(schemas.hits_to_api(found, among, call.query.q))


# ── Export ───────────────────────────────────────────────────────────────────────────────────────────────


async def export_session(call: ApiCall[EmptyBody, ExportQuery]) -> Response:
    session = await call.session()
    info = await session.info()
    if call.query.to == "foveal":
        lines = _export_lines(session, info.title, info.events)
        return StreamingResponse(_in_parts(lines), media_type=NDJSON_TYPE)
    messages = _export_messages(session, call.query.to, info.events)
    return StreamingResponse(_in_parts(messages), media_type=JSON_TYPE)


async def _in_parts(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces in parts of `EXPORT_PART_BYTES` or a little more, and let other requests be served after
    each: a client that reads fast never makes the export wait."""
    part = bytearray()
    async for piece in pieces:
        part += piece
        if len(part) >= EXPORT_PART_BYTES:
            yield bytes(part)
            part.clear()
            await asyncio.sleep(0)
    yield bytes(part)


async def _export_lines(session: LiveSession, title: str, end: int) -> AsyncGenerator[bytes, None]:
    """Yield the first `end` events in Foveal's own format; events stored during the export are not in it."""
    yield b"".join(transcripts.write_events([], session.id, title))
    async for events in read_slices(session.session.store, session.id, end=end):
        for line in islice(transcripts.write_events(events, session.id), 1, None):
            yield line


async def _export_messages(
    session: LiveSession, dialect: DialectName, end: int
) -> AsyncGenerator[bytes, None]:
    """Yield what the view of the first `end` events shows, as a JSON list."""
    view = await fold_view(session.session.store, session.id, end=end)
    messages = await asyncio.to_thread(transcripts.write_view, view, dialect)
    for number, message in enumerate(messages):
        yield (", " if number else "[").encode() + json.dumps(message).encode()
    yield b"]" if messages else b"[]"


# ── Append, compact, undo, drop, pin, supersede ───────────────────────────────────────────────────────────


async def append_messages(call: ApiCall[NewMessages, EmptyBody]) -> Response:
    given = call.body
    if (given.text is UNSET) == (given.messages is UNSET):
        raise HttpError(400, "send either `text` or `messages`", code="invalid_body")
    facts: list[AnyFact] = []
    if given.text is not UNSET:
        facts.append(UserSaid(content=given.text))
    else:
        messages = given.messages or []  # is set, because `text` is not
        max_messages: int = call.service.runtime.config.get("server.max_messages")
        if len(messages) > max_messages:
            detail = f"{len(messages):,} messages in one request; {max_messages:,} are allowed"
            raise HttpError(413, detail, code="too_many")
        reader = wire.wire_for(given.dialect or wire.detect_dialect(messages))
        facts += (_as_imported(fact) for chunk in reader.read(messages) for fact in chunk.facts)
    stored = await (await call.session()).append(*facts)
    return json_response(schemas.StoredHandles(handles=[event.handle for event in stored]), status=201)


def _as_imported(fact: AnyFact) -> AnyFact:
    """Return a message that a client stores; its answers are no calls of this server."""
    return replace(fact, imported=True) if isinstance(fact, ModelSaid) else fact


async def compact_session(call: ApiCall[CompactBody, EmptyBody]) -> Response:
    session = await call.session()
    if call.body.background and call.body.agreed:
        raise HttpError(422, "send either `agreed` or `background`", code="invalid_body")
    if call.body.background:
        newest = (await session.end()).next_seq - 1
        await call.require_worker().request_summary(call.tenant.name, session.id, newest)
        return json_response(schemas.ApiAccepted(session=session.id, key=""), status=202)
    done = await session.compact(call.body.focus, agreed=call.body.agreed)
    fact = done.event.fact
    by, summary = (fact.by, fact.summary) if isinstance(fact, Compacted) else ("", "")
    return json_response(
        schemas.ApiCompaction(
            handle=done.event.handle,
            before=done.before.used,
            after=done.after.used,
            by=by,
            summary=summary,
        )
    )


async def undo_reduction(call: ApiCall[UndoBody, EmptyBody]) -> Response:
    session, asked = await call.session(), OperationRequest(operation="undo", event=call.body.handle or "")
    try:
        done = await session.perform(asked)
        event = await session.session.event(done.named)
    except UnknownHandle as problem:
        if call.body.handle is None:
            raise HttpError(409, str(problem), code="nothing_to_undo") from None
        raise
    undone = schemas.ApiUndone(handle=event.handle, kind=kind(event.fact), warning=done.warning)
    return json_response(undone)


async def drop_event(call: ApiCall[DropBody, EmptyBody]) -> Response:
    asked = OperationRequest(operation="drop", event=call.body.handle)
    return json_response(schemas.ApiDropped(handle=await _recorded(call, asked)))


async def pin_rule(call: ApiCall[PinBody, EmptyBody]) -> Response:
    asked = OperationRequest(operation="pin", text=call.body.text)
    return json_response(schemas.ApiPin(handle=await _recorded(call, asked)), status=201)


async def supersede_message(call: ApiCall[SupersedeBody, EmptyBody]) -> Response:
    asked = OperationRequest(operation="supersede", event=call.body.handle, by=call.body.by)
    return json_response(schemas.ApiSuperseded(handle=await _recorded(call, asked)))


async def mark_message(call: ApiCall[MarkBody, EmptyBody]) -> Response:
    asked = OperationRequest(operation="mark", event=call.body.handle, priority=call.body.priority)
    return json_response(schemas.ApiMarked(handle=await _recorded(call, asked)))


async def _recorded(call: ApiCall[Any, EmptyBody], asked: OperationRequest) -> str:
    return (await (await call.session()).perform(asked)).recorded
