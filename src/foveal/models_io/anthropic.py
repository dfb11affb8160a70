"""Anthropic's messages: system text beside, thinking kept with its signature, and marks for the prompt cache.

The reply is put together from the raw events, because the library's own helper gives up on arguments that are not
JSON. Here they stay the text that the model wrote, for the tool to refuse in words that the model can read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from foveal.events import Dialect
from foveal.fitted import Fitted
from foveal.models_io import clients
from foveal.models_io.adapter import Adapter, Answer, Json
from foveal.models_io.marks import marked
from foveal.models_io.offered import for_anthropic
from foveal.ports import Piece, Reply

_USED: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


class Anthropic(Adapter):
    dialect: Dialect = "anthropic"
    _before: Sequence[Json] = ()
    """The messages of the request before, as they were without marks."""

    def client(self) -> Any:
        return clients.anthropic_client(self.place, silence=self.silence)

    async def ask(self, client: Any, body: Json) -> Any:
        return await client.messages.create(**body)

    def answer(self) -> Answer:
        return Blocks()

    def body(self, request: Fitted, max_tokens: int) -> Json:
        messages = request.to_anthropic()
        body: Json = {
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


class Blocks:
    """An answer from the events of its stream."""

    def __init__(self) -> None:
        self.began = False
        self.text = ""
        self.stop = ""
        self._message: Json = {}
        self._usage: Json = {}
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, str] = {}

    def add(self, event: Json) -> list[Piece]:
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

    def _start(self, at: int, block: Json) -> list[Piece]:
        self.began = True
        self._blocks[at] = dict(block)
        if block.get("type") == "tool_use":
            return [Piece(text=block.get("name", ""), sort="call")]
        return []

    def _delta(self, at: int, delta: Json) -> list[Piece]:
        block = self._blocks.setdefault(at, {})
        match delta.get("type"):
            case "text_delta" if delta["text"]:
                self.text += delta["text"]
                block["text"] = block.get("text", "") + delta["text"]
                return [Piece(text=delta["text"])]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return [Piece(text=delta["thinking"], sort="thinking")] if delta["thinking"] else []
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._arguments[at] = self._arguments.get(at, "") + (delta.get("partial_json") or "")
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return []

    def _whole(self, at: int) -> Json:
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
