"""Reads an upstream reply from the bytes that went to the client: messages and usage.

The bytes are not trusted: a reply that cannot be read counts as none, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from foveal.core import wire
from foveal.core.log.events import AnyFact, Dialect, ModelSaid, Thinking, parts, text_of
from foveal.core.wire.common import Json
from foveal.providers.anthropic import AnthropicReply
from foveal.providers.base import StreamedReply
from foveal.providers.openai_chat import ChatReply
from foveal.providers.openai_responses import ResponsesReply

MAX_RECORDED_REPLY_BYTES: Final = 16 << 20
"""A larger reply is forwarded but not recorded."""
_STREAM_END_MARKERS: Final[dict[Dialect, tuple[bytes, ...]]] = {
    "openai_chat": (b"data: [DONE]", b"data:[DONE]"),
    "openai_responses": (b"response.completed", b"response.incomplete", b"response.failed"),
    "anthropic": (b"message_stop",),
}


class UpstreamReply(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[Json]
    facts: tuple[AnyFact, ...]
    usage: Any = None

    @property
    def text(self) -> str:
        return "\n".join(text_of(fact.content) for fact in self.facts if isinstance(fact, ModelSaid))


def read_reply(data: bytes, dialect: Dialect, *, streamed: bool) -> UpstreamReply | None:
    """Return the reply in these bytes; None if there is no complete one."""
    try:
        found = _streamed(data, dialect) if streamed else _whole(data, dialect)
        if found is None:
            return None
        messages, usage = found
        facts = tuple(fact for chunk in wire.wire_for(dialect).read(messages) for fact in chunk.facts)
    except Exception:  # noqa: BLE001 (an upstream may send anything)
        return None
    has_content = any(isinstance(fact, ModelSaid) and _has_content(fact) for fact in facts)
    return UpstreamReply(messages=messages, facts=facts, usage=usage) if has_content else None


def is_stream_end(chunk: bytes, dialect: Dialect) -> bool:
    """Return whether these bytes contain the event that ends a stream."""
    return any(end in chunk for end in _STREAM_END_MARKERS[dialect])


def _has_content(fact: ModelSaid) -> bool:
    return any(not isinstance(part, Thinking) and getattr(part, "text", "…") for part in parts(fact.content))


def _whole(data: bytes, dialect: Dialect) -> tuple[list[Json], Any] | None:
    reply = msgspec.json.decode(data)
    match dialect:
        case "openai_chat":
            choice = reply["choices"][0]
            usage = {**(reply.get("usage") or {}), "stop_reason": choice.get("finish_reason") or ""}
            return [_chat(choice["message"])], usage
        case "anthropic":
            if reply.get("type") != "message":
                return None
            usage = {**(reply.get("usage") or {}), "stop_reason": reply.get("stop_reason") or ""}
            return [{"role": "assistant", "content": reply["content"]}], usage
        case _:
            items = ResponsesReply()
            items.add({"type": "response.completed", "response": reply})
            done = items.reply()
            return (done.messages, done.usage) if reply.get("status") in _COMPLETE_STATES else None


_COMPLETE_STATES: Final = ("completed", "incomplete")


def _chat(message: Json) -> Json:
    """Return a message without fields that clients do not send back: nulls, and reasoning without tool calls."""
    fields = {name: value for name, value in message.items() if value is not None and value != []}
    if "tool_calls" in fields:
        return fields
    return {name: value for name, value in fields.items() if not name.startswith("reasoning")}


def _streamed(data: bytes, dialect: Dialect) -> tuple[list[Json], Any] | None:
    reply = _STREAMED_REPLIES[dialect]()
    for event in sse_events(data):
        reply.add(event)
    if not reply.is_complete:
        return None
    done = reply.reply()
    return done.messages, done.usage


_STREAMED_REPLIES: Final[dict[Dialect, type[StreamedReply]]] = {
    "openai_chat": ChatReply,
    "openai_responses": ResponsesReply,
    "anthropic": AnthropicReply,
}


def sse_events(data: bytes) -> Iterator[Json]:
    """Yield the JSON objects in a stream of server-sent events."""
    for block in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = (line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
        text = b"\n".join(lines)
        if text.startswith(b"{"):
            yield msgspec.json.decode(text)
