"""Reads and decodes request bodies: JSON of bounded depth and size.

The number of bytes is bounded by `guard`, which counts them as they arrive, so a handler that reads a body in
another way is bounded too.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from foveal.web.http_errors import HttpError

# ── Depth and size ────────────────────────────────────────────────────────────────────────────────
# Measured on the text before it is decoded: without recursion and in linear time, whatever the text contains.

_STRING: Final = re.compile(rb'"[^"]*"?')
_OTHER: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def is_deeper_than(text: bytes, limit: int) -> bool:
    """Return whether arrays and objects are nested more than `limit` levels deep; undefined for invalid JSON."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    brackets = _without_strings(text).translate(None, _OTHER)
    return any(map(limit.__lt__, accumulate(map(_STEPS.__getitem__, brackets))))


def has_more_values_than(text: bytes, limit: int) -> bool:
    """Return whether all arrays and objects together hold more than `limit` values."""
    marks = (b",", b"[", b"{")
    if sum(map(text.count, marks)) <= limit:
        return False
    return sum(map(_without_strings(text).count, marks)) > limit


def _without_strings(text: bytes) -> bytes:
    """Return JSON text with its strings removed.

    Escapes go first, so every quote that is left begins or ends a string. Removing empty strings before the regular
    expression runs is only faster.
    """
    return _STRING.sub(b"", text.replace(b"\\\\", b"").replace(b'\\"', b"").replace(b'""', b""))


# ── Bodies ────────────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

MAX_JSON_VALUES: Final = 1_000_000
"""Values in one body: a decoded value takes many times the memory of its text."""


async def read_bytes(request: Request) -> bytes:
    """Return the bytes of a body; they may still be invalid JSON.

    Raises `HttpError` if the body is incomplete, nested too deeply, or has too many values.
    """
    try:
        data = await request.body()
    except ClientDisconnect:
        raise HttpError(400, "the connection ended before the body did", code="incomplete") from None
    max_depth: int = request.scope["state"]["max_depth"]
    if has_more_values_than(data, MAX_JSON_VALUES):
        raise HttpError(413, f"the JSON has more than {MAX_JSON_VALUES:,} values", code="too_many_values")
    if is_deeper_than(data, max_depth):
        raise HttpError(400, f"the JSON is nested more than {max_depth:,} levels deep", code="too_deep")
    return data


async def read_struct(request: Request, struct: type[T]) -> T:
    """Return the body as a struct; raises `HttpError`, which names the invalid field."""
    data = await read_bytes(request)
    if not data.strip():
        raise HttpError(400, "the body is empty; it must be JSON", code="not_json")
    try:
        return msgspec.json.decode(data, type=struct)
    except msgspec.ValidationError as problem:
        raise HttpError(400, _message_of(problem), code="invalid_body") from None
    except msgspec.DecodeError as problem:
        raise HttpError(400, f"the body is not valid JSON: {_message_of(problem)}", code="not_json") from None
    except (UnicodeError, ValueError):
        raise HttpError(400, "the body is not valid JSON: it is not UTF-8", code="not_json") from None
    except RecursionError:
        raise HttpError(400, "the JSON is nested too deeply", code="too_deep") from None


def _message_of(problem: Exception) -> str:
    """Return the message without lone surrogates, which cannot be encoded as UTF-8."""
    return str(problem).encode("utf-8", "replace").decode()
