"""OpenAI chat completions: one message is one fact.

Read and written back, a legal message is equal to what it was, with these exceptions: missing content of a message
becomes null (with calls) or "" (without), an empty list becomes "", `tool_calls` that are null or empty are left
out, and arguments that were given parsed come back as text. Of a legacy `function_call` the name serves as the id.
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
    ToolReturned,
    UserSaid,
)
from foveal.core.wire.common import (
    BadField,
    MessageChunk,
    arguments_of,
    at,
    each,
    json_text,
    mapping,
    media,
    opaque,
    owner,
    rest,
    string,
    tail,
)
from foveal.core.wire.openai_chat.write import LEGACY, join, write

__all__ = ["dialect", "join", "read", "write"]

dialect: Final[Dialect] = "openai_chat"

_MEDIA: Final = frozenset({"image_url", "input_audio", "file"})
_SAID: Final = frozenset({"role", "content"})
_CALLED: Final = frozenset({"role", "content", "tool_calls", "function_call"})
_RETURNED: Final = frozenset({"role", "content", "tool_call_id", "name"})
_TEXT: Final = frozenset({"type", "text"})
_CALL: Final = frozenset({"id", "type", "function", "custom"})


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


def read(messages: Sequence[object], start: int = 0) -> Iterator[MessageChunk]:
    """Each message as a chunk of its own."""
    new, kind = tuple.__new__, MessageChunk  # a NamedTuple's own constructor takes longer than all the rest
    for index, message in tail(messages, start):
        if type(message) is dict and len(message) == 2:  # the shortest way for what most messages are
            content = message.get("content")
            if type(content) is str:
                role = message.get("role")
                if role == "user":
                    yield new(kind, (1, (UserSaid(content=content),)))
                    continue
                if role == "assistant":
                    yield new(kind, (1, (ModelSaid(content=content),)))
                    continue
        yield new(kind, (1, (at(index, _message, message),)))


def _message(message: Mapping[str, Any]) -> AnyFact:
    match message.get("role"):
        case "assistant":
            return _assistant(message)
        case "tool":
            return _result(message, string(message, "tool_call_id"), "function")
        case "function":
            return _result(message, string(message, "name"), LEGACY)
        case "user":
            content, extra = _content(message), rest(message, _SAID)
            return UserSaid(content=content, dialect=_owner(extra, content), extra=extra)
        case "system" | "developer" as role:
            content, extra = _content(message), rest(message, _SAID)
            return Instructed(
                content=content,
                role="developer" if role == "developer" else "system",
                dialect=_owner(extra, content),
                extra=extra,
            )
        case None:
            raise BadField("role", "is missing")
        case other:
            raise BadField("role", f"{other!r} is not a role of chat messages")


def _owner(extra: Any, content: Content) -> Dialect:
    return owner(dialect, extra, () if isinstance(content, str) else content)


def _assistant(message: Mapping[str, Any]) -> ModelSaid:
    content, extra = _content(message), rest(message, _CALLED)
    calls: list[Call] = []
    if message.get("tool_calls"):
        calls = each(message["tool_calls"], "tool_calls", _call)
    if message.get("function_call") is not None:
        calls.append(_legacy_call(message["function_call"]))
    listed = not isinstance(content, str) and bool(content)
    if calls:
        said = (Text(text=content),) if isinstance(content, str) else content
        content = (*said, *calls)
    return ModelSaid(content=content, listed=listed, dialect=_owner(extra, content), extra=extra)


def _result(message: Mapping[str, Any], call_id: str, variety: str) -> ToolReturned:
    content, extra = _content(message), rest(message, _RETURNED)
    name = message.get("name")
    return ToolReturned(
        call_id=call_id,
        content=content,
        name=name if isinstance(name, str) else "",
        variety=variety,
        dialect=_owner(extra, content),
        extra=extra,
    )


def _content(message: Mapping[str, Any]) -> Content:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return () if content is None else tuple(each(content, "content", _part))


def _part(item: Mapping[str, Any]) -> AnyPart:
    kind = string(item, "type")
    if kind == "text":
        return Text(text=string(item, "text"), extra=rest(item, _TEXT))
    if kind == "refusal":
        return Text(text=string(item, "refusal"), extra=rest(item, frozenset({"refusal"})))
    return media(item) if kind in _MEDIA else Opaque(native=opaque(item))


def _call(item: Mapping[str, Any]) -> Call:
    kind = "function" if item.get("type") is None else string(item, "type")
    if kind not in ("function", "custom"):
        return _strange_call(item, kind)
    body, field = _inner(item, kind), "arguments" if kind == "function" else "input"
    return Call(
        id=string(item, "id"),
        name=_inside(kind, body, "name"),
        arguments=arguments_of(body, field),
        variety=kind,
        extra=_call_extra(item, kind, body, field),
    )


def _strange_call(item: Mapping[str, Any], kind: str) -> Call:
    """A sort of call that is not known here: it has an id, so it will have a result."""
    return Call(id=string(item, "id"), name=kind, arguments=json_text(item), variety=kind, extra=opaque(item))


def _legacy_call(value: object) -> Call:
    try:
        body = mapping(value)
        name = string(body, "name")
    except BadField as bad:
        raise bad.inside("function_call") from None
    extra = rest(body, frozenset({"name", "arguments"}))
    return Call(id=name, name=name, arguments=arguments_of(body, "arguments"), variety=LEGACY, extra=extra)


def _inner(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    try:
        return mapping(item.get(kind))
    except BadField as bad:
        raise bad.inside(kind) from None


def _inside(outer: str, item: Mapping[str, Any], field: str) -> str:
    try:
        return string(item, field)
    except BadField as bad:
        raise bad.inside(outer) from None


def _call_extra(item: Mapping[str, Any], kind: str, body: Mapping[str, Any], field: str) -> Any:
    """What a call has beside the usual: its own fields, and under its kind those of its body."""
    if item.keys() <= _CALL and len(body) <= 2:
        return UNSET
    inner = {name: value for name, value in body.items() if name not in ("name", field)}
    outer = {name: value for name, value in item.items() if name not in _CALL}
    kept = {**outer, kind: inner} if inner else outer
    return opaque(kept) if kept else UNSET
