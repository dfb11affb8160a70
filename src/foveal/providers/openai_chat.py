"""OpenAI's chat completions, and all who speak like it: Gemini, OpenRouter, Ollama, vLLM, llama.cpp, our server.

The message of the reply is put together from the deltas, with every field that came: some must be sent back
(Gemini's signatures, say). Reasoning is sent back only beside calls, where providers demand it; elsewhere some
refuse it.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlsplit

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.providers import base
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, for_chat

_REASONING: Final = ("reasoning_content", "reasoning")
"""What providers call the thinking that they show, the most usual name first."""


class OpenAIChat(BaseProvider):
    dialect: Dialect = "openai_chat"

    def client(self) -> Any:
        return base.openai_client(self.place, silence=self.silence)

    async def ask(self, client: Any, body: JsonObject) -> Any:
        return await client.chat.completions.create(**body)

    def answer(self) -> StreamedReply:
        return ChatReply()

    def body(self, request: Fitted, max_tokens: int) -> JsonObject:
        official = (urlsplit(self.place.url).hostname or "").endswith("api.openai.com")
        body: JsonObject = {
            "model": self.served,
            "messages": request.to_openai(),
            "max_completion_tokens" if official else "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.options,
        }
        if request.tools:
            body["tools"] = for_chat(request.tools)
        return body


class ChatReply:
    """An answer from the deltas of its stream."""

    def __init__(self) -> None:
        self.began = False
        self.text = ""
        self.stop = ""
        self.usage: JsonObject | None = None
        self._calls: dict[int, JsonObject] = {}
        self._fields: JsonObject = {}

    @property
    def complete(self) -> bool:
        return bool(self.stop) or (self.began and self.usage is not None)

    def add(self, chunk: JsonObject) -> list[ReplyPiece]:
        self.usage = chunk.get("usage") or self.usage
        pieces: list[ReplyPiece] = []
        for choice in (chunk.get("choices") or [])[:1]:
            pieces += self._delta(choice.get("delta") or {})
            self.stop = choice.get("finish_reason") or self.stop
            self.usage = choice.get("usage") or self.usage  # where some put it
        return pieces

    def reply(self) -> Reply:
        reported = None if self.usage is None else {**self.usage, "stop_reason": self.stop}
        return Reply(message=self.message(), usage=reported, stop=self.stop)

    def message(self) -> JsonObject:
        calls = [_whole(call, place) for place, (_, call) in enumerate(sorted(self._calls.items()))]
        beside = {k: v for k, v in self._fields.items() if calls or not k.startswith("reasoning")}
        said: JsonObject = {"role": "assistant", "content": self.text or (None if calls else "")}
        return {**said, **beside, **({"tool_calls": calls} if calls else {})}

    def _delta(self, delta: JsonObject) -> list[ReplyPiece]:
        pieces: list[ReplyPiece] = []
        thought = next((delta[name] for name in _REASONING if delta.get(name)), "")
        if isinstance(thought, str) and thought:
            pieces.append(ReplyPiece(text=thought, kind="thinking"))
        if isinstance(text := delta.get("content"), str) and text:
            self.text += text
            pieces.append(ReplyPiece(text=text))
        for place, call in enumerate(delta.get("tool_calls") or []):
            pieces += self._call(call, place)
        for name, value in delta.items():
            if name not in ("role", "content", "tool_calls") and value not in (None, "", []):
                self._fields[name] = _merged(self._fields.get(name), value)
        self.began = self.began or bool(pieces or self._fields)
        return pieces

    def _call(self, delta: JsonObject, place: int) -> list[ReplyPiece]:
        """A call comes in bits; some servers number none of them and send each one whole."""
        number = delta.get("index")
        if not isinstance(number, int):
            number = len(self._calls) if delta.get("id") else max(len(self._calls) - 1, place)
        held = self._calls.setdefault(number, {})
        named = bool((held.get("function") or {}).get("name"))
        self._calls[number] = held = _merged(held, {k: v for k, v in delta.items() if k != "index"})
        self.began = True
        name = (held.get("function") or {}).get("name")
        return [ReplyPiece(text=name, kind="call")] if name and not named else []


_ONCE: Final = frozenset({"id", "type", "name", "index"})
"""Fields of a call that come whole, though some servers repeat them."""


def _merged(held: Any, value: Any) -> Any:
    """What was held with what has come: texts and lists grow, objects field by field, all else is replaced."""
    if held is None or value is None:
        return held if value is None else value
    if isinstance(held, dict) and isinstance(value, dict):
        grown = {k: held.get(k) or v if k in _ONCE else _merged(held.get(k), v) for k, v in value.items()}
        return {**held, **grown}
    if isinstance(held, str) and isinstance(value, str):
        return held + value
    return [*held, *value] if isinstance(held, list) and isinstance(value, list) else value


def _whole(call: JsonObject, place: int) -> JsonObject:
    """A call with all that a call must have; an id that a server left out is derived from its place."""
    body = call.get("function") or {}
    given = body.get("arguments") or "{}"
    arguments = given if isinstance(given, str) else json.dumps(given)
    function = {**body, "name": body.get("name") or "", "arguments": arguments}
    return {**call, "id": call.get("id") or f"call_{place}", "type": "function", "function": function}
