"""Reads an upstream reply from the bytes that went to the client: messages and usage.

The bytes are not trusted: a reply that cannot be read counts as none, and nothing is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from foveal.core import wire
from foveal.core.log.events import AnyFact, Call, Dialect, ForeignSummary, ModelSaid, Thinking, parts, text_of
from foveal.core.wire.common import Json
from foveal.core.wire.openai_responses import COMPACTION_TYPES
from foveal.ports import Reply
from foveal.providers.anthropic import FIELDS_BESIDE_USAGE, AnthropicReply
from foveal.providers.base import StreamedReply
from foveal.providers.openai_chat import ChatReply
from foveal.providers.openai_responses import ResponsesReply

MAX_RECORDED_REPLY_BYTES: Final = 16 << 20
"""A larger reply is forwarded but not recorded."""
STREAM_ENDS: Final[dict[Dialect, re.Pattern[bytes]]] = {
    "openai_chat": re.compile(rb"data: ?\[DONE\]"),
    "openai_responses": re.compile(rb"response\.(?:completed|incomplete|failed)"),
    "anthropic": re.compile(rb"message_stop"),
    "gemini": re.compile(rb'"finishReason"'),
    "bedrock": re.compile(rb"messageStop"),
}
"""What the event that ends a stream contains; none of it contains a line break."""


class UpstreamReply(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[Json]
    """Empty if the request only filled the provider's cache."""
    facts: tuple[AnyFact, ...]
    other_choices: tuple[Json, ...] = ()
    """The messages of all choices but the first, of a request with `n` above 1."""
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
        messages, usage, others = found
        if not messages and usage:  # the request only fills the cache (`prewarm`)
            return UpstreamReply(messages=[], facts=(), usage=usage)
        facts = tuple(fact for chunk in wire.wire_for(dialect).read(messages) for fact in chunk.facts)
    except Exception:  # noqa: BLE001 (an upstream may send anything)
        return None
    has_content = any(
        isinstance(fact, ForeignSummary) or (isinstance(fact, ModelSaid) and _has_content(fact))
        for fact in facts
    )
    if not has_content:
        return None
    return UpstreamReply(messages=messages, facts=facts, usage=usage, other_choices=others)


def read_broken_off(data: bytes, dialect: Dialect) -> str:
    """Return what had arrived of a streamed reply that broke off: its text, then its calls as JSON, one per line;
    "" if the upstream has reported an error itself."""
    whole, _, _ = data.replace(b"\r\n", b"\n").rpartition(b"\n\n")
    reply: StreamedReply = ChatReply() if dialect == "openai_chat" else _STREAMED_REPLIES[dialect]()
    try:
        for event in sse_events(whole):
            if event.get("error") or event.get("type") in ("error", "response.failed"):
                return ""
            reply.add(event)
        chunks = wire.wire_for(dialect).read(reply.reply().messages)
        facts = [fact for chunk in chunks for fact in chunk.facts if isinstance(fact, ModelSaid)]
    except Exception:  # noqa: BLE001 (an upstream may send anything)
        return reply.text
    calls = [part for fact in facts for part in parts(fact.content) if isinstance(part, Call)]
    named = (msgspec.json.encode({"name": call.name, "arguments": call.arguments}).decode() for call in calls)
    return "\n".join([*([reply.text] if reply.text else []), *named])


def _has_content(fact: ModelSaid) -> bool:
    return any(not isinstance(part, Thinking) and getattr(part, "text", "…") for part in parts(fact.content))


class _Found(NamedTuple):
    messages: list[Json]
    usage: Any
    other_choices: tuple[Json, ...] = ()


def _whole(data: bytes, dialect: Dialect) -> _Found | None:
    reply = msgspec.json.decode(data)
    match dialect:
        case "openai_chat":
            choice, *others = sorted(reply["choices"], key=_choice_index)
            usage = _usage(reply.get("usage"), choice.get("finish_reason"))
            return _Found([_chat(choice["message"])], usage, tuple(_chat(one["message"]) for one in others))
        case "anthropic":
            if reply.get("type") != "message":
                return None
            usage = _usage(reply.get("usage"), reply.get("stop_reason"))
            if usage:
                usage |= {name: reply[name] for name in FIELDS_BESIDE_USAGE if reply.get(name)}
            return _Found([{"role": "assistant", "content": reply["content"]}], usage)
        case "gemini":  # a stream that is not asked for as events is a list
            return _gemini(reply if isinstance(reply, list) else [reply])
        case _:
            if reply.get("object") == "response.compaction":
                made = [item for item in reply["output"] if item.get("type") in COMPACTION_TYPES]
                return _Found(made, reply.get("usage"))
            items = ResponsesReply()
            items.add({"type": "response.completed", "response": reply})
            done = items.reply()
            return _Found(done.messages, done.usage) if reply.get("status") in _COMPLETE_STATES else None


def _usage(reported: Any, stop: Any) -> Json | None:
    """Return the usage of a reply with the reason why it ended; None if none was reported."""
    return {**reported, "stop_reason": stop or ""} if reported else None


def _choice_index(choice: Json) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


_COMPLETE_STATES: Final = ("completed", "incomplete")


def _chat(message: Json) -> Json:
    """Return a message without fields that clients do not send back: nulls, and reasoning without tool calls."""
    fields = {name: value for name, value in message.items() if value is not None and value != []}
    if "tool_calls" in fields:
        return fields
    return {name: value for name, value in fields.items() if not name.startswith("reasoning")}


def _gemini(pieces: Iterable[Json]) -> _Found | None:
    """Return the first candidate of a reply that came in one or more pieces."""
    parts: list[Json] = []
    stop, usage = "", None
    for piece in pieces:
        candidate = (piece.get("candidates") or [{}])[0]
        parts += (candidate.get("content") or {}).get("parts") or []
        stop = candidate.get("finishReason") or stop
        usage = piece.get("usageMetadata") or usage
    if not stop:
        return None
    return _Found([{"role": "model", "parts": parts}], _usage(usage, stop))


def _streamed(data: bytes, dialect: Dialect) -> _Found | None:
    if dialect == "gemini":
        return _gemini(sse_events(data))
    reply = ChatChoices() if dialect == "openai_chat" else _STREAMED_REPLIES[dialect]()
    joined = _joined_text_event(data) if dialect == "openai_chat" else None
    for event in sse_events(data) if joined is None else (joined,):
        reply.add(event)
    if not reply.is_complete:
        return None
    done = reply.reply()
    others = reply.other_messages() if isinstance(reply, ChatChoices) else ()
    return _Found(done.messages, done.usage, others)


# Most streams of chat completions contain one choice with text and nothing else. Decoding all their chunks into the
# structs below takes a fraction of the time of adding each chunk as an event. Any other stream is read as events.


class _TextDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str | None = None
    content: str | None = None
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None
    function_call: None = None


class _TextChoice(msgspec.Struct, frozen=True):
    delta: _TextDelta
    index: Literal[0] = 0
    finish_reason: str | None = None
    usage: None = None


class _TextChunk(msgspec.Struct, frozen=True):
    choices: Annotated[list[_TextChoice], msgspec.Meta(max_length=1)]
    usage: dict[str, Any] | None = None


_DATA: Final = b"data: "
_DONE: Final = b"\n\ndata: [DONE]\n\n"
_decode_text_chunks: Final = msgspec.json.Decoder(_TextChunk).decode_lines


def _joined_text_event(data: bytes) -> Json | None:
    """Return a stream that is only text as one event; None for any other stream."""
    if b"\r" in data or not data.startswith(_DATA) or not data.endswith(_DONE):
        return None
    try:
        chunks = _decode_text_chunks(data[len(_DATA) : -len(_DONE)].replace(b"\n\n" + _DATA, b"\n"))
    except msgspec.DecodeError:
        return None
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join([choice.delta.content or "" for choice in choices])
    stop = next((choice.finish_reason for choice in reversed(choices) if choice.finish_reason), None)
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": stop}], "usage": usage}


class ChatChoices:
    """A streamed reply of chat completions: one `ChatReply` for each choice."""

    def __init__(self) -> None:
        self._first = ChatReply()
        self._others: dict[int, ChatReply] = {}

    @property
    def is_complete(self) -> bool:
        return self._first.is_complete and all(other.is_complete for other in self._others.values())

    def add(self, event: Json) -> None:
        choices = event.get("choices") or []
        if len(choices) == 1 and choices[0].get("index") == 0:  # most events
            self._first.add(event)
            return
        if not any(_choice_index(choice) for choice in choices):
            self._first.add(event)
            return
        for choice in choices:
            index = _choice_index(choice)
            reply = self._others.setdefault(index, ChatReply()) if index else self._first
            reply.add({"choices": [choice]})
        self._first.add({"usage": event.get("usage")})

    def reply(self) -> Reply:
        return self._first.reply()

    def other_messages(self) -> tuple[Json, ...]:
        return tuple(reply.message() for _, reply in sorted(self._others.items()))


_STREAMED_REPLIES: Final[dict[Dialect, type[StreamedReply]]] = {
    "openai_responses": ResponsesReply,
    "anthropic": AnthropicReply,
}


def sse_events(data: bytes) -> Iterator[Json]:
    """Yield the JSON objects in a stream of server-sent events."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for block in data.split(b"\n\n"):
        if b"\n" in block:
            lines = (line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
            text = b"\n".join(lines)
        else:  # most events are one line
            text = block[5:].strip() if block.startswith(b"data:") else b""
        if text.startswith(b"{"):
            yield msgspec.json.decode(text)


# ── The copy of a response ────────────────────────────────────────────────────────────────────────

MAX_EARLY_READS: Final = 3
"""How often text in a stream may look like its end before the stream ends."""
_TAIL_BYTES: Final = 32
"""Bytes of the previous chunk that are searched again: the end marker may be split between two chunks."""


class ReplyCopy:
    """Copy of the bytes of a response, kept until the reply is read.

    A client may stop reading, and an upstream may keep the connection open, after the event that ends a stream. So
    the copy finds that event: the reply can be read as soon as `ends` returns True for a chunk.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.size: int = 0
        """Bytes so far, including those of a copy that was dropped."""
        self.is_too_large: bool = False
        """Whether the response is too large to be read; then nothing is kept."""
        self._dialect: Dialect = dialect
        self._find_end = STREAM_ENDS[dialect].search
        self._chunks: list[bytes] = []
        self._tail = b""
        """The end of the previous chunk."""
        self._early_reads_left = MAX_EARLY_READS

    def ends(self, chunk: bytes) -> bool:
        """Return whether a chunk that is not added yet contains the event that ends the stream."""
        return self._find_end(self._tail + chunk if self._tail else chunk) is not None

    def add(self, chunk: bytes) -> bool:
        """Keep a chunk; return False, and keep nothing any more, if the response is too large."""
        # A marker contains no line break, so the next chunk can complete one only if this chunk ends within a line.
        self._tail = b"" if chunk[-1:] == b"\n" else (self._tail + chunk)[-_TAIL_BYTES:]
        self.size += len(chunk)
        self._chunks.append(chunk)
        if self.size > MAX_RECORDED_REPLY_BYTES:
            self.is_too_large = True
            self._chunks.clear()
        return not self.is_too_large

    def may_read_early(self) -> bool:
        """Return whether an apparent end is worth a look, and count it."""
        self._early_reads_left -= 1
        return self._early_reads_left >= 0

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def read_broken_off(self) -> str:
        """Return what had arrived of a stream that broke off."""
        return read_broken_off(self.data(), self._dialect)

    def read(self, *, streamed: bool) -> UpstreamReply | None:
        """Return the reply; None if there is no complete one."""
        return read_reply(self.data(), self._dialect, streamed=streamed)
