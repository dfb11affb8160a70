"""Provider for Anthropic's messages API.

1. The system text is a field of its own, and cache breakpoints are added to each request.
2. The reply is assembled from the raw events, because the library's own helper fails on tool arguments that are not
   JSON. Here such arguments stay the text that the model wrote, and the tool reports the error to the model.
3. Thinking is kept with its signature, so that it can be sent back.
4. Once a conversation was reduced, a provider that binds thinking is asked to leave out what it would refuse
   (`core.wire.bound_thinking`). An endpoint that does not know the field does not get it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.core.wire.bound_thinking import (
    BETA_HEADER,
    BINDING_BETA,
    has_thinking_blocks,
    with_dropped_blocks,
)
from foveal.core.wire.cache_marks import CACHE_MARK, MAX_CACHE_MARKS, count_cache_marks, has_cache_mark
from foveal.core.wire.native_compaction import COMPACTION_BETA, COMPACTION_FIELD, compaction_field
from foveal.core.wire.overflow_errors import refuses_controls
from foveal.core.wire.tool_schemas import DEFER_FIELD
from foveal.ports import Reply, ReplyPiece
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, anthropic_client, anthropic_tools

HEADERS_FIELD: Final = "extra_headers"
"""The argument of Anthropic's client with headers of one request."""
FIELDS_BESIDE_USAGE: Final = ("input_transformations", "diagnostics")
"""The fields of a reply that say what the provider has left out of the request, and why the cache was not read."""
_USAGE_FIELDS: Final = (
    "input_tokens",
    "cache_creation",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
    "iterations",
)


class Anthropic(BaseProvider):
    """A provider that speaks Anthropic's messages API."""

    dialect: Dialect = "anthropic"
    library = "anthropic"
    _last_messages: Sequence[JsonObject] = ()
    """The messages of the previous request, without cache marks."""
    _allows_binding_controls = True

    def make_client(self) -> Any:
        return anthropic_client(self.endpoint, read_timeout_s=self.read_timeout_s)

    async def open_stream(self, client: Any, body: JsonObject) -> Any:
        try:
            return await client.messages.create(**body)
        except Exception as error:
            if HEADERS_FIELD not in body or not refuses_controls(error):
                raise
            self._allows_binding_controls = False
        return await client.messages.create(**self._without_controls(body))

    def _without_controls(self, body: JsonObject) -> JsonObject:
        left = {name: value for name, value in body.items() if name not in ("thinking", HEADERS_FIELD)}
        betas = [COMPACTION_BETA] if COMPACTION_FIELD in (body.get("extra_body") or {}) else []
        return {**left, **_beta_headers(betas), **self.options}

    def new_reply(self) -> StreamedReply:
        return AnthropicReply()

    def request_body(self, request: Fitted, max_tokens: int) -> JsonObject:
        messages = request.to_anthropic()
        body: JsonObject = {
            "model": self.model_id,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            **self.options,
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = anthropic_tools(request.tools)
        betas: list[str] = []
        if thinking := self._binding_controls(request, messages):
            body["thinking"] = thinking
            betas.append(BINDING_BETA)
        if request.compaction is not None:
            body["extra_body"] = {COMPACTION_FIELD: compaction_field(request.compaction)}
            betas.append(COMPACTION_BETA)
        body = {**body, **_beta_headers(betas)}
        previous, self._last_messages = self._last_messages, messages
        return add_breakpoints(body, previous)

    def _binding_controls(self, request: Fitted, messages: Sequence[JsonObject]) -> JsonObject | None:
        """Return the field `thinking` that has the provider leave out what it would refuse; None if it need not."""
        is_changed = bool(request.reduced) or bool(request.thinking_from)
        if not (request.binds_thinking and is_changed and self._allows_binding_controls):
            return None
        if HEADERS_FIELD in self.options:
            return None
        thinks = any(map(has_thinking_blocks, messages))
        return with_dropped_blocks(self.options.get("thinking"), thinks=thinks)


def _beta_headers(betas: Sequence[str]) -> JsonObject:
    return {HEADERS_FIELD: {BETA_HEADER: ",".join(betas)}} if betas else {}


class AnthropicReply:
    """A reply assembled from the events of the stream."""

    def __init__(self) -> None:
        self.has_started: bool = False
        self.text: str = ""
        self._stop = ""
        self._usage: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        self._arguments: dict[int, str] = {}

    @property
    def is_complete(self) -> bool:
        return bool(self._stop)

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        match event.get("type"):
            case "message_start":
                message = event.get("message") or {}
                self._add_usage(message.get("usage"))
                self._add_beside_usage(message)
            case "content_block_start":
                return self._start_block(event.get("index", 0), event.get("content_block") or {})
            case "content_block_delta":
                return self._add_delta(event.get("index", 0), event.get("delta") or {})
            case "message_delta":
                self._stop = (event.get("delta") or {}).get("stop_reason") or self._stop
                self._add_usage(event.get("usage"))
                self._add_beside_usage(event)
        return []

    def reply(self) -> Reply:
        message = {
            "role": "assistant",
            "content": [self._complete_block(index) for index in sorted(self._blocks)],
        }
        return Reply(message=message, usage={**self._usage, "stop_reason": self._stop}, stop=self._stop)

    def _start_block(self, index: int, block: JsonObject) -> list[ReplyPiece]:
        self.has_started = True
        self._blocks[index] = dict(block)
        if block.get("type") == "tool_use":
            return [ReplyPiece(text=block.get("name", ""), kind="call")]
        return []

    def _add_delta(self, index: int, delta: JsonObject) -> list[ReplyPiece]:
        block = self._blocks.setdefault(index, {})
        match delta.get("type"):
            case "text_delta" if delta["text"]:
                self.text += delta["text"]
                block["text"] = block.get("text", "") + delta["text"]
                return [ReplyPiece(text=delta["text"])]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return [ReplyPiece(text=delta["thinking"], kind="thinking")] if delta["thinking"] else []
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._arguments[index] = self._arguments.get(index, "") + (delta.get("partial_json") or "")
            case "compaction_delta":
                block |= {name: value for name, value in delta.items() if name != "type"}
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return []

    def _complete_block(self, index: int) -> JsonObject:
        """Return a block with its arguments: as an object if they are one, else as the text that was written."""
        block, written = self._blocks[index], self._arguments.get(index, "")
        if not written:
            return block
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError):
            arguments = written
        return {**block, "input": arguments if isinstance(arguments, dict) else written}

    def _add_beside_usage(self, place: JsonObject) -> None:
        self._usage |= {name: place[name] for name in FIELDS_BESIDE_USAGE if place.get(name)}

    def _add_usage(self, usage: Any) -> None:
        """Replace earlier numbers by later ones; a number that is left out keeps its earlier value."""
        if isinstance(usage, dict):
            self._usage |= {name: usage[name] for name in _USAGE_FIELDS if usage.get(name) is not None}


# ── Cache breakpoints ────────────────────────────────────────────────────────────────────────────────────

CACHE_CONTROL: Final[JsonObject] = {"type": "ephemeral"}
_UNCACHEABLE_TYPES: Final = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that cannot have a mark."""
_BlockPosition = tuple[int, int]
"""Index of the message, and of the block in it."""


def add_breakpoints(body: JsonObject, previous: Sequence[JsonObject]) -> JsonObject:
    """Return a request body with cache breakpoints; `previous` are the messages of the previous request.

    A request has at most four `cache_control` marks, each at the end of something stable:

    1. the end of the system text, or of the tools if there is no system text: the same for the whole session;
    2. the last block that the previous request had too: the cache entry written then is read now, however much was
       added since (the provider looks back only twenty blocks from a mark);
    3. the newest block: the next request reads it.

    Marks that the messages already have count towards the four; new marks are added while the limit allows. The
    arguments are never changed."""
    present = sum(map(count_cache_marks, (body.get("tools"), body.get("system"), body["messages"])))
    body, left = _mark_prefix(body, MAX_CACHE_MARKS - present)
    for position in _positions(body["messages"], previous)[:left]:
        body["messages"] = _mark_block(body["messages"], position)
    return body


def _mark_prefix(body: JsonObject, left: int) -> tuple[JsonObject, int]:
    """Mark the end of the system text or of the tools; return the body and the number of marks left."""
    body = {**body}
    if left <= 0 or not (body.get("system") or body.get("tools")):
        return body, left
    if body.get("system"):
        body["system"] = [{"type": "text", "text": body["system"], CACHE_MARK: CACHE_CONTROL}]
    else:
        tools: list[JsonObject] = [*body["tools"]]
        # The provider refuses a mark on a tool that is loaded later, and such a tool is not in the prefix.
        last = max((at for at, tool in enumerate(tools) if not tool.get(DEFER_FIELD)), default=-1)
        tools[last] = {**tools[last], CACHE_MARK: CACHE_CONTROL}
        body["tools"] = tools
    return body, left - 1


def _positions(messages: Sequence[JsonObject], previous: Sequence[JsonObject]) -> list[_BlockPosition]:
    """Return the blocks to mark, the most useful first."""
    blocks = list(_blocks(messages))
    newest = next((position for position, block in reversed(blocks) if _can_be_marked(block)), None)
    shared: _BlockPosition | None = None
    for (position, block), (old_position, old_block) in zip(blocks, _blocks(previous), strict=False):
        if position != old_position or block != old_block:
            break
        shared = position if _can_be_marked(block) else shared
    found = [position for position in (newest, shared) if position is not None]
    return list(dict.fromkeys(found))


def _blocks(messages: Sequence[JsonObject]) -> Iterator[tuple[_BlockPosition, JsonObject]]:
    for index, message in enumerate(messages):
        for place, block in enumerate(_content_blocks(message)):
            yield (index, place), block


def _content_blocks(message: JsonObject) -> list[JsonObject]:
    """Return the content as a list of blocks; a plain text is one block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _can_be_marked(block: JsonObject) -> bool:
    is_empty = block.get("type") == "text" and not block.get("text")
    return block.get("type") not in _UNCACHEABLE_TYPES and not is_empty and not has_cache_mark(block)


def _mark_block(messages: Sequence[JsonObject], position: _BlockPosition) -> list[JsonObject]:
    index, place = position
    blocks = _content_blocks(messages[index])
    blocks[place] = {**blocks[place], CACHE_MARK: CACHE_CONTROL}
    return [*messages[:index], {**messages[index], "content": blocks}, *messages[index + 1 :]]
