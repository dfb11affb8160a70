"""Reads Anthropic messages into facts.

Tool results are blocks of a user message, which becomes one `ToolReturned` per result and one `UserSaid` for the
other blocks. Legal messages that are read, written and joined are unchanged, with these exceptions:

1. neighbouring messages of the same role become one message;
2. tool results come first in a message;
3. empty texts, empty messages, and thinking at the end of a message are left out;
4. an empty tool result has no content;
5. the fields of a reply other than role and content are not sent back.

For a model that binds thinking, 1 holds only for what follows tool results, and thinking at the end stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Dialect,
    ForeignSummary,
    Instructed,
    ModelSaid,
    Opaque,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    unraw,
)
from foveal.core.wire.anthropic.write import ANTHROPIC_MESSAGES, COMPACTION_TYPE
from foveal.core.wire.cache_marks import CACHE_MARK
from foveal.core.wire.common import (
    SYSTEM_ROLE,
    TEXT_OR_PARTS,
    BadField,
    MessageChunk,
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
    with_message_fields,
)

_COMPACTION: Final = b'"compaction"'
_MESSAGE_FIELDS: Final = frozenset({"role", "content"})
_REPLY_FIELDS: Final = frozenset(
    {"id", "type", "role", "content", "model", "usage", "container", "context_management",
     "stop_reason", "stop_sequence", "stop_details"}
)  # fmt: skip
"""Fields of a whole reply; only role and content may be sent back."""
_TEXT_FIELDS: Final = frozenset({"type", "text"})
_CALL_FIELDS: Final = frozenset({"type", "id", "name", "input"})
_RESULT_FIELDS: Final = frozenset({"type", "tool_use_id", "content", "is_error"})


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Yield one chunk for each message; raises `MalformedMessage`."""
    return read_each(messages, start, _read_message)


def _read_message(message: Mapping[str, Any]) -> tuple[AnyFact, ...]:
    role = message.get("role")
    if role == SYSTEM_ROLE:
        return (_read_system(message),)
    content: Any = required_content(message, "content")
    extra: Raw | UnsetType = UNSET
    if len(message) != 2 or role is None:  # else there are no other fields
        extra = other_fields(message, _REPLY_FIELDS if message.get("type") == "message" else _MESSAGE_FIELDS)
    if not isinstance(content, str):
        content = _read_blocks(content, role)
    match role:
        case "user":
            return _user_facts(content, extra)
        case "assistant":
            parts: Content = content if isinstance(content, str) else tuple(content)
            if not isinstance(parts, str) and any(map(_is_summary, parts)):
                return tuple(_split_at_summaries(parts, extra))
            return (_model_fact(parts, extra),)
        case None:
            raise BadField("role", "is missing")
        case other:
            raise unknown_role(other, "Anthropic messages", "user, assistant, system")


def _read_system(message: Mapping[str, Any]) -> Instructed:
    """Read a system message among the messages. It may have settings for the next turns instead of content."""
    extra = other_fields(message, _MESSAGE_FIELDS)
    has_settings = extra is not UNSET and any(value is not None for value in unraw(extra).values())
    is_bare = has_settings and message.get("content") is None
    content: Any = "" if is_bare else required_content(message, "content")
    if not isinstance(content, str):
        content = tuple(_read_blocks(content, SYSTEM_ROLE))
    return Instructed(content=content, dialect=ANTHROPIC_MESSAGES, extra=extra)


def _model_fact(parts: Content, extra: Raw | UnsetType) -> ModelSaid:
    listed = not isinstance(parts, str) and _is_list_of_texts(parts)
    return ModelSaid(content=parts, listed=listed, dialect=_native_dialect(extra, parts), extra=extra)


def _is_summary(part: AnyPart) -> bool:
    """Return whether a part is a compaction block with a summary. One without is a failed compaction, which the
    provider ignores."""
    return isinstance(part, Opaque) and _COMPACTION in bytes(part.native) and bool(_summary_text(part))


def _summary_text(part: Opaque) -> str:
    block = unraw(part.native)
    text = block.get("content") if block.get("type") == COMPACTION_TYPE else None
    return text if isinstance(text, str) else ""


def _split_at_summaries(parts: Sequence[AnyPart], extra: Raw | UnsetType) -> Iterator[AnyFact]:
    """Yield each compaction block as a fact of its own; the fields of the message go with the first fact."""
    for is_summary, run in groupby(parts, key=_is_summary):
        if not is_summary:
            yield _model_fact(tuple(run), extra)
            extra = UNSET
            continue
        for part in run:
            assert isinstance(part, Opaque)
            block = unraw(part.native)
            marks = {CACHE_MARK: block.pop(CACHE_MARK)} if CACHE_MARK in block else {}
            around = marks | ({} if extra is UNSET else {"message": unraw(extra)})
            native = raw_json(block) if marks else part.native
            rest = raw_json(around) if around else UNSET
            yield ForeignSummary(
                native=native, text=_summary_text(part), dialect=ANTHROPIC_MESSAGES, extra=rest
            )
            extra = UNSET


def _native_dialect(extra: Any, content: Content) -> Dialect:
    return native_dialect(ANTHROPIC_MESSAGES, extra, () if isinstance(content, str) else content)


def _user_facts(content: str | list[AnyPart | ToolReturned], extra: Any) -> tuple[AnyFact, ...]:
    if isinstance(content, str):
        return (UserSaid(content=content, dialect=_native_dialect(extra, ""), extra=extra),)
    if len(content) == 1 and isinstance(result := content[0], ToolReturned) and extra is UNSET:
        return (result,)  # fast path: one result
    results = [block for block in content if isinstance(block, ToolReturned)]
    if results and len(results) == len(content):
        return with_message_fields(results, extra, ANTHROPIC_MESSAGES)
    parts = tuple(block for block in content if not isinstance(block, ToolReturned))
    return (*results, UserSaid(content=parts, dialect=_native_dialect(extra, parts), extra=extra))


def _is_list_of_texts(parts: Sequence[AnyPart]) -> bool:
    for part in parts:  # a loop, because `all` takes longer for a few parts
        if not isinstance(part, Text):
            return False
    return bool(parts)


def _read_blocks(content: object, role: object) -> list[AnyPart | ToolReturned]:
    """Read the blocks of a message; raises `BadField` for a call that is not the assistant's and for a result that
    is not the user's."""
    blocks = read_list(content, "content", _read_block, expected=TEXT_OR_PARTS)
    for place, block in enumerate(blocks):
        if isinstance(block, ToolReturned) and role != "user":
            raise BadField(f"content[{place}].type", "a tool_result belongs into a message of the user")
        if isinstance(block, Call) and role != "assistant":
            raise BadField(f"content[{place}].type", "a tool_use belongs into a message of the assistant")
    return blocks


def _read_block(item: Mapping[str, Any]) -> AnyPart | ToolReturned:
    kind = item.get("type")
    if kind == "tool_use":  # calls and results first: most blocks of an agent's history
        return _read_call(item)
    return _read_result(item) if kind == "tool_result" else _read_part(item)


def _read_part(item: Mapping[str, Any]) -> AnyPart:
    match required_string(item, "type"):
        case "text":
            return Text(text=required_string(item, "text"), extra=other_fields(item, _TEXT_FIELDS))
        case "tool_use":
            return _read_call(item)
        case "thinking":
            return Thinking(native=raw_json(item), text=required_string(item, "thinking"))
        case "redacted_thinking":
            return Thinking(native=raw_json(item))
        case "image" | "document":
            return read_media(item)
        case _:
            return Opaque(native=raw_json(item))


def _read_call(item: Mapping[str, Any]) -> Call:
    id, name, arguments = item.get("id"), item.get("name"), item.get("input")
    if len(item) == 4 and type(id) is str and type(name) is str and type(arguments) is dict:
        return Call(id=id, name=name, arguments=json_text(arguments))  # fast path: no other fields
    id, name = required_string(item, "id"), required_string(item, "name")
    if arguments is None:
        raise BadField("input", "is missing")
    return Call(
        id=id,
        name=name,
        arguments=arguments if isinstance(arguments, str) else json_text(arguments),
        extra=other_fields(item, _CALL_FIELDS),
    )


def _read_result(item: Mapping[str, Any]) -> ToolReturned:
    call_id, blocks = item.get("tool_use_id"), item.get("content")
    if len(item) == 3 and type(call_id) is str and type(blocks) is str:
        return ToolReturned(call_id=call_id, content=blocks)  # fast path: no other fields
    if isinstance(blocks, str):
        content: Content = blocks
    else:
        content = (
            () if blocks is None else tuple(read_list(blocks, "content", _read_part, expected=TEXT_OR_PARTS))
        )
    extra = _result_extra(item)
    return ToolReturned(
        call_id=required_string(item, "tool_use_id"),
        content=content,
        error=item.get("is_error") is True,
        dialect=_native_dialect(extra, content),
        extra=extra,
    )


def _result_extra(item: Mapping[str, Any]) -> Any:
    """Return the other fields, and an `is_error` that is false, so that the result is written back as it came."""
    if item.get("is_error") is not False:
        return other_fields(item, _RESULT_FIELDS)
    others = {name: value for name, value in item.items() if name not in _RESULT_FIELDS}
    return raw_json({**others, "is_error": False})
