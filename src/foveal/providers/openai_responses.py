"""Provider for OpenAI's Responses API; a reply is a list of items.

The provider stores nothing (`store` is off), so encrypted reasoning is part of the conversation and is sent back
unchanged.
"""

from __future__ import annotations

from typing import Any, Final

from foveal.core.log.events import Dialect
from foveal.core.view.request import Fitted
from foveal.core.wire.native_compaction import COMPACTION_TRIGGER
from foveal.errors import PicklableError
from foveal.ports import Reply, ReplyPiece
from foveal.providers.base import BaseProvider, JsonObject, StreamedReply, openai_client, responses_tools

_REASONING_EVENTS: Final = frozenset(
    {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
)
_END_EVENTS: Final = frozenset({"response.completed", "response.incomplete"})
_DIAGNOSTICS_FIELD: Final = "prompt_cache_diagnostics"
"""The field of a response that says why the cache was not read."""
_ERROR_EVENTS: Final = frozenset({"response.failed", "error"})


class ResponseFailed(PicklableError, Exception):
    """An error that the stream reports as an event, in the shape of the library's own errors."""

    def __init__(self, body: JsonObject) -> None:
        self.message: str = str(body.get("message") or "the answer failed")
        super().__init__(self.message)
        self.body = body


class OpenAIResponses(BaseProvider):
    """A provider that speaks OpenAI's Responses API."""

    dialect: Dialect = "openai_responses"
    library = "openai"

    def make_client(self) -> Any:
        return openai_client(self.endpoint, read_timeout_s=self.read_timeout_s)

    async def open_stream(self, client: Any, body: JsonObject) -> Any:
        return await client.responses.create(**body)

    def new_reply(self) -> StreamedReply:
        return ResponsesReply()

    def request_body(self, request: Fitted, max_tokens: int) -> JsonObject:
        body: JsonObject = {
            "model": self.model_id,
            "input": [with_item_type(item) for item in request.to_responses()],
            "max_output_tokens": max_tokens,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "truncation": "disabled",
            "stream": True,
            **self.options,
        }
        if request.tools:
            body["tools"] = responses_tools(request.tools)
        if request.compaction is not None:
            body["input"].append(COMPACTION_TRIGGER)
        return body


def with_item_type(item: JsonObject) -> JsonObject:
    """Add the type of a message: OpenAI infers it, llama.cpp does not."""
    return {"type": "message", **item} if "role" in item else item


class ResponsesReply:
    """A reply assembled from the events of the stream."""

    def __init__(self) -> None:
        self.has_started: bool = False
        self.text: str = ""
        self._response: JsonObject | None = None
        """The whole response, from the last event of the stream."""
        self._items: dict[int, JsonObject] = {}

    @property
    def is_complete(self) -> bool:
        return self._response is not None

    def add(self, event: JsonObject) -> list[ReplyPiece]:
        kind, item = event.get("type", ""), event.get("item") or {}
        if kind in _ERROR_EVENTS:
            raise ResponseFailed((event.get("response") or {}).get("error") or event)
        if kind == "response.output_text.delta":
            self.text += event.get("delta") or ""
            return self._pieces(event.get("delta"), "text")
        if kind in _REASONING_EVENTS:
            return self._pieces(event.get("delta"), "thinking")
        if kind == "response.output_item.added" and item.get("type") == "function_call":
            return self._pieces(item.get("name"), "call")
        if kind == "response.output_item.done":
            self._items[event.get("output_index", len(self._items))] = item
        if kind in _END_EVENTS:
            self._response = event.get("response") or {}
        return []

    def reply(self) -> Reply:
        response = self._response or {}
        items = response.get("output") or [item for _, item in sorted(self._items.items())]
        details, usage = response.get("incomplete_details") or {}, response.get("usage")
        stop = details.get("reason") or response.get("status") or ""
        if usage is None:
            return Reply(message=items, stop=stop)
        reported = {"input_tokens_details": {}, **usage, "stop_reason": stop}
        if diagnostics := response.get(_DIAGNOSTICS_FIELD):
            reported[_DIAGNOSTICS_FIELD] = diagnostics
        return Reply(message=items, usage=reported, stop=stop)

    def _pieces(self, text: Any, kind: Any) -> list[ReplyPiece]:
        self.has_started = True
        return [ReplyPiece(text=text, kind=kind)] if isinstance(text, str) and text else []
