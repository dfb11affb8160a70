"""Writes facts as messages of OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

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
    Json,
    function_arguments,
    is_native,
    media_notice,
    readable_summary,
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
