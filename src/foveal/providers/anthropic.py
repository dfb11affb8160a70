"""Anthropic's messages: system text beside, thinking kept with its signature, and marks for the prompt cache.

The reply is put together from the raw events, because the library's own helper gives up on arguments that are not
JSON. Here they stay the text that the model wrote, for the tool to refuse in words that the model can read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.providers import base
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, for_anthropic
from foveal.providers.cache_breakpoints import marked

_USED: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


class Anthropic(BaseProvider):
    dialect: Dialect = "anthropic"
    _before: Sequence[JsonObject] = ()
    """The messages of the request before, as they were without marks."""

    def client(self) -> Any:
        return base.anthropic_client(self.place, silence=self.silence)

    async def ask(self, client: Any, body: JsonObject) -> Any:
        return await client.messages.create(**body)

    def answer(self) -> StreamedReply:
        return AnthropicReply()

    def body(self, request: Fitted, max_tokens: int) -> JsonObject:
        messages = request.to_anthropic()
        body: JsonObject = {
            "model": self.served,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            **self.options,
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = for_anthropic(request.tools)
        before, self._before = self._before, messages
        return marked(body, before)


class AnthropicReply:
    """An answer from the events of its stream."""

    def __init__(self) -> None:
        self.began = False
        self.text = ""
        self.stop = ""
        self._message: JsonObject = {}
        self._usage: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        self._arguments: dict[int, str] = {}

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        match event.get("type"):
            case "message_start":
                self._message = event.get("message") or {}
                self._count(self._message.get("usage"))
            case "content_block_start":
                return self._start(event.get("index", 0), event.get("content_block") or {})
            case "content_block_delta":
                return self._delta(event.get("index", 0), event.get("delta") or {})
            case "message_delta":
                self.stop = (event.get("delta") or {}).get("stop_reason") or self.stop
                self._count(event.get("usage"))
        return []

    @property
    def complete(self) -> bool:
        return bool(self.stop)

    def reply(self) -> Reply:
        message = {"role": "assistant", "content": [self._whole(at) for at in sorted(self._blocks)]}
        return Reply(message=message, usage={**self._usage, "stop_reason": self.stop}, stop=self.stop)

    def _start(self, at: int, block: JsonObject) -> list[ReplyPiece]:
        self.began = True
        self._blocks[at] = dict(block)
        if block.get("type") == "tool_use":
            return [ReplyPiece(text=block.get("name", ""), kind="call")]
        return []

    def _delta(self, at: int, delta: JsonObject) -> list[ReplyPiece]:
        block = self._blocks.setdefault(at, {})
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
                self._arguments[at] = self._arguments.get(at, "") + (delta.get("partial_json") or "")
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return []

    def _whole(self, at: int) -> JsonObject:
        """A block with its arguments: an object where they are one, else as they were written."""
        block, written = self._blocks[at], self._arguments.get(at, "")
        if not written:
            return block
        try:
            given = json.loads(written)
        except (ValueError, RecursionError):
            given = written
        return {**block, "input": given if isinstance(given, dict) else written}

    def _count(self, usage: Any) -> None:
        """Later numbers replace earlier ones; what is left out stays."""
        if isinstance(usage, dict):
            self._usage |= {name: usage[name] for name in _USED if usage.get(name) is not None}
