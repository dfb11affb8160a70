"""Provider for OpenAI's chat completions API and compatible servers.

Compatible are Gemini, OpenRouter, Ollama, vLLM, llama.cpp and the server of the local model, for example.

1. The reply's message is assembled from the deltas with every field that arrived, because some must be sent back
   (Gemini's signatures, for example).
2. Reasoning is kept only beside calls, where providers demand it; elsewhere some providers refuse it.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlsplit

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.errors import ProviderError
from foveal.ports import Reply, ReplyPiece
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, chat_tools, openai_client

_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Providers' names for the reasoning that they show, the most common first."""
_WHOLE_FIELDS: Final = frozenset({"id", "type", "name", "index"})
"""Fields of a call that arrive whole; some servers repeat them in every delta."""


class OpenAIChat(BaseProvider):
    """A provider that speaks OpenAI's chat completions API."""

    dialect: Dialect = "openai_chat"
    library = "openai"

    def make_client(self) -> Any:
        return openai_client(self.endpoint, read_timeout_s=self.read_timeout_s)

    async def open_stream(self, client: Any, body: JsonObject) -> Any:
        return await client.chat.completions.create(**body)

    def new_reply(self) -> StreamedReply:
        return ChatReply()

    def request_body(self, request: Fitted, max_tokens: int) -> JsonObject:
        if request.compaction is not None:
            raise ProviderError("chat completions have no compaction API", code="refused")
        # OpenAI's newer models refuse `max_tokens`; compatible servers often know nothing else.
        is_openai = (urlsplit(self.endpoint.url).hostname or "").endswith("api.openai.com")
        body: JsonObject = {
            "model": self.model_id,
            "messages": request.to_openai(),
            "max_completion_tokens" if is_openai else "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.options,
        }
        if request.tools:
            body["tools"] = chat_tools(request.tools)
        return body


class ChatReply:
    """A reply assembled from the chunks of the stream."""

    def __init__(self) -> None:
        self.has_started: bool = False
        self.text: str = ""
        self._stop = ""
        self._usage: JsonObject | None = None
        self._calls: dict[int, JsonObject] = {}
        self._fields: JsonObject = {}

    @property
    def is_complete(self) -> bool:
        return bool(self._stop) or (self.has_started and self._usage is not None)

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        self._usage = event.get("usage") or self._usage
        pieces: list[ReplyPiece] = []
        for choice in (event.get("choices") or [])[:1]:
            pieces += self._add_delta(choice.get("delta") or {})
            self._stop = choice.get("finish_reason") or self._stop
            self._usage = choice.get("usage") or self._usage  # some servers report it inside the choice
        return pieces

    def reply(self) -> Reply:
        usage = None if self._usage is None else {**self._usage, "stop_reason": self._stop}
        return Reply(message=self.message(), usage=usage, stop=self._stop)

    def message(self) -> JsonObject:
        """Return the assistant message with all that must be sent back."""
        calls = [_complete_call(call, place) for place, (_, call) in enumerate(sorted(self._calls.items()))]
        fields = {k: v for k, v in self._fields.items() if calls or not k.startswith("reasoning")}
        message: JsonObject = {"role": "assistant", "content": self.text or (None if calls else "")}
        return {**message, **fields, **({"tool_calls": calls} if calls else {})}

    def _add_delta(self, delta: JsonObject) -> list[ReplyPiece]:
        pieces: list[ReplyPiece] = []
        reasoning = next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), "")
        if isinstance(reasoning, str) and reasoning:
            pieces.append(ReplyPiece(text=reasoning, kind="thinking"))
        if isinstance(text := delta.get("content"), str) and text:
            self.text += text
            pieces.append(ReplyPiece(text=text))
        for place, call in enumerate(delta.get("tool_calls") or []):
            pieces += self._add_call(call, place)
        for name, value in delta.items():
            if name not in ("role", "content", "tool_calls") and value not in (None, "", []):
                self._fields[name] = _merge(self._fields.get(name), value)
        self.has_started = self.has_started or bool(pieces or self._fields)
        return pieces

    def _add_call(self, delta: JsonObject, place: int) -> list[ReplyPiece]:
        """Add a part of a call; some servers send calls without an index, each one whole."""
        index = delta.get("index")
        if not isinstance(index, int):
            index = len(self._calls) if delta.get("id") else max(len(self._calls) - 1, place)
        call = self._calls.setdefault(index, {})
        was_named = bool((call.get("function") or {}).get("name"))
        self._calls[index] = call = _merge(call, {k: v for k, v in delta.items() if k != "index"})
        self.has_started = True
        name = (call.get("function") or {}).get("name")
        return [ReplyPiece(text=name, kind="call")] if name and not was_named else []


def _merge(old: Any, new: Any) -> Any:
    """Merge a delta: texts and lists are joined, objects merged field by field, other values replaced."""
    if old is None or new is None:
        return old if new is None else new
    if isinstance(old, dict) and isinstance(new, dict):
        merged = {k: old.get(k) or v if k in _WHOLE_FIELDS else _merge(old.get(k), v) for k, v in new.items()}
        return {**old, **merged}
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return [*old, *new] if isinstance(old, list) and isinstance(new, list) else new


def _complete_call(call: JsonObject, place: int) -> JsonObject:
    """Return a call with all required fields; an id that the server left out is derived from the call's place."""
    body = call.get("function") or {}
    given = body.get("arguments") or "{}"
    arguments = given if isinstance(given, str) else json.dumps(given)
    function = {**body, "name": body.get("name") or "", "arguments": arguments}
    return {**call, "id": call.get("id") or f"call_{place}", "type": "function", "function": function}
