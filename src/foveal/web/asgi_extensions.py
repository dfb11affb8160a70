"""ASGI extensions of the server: a client that has ended its side, and writes without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.types import Scope

# ── The end of a client's side ───────────────────────────────────────────────────────────────────────
# `BoundedProtocol` answers a client that ends its side after a complete request, so the application gets no
# `http.disconnect` then. A browser ends its side only when it drops the request; a handler for pages can ask here.

CLIENT_CHECK_INTERVAL_S: Final = 0.25
"""Seconds between two looks whether the client has ended its side."""
_CLIENT_ENDED: Final = "foveal.client_ended"


def mark_client_ended(scope: Scope) -> None:
    """Record that the client has ended its side."""
    # The dictionary is changed in place: middleware may have copied the scope around it.
    scope.setdefault("extensions", {})[_CLIENT_ENDED] = True


async def wait_for_client_end(request: Request) -> None:
    """Return when the client has disconnected or ended its side; the body must have been read."""
    while _CLIENT_ENDED not in (request.scope.get("extensions") or {}):
        with suppress(TimeoutError):
            message = await asyncio.wait_for(request.receive(), CLIENT_CHECK_INTERVAL_S)
            if message["type"] == "http.disconnect":
                return


# ── Writing at once ──────────────────────────────────────────────────────────────────────────────────
# `send` is a coroutine that passes through every middleware. A stream has hundreds of parts, and most can be
# written at once, from a callback of the event loop. So the server offers `WriteNow` in the scope, and a middleware
# that counts bytes wraps it. A server that does not offer it is used through `send` only.

WriteNow: TypeAlias = Callable[[bytes], bool]
"""Writes a part of the body; returns False, having written nothing, if only `send` can write it now."""

_WRITE_NOW: Final = "foveal.write_now"


def offer_write_now(scope: Scope, write_now: WriteNow) -> None:
    """Offer the extension to the application, in place of an earlier offer."""
    scope["extensions"] = {**(scope.get("extensions") or {}), _WRITE_NOW: write_now}


def withdraw_write_now(scope: Scope) -> None:
    """End the offer with the response: a function in the scope that holds the scope is a reference cycle."""
    (scope.get("extensions") or {}).pop(_WRITE_NOW, None)


def write_now_of(scope: Scope) -> WriteNow | None:
    """Return the extension; None if the server does not offer it."""
    write_now: WriteNow | None = (scope.get("extensions") or {}).get(_WRITE_NOW)
    return write_now
