"""What can be seen of a session: its context, its use, its events, what is found in it, all of it."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from foveal import transcripts
from foveal.apps.http.api import schemas
from foveal.apps.http.api.operation import JSON, ApiCall, answer
from foveal.apps.http.api.schemas import (
    ApiSessions,
    CompactBody,
    EmptyBody,
    EventsQuery,
    ExportQuery,
    ForkBody,
    ListQuery,
    NewMessages,
    NewSession,
    NewTitle,
    PinBody,
    SearchQuery,
    UndoBody,
)
from foveal.apps.http.http_errors import HttpError
from foveal.core import wire
from foveal.core.log.events import AnyFact, Compacted, Dialect, UserSaid, kind, parse_handle
from foveal.errors import ProviderError, UnknownHandle
from foveal.ports import SessionInfo
from foveal.providers import selection
from foveal.providers.local import download
from foveal.providers.selection import FACTORY
from foveal.server import LiveSession
from foveal.server.runtime import Runtime

# ── models ────────────────────────────────────────────────────────────────────────────────────────
# Which models a client may choose. An address, or a path of this machine, is never a client's choice.


def check_model(name: str, ground: Runtime) -> None:
    """Raise `Refusal` unless clients may ask for this model; "" is the server's own."""
    allowed: list[str] = ground.config.get("server.models")
    if not name or any(fnmatchcase(name, pattern) for pattern in allowed):
        return
    if allowed or not _offered(name, ground):
        told = f"{name!r} is not among the models of this server; {offered(ground)}"
        raise HttpError(422, told, code="model_not_allowed")


def offered(ground: Runtime) -> str:
    """What a client may ask for, in a sentence."""
    allowed: list[str] = ground.config.get("server.models")
    local = [f"{selection.LOCAL}/{known}" for known in download.KNOWN]
    named = (
        allowed or [f"{service}/MODEL" for service in selection.SERVICES if _chosen(service, ground)] + local
    )
    return f"it has {', '.join(named)}, and its own when `model` is not given"


def _offered(name: str, ground: Runtime) -> bool:
    """Its service is one that whoever runs the server has chosen. Otherwise a client could have whatever listens on
    this machine asked."""
    if FACTORY in ground.environment and name.partition("/")[0].lower() not in (
        *selection.SERVICES,
        selection.LOCAL,
    ):
        return True  # names that only the factory knows
    try:
        service, model = selection.split(name, _variables(ground))
    except ProviderError:
        return False
    return model in download.KNOWN if service == selection.LOCAL else _chosen(service, ground)


def _chosen(service: str, ground: Runtime) -> bool:
    """By a key, by an address, or for the server's own model."""
    try:
        own, _ = selection.split(ground.config.model or None, _variables(ground))
    except ProviderError:
        own = ""
    return service == own or selection.chosen(service, _variables(ground))


def _variables(ground: Runtime) -> Mapping[str, str]:
    """The environment as providers see it: the configured address is as good as the variable."""
    address = ground.config.get("base_url")
    return {**ground.environment, "OPENAI_BASE_URL": address} if address else ground.environment


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────
# Sessions as a whole: begin one, list them, name one, branch it, erase it.


async def create(ask: ApiCall[NewSession, EmptyBody]) -> Response:
    given = ask.body
    check_model(given.model, ask.service.ground)
    try:
        room = await ask.tenant.create(
            given.id or "", model=given.model, title=given.title, system=given.system
        )
    except ProviderError as problem:  # nobody was asked yet: it is the name, or what the server lacks for it
        if not given.model:
            raise
        told = f"{given.model!r} cannot be used here ({problem.code}); {offered(ask.service.ground)}"
        raise HttpError(422, told, code="model_not_available") from None
    return await _described(room, status=201)


async def get(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return await _described(await ask.room())


async def rename(ask: ApiCall[NewTitle, EmptyBody]) -> Response:
    room = await ask.room()
    await room.rename(ask.body.title)
    return await _described(room)


async def fork(ask: ApiCall[ForkBody, EmptyBody]) -> Response:
    at = None if ask.body.at is None else parse_handle(ask.body.at)
    new = await ask.tenant.fork(ask.names["session"], ask.body.id or "", at=at)
    return await _described(new, status=201)


async def delete(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    await ask.tenant.delete(ask.names["session"])
    return Response(status_code=204)


async def _described(room: LiveSession, *, status: int = 200) -> Response:
    where = {"Location": f"/api/sessions/{quote(room.id, safe='')}"} if status == 201 else None
    return answer(schemas.opened(await room.info(), room.model), status=status, headers=where)


# ── the list ─────────────────────────────────────────────────────────────────────────────────────────────


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last session of a page. Sessions that become active later are in front of it, so that no page repeats
    what another has shown."""

    active: float
    id: str


async def list_(ask: ApiCall[EmptyBody, ListQuery]) -> Response:
    after = _cursor(ask.query.after) if ask.query.after else None
    found = sorted(await ask.tenant.sessions(), key=_order)
    if after is not None:
        found = [info for info in found if _order(info) > (-after.active, after.id)]
    page = found[: ask.query.limit]
    more = len(found) > len(page)
    return answer(
        ApiSessions(
            sessions=[schemas.session(info) for info in page], next=_written(page[-1]) if more else None
        )
    )


def _order(info: SessionInfo) -> tuple[float, str]:
    return -info.active, info.id


def _written(info: SessionInfo) -> str:
    return urlsafe_b64encode(msgspec.json.encode(Cursor(info.active, info.id))).decode()


def _cursor(text: str) -> Cursor:
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode("ascii")), type=Cursor)
    except ValueError:
        raise HttpError(422, "`after` must be the `next` of the page before", code="invalid_cursor") from None


# ── looking ───────────────────────────────────────────────────────────────────────────────────────

LINES: Final = "application/x-ndjson"
AT_ONCE: Final = 4
"""Events that are read in one go: few, as each may be as large as a request."""
PAGE_BYTES: Final = 4_000_000
"""A page of events ends when it is larger than this."""
DIALECTS: Final[dict[str, Dialect]] = {
    "openai": "openai_chat",
    "responses": "openai_responses",
    "anthropic": "anthropic",
}


async def context(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return answer(await (await ask.room()).report())


async def usage(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    return answer(schemas.usage(await (await ask.room()).usage()))


async def events(ask: ApiCall[EmptyBody, EventsQuery]) -> Response:
    room, query = await ask.room(), ask.query
    held = (await room.info()).events
    end = held if query.last is UNSET else min(held, query.last + 1)
    page: list[schemas.ApiEvent] = []
    size, first = 0, query.first
    while first < end and len(page) < query.limit and size < PAGE_BYTES:
        most = min(AT_ONCE, query.limit - len(page), end - first)
        read = await room.events(first=first, last=first + most - 1)
        if not read:
            break
        for event in map(schemas.event, read):
            if size >= PAGE_BYTES:
                break
            page.append(event)
            size += len(bytes(event.fact))
            first = event.seq + 1
    return answer(schemas.ApiEvents(events=page, next=first if page and first < end else None))


async def event(ask: ApiCall[EmptyBody, EmptyBody]) -> Response:
    room, name = await ask.room(), ask.names["handle"]
    seq = parse_handle(name)
    found = await room.events(first=seq, last=seq) if seq is not None else []
    if not found:
        raise HttpError(404, f"there is no event {name!r} in this session", code="unknown_handle")
    return answer(
        schemas.ApiWholeEvent(
            event=schemas.event(found[0]),
            original=await room.session.original(found[0].seq),
            shown=await room.session.why(found[0].seq),
        )
    )


async def search(ask: ApiCall[EmptyBody, SearchQuery]) -> Response:
    room = await ask.room()
    found = await room.search(ask.query.q, limit=ask.query.limit)
    among = await room.session.pick([hit.seq for hit in found])
    return answer(schemas.hits(found, among, ask.query.q))


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────


async def export(ask: ApiCall[EmptyBody, ExportQuery]) -> Response:
    room = await ask.room()
    info = await room.info()
    if ask.query.to == "foveal":
        return StreamingResponse(_lines(room, info.title, info.events), media_type=LINES)
    facts = [event.fact for event in await room.events()]
    dialect = DIALECTS[ask.query.to]
    messages = await asyncio.to_thread(transcripts.write_messages, facts, dialect)
    return Response(json.dumps(messages).encode(), media_type=JSON)


async def _lines(room: LiveSession, title: str, end: int) -> AsyncGenerator[bytes, None]:
    """The session in Foveal's own format, as it was when the export began."""
    yield b"".join(transcripts.write_events([], room.id, title))
    for first in range(0, end, AT_ONCE):
        read = await room.events(first=first, last=min(first + AT_ONCE, end) - 1)
        yield b"".join(islice(transcripts.write_events(read, room.id), 1, None))


# ── steering ──────────────────────────────────────────────────────────────────────────────────────
# What changes a session without asking its model: messages from elsewhere, summaries, pins, and back again.


async def append(ask: ApiCall[NewMessages, EmptyBody]) -> Response:
    given = ask.body
    if (given.text is UNSET) == (given.messages is UNSET):
        raise HttpError(400, "send either `text` or `messages`", code="invalid_body")
    facts: list[AnyFact] = []
    if given.text is not UNSET:
        facts.append(UserSaid(content=given.text))
    else:
        messages = given.messages or []  # which is set, as text is not
        most: int = ask.service.ground.config.get("server.max_messages")
        if len(messages) > most:
            raise HttpError(413, f"{len(messages):,} messages at once; {most:,} are allowed", code="too_many")
        reader = wire.wire(given.dialect or wire.detect(messages))
        facts += (fact for chunk in reader.read(messages) for fact in chunk.facts)
    stored = await (await ask.room()).append(*facts)
    return answer(schemas.StoredHandles(handles=[event.handle for event in stored]), status=201)


async def compact(ask: ApiCall[CompactBody, EmptyBody]) -> Response:
    room = await ask.room()
    if ask.body.background:
        newest = (await room.info()).events - 1
        await ask.worker().compact(ask.tenant.name, room.id, newest)
        return answer(schemas.ApiAccepted(session=room.id, key=""), status=202)
    done = await room.compact(ask.body.focus)
    fact = done.event.fact
    assert isinstance(fact, Compacted)
    return answer(
        schemas.ApiCompaction(
            handle=done.event.handle,
            before=done.before,
            after=done.after,
            by=fact.by,
            summary=fact.summary,
        )
    )


async def undo(ask: ApiCall[UndoBody, EmptyBody]) -> Response:
    room = await ask.room()
    try:
        event = await room.undo(ask.body.handle)
    except UnknownHandle as problem:
        if ask.body.handle is None:
            raise HttpError(409, str(problem), code="nothing_to_undo") from None
        raise
    return answer(schemas.ApiUndone(handle=event.handle, kind=kind(event.fact)))


async def pin(ask: ApiCall[PinBody, EmptyBody]) -> Response:
    return answer(schemas.ApiPin(handle=await (await ask.room()).pin(ask.body.text)), status=201)
