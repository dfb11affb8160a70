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
from collections.abc import Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.core.wire.bound_thinking import (
    BETA_HEADER,
    BINDING_BETA,
    has_thinking_blocks,
    with_dropped_blocks,
)
from foveal.core.wire.native_compaction import COMPACTION_BETA, COMPACTION_FIELD, compaction_field
from foveal.core.wire.overflow_errors import refuses_controls
from foveal.ports import Reply, ReplyPiece
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, anthropic_client, anthropic_tools
from foveal.providers.cache_breakpoints import add_breakpoints

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
