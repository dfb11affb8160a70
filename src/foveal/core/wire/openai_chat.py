"""The OpenAI chat completions dialect: reading and writing messages.

One message gives one fact, and one fact at most one message. Every message has content. Only the model's may be
null, as providers themselves return it, or be missing beside other fields, such as calls or a refusal. A legal
message that is read and written back is unchanged, with these exceptions:

1. the model's null or missing content becomes null (with calls) or "" (without);
2. an empty list becomes "";
3. `tool_calls` that are null or empty are left out;
4. arguments that were given as an object come back as text.

The name of a legacy `function_call` serves as its id. Thinking of Claude, as libraries write it among the parts or
beside them (`THINKING_FIELD`), is read as such: it may have to be left out (`wire.bound_thinking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from msgspec import UNSET

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Dialect,
    ForeignSummary,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    extras,
    unraw,
)
from foveal.core.wire.common import (
    TEXT_OR_PARTS,
    BadField,
    Json,
    MessageChunk,
    arguments_text,
    as_mapping,
    function_arguments,
    is_native,
    json_text,
    media_notice,
    native_dialect,
    other_fields,
    raw_json,
    read_each,
    read_list,
    read_media,
    readable_summary,
    required_content,
    required_string,
    unknown_role,
    write_content,
)
from foveal.core.wire.media import media_source

OPENAI_CHAT: Final[Dialect] = "openai_chat"
LEGACY_CALL: Final = "function_call"
"""Variety of the deprecated `function_call`, which preceded `tool_calls`."""
THINKING_FIELD: Final = "thinking_blocks"
"""Where a library that writes every provider's messages as chat, such as LiteLLM, keeps the thinking of Claude."""
_CONTENT_SUBSTITUTES: Final = frozenset({"refusal", "audio"})
"""Fields of an assistant message that allow its content to be null."""


def write(fact: AnyFact) -> list[Json]:
    """Return the message of one fact; none for facts that no model sees."""
    if isinstance(fact, ModelSaid):
        if fact.extra is UNSET and type(fact.content) is str:
            return [{"role": "assistant", "content": fact.content}]
        return [_write_assistant(fact)]
    if isinstance(fact, ToolReturned):
        return [_write_result(fact)]
    if isinstance(fact, UserSaid):
        if fact.extra is UNSET and type(fact.content) is str:
            return [{"role": "user", "content": fact.content}]
        return [_write_message("user", fact)]
    if isinstance(fact, Instructed) and not fact.aside:
        return [_write_message(fact.role, fact)]
    if isinstance(fact, ForeignSummary) and (summary := readable_summary(fact)) is not None:
        return [_write_message("user", summary)]
    return []


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """Return the messages of all steps as one list."""
    return list(chain.from_iterable(groups))


def _write_message(role: str, fact: UserSaid | Instructed) -> Json:
    same_dialect = is_native(fact, OPENAI_CHAT)
    content = _write_content(fact.content, same_dialect=same_dialect, allows_media=role == "user")
    return {"role": role, "content": content, **(extras(fact.extra) if same_dialect else {})}


def _write_result(fact: ToolReturned) -> Json:
    same_dialect = is_native(fact, OPENAI_CHAT)
    content = _write_content(fact.content, same_dialect=same_dialect, allows_media=False)
    if fact.variety == LEGACY_CALL:
        message = {"role": "function", "name": fact.name or fact.call_id, "content": content}
    else:
        message = {"role": "tool", "tool_call_id": fact.call_id, "content": content}
        if fact.name:
            message["name"] = fact.name
    if same_dialect and fact.extra is not UNSET:
        message.update(extras(fact.extra))
    return message


def _write_assistant(fact: ModelSaid) -> Json:
    content, same_dialect = fact.content, is_native(fact, OPENAI_CHAT)
    extra = extras(fact.extra) if same_dialect and fact.extra is not UNSET else {}
    if isinstance(content, str):
        return {"role": "assistant", "content": content, **extra}
    calls = [part for part in content if isinstance(part, Call)]
    thinking = _thinking_beside(content) if same_dialect else []
    other_parts = [part for part in content if not isinstance(part, Call) and not _is_beside(part)]
    said = _write_assistant_content(other_parts, fact, same_dialect=same_dialect) if other_parts else None
    message: Json = {"role": "assistant", "content": said, **extra}
    if thinking:
        message[THINKING_FIELD] = thinking
    if not calls:
        if message["content"] is None and not any(map(extra.get, _CONTENT_SUBSTITUTES)):
            message["content"] = ""
        return message
    tool_calls = [
        _write_call(call, same_dialect=same_dialect) for call in calls if call.variety != LEGACY_CALL
    ]
    if tool_calls:
        message["tool_calls"] = tool_calls
    for call in calls:
        if call.variety == LEGACY_CALL:
            message["function_call"] = {"name": call.name, "arguments": call.arguments, **extras(call.extra)}
    return message


def _is_beside(part: AnyPart) -> bool:
    """Return whether a part is thinking that stands beside the content of its message."""
    return isinstance(part, Thinking) and THINKING_FIELD in unraw(part.native)


def _thinking_beside(content: Sequence[AnyPart]) -> list[Json]:
    blocks = (unraw(part.native) for part in content if isinstance(part, Thinking))
    return [block[THINKING_FIELD] for block in blocks if THINKING_FIELD in block]


def _write_assistant_content(
    other_parts: Sequence[AnyPart], fact: ModelSaid, *, same_dialect: bool
) -> str | list[Json] | None:
    """Return the content beside the calls: a list if it was one, else one text, or null if there is none."""
    if fact.listed and same_dialect:
        return _write_content(tuple(other_parts), same_dialect=same_dialect, allows_media=False) or None
    texts = [text for part in other_parts if (text := _part_text(part))]
    return "\n".join(texts) if texts else "" if other_parts and same_dialect else None


def _part_text(part: AnyPart) -> str:
    match part:
        case Text():
            return part.text
        case Media():
            return media_notice(part)
        case _:
            return ""


def _write_call(call: Call, *, same_dialect: bool) -> Json:
    if call.extra is UNSET and call.variety == "function":
        body = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": body}
    extra = dict(extras(call.extra)) if same_dialect else {}
    if not same_dialect or call.variety == "function":
        body = {"name": call.name, "arguments": function_arguments(call), **extra.pop("function", {})}
        return {"id": call.id, "type": "function", "function": body, **extra}
    if call.variety == "custom":
        body = {"name": call.name, "input": call.arguments, **extra.pop("custom", {})}
        return {"id": call.id, "type": "custom", "custom": body, **extra}
    return extra


def _write_content(content: Content, *, same_dialect: bool, allows_media: bool) -> str | list[Json]:
    if isinstance(content, str):  # most content: skip the partial
        return content
    write_part = partial(_write_part, same_dialect=same_dialect, allows_media=allows_media)
    return write_content(content, write_part, text_type="text", join_texts=not same_dialect)


def _write_part(part: AnyPart, *, same_dialect: bool, allows_media: bool) -> Json | None:
    match part:
        case Text():
            extra = extras(part.extra) if same_dialect else {}
            name = "refusal" if extra.get("type") == "refusal" else "text"
            return {"type": "text", name: part.text, **extra}
        case Media() | Opaque() | Thinking() if same_dialect:
            native: Json = unraw(part.native)
            return native
        case Media():
            return _write_media(part, allows_media=allows_media) or {
                "type": "text",
                "text": media_notice(part),
            }
        case _:
            return None


def _write_media(part: Media, *, allows_media: bool) -> Json | None:
    """Return an image, sound or file of another dialect, None if chat has no form for it."""
    found = media_source(unraw(part.native))
    if found is not None and found.plain:
        return {"type": "text", "text": found.data}
    if found is None or not allows_media:
        return None
    match found.kind:
        case "image":
            return {"type": "image_url", "image_url": {"url": found.data_url}}
        case "audio" if found.mime in ("audio/wav", "audio/mp3"):
            sound = {"data": found.base64, "format": found.mime.removeprefix("audio/")}
            return {"type": "input_audio", "input_audio": sound}
        case "file" if found.data:
            return {"type": "file", "file": {"filename": found.name or "file", "file_data": found.data_url}}
        case _:
            return None


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
