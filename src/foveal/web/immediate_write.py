"""ASGI extension that writes a part of a response body without waiting.

`send` is a coroutine that passes through every middleware. A stream has hundreds of parts, and most can be written
at once, from a callback of the event loop. So the server offers `WriteNow` in the scope, and a middleware that
counts bytes wraps it. A server that does not offer it is used through `send` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from starlette.types import Scope

WriteNow: TypeAlias = Callable[[bytes], bool]
"""Writes a part of the body; returns False, having written nothing, if only `send` can write it now."""

_EXTENSION_NAME: Final = "foveal.write_now"


def offer_write_now(scope: Scope, write_now: WriteNow) -> None:
    """Offer the extension to the application, in place of an earlier offer."""
    scope["extensions"] = {**(scope.get("extensions") or {}), _EXTENSION_NAME: write_now}


def withdraw_write_now(scope: Scope) -> None:
    """End the offer with the response: a function in the scope that holds the scope is a reference cycle."""
    (scope.get("extensions") or {}).pop(_EXTENSION_NAME, None)


def write_now_of(scope: Scope) -> WriteNow | None:
    """Return the extension; None if the server does not offer it."""
    write_now: WriteNow | None = (scope.get("extensions") or {}).get(_EXTENSION_NAME)
    return write_now
