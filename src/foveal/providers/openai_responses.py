"""OpenAI's Responses: the same library, another dialect. A reply is a list of items.

Nothing is kept at the provider (`store` is off), so reasoning travels with the conversation, encrypted, and is sent
back unchanged.
"""

from __future__ import annotations

from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.ports import Reply, ReplyPiece
from foveal.providers import base
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, for_responses

_THOUGHTS: Final = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})
_FAILURES: Final = frozenset({"response.failed", "error"})


class ResponseFailed(Exception):
    """A failure that the stream tells as an event, in the shape of the library's own errors."""

    def __init__(self, body: JsonObject) -> None:
        self.message = str(body.get("message") or "the answer failed")
        super().__init__(self.message)
        self.body = body


class OpenAIResponses(BaseProvider):
    dialect: Dialect = "openai_responses"

    def client(self) -> Any:
        return base.openai_client(self.place, silence=self.silence)

    async def ask(self, client: Any, body: JsonObject) -> Any:
        return await client.responses.create(**body)

    def answer(self) -> StreamedReply:
        return ResponsesReply()

    def body(self, request: Fitted, max_tokens: int) -> JsonObject:
        body: JsonObject = {
            "model": self.served,
            "input": [_typed(item) for item in request.to_responses()],
            "max_output_tokens": max_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "truncation": "disabled",
            "stream": True,
            **self.options,
        }
        if request.tools:
            body["tools"] = for_responses(request.tools)
        return body


def _typed(item: JsonObject) -> JsonObject:
    """A message says that it is one: OpenAI can tell, llama.cpp cannot."""
    return {"type": "message", **item} if "role" in item else item


class ResponsesReply:
    """An answer from the events of its stream."""

    def __init__(self) -> None:
        self.began = False
        self.text = ""
        self.response: JsonObject | None = None
        """The whole answer, once it has come."""
        self._items: dict[int, JsonObject] = {}

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        kind, item = event.get("type", ""), event.get("item") or {}
        if kind in _FAILURES:
            raise ResponseFailed((event.get("response") or {}).get("error") or event)
        if kind == "response.output_text.delta":
            self.text += event.get("delta") or ""
            return self._shown(event.get("delta"), "text")
        if kind in _THOUGHTS:
            return self._shown(event.get("delta"), "thinking")
        if kind == "response.output_item.added" and item.get("type") == "function_call":
            return self._shown(item.get("name"), "call")
        if kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = item
        if kind in _ENDS:
            self.response = event.get("response") or {}
        return []

    @property
    def complete(self) -> bool:
        return self.response is not None

    def reply(self) -> Reply:
        response = self.response or {}
        items = response.get("output") or [item for _, item in sorted(self._items.items())]
        details, usage = response.get("incomplete_details") or {}, response.get("usage")
        stop = details.get("reason") or response.get("status") or ""
        reported = None if usage is None else {"input_tokens_details": {}, **usage, "stop_reason": stop}
        return Reply(message=items, usage=reported, stop=stop)

    def _shown(self, text: Any, kind: Any) -> list[ReplyPiece]:
        self.began = True
        return [ReplyPiece(text=text, kind=kind)] if isinstance(text, str) and text else []
