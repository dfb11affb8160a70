"""What the dialects share: objects of client libraries as dicts, opaque bytes, and errors that know their place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from foveal.core.log.events import AnyFact, AnyPart, Call, Dialect, Media, Opaque, Thinking, unraw
from foveal.core.wire.media import measure
from foveal.errors import MalformedMessage

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")

FREE_TEXT: Final = frozenset({"custom", "custom_tool_call"})
"""Varieties whose arguments are any text; where only functions exist it becomes the field `input`."""
_NATIVE: Final = (Media, Opaque, Thinking)
_STRINGS: Final = (str, bytes)


class MessageChunk(NamedTuple):
    """The smallest run of messages that is a whole number of facts."""

    messages: int
    facts: tuple[AnyFact, ...]


class BadField(Exception):
    """Something no dialect allows, at `field` of what is being read; `read` adds the message's index."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def inside(self, outer: str) -> BadField:
        """The same fault, seen from one level further out."""
        return BadField(f"{outer}.{self.field}" if self.field else outer, self.problem)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def tail(messages: Sequence[object], start: int) -> Iterator[tuple[int, object]]:
    """The messages from `start` on, each with its index."""
    return enumerate(messages[start:] if start else messages, start)


def at(index: int, reader: Callable[[Any], T], value: object) -> T:
    """Read one message; what is wrong with it is told with its index."""
    try:
        return reader(value if type(value) is dict else mapping(value))
    except BadField as bad:
        raise MalformedMessage(index, bad.field, bad.problem) from None


def mapping(value: object) -> Mapping[str, Any]:
    """A dict as it is, an object of a client library as the dict that it would send."""
    if type(value) is dict:
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        dumped = dump(value)
        if isinstance(dumped, dict):
            return dumped
    raise BadField("", f"must be an object, not {type(value).__name__}")


def dump(value: Any) -> Any:
    """What a client library would send for one of its objects."""
    if isinstance(value, Mapping):
        return dict(value)
    if not hasattr(value, "model_dump"):
        raise TypeError(f"an object of type {type(value).__name__}")
    try:
        return value.model_dump(mode="json", exclude_unset=True, by_alias=True, warnings=False)
    except TypeError:  # not pydantic, but alike
        return value.model_dump()


_encoder: Final = msgspec.json.Encoder(enc_hook=dump)


def encoded(value: object) -> bytes:
    """A value as JSON, whatever objects of client libraries are inside it."""
    try:
        text = _encoder.encode(value)
        if b"null" in text and not _finite(value):  # which is how the encoder writes a number that is none
            raise BadField("", "holds a number that JSON does not have (NaN or infinity)")
        return text
    except UnicodeEncodeError:  # a lone surrogate is not UTF-8, but JSON's own escapes can carry it
        return json.dumps(value, default=dump).encode()
    except RecursionError:
        raise BadField("", "is nested too deeply") from None
    except (TypeError, ValueError) as problem:
        raise BadField("", f"cannot be written as JSON: {problem}") from None


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list | tuple) else True


def opaque(value: object) -> Raw:
    """A JSON value as bytes that nobody can change."""
    return Raw(encoded(value))


def json_text(value: object) -> str:
    return encoded(value).decode()


def rest(item: Mapping[str, Any], known: frozenset[str]) -> Raw | UnsetType:
    """The fields beyond the known ones."""
    if item.keys() <= known:
        return UNSET
    return opaque({name: value for name, value in item.items() if name not in known})


def string(item: Mapping[str, Any], field: str) -> str:
    """A field that must be there and be text."""
    value = item.get(field)
    if isinstance(value, str):
        return value
    raise BadField(field, "is missing" if value is None else f"must be a string, not {type(value).__name__}")


def arguments_of(item: Mapping[str, Any], field: str) -> str:
    """Arguments as the text the model wrote; a client that has parsed them already gets JSON again."""
    value = item.get(field)
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value)


def each(values: object, field: str, reader: Callable[[Any], T]) -> list[T]:
    """Read every item of a list."""
    if type(values) is not list and (isinstance(values, _STRINGS) or not isinstance(values, Sequence)):
        raise BadField(field, f"must be a list, not {type(values).__name__}")
    done: list[T] = []
    for place, value in enumerate(values):
        try:
            done.append(reader(value if type(value) is dict else mapping(value)))
        except BadField as bad:
            raise bad.inside(f"{field}[{place}]") from None
    return done


def media(item: Mapping[str, Any]) -> Media:
    native = opaque(item)
    measured = measure(item if type(item) is dict and _plain(item) else unraw(native))
    return Media(native=native, mime=measured.mime, size=measured.size, units=measured.units)


def _plain(item: Json) -> bool:
    """No objects of a client library are inside."""
    return all(isinstance(value, str | dict) for value in item.values())


def owner(dialect: Dialect, extra: Raw | UnsetType, parts: Iterable[AnyPart] = ()) -> Dialect:
    """The dialect, if anything here can only be read in it."""
    if extra is not UNSET:
        return dialect
    for part in parts:
        if isinstance(part, _NATIVE) or part.extra is not UNSET:
            return dialect
        if isinstance(part, Call) and part.variety != "function":
            return dialect
    return ""


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def as_function(call: Call) -> str:
    """The arguments of a call of whatever variety, where only functions exist."""
    return json_text({"input": call.arguments}) if call.variety in FREE_TEXT else call.arguments


def instead_of(part: Media) -> str:
    """The words in place of something that cannot be sent here."""
    return f"[{part.mime or 'media'}, {part.size:,} bytes: cannot be shown here]"
