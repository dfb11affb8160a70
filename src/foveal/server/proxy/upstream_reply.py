"""An upstream's answer, read from the bytes that went to the client: what the model said, and what it counted.

Bytes come from outside, so nothing of them is trusted: what cannot be read is no answer, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from foveal.core import wire
from foveal.core.log.events import AnyFact, Dialect, ModelSaid, Thinking, parts, text_of
from foveal.providers.anthropic import AnthropicReply
from foveal.providers.base import StreamedReply as Growing
from foveal.providers.openai_chat import ChatReply
from foveal.providers.openai_responses import ResponsesReply

Json = dict[str, Any]

LARGEST: Final = 16 << 20
"""Bytes of an answer that are kept to be recorded; a larger one passes and is not."""
_ENDS: Final[dict[Dialect, tuple[bytes, ...]]] = {
    "openai_chat": (b"data: [DONE]", b"data:[DONE]"),
    "openai_responses": (b"response.completed", b"response.incomplete", b"response.failed"),
    "anthropic": (b"message_stop",),
}


class UpstreamReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model said."""

    messages: list[Json]
    facts: tuple[AnyFact, ...]
    usage: Any = None

    @property
    def text(self) -> str:
        return "\n".join(text_of(fact.content) for fact in self.facts if isinstance(fact, ModelSaid))


def read(data: bytes, dialect: Dialect, *, streamed: bool) -> UpstreamReply | None:
    """The answer in these bytes; None when there is no whole one."""
    try:
        found = _streamed(data, dialect) if streamed else _whole(data, dialect)
        if found is None:
            return None
        messages, usage = found
        facts = tuple(fact for chunk in wire.wire(dialect).read(messages) for fact in chunk.facts)
    except Exception:  # noqa: BLE001 - an upstream may send anything, and then nothing was said
        return None
    said = any(isinstance(fact, ModelSaid) and _says(fact) for fact in facts)
    return UpstreamReply(messages=messages, facts=facts, usage=usage) if said else None


def ending(chunk: bytes, dialect: Dialect) -> bool:
    """A stream tells in these bytes that all has been said."""
    return any(end in chunk for end in _ENDS[dialect])


def _says(fact: ModelSaid) -> bool:
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
            return (done.messages, done.usage) if reply.get("status") in _STATES else None


_STATES: Final = ("completed", "incomplete")


def _chat(message: Json) -> Json:
    """A message without what is not sent back: nulls, and thoughts that no call needs."""
    kept = {name: value for name, value in message.items() if value is not None and value != []}
    if "tool_calls" in kept:
        return kept
    return {name: value for name, value in kept.items() if not name.startswith("reasoning")}


def _streamed(data: bytes, dialect: Dialect) -> tuple[list[Json], Any] | None:
    growing = _GROWING[dialect]()
    for event in events(data):
        growing.add(event)
    if not growing.complete:
        return None
    reply = growing.reply()
    return reply.messages, reply.usage


_GROWING: Final[dict[Dialect, type[Growing]]] = {
    "openai_chat": ChatReply,
    "openai_responses": ResponsesReply,
    "anthropic": AnthropicReply,
}


def events(data: bytes) -> Iterator[Json]:
    """The JSON objects in a stream of events."""
    for block in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = (line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
        text = b"\n".join(lines)
        if text.startswith(b"{"):
            yield msgspec.json.decode(text)
