"""JSON codec of events: one event per line.

1. Lines of every earlier version stay readable.
2. A kind or a field of a later version becomes `Unknown`, which is written again byte for byte.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import Raw

from foveal.core.log.events import FORMAT, Event, Known, Unknown, raw, unraw
from foveal.errors import UnreadableEvent


class _Line(msgspec.Struct, omit_defaults=True):
    seq: int
    fact: Any
    at: float | None = None
    v: int = FORMAT


class _RawLine(msgspec.Struct):
    seq: int
    fact: Raw
    at: float | None = None
    v: int = FORMAT


class _KnownLine(msgspec.Struct):
    seq: int
    fact: Known
    at: float | None = None
    v: int = FORMAT


class _Kind(msgspec.Struct):
    kind: str


_known_line = msgspec.json.Decoder(_KnownLine)
_line = msgspec.json.Decoder(_RawLine)
_kind = msgspec.json.Decoder(_Kind)
_fact = msgspec.json.Decoder(Known)


def encode(event: Event) -> bytes:
    """Encode an event as one line of JSON, without the newline."""
    fact: Any = event.fact
    version = FORMAT
    if isinstance(fact, Unknown):
        fact, version = fact.raw, fact.version
    line = _Line(seq=event.seq, fact=fact, at=event.at, v=version)
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:  # a lone surrogate is not UTF-8, but a JSON escape can carry it
        return json.dumps(plain(line)).encode()


def decode(line: bytes | str) -> Event:
    """Decode a line of any version; raises `UnreadableEvent` when it is not an event."""
    try:
        known = _known_line.decode(line)  # reads the line once
    except (msgspec.DecodeError, RecursionError):
        return _decode_unusual(line)
    return Event(known.seq, known.fact, known.at) if known.v <= FORMAT else _decode_unusual(line)


def _decode_unusual(line: bytes | str) -> Event:
    """Decode a line that is not one of a known fact."""
    try:
        outer = _line.decode(line)
        name = _kind.decode(outer.fact).kind
    except (msgspec.DecodeError, RecursionError) as problem:
        return _decode_escaped(line, problem)
    if outer.v > FORMAT:
        return Event(outer.seq, _unknown(name, outer), outer.at)
    try:
        return Event(outer.seq, _fact.decode(outer.fact), outer.at)
    except (msgspec.DecodeError, RecursionError):
        return Event(outer.seq, _unknown(name, outer), outer.at)


def _unknown(name: str, outer: _RawLine) -> Unknown:
    return Unknown(kind=name, raw=outer.fact.copy(), version=outer.v)


def _decode_escaped(line: bytes | str, problem: Exception) -> Event:
    """Decode a line with escapes that are not valid Unicode; slower than `decode`."""
    try:
        outer = json.loads(line)
        raw_line = msgspec.convert({**outer, "fact": raw(outer["fact"])}, _RawLine)
        name = msgspec.convert(outer["fact"], _Kind).kind
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UnreadableEvent(f"not an event: {problem}; it begins {line[:80]!r}") from None
    if raw_line.v > FORMAT:
        return Event(raw_line.seq, _unknown(name, raw_line), raw_line.at)
    try:
        return Event(raw_line.seq, msgspec.convert(_encode_raw_fields(outer["fact"]), Known), raw_line.at)
    except msgspec.ValidationError:
        return Event(raw_line.seq, _unknown(name, raw_line), raw_line.at)


_RAW_FIELDS: Final = frozenset({"native", "extra", "settings", "tools", "data", "metrics"})
"""Names of the fields of type `Raw`, which the standard library decodes and msgspec expects as bytes."""


def _encode_raw_fields(value: Any) -> Any:
    """Encode the opaque fields of a decoded line as bytes again."""
    if isinstance(value, list):
        return [_encode_raw_fields(item) for item in value]
    if isinstance(value, dict):
        return {
            k: raw(v) if k in _RAW_FIELDS and v is not None else _encode_raw_fields(v)
            for k, v in value.items()
        }
    return value


def plain(value: Any) -> Any:
    """Return a struct as dicts and lists, with opaque fields decoded."""
    if isinstance(value, Raw):
        return unraw(value)
    if isinstance(value, Unknown):
        return unraw(value.raw)
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {
            field.encode_name: plain(held)
            for field in msgspec.structs.fields(value)
            if (held := getattr(value, field.name)) is not field.default and held != field.default
        }
        return {config.tag_field: config.tag, **fields} if config.tag_field else fields
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value
