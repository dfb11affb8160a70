"""A turn as server-sent events, which can be left and taken up again.

    id: 2
    event: streamed
    data: {"happening":"streamed","piece":{"text":"Because","sort":"text"}}

1. `event` is the happening's name, `id` counts from 1 within the turn, `data` is one line of JSON.
2. The last event is always `outcome`, which has no id. A client that lost the connection asks for the turn with the
   id of the last event that it saw, and gets the rest; of a turn that has ended, without the pieces of its answers.
3. A comment line comes when nothing else has for 15 seconds, so that no proxy takes the silence for death.
4. Leaving a stream ends nothing: the turn goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.responses import StreamingResponse

from foveal import happenings
from foveal.apps.server.api import telling
from foveal.apps.server.api.asking import encoded
from foveal.service import Turn

SILENCE: Final = 15.0
BEAT: Final = b": still at work\n\n"
STREAM: Final = "text/event-stream"
EVENTS: Final = [
    *(str(kind.__struct_config__.tag) for kind in happenings.Happening.__subclasses__()),
    "outcome",
]
"""What an event may be called."""


def place(turn: Turn) -> str:
    """Where a turn is found."""
    return f"/api/sessions/{quote(turn.session, safe='')}/turns/{quote(turn.id, safe='')}"


def headers(turn: Turn) -> Mapping[str, str]:
    return {"X-Foveal-Turn": turn.id, "Location": place(turn)}


def streamed(turn: Turn, *, after: int = 0) -> StreamingResponse:
    """The events of a turn from the one behind `after` on."""
    said = {**headers(turn), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(beating(_events(turn, after)), headers=said, media_type=STREAM)


async def _events(turn: Turn, after: int) -> AsyncGenerator[bytes, None]:
    async for number, told in turn.numbered(after=after):
        name = str(type(told).__struct_config__.tag)
        yield f"id: {number}\n".encode() + _event(name, telling.happening(told))
    yield _event("outcome", telling.outcome(await turn.outcome()))


def _event(name: str, data: msgspec.Struct) -> bytes:
    return f"event: {name}\ndata: ".encode() + encoded(data) + b"\n\n"


async def beating(
    events: AsyncGenerator[bytes, None], *, silence: float = SILENCE
) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none came for so many seconds."""
    async with aclosing(events):
        coming: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait({coming}, timeout=silence)
                if not done:
                    yield BEAT
                    continue
                event, coming = coming.result(), None
                if event is None:
                    return
                yield event
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait({coming})


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(events, None)
