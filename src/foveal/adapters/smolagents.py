"""Model wrapper for smolagents: any model of smolagents, with the messages that fit.

    from foveal.adapters.smolagents import FovealModel

    agent = ToolCallingAgent(tools, FovealModel(OpenAIModel("gpt-4.1")))

1. Each model call sends what fits; the memory of the agent is not changed.
2. smolagents sends the results of tools as texts of the user. The wrapper sees them before that, as results, and
   shortens them like other results.
3. A conversation is found by its messages, or named by `conversation`. Agents can share a model.
4. With `summarise="own"`, the wrapped model writes the summaries.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple, Unpack

from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    MessageRole,
    Model,
    get_tool_json_schema,
)
from smolagents.utils import encode_image_base64, make_image_url

from foveal.adapters.conversations import AdapterArguments, Conversations, own_model
from foveal.adapters.native_context import NativeContext, Piece, WireMessage
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model as KnownModel
from foveal.errors import BadSetting

_HOW: Final = "give each conversation a `FovealModel` of its own with `conversation=`"


class PairedMessage(NamedTuple):
    """A message of smolagents, and the id that a call of tools shares with its result."""

    message: ChatMessage
    call: str = ""


def pair_messages(messages: Sequence[ChatMessage | dict[str, Any]]) -> list[PairedMessage]:
    """Return the messages with an id for each call of tools that its result follows at once."""
    objects = [ChatMessage.from_dict(dict(m)) if isinstance(m, dict) else m for m in messages]
    paired = [PairedMessage(message) for message in objects]
    for at, (first, second) in enumerate(pairwise(objects)):
        if (first.role, second.role) == (MessageRole.TOOL_CALL, MessageRole.TOOL_RESPONSE):
            paired[at], paired[at + 1] = (
                PairedMessage(first, f"call_{at}"),
                PairedMessage(second, f"call_{at}"),
            )
    return paired


class SmolagentsFormat:
    """Converts the messages of smolagents."""

    dialect: Dialect = "openai_chat"

    def write(self, message: PairedMessage) -> Sequence[WireMessage]:
        role = MessageRole(message.message.role).value
        content = _written_content(message.message.content)
        if role == MessageRole.TOOL_CALL.value:
            written: WireMessage = {"role": "assistant", "content": content}
            if message.call:
                function = {"name": "tools", "arguments": "{}"}
                written["tool_calls"] = [{"id": message.call, "type": "function", "function": function}]
            return [written]
        if role == MessageRole.TOOL_RESPONSE.value:
            if message.call:
                return [{"role": "tool", "tool_call_id": message.call, "content": content}]
            role = "user"
        return [{"role": role, "content": content}]

    def build(self, pieces: Sequence[Piece], original: PairedMessage | None) -> Sequence[PairedMessage]:
        return [_built(piece.message, original) for piece in pieces]


def _built(shown: WireMessage, original: PairedMessage | None) -> PairedMessage:
    content = shown["content"] or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if original is not None:
        return PairedMessage(replace(original.message, content=parts), original.call)
    role = MessageRole.TOOL_RESPONSE if shown["role"] == "tool" else MessageRole(shown["role"])
    return PairedMessage(ChatMessage(role=role, content=parts))


def _written_content(content: Any) -> Any:
    """Return the content of a message as chat completions have it: a text, or parts if there are images."""
    if not isinstance(content, list):
        return content or ""
    if all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return [_written_part(part) for part in content]


def _written_part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    return {"type": "image_url", "image_url": {"url": make_image_url(encode_image_base64(part["image"]))}}


class FovealModel(Model):  # type: ignore[misc, unused-ignore]
    """A model of smolagents that sends what fits into its window.

    Args:
        model: The model of smolagents that answers.
        name: The name by which Foveal knows the model, if it differs from its `model_id`.
        conversation: The id of the one conversation that this model is used for, which `store` needs after a
            restart. `""` finds conversations by their messages.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```py
        from smolagents import OpenAIModel, ToolCallingAgent

        from foveal.adapters.smolagents import FovealModel

        agent = ToolCallingAgent([], FovealModel(OpenAIModel("gpt-4.1"), window=32_000))
        ```
    """

    def __init__(
        self,
        model: Model,
        *,
        name: str | KnownModel = "",
        conversation: str = "",
        **settings: Unpack[AdapterArguments],
    ) -> None:
        if not isinstance(conversation, str):
            raise BadSetting("conversation", conversation, "the id of a conversation")
        super().__init__(
            flatten_messages_as_text=model.flatten_messages_as_text,
            tool_name_key=model.tool_name_key,
            tool_arguments_key=model.tool_arguments_key,
            model_id=model.model_id,
        )
        self.model = model
        """The model that answers."""
        self.conversations: Conversations[PairedMessage] = Conversations(
            SmolagentsFormat(), name or model.model_id or "", has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._conversation = conversation

    def generate(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **options: Any,
    ) -> ChatMessage:
        paired = pair_messages(messages)
        call = partial(
            self.model.generate,
            stop_sequences=stop_sequences,
            response_format=response_format,
            tools_to_call_from=tools_to_call_from,
            **options,
        )
        found = self._find(paired)
        with own_model(partial(_summarise, self.model)):
            reply: ChatMessage = found.send(
                paired, lambda fitted: call(_unpaired(fitted)), tools=_schemas(tools_to_call_from)
            )
        found.observe(reply.token_usage)
        return reply

    def generate_stream(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **options: Any,
    ) -> Generator[ChatMessageStreamDelta, None, None]:
        paired = pair_messages(messages)
        call = partial(
            self.model.generate_stream,
            stop_sequences=stop_sequences,
            response_format=response_format,
            tools_to_call_from=tools_to_call_from,
            **options,
        )
        found = self._find(paired)
        with own_model(partial(_summarise, self.model)):
            stream = found.send(
                paired, lambda fitted: _started(call(_unpaired(fitted))), tools=_schemas(tools_to_call_from)
            )
        for delta in stream:
            if delta.token_usage is not None:
                found.observe(delta.token_usage)
            yield delta

    def _find(self, paired: Sequence[PairedMessage]) -> NativeContext[PairedMessage]:
        return self.conversations.get(self._conversation or self.conversations.recognise(paired, how=_HOW))


def _unpaired(paired: Sequence[PairedMessage]) -> list[ChatMessage]:
    return [message.message for message in paired]


def _schemas(tools: Sequence[Any] | None) -> list[dict[str, Any]]:
    return [get_tool_json_schema(tool) for tool in tools or ()]


def _started(stream: Iterator[Any]) -> Iterator[Any]:
    """Return the stream after its first event has arrived: a refusal by the provider is raised here."""
    first = next(stream, None)
    return iter(()) if first is None else chain((first,), stream)


def _summarise(model: Model, request: SummaryRequest) -> Draft:
    messages = [_built(message, None).message for message in request.messages]
    reply = model.generate(messages)
    usage = reply.token_usage
    return Draft(
        text=_text(reply.content),
        input=usage.input_tokens if usage else 0,
        output=usage.output_tokens if usage else 0,
    )


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part.get("text", "") for part in content)
