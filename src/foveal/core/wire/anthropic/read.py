"""Anthropic messages: results of tools are blocks in a user's message, and roles alternate.

A message of the user becomes one `ToolReturned` for each result and one `UserSaid` for the rest. Read, written and
joined, legal messages are equal to what they were, with these exceptions: neighbours of the same role become one
message; results stand first; empty texts, empty messages and thoughts at the end of a message are left out; an
empty result has no content; system text among the messages is told as the user's; what a reply carries beside role
and content is not sent back.
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
from foveal.core.wire.anthropic.write import join, write
from foveal.core.wire.common import (
    BadField,
    MessageChunk,
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

__all__ = ["dialect", "join", "read", "write"]

dialect: Final[Dialect] = "anthropic"

_SAID: Final = frozenset({"role", "content"})
_REPLY: Final = frozenset(
    {"id", "type", "role", "content", "model", "usage", "container", "context_management",
     "stop_reason", "stop_sequence", "stop_details"}
)  # fmt: skip
"""What a whole reply of the provider has; none of it but role and content may be sent."""
_TEXT: Final = frozenset({"type", "text"})
_USE: Final = frozenset({"type", "id", "name", "input"})
_RESULT: Final = frozenset({"type", "tool_use_id", "content", "is_error"})


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
        yield new(kind, (1, at(index, _message, message)))


def _message(message: Mapping[str, Any]) -> tuple[AnyFact, ...]:
    extra = rest(message, _REPLY if message.get("type") == "message" else _SAID)
    content: Content | list[AnyPart | ToolReturned] | None = message.get("content")
    if not isinstance(content, str):
        content = [] if content is None else each(content, "content", _block)
    match message.get("role"):
        case "user":
            return _user(content, extra)
        case "assistant":
            said = _parts(content)
            bare = all(isinstance(part, Text) for part in said)
            listed = not isinstance(said, str) and bool(said) and bare
            return (ModelSaid(content=said, listed=listed, dialect=_owner(extra, said), extra=extra),)
        case "system":
            said = _parts(content)
            return (Instructed(content=said, dialect=_owner(extra, said), extra=extra),)
        case None:
            raise BadField("role", "is missing")
        case other:
            raise BadField("role", f"{other!r} is not a role of Anthropic messages")


def _owner(extra: Any, content: Content) -> Dialect:
    return owner(dialect, extra, () if isinstance(content, str) else content)


def _user(content: str | list[AnyPart | ToolReturned], extra: Any) -> tuple[AnyFact, ...]:
    if isinstance(content, str):
        return (UserSaid(content=content, dialect=_owner(extra, ""), extra=extra),)
    results = [block for block in content if isinstance(block, ToolReturned)]
    said = tuple(block for block in content if not isinstance(block, ToolReturned))
    if results and not said:
        return tuple(results)
    return (*results, UserSaid(content=said, dialect=_owner(extra, said), extra=extra))


def _parts(content: str | list[AnyPart | ToolReturned]) -> Content:
    if isinstance(content, str):
        return content
    for place, block in enumerate(content):
        if isinstance(block, ToolReturned):
            raise BadField(f"content[{place}].type", "a tool_result belongs into a message of the user")
    return tuple(block for block in content if not isinstance(block, ToolReturned))


def _block(item: Mapping[str, Any]) -> AnyPart | ToolReturned:
    return _result(item) if item.get("type") == "tool_result" else _part(item)


def _part(item: Mapping[str, Any]) -> AnyPart:
    match string(item, "type"):
        case "text":
            return Text(text=string(item, "text"), extra=rest(item, _TEXT))
        case "tool_use":
            return _call(item)
        case "thinking":
            return Thinking(native=opaque(item), text=string(item, "thinking"))
        case "redacted_thinking":
            return Thinking(native=opaque(item))
        case "image" | "document":
            return media(item)
        case _:
            return Opaque(native=opaque(item))


def _call(item: Mapping[str, Any]) -> Call:
    id, name, given = string(item, "id"), string(item, "name"), item.get("input")
    if given is None:
        raise BadField("input", "is missing")
    return Call(
        id=id,
        name=name,
        arguments=given if isinstance(given, str) else json_text(given),
        extra=rest(item, _USE),
    )


def _result(item: Mapping[str, Any]) -> ToolReturned:
    given = item.get("content")
    if isinstance(given, str):
        content: Content = given
    else:
        content = () if given is None else tuple(each(given, "content", _part))
    beside = {name: value for name, value in item.items() if name not in _RESULT}
    if item.get("is_error") is False:
        beside["is_error"] = False
    extra = opaque(beside) if beside else UNSET
    return ToolReturned(
        call_id=string(item, "tool_use_id"),
        content=content,
        error=item.get("is_error") is True,
        dialect=_owner(extra, content),
        extra=extra,
    )
