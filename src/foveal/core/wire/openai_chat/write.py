"""Facts as messages of OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from msgspec import UNSET

from foveal.core.log.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Text,
    ToolReturned,
    UserSaid,
    extras,
    unraw,
)
from foveal.core.wire.common import Json, as_function, instead_of
from foveal.core.wire.media import source

LEGACY: Final = "function_call"
"""The variety of calls from before there were `tool_calls`."""
_SPOKEN_OTHERWISE: Final = frozenset({"refusal", "audio"})
"""Fields that let an assistant's content be null."""


def write(fact: AnyFact) -> list[Json]:
    """The message of one fact; none for facts that no model sees."""
    if isinstance(fact, ModelSaid):
        if fact.extra is UNSET and type(fact.content) is str:
            return [{"role": "assistant", "content": fact.content}]
        return [_write_utterance(fact)]
    if isinstance(fact, ToolReturned):
        return [_write_result(fact)]
    if isinstance(fact, UserSaid):
        if fact.extra is UNSET and type(fact.content) is str:
            return [{"role": "user", "content": fact.content}]
        return [_write_said("user", fact)]
    if isinstance(fact, Instructed) and not fact.aside:
        return [_write_said(fact.role, fact)]
    return []


def join(groups: Iterable[Sequence[Json]]) -> list[Json]:
    """The messages of all steps as one list."""
    return list(chain.from_iterable(groups))


def _own(fact: UserSaid | Instructed | ModelSaid | ToolReturned) -> bool:
    return fact.dialect in ("", "openai_chat")


def _write_said(role: str, fact: UserSaid | Instructed) -> Json:
    own = _own(fact)
    content = _write_content(fact.content, own=own, seen=role == "user")
    return {"role": role, "content": content, **(extras(fact.extra) if own else {})}


def _write_result(fact: ToolReturned) -> Json:
    own = _own(fact)
    content = _write_content(fact.content, own=own, seen=False)
    if fact.variety == LEGACY:
        message = {"role": "function", "name": fact.name or fact.call_id, "content": content}
    else:
        message = {"role": "tool", "tool_call_id": fact.call_id, "content": content}
        if fact.name:
            message["name"] = fact.name
    if own and fact.extra is not UNSET:
        message.update(extras(fact.extra))
    return message


def _write_utterance(fact: ModelSaid) -> Json:
    content, own = fact.content, _own(fact)
    extra = extras(fact.extra) if own and fact.extra is not UNSET else {}
    if isinstance(content, str):
        return {"role": "assistant", "content": content, **extra}
    calls = [part for part in content if isinstance(part, Call)]
    said = tuple(part for part in content if not isinstance(part, Call))
    message: Json = {"role": "assistant", "content": _write_speech(said, fact, own=own), **extra}
    if not calls:
        if message["content"] is None and not any(map(extra.get, _SPOKEN_OTHERWISE)):
            message["content"] = ""
        return message
    called = [_write_call(call, own=own) for call in calls if call.variety != LEGACY]
    if called:
        message["tool_calls"] = called
    for call in calls:
        if call.variety == LEGACY:
            message["function_call"] = {"name": call.name, "arguments": call.arguments, **extras(call.extra)}
    return message


def _write_speech(said: tuple[AnyPart, ...], fact: ModelSaid, *, own: bool) -> str | list[Json] | None:
    """The words beside the calls: one text where it was one, null where there are none."""
    if fact.listed and own:
        return _write_content(said, own=own, seen=False) or None
    words = [words for part in said if (words := _words(part))]
    return "\n".join(words) if words else "" if said and own else None


def _words(part: AnyPart) -> str:
    match part:
        case Text():
            return part.text
        case Media():
            return instead_of(part)
        case _:
            return ""


def _write_call(call: Call, *, own: bool) -> Json:
    if call.extra is UNSET and call.variety == "function":
        body = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": body}
    extra = dict(extras(call.extra)) if own else {}
    if not own or call.variety == "function":
        body = {"name": call.name, "arguments": as_function(call), **extra.pop("function", {})}
        return {"id": call.id, "type": "function", "function": body, **extra}
    if call.variety == "custom":
        body = {"name": call.name, "input": call.arguments, **extra.pop("custom", {})}
        return {"id": call.id, "type": "custom", "custom": body, **extra}
    return extra


def _write_content(content: Content, *, own: bool, seen: bool) -> str | list[Json]:
    """Content for a role that sees pictures or not; only a text where it came from another dialect as texts."""
    if isinstance(content, str):
        return content
    items = [item for part in content if (item := _write_part(part, own=own, seen=seen)) is not None]
    if not own and all(item["type"] == "text" for item in items):
        return "\n".join(item["text"] for item in items)
    return items or ""


def _write_part(part: AnyPart, *, own: bool, seen: bool) -> Json | None:
    match part:
        case Text():
            extra = extras(part.extra) if own else {}
            name = "refusal" if extra.get("type") == "refusal" else "text"
            return {"type": "text", name: part.text, **extra}
        case Media() | Opaque() if own:
            native: Json = unraw(part.native)
            return native
        case Media():
            return _write_media(part, seen=seen) or {"type": "text", "text": instead_of(part)}
        case _:
            return None


def _write_media(part: Media, *, seen: bool) -> Json | None:
    """A picture, sound or file from another dialect, None when chat has no form for it."""
    found = source(unraw(part.native))
    if found is not None and found.plain:
        return {"type": "text", "text": found.data}
    if found is None or not seen:
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
