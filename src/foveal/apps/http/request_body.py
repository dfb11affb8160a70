"""What a client sends: read whole, within the limits, and decoded. How much may be sent is the guard's business; it
counts what comes, so that a handler that reads a body in its own way is safe, too."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from foveal.apps.http.http_errors import HttpError

# ── nesting ───────────────────────────────────────────────────────────────────────────────────────
# How deep and how wide a JSON text is, found before anything is built of it: without recursion, in time that grows
# with its length and no faster, whatever it contains.

_STRING: Final = re.compile(rb'"[^"]*"?')
_OTHER: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def deeper_than(text: bytes, most: int) -> bool:
    """Whether arrays and objects are nested in more than `most` levels. What is no JSON may get either answer."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    brackets = _without_strings(text).translate(None, _OTHER)
    return any(map(most.__lt__, accumulate(map(_STEPS.__getitem__, brackets))))


def more_values_than(text: bytes, most: int) -> bool:
    """Whether there are more than `most` values in all arrays and objects together."""
    marks = (b",", b"[", b"{")
    if sum(map(text.count, marks)) <= most:
        return False
    return sum(map(_without_strings(text).count, marks)) > most


def _without_strings(text: bytes) -> bytes:
    """Escapes first, pair by pair from the left, so that every quote that is left begins or ends a string; then
    empty strings, which are quicker to find that way."""
    return _STRING.sub(b"", text.replace(b"\\\\", b"").replace(b'\\"', b"").replace(b'""', b""))


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

VALUES: Final = 1_000_000
"""More are not decoded: each takes many times the room that it takes as text."""


async def read(request: Request) -> bytes:
    """The bytes of a body that is not nested too deeply; it may still be no JSON."""
    try:
        data = await request.body()
    except ClientDisconnect:
        raise HttpError(400, "the connection ended before the body did", code="incomplete") from None
    most: int = request.scope["state"]["max_depth"]
    if more_values_than(data, VALUES):
        raise HttpError(413, f"the JSON has more than {VALUES:,} values", code="too_many_values")
    if deeper_than(data, most):
        raise HttpError(400, f"the JSON is nested in more than {most:,} levels", code="too_deep")
    return data


async def body(request: Request) -> Any:
    """The JSON value that was sent."""
    return decoded(await read(request))


def decoded(data: bytes) -> Any:
    """A JSON value; raises `Refusal`."""
    return _decode(data, Any)


async def body_as(request: Request, form: type[T]) -> T:
    """What was sent, as a struct; raises `Refusal` that names the field that is wrong."""
    made: T = _decode(await read(request), form)
    return made


def _decode(data: bytes, form: Any) -> Any:
    if not data.strip():
        raise HttpError(400, "the body is empty, and should be JSON", code="not_json")
    try:
        return msgspec.json.decode(data, type=form)
    except msgspec.ValidationError as problem:
        raise HttpError(400, _said(problem), code="invalid_body") from None
    except msgspec.DecodeError as problem:
        raise HttpError(400, f"the body is no JSON: {_said(problem)}", code="not_json") from None
    except (UnicodeError, ValueError):
        raise HttpError(400, "the body is no JSON: it is not UTF-8", code="not_json") from None
    except RecursionError:
        raise HttpError(400, "the JSON is nested too deeply", code="too_deep") from None


def _said(problem: Exception) -> str:
    """What is wrong, without half a surrogate pair that could not be written back."""
    return str(problem).encode("utf-8", "replace").decode()
