"""Reads messages of OpenAI chat completions: one message gives one fact.

Every message has content. Only the model's may be null, as providers themselves return it, or be missing beside
other fields, such as calls or a refusal. A legal message that is read and written back is unchanged, with these
exceptions:

1. the model's null or missing content becomes null (with calls) or "" (without);
2. an empty list becomes "";
3. `tool_calls` that are null or empty are left out;
4. arguments that were given as an object come back as text.

The name of a legacy `function_call` serves as its id. Thinking of Claude, as libraries write it among the parts or
beside them (`THINKING_FIELD`), is read as such: it may have to be left out (`wire.bound_thinking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

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
)
from foveal.core.wire.common import (
    TEXT_OR_PARTS,
    BadField,
    MessageChunk,
    arguments_text,
    as_mapping,
    json_text,
    native_dialect,
    other_fields,
    raw_json,
    read_each,
    read_list,
    read_media,
    required_content,
    required_string,
    unknown_role,
)
from foveal.core.wire.openai_chat.write import LEGACY_CALL, OPENAI_CHAT, THINKING_FIELD

_MEDIA_TYPES: Final = frozenset({"image_url", "input_audio", "file"})
_MESSAGE_FIELDS: Final = frozenset({"role", "content"})
_ASSISTANT_FIELDS: Final = frozenset({"role", "content", "tool_calls", "function_call", THINKING_FIELD})
_THINKING_TYPES: Final = frozenset({"thinking", "redacted_thinking"})
_RESULT_FIELDS: Final = frozenset({"role", "content", "tool_call_id", "name"})
_TEXT_FIELDS: Final = frozenset({"type", "text"})
_CALL_FIELDS: Final = frozenset({"id", "type", "function", "custom"})


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each message; raises `MalformedMessage`."""
    return read_each(messages, start, _read_facts)


def _read_facts(message: Mapping[str, Any]) -> tuple[AnyFact]:
    return (_read_message(message),)


def _read_message(message: Mapping[str, Any]) -> AnyFact:
    match message.get("role"):
        case "assistant":
            return _read_assistant(message)
        case "tool":
            return _read_result(message, required_string(message, "tool_call_id"), "function")
        case "function":
            return _read_result(message, required_string(message, "name"), LEGACY_CALL)
        case "user":
            content, extra = _read_content(message), other_fields(message, _MESSAGE_FIELDS)
            return UserSaid(content=content, dialect=_native_dialect(extra, content), extra=extra)
        case "system" | "developer" as role:
            content, extra = _read_content(message), other_fields(message, _MESSAGE_FIELDS)
            return Instructed(
                content=content,
                role="developer" if role == "developer" else "system",
                dialect=_native_dialect(extra, content),
                extra=extra,
            )
        case None:
            raise BadField("role", "is missing")
        case other:
            raise unknown_role(other, "chat messages", "system, developer, user, assistant, tool")


def _native_dialect(extra: Any, content: Content) -> Dialect:
    return native_dialect(OPENAI_CHAT, extra, () if isinstance(content, str) else content)


def _read_assistant(message: Mapping[str, Any]) -> ModelSaid:
    if len(message) == 1:
        raise BadField("content", "is missing")
    content: Content = () if message.get("content") is None else _read_content(message)
    extra = other_fields(message, _ASSISTANT_FIELDS)
    calls: list[Call] = []
    if message.get("tool_calls"):
        calls = read_list(message["tool_calls"], "tool_calls", _read_call)
    if message.get("function_call") is not None:
        calls.append(_read_legacy_call(message["function_call"]))
    thinking = read_list(message.get(THINKING_FIELD) or (), THINKING_FIELD, _read_thinking_beside)
    listed = not isinstance(content, str) and bool(content)
    if calls or thinking:
        said = (Text(text=content),) if isinstance(content, str) else content
        content = (*thinking, *said, *calls)
    return ModelSaid(content=content, listed=listed, dialect=_native_dialect(extra, content), extra=extra)


def _read_result(message: Mapping[str, Any], call_id: str, variety: str) -> ToolReturned:
    if len(message) == 3 and variety == "function" and type(text := message.get("content")) is str:
        return ToolReturned(call_id=call_id, content=text)  # fast path: no other fields
    content, extra = _read_content(message), other_fields(message, _RESULT_FIELDS)
    name = message.get("name")
    return ToolReturned(
        call_id=call_id,
        content=content,
        name=name if isinstance(name, str) else "",
        variety=variety,
        dialect=_native_dialect(extra, content),
        extra=extra,
    )


def _read_content(message: Mapping[str, Any]) -> Content:
    content = required_content(message, "content")
    return (
        content
        if isinstance(content, str)
        else tuple(read_list(content, "content", _read_part, expected=TEXT_OR_PARTS))
    )


def _read_part(item: Mapping[str, Any]) -> AnyPart:
    kind = required_string(item, "type")
    if kind == "text":
        return Text(text=required_string(item, "text"), extra=other_fields(item, _TEXT_FIELDS))
    if kind == "refusal":
        return Text(text=required_string(item, "refusal"), extra=other_fields(item, frozenset({"refusal"})))
    if kind in _THINKING_TYPES:
        return Thinking(native=raw_json(item), text=_thinking_text(item))
    return read_media(item) if kind in _MEDIA_TYPES else Opaque(native=raw_json(item))


def _read_thinking_beside(item: Mapping[str, Any]) -> Thinking:
    return Thinking(native=raw_json({THINKING_FIELD: dict(item)}), text=_thinking_text(item))


def _thinking_text(item: Mapping[str, Any]) -> str:
    text = item.get("thinking")
    return text if isinstance(text, str) else ""


def _read_call(item: Mapping[str, Any]) -> Call:
    if len(item) == 3 and item.get("type") == "function":  # fast path: most calls have no other fields
        id, body = item.get("id"), item.get("function")
        if type(id) is str and type(body) is dict and len(body) == 2:
            name, arguments = body.get("name"), body.get("arguments")
            if type(name) is str and type(arguments) is str:
                return Call(id=id, name=name, arguments=arguments)
    kind = "function" if item.get("type") is None else required_string(item, "type")
    if kind not in ("function", "custom"):
        return _read_unknown_call(item, kind)
    body, field = _call_body(item, kind), "arguments" if kind == "function" else "input"
    return Call(
        id=required_string(item, "id"),
        name=_body_string(kind, body, "name"),
        arguments=arguments_text(body, field),
        variety=kind,
        extra=_call_extra(item, kind, body, field),
    )


def _read_unknown_call(item: Mapping[str, Any], kind: str) -> Call:
    """Read a call of an unknown type, kept whole: it has an id, so a result follows."""
    return Call(
        id=required_string(item, "id"),
        name=kind,
        arguments=json_text(item),
        variety=kind,
        extra=raw_json(item),
    )


def _read_legacy_call(value: object) -> Call:
    try:
        body = as_mapping(value)
        name = required_string(body, "name")
    except BadField as bad:
        raise bad.inside("function_call") from None
    extra = other_fields(body, frozenset({"name", "arguments"}))
    return Call(
        id=name, name=name, arguments=arguments_text(body, "arguments"), variety=LEGACY_CALL, extra=extra
    )


def _call_body(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    try:
        return as_mapping(item.get(kind))
    except BadField as bad:
        raise bad.inside(kind) from None


def _body_string(outer: str, item: Mapping[str, Any], field: str) -> str:
    try:
        return required_string(item, field)
    except BadField as bad:
        raise bad.inside(outer) from None


def _call_extra(item: Mapping[str, Any], kind: str, body: Mapping[str, Any], field: str) -> Any:
    """Return the additional fields of a call, and under its type those of its body."""
    if item.keys() <= _CALL_FIELDS and len(body) <= 2:
        return UNSET
    inner = {name: value for name, value in body.items() if name not in ("name", field)}
    outer = {name: value for name, value in item.items() if name not in _CALL_FIELDS}
    kept = {**outer, kind: inner} if inner else outer
    return raw_json(kept) if kept else UNSET
