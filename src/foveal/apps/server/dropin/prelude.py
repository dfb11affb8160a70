"""How a stream begins: held back until it says something, because it may say that the request was too large.

Some providers accept a request, begin a stream, and tell of an overflow in its first event. Nothing of that has
reached the client by then, so it can be recovered like any other. Nobody has to wait for long: whoever refuses a
request does so at once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from foveal.service.dropin import answers

Json = dict[str, Any]

PATIENCE: Final = 2.0
"""Seconds that a beginning is held back at the most."""
LARGEST: Final = 1 << 16
"""Bytes, likewise."""
_WAITING: Final = frozenset({"response.created", "response.queued", "response.in_progress", "ping"})
"""Events that say nothing yet."""
_FAILED: Final = frozenset({"error", "response.failed"})


class Prelude(NamedTuple):
    begun: bytes = b""
    """What has come so far."""
    error: object = None
    """What the stream says went wrong, if that is all that it says."""


async def prelude(response: aiohttp.ClientResponse) -> Prelude:
    """Read a stream up to its first event, if that comes soon; raises what the library raises."""
    begun = b""
    try:
        async with asyncio.timeout(PATIENCE) as patience:
            async for chunk in response.content.iter_any():
                begun += chunk
                said = _said(begun)
                if said is not None or len(begun) > LARGEST:
                    return Prelude(begun, _error(said or {}))
    except TimeoutError:
        if not patience.expired():
            raise
    return Prelude(begun)


def _said(begun: bytes) -> Json | None:
    """The first event that says something, {} for what is none; None when there is not even that."""
    whole, _, _ = begun.replace(b"\r\n", b"\n").rpartition(b"\n\n")
    try:
        return next((event for event in answers.events(whole) if event.get("type") not in _WAITING), None)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return {}


def _error(event: Json) -> object:
    """What went wrong, as `overflow.recognise` reads it; None when nothing did."""
    if event.get("error") or event.get("type") in _FAILED:
        return {"status_code": 400, "body": event}
    return None
