"""Server-sent events: encoding, keep-alive comments, and an end for revoked callers.

1. After `KEEP_ALIVE_INTERVAL_S` without an event the server sends a comment line, so proxies keep the connection
   open.
2. A stream outlives the check of its request, so the caller is checked again before each event, and every
   `CALLER_CHECK_INTERVAL_S` between events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse

from foveal.core.log.codec import plain

KEEP_ALIVE_INTERVAL_S: Final = 15.0
CALLER_CHECK_INTERVAL_S: Final = 1.0
KEEP_ALIVE_COMMENT: Final = b": still at work\n\n"
EVENT_STREAM_TYPE: Final = "text/event-stream"

MayReadOn = Callable[[], Awaitable[bool]]
"""Whether the caller of a stream may still read it; cheap, because it is asked before each event."""


def encode_struct(value: Any) -> bytes:
    """Return a struct as JSON; a lone surrogate, which UTF-8 cannot hold, becomes a JSON escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(plain(value)).encode()


def encode_event(name: str, data: Any, *, id: str = "") -> bytes:
    """Return one event; `data` becomes one line of JSON."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: ".encode() + encode_struct(data) + b"\n\n"


def event_stream_response(
    events: AsyncGenerator[bytes, None],
    *,
    may_read_on: MayReadOn,
    last_event: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> StreamingResponse:
    """Return a response that streams encoded events, with comments between them.

    `last_event` ends the stream of a caller that may not read on."""
    return StreamingResponse(
        with_keep_alive(while_allowed(events, may_read_on, last_event=last_event)),
        headers={**(headers or {}), "Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type=EVENT_STREAM_TYPE,
    )


async def with_keep_alive(
    events: AsyncGenerator[bytes, None], *, interval: float = KEEP_ALIVE_INTERVAL_S
) -> AsyncGenerator[bytes, None]:
    """Yield the events, and a comment line after every `interval` seconds without one."""
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait({coming}, timeout=interval)
            if not done:
                yield KEEP_ALIVE_COMMENT
                continue
            event, coming = coming.result(), None
            if event is None:
                return
            yield event
    finally:
        await _end(events, coming)


async def while_allowed(
    events: AsyncGenerator[bytes, None],
    may_read_on: MayReadOn,
    *,
    last_event: bytes = b"",
    interval: float = CALLER_CHECK_INTERVAL_S,
) -> AsyncGenerator[bytes, None]:
    """Yield the events as long as the caller may read them, and then `last_event`."""
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait({coming}, timeout=interval)
            if not await may_read_on():
                if last_event:
                    yield last_event
                return
            if done:
                event, coming = coming.result(), None
                if event is None:
                    return
                yield event
    finally:
        await _end(events, coming)


async def _end(events: AsyncGenerator[bytes, None], coming: asyncio.Task[bytes | None] | None) -> None:
    """End a generator of events, of which a task may be waiting for the next one."""
    # When the client has left, every wait in this task is cancelled: the task that waits for the next event ends
    # the generator.
    if coming is None or coming.done():
        await events.aclose()
    else:
        coming.cancel()


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(events, None)
