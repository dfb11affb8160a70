"""Helpers that the dialects share for reading and writing messages.

1. Objects of client libraries are read as the dicts that the library would send.
2. A value that Foveal does not interpret is kept as JSON bytes (`Raw`).
3. A malformed field raises `BadField` with its path; `read_at` adds the index of the message.

UTF-8 cannot hold lone surrogates: no provider accepts one, and most clients cannot encode it. So `Wire.read` and
`encode_json`, through which messages, system texts and tools pass, replace it by U+FFFD; two halves that form a
pair become its character. Facts that an application appends itself are stored as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from re import Pattern
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Dialect,
    ForeignSummary,
    Instructed,
    Media,
    ModelSaid,
    Text,
    ToolReturned,
    UserSaid,
    extras,
    unraw,
)
from foveal.core.wire.media import measure_media
from foveal.errors import MalformedMessage, shown_value

_Value = TypeVar("_Value")

_utf8_encoder: Final = msgspec.json.Encoder(
    enc_hook=str
)  # for subclasses of `str`, which msgspec does not know


def replace_surrogates(value: _Value) -> _Value:
    """Return a value of JSON, or a fact, with U+FFFD in place of lone surrogates; `Raw` is left as it is."""
    return _replace(value)  # type: ignore[no-any-return]


def is_utf8(fact: msgspec.Struct) -> bool:
    """Return whether UTF-8 can hold all texts of a fact."""
    content = getattr(fact, "content", None)
    if type(content) is str and content.isascii() and getattr(fact, "extra", UNSET) is UNSET:
        call_id = getattr(fact, "call_id", "")
        return call_id.isascii() or _can_encode(fact)
    return _can_encode(fact)


def _can_encode(value: object) -> bool:
    try:
        _utf8_encoder.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _replace(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _replace_in_text(value)
    if isinstance(value, dict):
        return {_replace(name): _replace(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_replace, value))
    if isinstance(value, msgspec.Struct):
        fields = {name: _replace(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value


def _replace_in_text(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


Json: TypeAlias = dict[str, Any]
T = TypeVar("T")

FREE_TEXT_VARIETIES: Final = frozenset({"custom", "custom_tool_call"})
"""Varieties of calls with free text as arguments; a function call carries the text in its field `input`."""
OPENING_USER_TEXT: Final = "[The conversation continues from here.]"
"""User message that a dialect adds before a history that begins with the model."""
RECORD_MARK: Final = "[foveal: record of"
"""How a record that Foveal writes begins."""
FOREIGN_SUMMARY_TITLE: Final = "[foveal: summary of the conversation before, as another provider wrote it]"
SYSTEM_ROLE: Final = "system"
RESULT_MESSAGE_FIELDS: Final = "messageFields"
"""Name in the `extra` of a result: the other fields of its message, which may have several results."""
_STRINGS: Final = (str, bytes)
TEXT_OR_PARTS: Final = "a text, or a list of parts"
"""What a content may be, for a message."""


class MessageChunk(msgspec.Struct, frozen=True):
    """The smallest run of messages that gives a whole number of facts."""

    messages: int
    facts: tuple[AnyFact, ...]


class BadField(Exception):
    """A malformed field; `read_at` turns it into `MalformedMessage` with the index of the message."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def inside(self, outer: str) -> BadField:
        """Return the same error with its path extended by the enclosing field."""
        return BadField(f"{outer}.{self.field}" if self.field else outer, self.problem)


# ── Reading ────────────────────────────────────────────────────────────────────────────────────────────


def indexed_from(messages: Sequence[object], start: int) -> Iterator[tuple[int, object]]:
    """Return the messages from `start` on, each with its index."""
    return enumerate(messages[start:] if start else messages, start)


def read_at(index: int, reader: Callable[[Any], T], value: object) -> T:
    """Read one message; raises `MalformedMessage` with its index."""
    try:
        return reader(value if type(value) is dict else as_mapping(value))
    except BadField as bad:
        raise MalformedMessage(index, bad.field, bad.problem) from None


def read_each(
    messages: Sequence[object], start: int, read_message: Callable[[Any], tuple[AnyFact, ...]]
) -> Iterator[MessageChunk]:
    """Yield one chunk for each message, for dialects in which every message is read by itself."""
    for index, message in indexed_from(messages, start):
        if type(message) is dict and len(message) == 2:  # fast path: most messages are a role and a text
            content = message.get("content")
            if type(content) is str:
                role = message.get("role")
                if role == "user":
                    yield MessageChunk(1, (UserSaid(content=content),))
                    continue
                if role == "assistant":
                    yield MessageChunk(1, (ModelSaid(content=content),))
                    continue
        yield MessageChunk(1, read_at(index, read_message, message))


def given_value(value: object) -> str:
    """Return a wrong value and its type for a message."""
    return f"{shown_value(value)} ({type(value).__name__})"


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a dict unchanged, and an object of a client library as the dict that the library would send."""
    if type(value) is dict:
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        dumped = dump_object(value)
        if isinstance(dumped, dict):
            return dumped
    raise BadField("", f"must be a dict or an object of a client library, not {given_value(value)}")


def dump_object(value: Any) -> Any:
    """Return what a client library would send for one of its objects."""
    if isinstance(value, Mapping):
        return dict(value)
    if not hasattr(value, "model_dump"):
        raise TypeError(f"an object of type {type(value).__name__}")
    try:
        dumped = value.model_dump(mode="json", exclude_unset=True, by_alias=True, warnings=False)
    except TypeError:  # a class with pydantic's method but other parameters
        return value.model_dump()
    role = getattr(value, "role", None)
    if isinstance(role, str) and isinstance(dumped, dict):
        dumped.setdefault(
            "role", role
        )  # a class of messages of one role has it as a default, which is not set
    return dumped


_encoder: Final = msgspec.json.Encoder(enc_hook=dump_object)
_finite_encoder: Final = json.JSONEncoder(
    allow_nan=False,
    skipkeys=True,
    check_circular=False,
    default=lambda value: dict(value) if isinstance(value, Mapping) else None,
)
"""Finds numbers that JSON does not have, at a tenth of the time that a loop in Python takes."""


def encode_json(value: object) -> bytes:
    """Return a value as JSON bytes; it may contain objects of client libraries."""
    try:
        text = _encoder.encode(value)
        if has_null(text) and not _is_finite(value):  # the encoder writes NaN and infinity as null
            raise BadField("", "holds a number that JSON does not have (NaN or infinity)")
        return text
    except UnicodeEncodeError:
        return replace_surrogates(json.dumps(value, default=dump_object, ensure_ascii=False)).encode()
    except RecursionError:
        raise BadField("", "is nested too deeply") from None
    except (TypeError, ValueError) as problem:
        raise BadField("", f"cannot be written as JSON: {problem}") from None


def has_null(text: bytes) -> bool:
    """Return whether encoded JSON may have a null in it. The string "null", a type in many schemas, is none."""
    return b":null" in text or b",null" in text or b"[null" in text or text == b"null"


def most_values(text: bytes) -> int:
    """Return how many values the arrays and objects of JSON text hold at most: marks inside strings count too."""
    return len(text) - len(text.translate(None, b",[{"))  # one pass, where `count` takes three


def _is_finite(value: object) -> bool:
    try:
        _finite_encoder.encode(value)
    except ValueError:
        return False
    return True


def raw_json(value: object) -> Raw:
    """Return a value as immutable JSON bytes."""
    return Raw(encode_json(value))


def json_text(value: object) -> str:
    """Return a value as JSON text."""
    return encode_json(value).decode()


def other_fields(item: Mapping[str, Any], known: frozenset[str]) -> Raw | UnsetType:
    """Return the fields beyond the known ones, `UNSET` if there are none."""
    if known.issuperset(item):
        return UNSET
    return raw_json({name: value for name, value in item.items() if name not in known})


def required_string(item: Mapping[str, Any], field: str) -> str:
    """Return a field that must be present and be a string."""
    value = item.get(field)
    if isinstance(value, str):
        return value
    raise BadField(field, "is missing" if value is None else f"must be a string, not {given_value(value)}")


def required_content(item: Mapping[str, Any], field: str) -> Any:
    """Return a content that must be present and not null: providers refuse a message without content."""
    value = item.get(field)
    if value is None:
        raise BadField(field, "is null: send a text, which may be empty" if field in item else "is missing")
    return value


def unknown_role(role: object, messages: str, allowed: str) -> BadField:
    """Return the error for a role that the messages of a dialect do not have."""
    return BadField("role", f"{shown_value(role)} is not a role of {messages}: one of {allowed}")


def arguments_text(item: Mapping[str, Any], field: str) -> str:
    """Return arguments as the text that the model wrote; parsed arguments are encoded as JSON again."""
    value = item.get(field)
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value)


def read_list(values: object, field: str, reader: Callable[[Any], T], *, expected: str = "a list") -> list[T]:
    """Read every item of a list; an error names the field and the position of the item. `expected` says what the
    field may be, for a message."""
    if type(values) is not list and (isinstance(values, _STRINGS) or not isinstance(values, Sequence)):
        raise BadField(field, f"must be {expected}, not {given_value(values)}")
    items: list[T] = []
    for place, value in enumerate(values):
        try:
            items.append(reader(value if type(value) is dict else as_mapping(value)))
        except BadField as bad:
            raise bad.inside(f"{field}[{place}]") from None
    return items


def read_media(item: Mapping[str, Any]) -> Media:
    """Return a part with an image, sound or file, with its size and the tokens that it costs."""
    native = raw_json(item)
    measured = measure_media(item if type(item) is dict and _is_plain_json(item) else unraw(native))
    return Media(native=native, mime=measured.mime, size=measured.size, units=measured.units)


def _is_plain_json(item: Json) -> bool:
    """Return whether no object of a client library is inside."""
    return all(isinstance(value, str | dict) for value in item.values())


def native_dialect(dialect: Dialect, extra: Raw | UnsetType, parts: Iterable[AnyPart] = ()) -> Dialect:
    """Return the dialect if any field or part belongs to it alone, otherwise ""."""
    if extra is not UNSET:
        return dialect
    for part in parts:
        if isinstance(part, Call):  # tested first: most lists of parts hold calls
            if part.variety != "function" or part.extra is not UNSET:
                return dialect
        elif not isinstance(part, Text) or part.extra is not UNSET:
            return dialect
    return ""


def with_message_fields(
    results: Sequence[ToolReturned], extra: Raw | UnsetType, dialect: Dialect
) -> tuple[ToolReturned, ...]:
    """Return the results of a message that has nothing else, the first with the other fields of the message."""
    if extra is UNSET:
        return tuple(results)
    first = results[0]
    own = raw_json({**extras(first.extra), RESULT_MESSAGE_FIELDS: unraw(extra)})
    return (replace(first, extra=own, dialect=dialect), *results[1:])


# ── Writing ────────────────────────────────────────────────────────────────────────────────────────────


def same_role(before: Json, message: Json) -> bool:
    """Return whether two messages of the user, or of the model, have the same role. System messages stay apart."""
    return bool(before["role"] == message["role"] != SYSTEM_ROLE)


def is_native(fact: UserSaid | Instructed | ModelSaid | ToolReturned, dialect: Dialect) -> bool:
    """Return whether a fact was read in this dialect, or has nothing that only one dialect can read."""
    return fact.dialect in ("", dialect)


def readable_summary(fact: ForeignSummary) -> UserSaid | None:
    """Return a summary that another provider made as a message, None if only that provider can read it. A record of
    Foveal beside it says itself what it is."""
    title = "" if fact.text.startswith(RECORD_MARK) else f"{FOREIGN_SUMMARY_TITLE}\n"
    return UserSaid(content=f"{title}{fact.text}") if fact.text else None


def function_arguments(call: Call) -> str:
    """Return the arguments of a call of any variety as those of a function call."""
    return json_text({"input": call.arguments}) if call.variety in FREE_TEXT_VARIETIES else call.arguments


def arguments_object(arguments: str) -> Json:
    """Return arguments as the object that some dialects require; other text is kept under `_raw`."""
    if not arguments.strip():
        return {}
    try:
        given = msgspec.json.decode(arguments)
    except RecursionError:
        return {"_raw": arguments}
    except (ValueError, UnicodeEncodeError):
        given = _parse_surrogates(arguments)
    return given if isinstance(given, dict) else {"_raw": arguments}


def _parse_surrogates(arguments: str) -> Any:
    """Parse JSON with escapes of lone surrogates, which only the standard library reads."""
    try:
        return replace_surrogates(json.loads(arguments, parse_constant=_reject_constant))
    except (ValueError, RecursionError):
        return None


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def derived_name(name: str, illegal: Pattern[str]) -> str:
    """Return a name without the characters that match `illegal`, the same for the same name and unique to it."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{illegal.sub('_', name)[:40]}_{digest}"


def distinct_ids(ids: Sequence[str], legalise: Callable[[str], str] = str) -> dict[str, list[str]]:
    """Return, for each id that occurs more than once, one derived id per occurrence; `legalise` makes a derived id
    legal in the dialect."""
    taken = set(ids)
    names: dict[str, list[str]] = {}
    for name, count in Counter(ids).items():
        if count == 1:
            continue
        names[name] = [name]
        number = 2
        while len(names[name]) < count:
            if (other := legalise(f"{name}_{number}")) not in taken:
                taken.add(other)
                names[name].append(other)
            number += 1
    return names


def write_content(
    content: Sequence[AnyPart],
    write_part: Callable[[AnyPart], Json | None],
    *,
    text_type: str,
    join_texts: bool,
) -> str | list[Json]:
    """Return the parts of a content in the form of an OpenAI dialect. Parts for which `write_part` returns None are
    left out.

    With `join_texts`, for content of another dialect, parts that are all texts become one text.
    """
    items = [item for part in content if (item := write_part(part)) is not None]
    if join_texts and all(item["type"] == text_type for item in items):
        return "\n".join(item["text"] for item in items)
    return items or ""


def media_notice(part: Media) -> str:
    """Return the text that replaces media which cannot be sent in a dialect or role."""
    return f"[{part.mime or 'media'}, {part.size:,} bytes: cannot be shown here]"
