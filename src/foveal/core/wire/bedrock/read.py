"""Reads Bedrock Converse messages into facts.

A block has one field, which names its kind. Tool results are blocks of a user message, which becomes one
`ToolReturned` per result and one `UserSaid` for the other blocks. A `cachePoint` is not a part of the content: the
result or message before it keeps it as an extra field, with its place, so that moving it does not count as an edit.
Legal messages that are read, written and joined are unchanged, with these exceptions:

1. neighbouring messages of the same role become one message;
2. tool results come first in a message;
3. empty texts, empty messages, reasoning at the end of a message, and a `cachePoint` next to another are left out;
4. ids, names of tools and names of documents that Bedrock refuses are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Dialect,
    Instructed,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    extras,
)
from foveal.core.wire.bedrock.converse_bytes import mark_bytes
from foveal.core.wire.bedrock.write import BEDROCK_CONVERSE, CACHE_POINTS_FIELD
from foveal.core.wire.cache_marks import CACHE_POINT
from foveal.core.wire.common import (
    TEXT_OR_PARTS,
    BadField,
    Json,
    MessageChunk,
    as_mapping,
    json_text,
    native_dialect,
    other_fields,
    raw_json,
    read_each,
    read_list,
    read_media,
    required_string,
    unknown_role,
    with_message_fields,
)

T = TypeVar("T")

_MESSAGE_FIELDS: Final = frozenset({"role", "content", CACHE_POINTS_FIELD})
_CALL_FIELDS: Final = frozenset({"toolUseId", "name", "input"})
_RESULT_FIELDS: Final = frozenset({"toolUseId", "content", "status", CACHE_POINTS_FIELD})
_MEDIA_KINDS: Final = frozenset({"image", "document", "video", "audio"})


class _CachePoint(NamedTuple):
    """The value of a `cachePoint` block."""

    value: Json


_Block: TypeAlias = AnyPart | ToolReturned | _CachePoint
_PlacedPoint: TypeAlias = tuple[int, Json]
"""How many parts come before a `cachePoint`, and its value."""


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each message from `start` on."""
    return read_each(messages, start, _read_message)


def _read_message(message: Mapping[str, Any]) -> tuple[AnyFact, ...]:
    role, content = message.get("role"), message.get("content")
    if content is None:
        raise BadField("content", "is missing")
    extra = other_fields(message, _MESSAGE_FIELDS)
    blocks: list[_Block] = (
        [Text(text=content)]
        if isinstance(content, str)
        else read_list(content, "content", _read_block, expected=TEXT_OR_PARTS)
    )
    _check_places(blocks, role)
    match role:
        case "user":
            return _user_facts(blocks, extra)
        case "assistant":
            content, extra, dialect = _said(blocks, extra)
            return (ModelSaid(content=content, dialect=dialect, extra=extra),)
        case "system":
            content, extra, _ = _said(blocks, extra)
            return (Instructed(content=content, dialect=BEDROCK_CONVERSE, extra=extra),)
        case None:
            raise BadField("role", "is missing")
        case other:
            raise unknown_role(other, "Bedrock messages", "user, assistant, system")


def _check_places(blocks: list[_Block], role: object) -> None:
    """Raise `BadField` for a call that is not the assistant's and for a result that is not the user's."""
    for place, block in enumerate(blocks):
        if isinstance(block, ToolReturned) and role != "user":
            raise BadField(f"content[{place}].toolResult", "belongs into a message of the user")
        if isinstance(block, Call) and role != "assistant":
            raise BadField(f"content[{place}].toolUse", "belongs into a message of the assistant")


# ── The blocks of a message ──────────────────────────────────────────────────────────────────────────────


def _said(blocks: list[_Block], extra: Raw | UnsetType) -> tuple[Content, Raw | UnsetType, Dialect]:
    """Return content, extra fields and dialect of a message without its tool results."""
    parts: list[AnyPart] = []
    points: list[_PlacedPoint] = []
    for block in blocks:
        if isinstance(block, _CachePoint):
            points.append((len(parts), block.value))
        elif not isinstance(block, ToolReturned):
            parts.append(block)
    extra = _with_points(extra, points)
    return _content(parts), extra, native_dialect(BEDROCK_CONVERSE, extra, parts)


def _user_facts(blocks: list[_Block], extra: Raw | UnsetType) -> tuple[AnyFact, ...]:
    if len(blocks) == 1 and isinstance(block := blocks[0], ToolReturned) and extra is UNSET:
        return (block,)  # fast path: one result
    results: list[ToolReturned] = []
    others: list[_Block] = []
    is_after_result = False
    for block in blocks:
        if isinstance(block, ToolReturned):
            results.append(block)
            is_after_result = True
        elif isinstance(block, _CachePoint) and is_after_result:
            results[-1] = _with_point_after(results[-1], block)
        else:
            others.append(block)
            is_after_result = False
    if results and all(isinstance(block, _CachePoint) for block in others):
        return with_message_fields(results, extra, BEDROCK_CONVERSE)
    content, extra, dialect = _said(others, extra)
    return (*results, UserSaid(content=content, dialect=dialect, extra=extra))


def _content(parts: list[AnyPart]) -> Content:
    """Return parts as content; a single text is plain text, because Bedrock has no other form of it."""
    if len(parts) == 1 and isinstance(part := parts[0], Text) and part.extra is UNSET:
        return part.text
    return tuple(parts)


def _with_points(extra: Raw | UnsetType, points: Sequence[_PlacedPoint]) -> Raw | UnsetType:
    return raw_json({**extras(extra), CACHE_POINTS_FIELD: points}) if points else extra


def _with_point_after(result: ToolReturned, point: _CachePoint) -> ToolReturned:
    return replace(result, extra=_with_points(result.extra, [(1, point.value)]), dialect=BEDROCK_CONVERSE)


# ── One block ────────────────────────────────────────────────────────────────────────────────────────────


def _read_block(item: Mapping[str, Any]) -> _Block:
    kind, value = _kind_and_value(item)
    match kind:
        case "toolUse":
            return _inside(kind, value, _read_call)
        case "toolResult":
            return _inside(kind, value, _read_result)
        case "cachePoint":
            return _CachePoint(dict(_inside(CACHE_POINT, value, as_mapping)))
        case "reasoningContent":
            return Thinking(native=_native(item), text=_inside(kind, value, _reasoning_text))
        case _:
            return _read_part(kind, value, item)


def _read_part(kind: str, value: Any, item: Mapping[str, Any]) -> AnyPart:
    """Read a block that a message and a tool result can have."""
    match kind:
        case "text":
            return Text(text=required_string(item, "text"))
        case _ if kind in _MEDIA_KINDS:
            return read_media({kind: mark_bytes(_inside(kind, value, as_mapping))})
        case "guardContent" if isinstance(value, Mapping) and "image" in value:
            return read_media(mark_bytes(item))
        case "guardContent":
            return _inside(kind, value, _read_guarded_text) or Opaque(native=_native(item))
        case "citationsContent":
            return _inside(kind, value, _read_cited_text) or Opaque(native=_native(item))
        case _:
            return Opaque(native=_native(item))


def _kind_and_value(item: Mapping[str, Any]) -> tuple[str, Any]:
    given = [(name, value) for name, value in item.items() if value is not None]
    if len(given) != 1:
        raise BadField("", f"must have one field, which names the kind of the block, not {len(given)}")
    return given[0]


def _inside(field: str, value: Any, reader: Callable[[Any], T]) -> T:
    """Read the value of a block; an error names the field."""
    try:
        return reader(as_mapping(value))
    except BadField as bad:
        raise bad.inside(field) from None


def _native(item: Mapping[str, Any]) -> Raw:
    return raw_json(mark_bytes(item))


def _reasoning_text(value: Mapping[str, Any]) -> str:
    thought = value.get("reasoningText")
    return (
        ""
        if thought is None
        else _inside("reasoningText", thought, lambda text: required_string(text, "text"))
    )


def _read_guarded_text(value: Mapping[str, Any]) -> Text | None:
    text = value.get("text")
    if not isinstance(text, Mapping) or not isinstance(text.get("text"), str):
        return None
    rest = {name: inner for name, inner in text.items() if name != "text"}
    return Text(text=text["text"], extra=raw_json({"guardContent": rest}))


def _read_cited_text(value: Mapping[str, Any]) -> Text | None:
    """Return an answer with citations as text, None if it is in several pieces."""
    match value.get("content"):
        case [{"text": str(text), **others}] if not others:
            rest = {name: inner for name, inner in value.items() if name != "content"}
            return Text(text=text, extra=raw_json({"citationsContent": mark_bytes(rest)}))
        case _:
            return None


def _read_call(value: Mapping[str, Any]) -> AnyPart:
    if value.get("type") == "server_tool_use":  # Bedrock runs it and puts its result into the same message
        return Opaque(native=_native({"toolUse": value}))
    id, name, arguments = (
        required_string(value, "toolUseId"),
        required_string(value, "name"),
        value.get("input"),
    )
    if arguments is None:
        raise BadField("input", "is missing")
    return Call(
        id=id,
        name=name,
        arguments=arguments if isinstance(arguments, str) else json_text(arguments),
        extra=other_fields(value, _CALL_FIELDS),
    )


# ── Tool results ─────────────────────────────────────────────────────────────────────────────────────────


def _read_result(value: Mapping[str, Any]) -> ToolReturned | Opaque:
    if value.get("type") is not None:  # of a tool that Bedrock ran
        return Opaque(native=_native({"toolResult": value}))
    call_id = required_string(value, "toolUseId")
    if value.get("content") is None:
        raise BadField("content", "is missing")
    parts = read_list(value["content"], "content", _read_result_block)
    extra, status = other_fields(value, _RESULT_FIELDS), value.get("status")
    if status is not None and status != "error":
        extra = raw_json({**extras(extra), "status": status})
    return ToolReturned(
        call_id=call_id,
        content=_content(parts),
        error=status == "error",
        dialect=native_dialect(BEDROCK_CONVERSE, extra, parts),
        extra=extra,
    )


def _read_result_block(item: Mapping[str, Any]) -> AnyPart:
    kind, value = _kind_and_value(item)
    if kind == "json":
        return Text(text=json_text(value), extra=raw_json({"json": True}))
    return _read_part(kind, value, item)
