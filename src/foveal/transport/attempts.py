"""The requests that are sent upstream for one request of a client.

1. If the upstream refuses a request as too large, a smaller one is sent, up to `MAX_ATTEMPTS` requests; every other
   response is the client's.
2. Some providers accept a request, begin a stream, and report the overflow in its first event. So the beginning
   of a stream is held back until its first meaningful event.

Nothing here waits: an `UpstreamCall` does, or, in a program without an event loop, blocks.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import msgspec

from foveal.core.wire.common import Json
from foveal.transport.upstream_reply import sse_events

MAX_ATTEMPTS: Final = 4
"""Requests to the upstream for one request of a client."""
MAX_ERROR_BYTES: Final = 1 << 20
MAX_FIRST_EVENT_BYTES: Final = 1 << 16
"""Bytes of a stream that are held back at most."""
TOO_LARGE_STATUSES: Final = frozenset({400, 413, 422})
_EMPTY_EVENTS: Final = frozenset({"response.created", "response.queued", "response.in_progress", "ping"})
"""Event types that come before an answer or an error, and are neither."""
_ERROR_EVENTS: Final = frozenset({"error", "response.failed"})


class UpstreamHead(NamedTuple):
    """What is known of a response before its body."""

    status: int
    content_type: str

    @property
    def is_event_stream(self) -> bool:
        """Whether the response consists of server-sent events."""
        return self.content_type.lower().startswith("text/event-stream")


class FirstEvent(NamedTuple):
    """The beginning of a stream."""

    data: bytes = b""
    """All bytes that were read."""
    error: object = None
    """The error, if the first meaningful event is one."""


class UpstreamCall(Protocol):
    """One request of a client at an upstream, and its current response."""

    async def send(self) -> UpstreamHead:
        """Send the request in its current form."""
        ...

    async def read_error(self) -> bytes | None:
        """Return the body of an error; None if it exceeds `MAX_ERROR_BYTES` or does not arrive."""
        ...

    async def read_first_event(self) -> FirstEvent:
        """Return the beginning of a stream, up to its first meaningful event."""
        ...

    async def shrink(self, error: object) -> bool:
        """Make the request smaller, if this error says that it was too large; return whether it is smaller now."""
        ...

    async def discard(self) -> None:
        """Close the response: a smaller request follows."""
        ...


class Outcome(NamedTuple):
    """The response for the client: the last one that was received."""

    head: UpstreamHead
    data: bytes
    """The beginning of the body, which was read already."""
    is_error: bool
    """The upstream refused the request; `data` is the whole body, or empty if that is too large."""


async def send_until_accepted(call: UpstreamCall) -> Outcome:
    """Send a request, and smaller ones while the upstream refuses it as too large."""
    for attempt in range(MAX_ATTEMPTS):
        head = await call.send()
        is_error, data, error = head.status in TOO_LARGE_STATUSES, b"", None
        if is_error:
            body = await call.read_error()
            data, error = body or b"", None if body is None else response_error(head.status, body)
        elif head.status == 200 and head.is_event_stream:
            data, error = await call.read_first_event()
        is_last = attempt == MAX_ATTEMPTS - 1
        if error is None or is_last or not await call.shrink(error):
            return Outcome(head, data, is_error)
        await call.discard()
    raise AssertionError("the last attempt returns")


def response_error(status: int, body: bytes) -> object:
    """Return an error response in the form that overflow detection reads."""
    try:
        return {"status_code": status, "body": msgspec.json.decode(body)}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {"status_code": status, "body": body.decode("utf-8", "replace")}


class StreamBeginning:
    """The beginning of a stream, up to its first meaningful event."""

    def __init__(self) -> None:
        self.data: bytes = b""

    def add(self, chunk: bytes) -> FirstEvent | None:
        """Add a chunk; return the beginning once it is complete or too large to be held back any longer."""
        self.data += chunk
        event = _first_meaningful_event(self.data)
        if event is not None or len(self.data) > MAX_FIRST_EVENT_BYTES:
            return FirstEvent(self.data, _event_error(event or {}))
        return None


def _first_meaningful_event(data: bytes) -> Json | None:
    """Return the first event that is not an empty one; {} for invalid data; None if there is none yet."""
    complete, _, _ = data.replace(b"\r\n", b"\n").rpartition(b"\n\n")
    events = sse_events(complete)
    try:
        return next((event for event in events if event.get("type") not in _EMPTY_EVENTS), None)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return {}


def _event_error(event: Json) -> object:
    """Return the error of an event in the form that overflow detection reads; None if it is no error."""
    if event.get("error") or event.get("type") in _ERROR_EVENTS:
        return {"status_code": 400, "body": event}
    return None
