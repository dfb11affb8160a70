"""What can be seen of a session: its context, its use, its events, what is found in it, all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import islice
from typing import Final

from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from foveal import transcripts
from foveal.apps.server.api import shapes, telling
from foveal.apps.server.api.asking import JSON, Ask, answer
from foveal.apps.server.api.shapes import EventsQuery, ExportQuery, Nothing, SearchQuery
from foveal.apps.server.refusals import Refusal
from foveal.events import Dialect, parse_handle
from foveal.service import Room

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


async def context(ask: Ask[Nothing, Nothing]) -> Response:
    return answer(await (await ask.room()).report())


async def usage(ask: Ask[Nothing, Nothing]) -> Response:
    return answer(telling.usage(await (await ask.room()).usage()))


async def events(ask: Ask[Nothing, EventsQuery]) -> Response:
    room, query = await ask.room(), ask.query
    held = (await room.info()).events
    end = held if query.last is UNSET else min(held, query.last + 1)
    page: list[shapes.Event] = []
    size, first = 0, query.first
    while first < end and len(page) < query.limit and size < PAGE_BYTES:
        most = min(AT_ONCE, query.limit - len(page), end - first)
        read = await room.events(first=first, last=first + most - 1)
        if not read:
            break
        for event in map(telling.event, read):
            if size >= PAGE_BYTES:
                break
            page.append(event)
            size += len(bytes(event.fact))
            first = event.seq + 1
    return answer(shapes.Events(events=page, next=first if page and first < end else None))


async def event(ask: Ask[Nothing, Nothing]) -> Response:
    room, name = await ask.room(), ask.names["handle"]
    seq = parse_handle(name)
    found = await room.events(first=seq, last=seq) if seq is not None else []
    if not found:
        raise Refusal(404, f"there is no event {name!r} in this session", code="unknown_handle")
    return answer(
        shapes.Whole(
            event=telling.event(found[0]),
            original=await room.session.original(found[0].seq),
            shown=await room.session.why(found[0].seq),
        )
    )


async def search(ask: Ask[Nothing, SearchQuery]) -> Response:
    room = await ask.room()
    found = await room.search(ask.query.q, limit=ask.query.limit)
    among = await room.session.pick([hit.seq for hit in found])
    return answer(telling.hits(found, among, ask.query.q))


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────


async def export(ask: Ask[Nothing, ExportQuery]) -> Response:
    room = await ask.room()
    info = await room.info()
    if ask.query.to == "foveal":
        return StreamingResponse(_lines(room, info.title, info.events), media_type=LINES)
    facts = [event.fact for event in await room.events()]
    dialect = DIALECTS[ask.query.to]
    messages = await asyncio.to_thread(transcripts.write_messages, facts, dialect)
    return Response(json.dumps(messages).encode(), media_type=JSON)


async def _lines(room: Room, title: str, end: int) -> AsyncGenerator[bytes, None]:
    """The session in Foveal's own format, as it was when the export began."""
    yield b"".join(transcripts.write_events([], room.id, title))
    for first in range(0, end, AT_ONCE):
        read = await room.events(first=first, last=min(first + AT_ONCE, end) - 1)
        yield b"".join(islice(transcripts.write_events(read, room.id), 1, None))
