"""OpenAI Responses: a run of the model's items is one fact, every other item is one fact.

A run (reasoning, messages of the assistant, calls, what tools of the server did) stays together, so reasoning never
loses the item that it belongs to. Read and written back, legal items are equal to what they were, with these
exceptions: reasoning that nothing follows is not sent again, because the provider refuses it; an empty text beside
calls is left out; arguments that were given parsed come back as text.

Where a message of the assistant begins is noted in the extra of its first text, under `item`; a text that was a
part of a list has its `type` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from foveal.core.log.events import (
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
    BadField,
    Json,
    MessageChunk,
    arguments_of,
    at,
    each,
    json_text,
    media,
    opaque,
    owner,
    rest,
    string,
    tail,
)
from foveal.core.wire.openai_responses.write import CUSTOM, FROM_USER, NATIVE, STDERR, join, write

__all__ = ["dialect", "join", "read", "write"]

dialect: Final[Dialect] = "openai_responses"

_MESSAGE: Final = frozenset({"role", "content"})
_CALL: Final = frozenset({"type", "call_id", "name", "arguments"})
_CUSTOM: Final = frozenset({"type", "call_id", "name", "input"})
_ENVELOPE: Final = frozenset({"type", "id", "call_id", "status"})
_RESULTS: Final = {f"{variety}_output": variety for variety in (*NATIVE, CUSTOM)} | {
    "function_call_output": "function"
}
_MEDIA: Final = frozenset({"input_image", "input_file", "input_audio", "computer_screenshot"})
_TEXT: Final = frozenset({"type", "text"})
_RESULT: Final = frozenset({"type", "call_id", "output", "answers"})


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Runs of the model's items, and every other item for itself."""
    run: list[AnyPart] = []
    length = 0
    for index, message in tail(messages, start):
        if type(message) is dict and message.get("role") == "assistant" and _plain(message):
            run.append(Text(text=message["content"]))
            length += 1
            continue
        item, kind = at(index, _kinded, message)
        if kind == "model":
            run += at(index, _uttered, item)
            length += 1
            continue
        if length:
            yield MessageChunk(length, (_utterance(run),))
            run, length = [], 0
        if kind == "plain":
            yield MessageChunk(1, (UserSaid(content=item["content"]),))
        elif kind == "said":
            yield MessageChunk(1, (at(index, _said, item),))
        else:
            yield MessageChunk(1, (at(index, _result, _with_call_id(item, messages, index)),))
    if length:
        yield MessageChunk(length, (_utterance(run),))


def _plain(item: Mapping[str, Any]) -> bool:
    """Role and text, and nothing else: what most messages are."""
    return len(item) == 2 and type(item.get("content")) is str


def _kinded(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """An item, and who said it: the model, a tool, or somebody else."""
    if item.get("role") == "user" and _plain(item):
        return item, "plain"
    kind = item.get("type")
    if kind is None and "role" not in item and "id" not in item:
        raise BadField("type", "is missing")
    if kind is not None and not isinstance(kind, str):
        raise BadField("type", f"must be a string, not {type(kind).__name__}")
    if kind == "message" or (kind is None and "role" in item):
        return item, "model" if item.get("role") == "assistant" else "said"
    if kind in _RESULTS:
        return item, "result"
    return item, "said" if kind == FROM_USER else "model"


def _said(item: Mapping[str, Any]) -> UserSaid | Instructed:
    if item.get("type") == FROM_USER:
        return UserSaid(content=(Opaque(native=opaque(item)),), dialect=dialect)
    content, extra = _content(item, "content"), rest(item, _MESSAGE)
    whose = owner(dialect, extra, () if isinstance(content, str) else content)
    match item.get("role"):
        case "user":
            return UserSaid(content=content, dialect=whose, extra=extra)
        case "system" | "developer" as role:
            return Instructed(
                content=content,
                role="developer" if role == "developer" else "system",
                dialect=whose,
                extra=extra,
            )
        case None:
            raise BadField("role", "is missing")
        case other:
            raise BadField("role", f"{other!r} is not a role of Responses messages")


def _utterance(run: list[AnyPart]) -> ModelSaid:
    first = run[0] if len(run) == 1 else None
    if isinstance(first, Text) and first.extra is UNSET:
        return ModelSaid(content=first.text)
    return ModelSaid(content=tuple(run), dialect=owner(dialect, UNSET, run))


def _uttered(item: Mapping[str, Any]) -> Sequence[AnyPart]:
    match item.get("type"):
        case "message" | None if "role" in item:
            return _spoken(item)
        case "reasoning":
            return (Thinking(native=opaque(item), text=_summary(item)),)
        case "function_call":
            return (_call(item, "arguments", "function", _CALL),)
        case "custom_tool_call":
            return (_call(item, "input", CUSTOM, _CUSTOM),)
        case variety if variety in NATIVE:
            return (_native_call(item, variety),)
        case _:
            return (Opaque(native=opaque(item)),)


def _spoken(item: Mapping[str, Any]) -> Sequence[AnyPart]:
    """The texts of a message of the assistant; a message with anything else in it is kept as it is."""
    content = item.get("content")
    if isinstance(content, str):
        extra = UNSET if item.keys() <= _MESSAGE else opaque({"item": _beside(item)})
        return (Text(text=content, extra=extra),)
    parts = each(content, "content", dict)
    if not parts or not all(isinstance(part.get(_words(part)), str) for part in parts):
        return (Opaque(native=opaque(item)),)
    return [_text(part, item if place == 0 else None) for place, part in enumerate(parts)]


def _words(part: Mapping[str, Any]) -> str:
    return "refusal" if part.get("type") == "refusal" else "text"


def _text(part: Mapping[str, Any], item: Mapping[str, Any] | None) -> Text:
    field = _words(part)
    string(part, "type")
    extra = {name: value for name, value in part.items() if name != field}
    if item is not None:
        extra["item"] = _beside(item)
    return Text(text=part[field], extra=opaque(extra))


def _beside(item: Mapping[str, Any]) -> Json:
    return {name: value for name, value in item.items() if name not in _MESSAGE}


def _summary(item: Mapping[str, Any]) -> str:
    """The words of a reasoning item, as far as the provider shows them."""
    found: list[str] = []
    for field in ("summary", "content"):
        words = [part.get("text") for part in each(item.get(field) or (), field, dict)]
        found += [text for text in words if isinstance(text, str)]
    return "\n".join(found)


def _call(item: Mapping[str, Any], field: str, variety: str, known: frozenset[str]) -> Call:
    return Call(
        id=string(item, "call_id"),
        name=string(item, "name"),
        arguments=arguments_of(item, field),
        variety=variety,
        extra=rest(item, known),
    )


def _native_call(item: Mapping[str, Any], variety: str) -> Call:
    """A call with a form of its own: kept whole, and told as a function for other dialects."""
    return Call(
        id=string(item, "call_id"),
        name=variety.removesuffix("_call"),
        arguments=json_text({name: value for name, value in item.items() if name not in _ENVELOPE}),
        variety=variety,
        extra=opaque(item),
    )


def _with_call_id(item: Mapping[str, Any], messages: Sequence[object], index: int) -> Mapping[str, Any]:
    """A result that names the item of its call gets the call's id: older results of the local shell do."""
    if item.get("call_id") is not None or item.get("type") != "local_shell_call_output":
        return item
    for place in range(index - 1, -1, -1):
        call, _ = at(place, _kinded, messages[place])
        if call.get("type") == "local_shell_call" and call.get("id") == item.get("id"):
            return {**item, "answers": call.get("call_id")}
    return {**item, "answers": item.get("id")}


# ── results and contents ────────────────────────────────────────────────────────────────────────────────────


def _content(item: Mapping[str, Any], field: str) -> Content:
    content = item.get(field)
    if isinstance(content, str):
        return content
    return () if content is None else tuple(each(content, field, _part))


def _part(item: Mapping[str, Any]) -> AnyPart:
    kind = string(item, "type")
    if kind == "input_text":
        return Text(text=string(item, "text"), extra=rest(item, _TEXT))
    if kind in ("text", "output_text"):
        return Text(text=string(item, "text"), extra=rest(item, frozenset({"text"})))
    return media(item) if kind in _MEDIA else Opaque(native=opaque(item))


def _result(item: Mapping[str, Any]) -> ToolReturned:
    kind = string(item, "type")
    variety = "function" if kind == "function_call_output" else kind.removesuffix("_output")
    call_id = item.get("answers") or item.get("call_id")
    if not isinstance(call_id, str):
        raise BadField("call_id", "is missing" if call_id is None else "must be a string")
    content, extra = _output(item, variety), _result_extra(item)
    return ToolReturned(
        call_id=call_id,
        content=content,
        error=item.get("status") == "failed",
        variety=variety,
        dialect=dialect
        if variety != "function"
        else owner(dialect, extra, () if isinstance(content, str) else content),
        extra=extra,
    )


def _result_extra(item: Mapping[str, Any]) -> Any:
    """The other fields; a result that had no output, or that named its call otherwise, says so."""
    kept = {name: value for name, value in item.items() if name not in _RESULT}
    if "answers" in item:
        kept["call_id"] = None
    return opaque(kept) if kept else UNSET


def _output(item: Mapping[str, Any], variety: str) -> Content:
    output = item.get("output")
    if variety == "shell_call" and not isinstance(output, str):
        entries = each(output, "output", _shell_entry)
        return tuple(part for parts in entries for part in parts)
    if variety == "computer_call" and not isinstance(output, str | list):
        return (media(output),) if isinstance(output, Mapping) else (Opaque(native=opaque(output)),)
    return _content(item, "output")


def _shell_entry(entry: Mapping[str, Any]) -> tuple[AnyPart, ...]:
    """What one command printed: two texts when it also wrote to stderr."""
    words = Text(text=string(entry, "stdout"), extra=rest(entry, frozenset({"stdout", "stderr"})))
    stderr = entry.get("stderr")
    return (
        (words, Text(text=stderr, extra=opaque(STDERR))) if isinstance(stderr, str) and stderr else (words,)
    )
