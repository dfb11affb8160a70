"""Requests: bodies of bounded depth and size, and bodies and query strings as structs.

The number of bytes is bounded by `guard`, which counts them as they arrive, so a handler that reads a body in
another way is bounded too.

A request that does not match its struct gets a 400 with a sentence for people, made from the struct's types, bounds
and pattern descriptions:

    id must be text, 1 to 200 characters: letters, digits and . _ ~ : @ -, a letter or digit first; or null
    there is no field 'txt' here; known are background, content, key, stream, text
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from typing import Final, TypeVar

import msgspec
from msgspec import inspect
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from foveal.core.wire.common import most_values
from foveal.core.wire.safe_print import one_line
from foveal.web.event_stream import encode_struct
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
    return most_values(text) > limit and most_values(_without_strings(text)) > limit


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
    data = await read_unchecked(request)
    check_values(data, most_values(data))
    check_depth(data, request.scope["state"]["max_depth"])
    return data


def check_depth(text: bytes, limit: int, *, inside: int = 0) -> None:
    """Raise `HttpError` if JSON is nested more than `limit` levels deep, `inside` of which are around the text."""
    if is_deeper_than(text, limit - inside):
        raise HttpError(400, f"the JSON is nested more than {limit:,} levels deep", code="too_deep")


def check_values(text: bytes, at_most: int) -> None:
    """Raise `HttpError` if JSON has too many values; it is read only if `at_most`, a bound, is too many."""
    if at_most > MAX_JSON_VALUES and has_more_values_than(text, MAX_JSON_VALUES):
        raise HttpError(413, f"the JSON has more than {MAX_JSON_VALUES:,} values", code="too_many_values")


async def read_unchecked(request: Request) -> bytes:
    """Return the bytes of a body as `read_bytes` does; the caller uses `check_values` and `check_depth`."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise HttpError(400, "the connection ended before the body did", code="incomplete") from None


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


BodyT = TypeVar("BodyT", bound=msgspec.Struct)
QueryT = TypeVar("QueryT", bound=msgspec.Struct)
JSON_TYPE: Final = "application/json"
INVALID_BODY: Final = "invalid_body"
"""Error code of a body that does not match its struct."""
MAX_QUOTED_CHARS: Final = 64
"""Characters of a client's own text that an error quotes."""


# ── Validation errors ────────────────────────────────────────────────────────────────────────────────────
# The patterns match the messages of msgspec.

_FIELD: Final = re.compile(r" - at `\$\.(\w+)[^`]*`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`\Z")
_GOT: Final = re.compile(r"got `(\w+)`")
_JSON_TYPE_NAMES: Final = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
"""msgspec's names of JSON types, and the words for people."""


def explain_validation_error(message: str, struct: type[msgspec.Struct], *, part: str = "field") -> str:
    """Return msgspec's `message` as a sentence; `part` is the word for a field of the struct."""
    fields = _field_types(struct)
    if unknown := _UNKNOWN.fullmatch(message):
        name = one_line(unknown[1], width=MAX_QUOTED_CHARS)
        known = ", ".join(sorted(fields)) or "none"
        return f"there is no {part} {name!r} here; known are {known}"
    if missing := _MISSING.fullmatch(message):
        return f"the {part} {missing[1]} is missing: it must be {describe_type(fields[missing[1]])}"
    got = _GOT.search(message)
    found = (
        f", not {_JSON_TYPE_NAMES[got[1]]}" if got and got[1] in _JSON_TYPE_NAMES and part == "field" else ""
    )
    at = _FIELD.search(message)
    if at is None:
        return f"the body must be an object{found}" if found else message
    if "[" in at[0]:
        found = ""  # the type is that of one entry, and the sentence describes the list
    return f"{at[1]} must be {describe_type(fields[at[1]])}{found}"


@cache
def _field_types(struct: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field.type for field in info.fields}


def describe_type(kind: inspect.Type) -> str:
    """Return what a value of a type must be, in words."""
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            description = (extra or {}).get("description", "")
            return ": ".join(filter(None, (describe_type(inner), description)))
        case inspect.UnionType(types=types):
            return "; or ".join(describe_type(each) for each in types)
        case inspect.StrType(min_length=low, max_length=high):
            return f"text{_bounds(low, high, unit=' characters')}"
        case inspect.ListType(item_type=item, min_length=low, max_length=high):
            items = "objects" if isinstance(item, inspect.DictType) else f"({describe_type(item)})"
            return f"a list of {items}{_bounds(low, high)}"
        case inspect.IntType(ge=low, le=high):
            return f"a whole number{_bounds(low, high)}"
        case inspect.FloatType():
            return _JSON_TYPE_NAMES["float"]
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
    return _JSON_TYPE_NAMES["object"]


def _bounds(low: int | None, high: int | None, *, unit: str = "") -> str:
    match low, high:
        case None, None:
            return ""
        case None, _:
            return f", at most {high:,}{unit}"
        case 1, None:
            return ", not empty"
        case _, None:
            return f", at least {low:,}{unit}"
    return f", {low:,} to {high:,}{unit}"


# ── Bodies, queries and responses ────────────────────────────────────────────────────────────────────────


async def read_body(request: Request, struct: type[BodyT]) -> BodyT:
    """Return the body as a struct; an empty body counts as `{}` if no field is required."""
    if not msgspec.structs.fields(struct):
        return struct()
    if not any(field.required for field in msgspec.structs.fields(struct)) and not await read_bytes(request):
        return struct()
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON_TYPE and not (
        content_type.startswith("application/") and content_type.endswith("+json")
    ):
        raise HttpError(
            415,
            f"the body must be {JSON_TYPE}; the request says {content_type or 'nothing'}",
            code="not_json",
        )
    try:
        return await read_struct(request, struct)
    except HttpError as error:
        if error.code != INVALID_BODY:
            raise
        raise HttpError(400, explain_validation_error(error.detail, struct), code=INVALID_BODY) from None


def read_query(request: Request, struct: type[QueryT]) -> QueryT:
    """Return the query string as a struct."""
    items = request.query_params.multi_items()
    parameters = dict(items)
    if len(parameters) < len(items):
        raise HttpError(400, "the query has a parameter more than once", code="invalid_query")
    try:
        return msgspec.convert(parameters, struct, strict=False)
    except msgspec.ValidationError as problem:
        explanation = explain_validation_error(str(problem), struct, part="parameter")
        raise HttpError(400, f"in the query: {explanation}", code="invalid_query") from None


def json_response(
    value: msgspec.Struct, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a struct as a JSON response."""
    return Response(encode_struct(value), status_code=status, headers=headers, media_type=JSON_TYPE)
