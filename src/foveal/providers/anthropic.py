"""Provider for Anthropic's messages API.

1. The system text is a field of its own, and cache breakpoints are added to each request.
2. The reply is assembled from the raw events, because the library's own helper fails on tool arguments that are not
   JSON. Here such arguments stay the text that the model wrote, and the tool reports the error to the model.
3. Thinking is kept with its signature, so that it can be sent back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, anthropic_client, anthropic_tools
from foveal.providers.cache_breakpoints import add_breakpoints

_USAGE_FIELDS: Final = (
    "input_tokens",
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

    def make_client(self) -> Any:
        return anthropic_client(self.endpoint, read_timeout_s=self.read_timeout_s)

    async def open_stream(self, client: Any, body: JsonObject) -> Any:
        return await client.messages.create(**body)

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
        previous, self._last_messages = self._last_messages, messages
        return add_breakpoints(body, previous)


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
                self._add_usage((event.get("message") or {}).get("usage"))
            case "content_block_start":
                return self._start_block(event.get("index", 0), event.get("content_block") or {})
            case "content_block_delta":
                return self._add_delta(event.get("index", 0), event.get("delta") or {})
            case "message_delta":
                self._stop = (event.get("delta") or {}).get("stop_reason") or self._stop
                self._add_usage(event.get("usage"))
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

    def _add_usage(self, usage: Any) -> None:
        """Replace earlier numbers by later ones; a number that is left out keeps its earlier value."""
        if isinstance(usage, dict):
            self._usage |= {name: usage[name] for name in _USAGE_FIELDS if usage.get(name) is not None}
