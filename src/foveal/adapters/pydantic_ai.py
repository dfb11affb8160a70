"""Capability for pydantic-ai agents.

    from foveal.adapters.pydantic_ai import FovealCapability

    agent = Agent("openai:gpt-4.1", tools=tools, capabilities=[FovealCapability()])

1. Each model request sends what fits; the message history of the run is not changed.
2. A conversation is found by the run's `conversation_id`, which pydantic-ai takes over from the message history.
3. After a provider's overflow error, the request is fitted and sent again.
4. With `summarise="own"`, the model of the request writes the summaries.
5. With `recall_tools`, the model can search and read what is no longer shown.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, Unpack, cast
from weakref import WeakKeyDictionary

from pydantic_ai import FunctionToolset, Tool, direct
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ModelContextWindowExceededError, RetryModelRequest
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    FilePart,
    FileUrl,
    ImageUrl,
    InstructionDeltaPart,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import NativeContext, Piece, WireMessage, offered_tools
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft, StopReason
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model

_NO_TEXT: Final[WireMessage] = {"role": "system", "content": ""}
"""Stands for a part that no model reads, such as a change of the tools: system messages are never dropped."""
_OVERFLOW: Final = {"code": "context_length_exceeded"}
_STOP_REASONS: Final[Mapping[str | None, StopReason]] = {
    "stop": "end", "length": "length", "content_filter": "refused", "tool_call": "tools",
}  # fmt: skip


MAX_KNOWN_RUNS: Final = 1_000
"""Runs whose last request is remembered."""


class _RunRequest(NamedTuple):
    messages: list[ModelMessage]
    tools: list[dict[str, Any]]
    system: str | None


class FovealCapability(AbstractCapability[object]):
    """Keeps the model requests of a pydantic-ai agent inside the model's window.

    Args:
        model: The name by which Foveal knows the model, if it differs from pydantic-ai's. `""` takes the name
            in each request.
        recall_tools: Whether the model gets tools to search and read what is no longer shown.
        context_tools: Whether the model gets tools to see what fills its window and to ask for a cut.
        conversation: Returns the id of a run's conversation. None uses its `conversation_id`.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```python
        from pydantic_ai import Agent

        from foveal.adapters.pydantic_ai import FovealCapability

        agent = Agent("openai-chat:gpt-4.1", capabilities=[FovealCapability(window=32_000)])
        reply = await agent.run("Why is CI red?")
        ```
    """

    def __init__(
        self,
        model: str | Model = "",
        *,
        recall_tools: bool = False,
        context_tools: bool = False,
        conversation: Callable[[RunContext[Any]], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        self.conversations: Conversations[ModelMessage] = Conversations(
            PydanticAIFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._conversation = checked_function(conversation)
        self._offered_tools = offered_tools("openai_chat", recall=recall_tools, context=context_tools)
        self._requests: OrderedDict[str, _RunRequest] = OrderedDict()
        """The last request of each run. Runs with the same history have the same conversation."""
        self._fitted: WeakKeyDictionary[NativeContext[ModelMessage], str] = WeakKeyDictionary()
        """For each context, the run whose request it has fitted last."""

    def get_ordering(self) -> CapabilityOrdering:
        """Fit what the other capabilities have made of the request."""
        return CapabilityOrdering(position="innermost")

    def get_toolset(self) -> FunctionToolset[object] | None:
        if not self._offered_tools:
            return None
        return FunctionToolset(list(map(self._recall_tool, self._offered_tools)))

    async def prepare_model_request(
        self, ctx: RunContext[object], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        found = await self._find(ctx, request_context.model.model_name)
        parameters = request_context.model_request_parameters
        request = _RunRequest(
            request_context.messages,
            list(map(_tool_schema, _sent_tools(parameters))),
            InstructionPart.join(parameters.instruction_parts or ()),
        )
        with own_model(partial(_summarise, request_context)):
            request_context.messages = await self._fit(found, request, ctx.run_id or "")
        return request_context

    async def _fit(
        self, found: NativeContext[ModelMessage], request: _RunRequest, run: str
    ) -> list[ModelMessage]:
        fitted = await found.afit(request.messages, tools=request.tools, system=request.system)
        self._fitted[found] = run
        self._requests[run] = request
        self._requests.move_to_end(run)
        if len(self._requests) > MAX_KNOWN_RUNS:
            self._requests.popitem(last=False)
        return fitted

    async def after_model_request(
        self, ctx: RunContext[object], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        found = await self._find(ctx, request_context.model.model_name)
        found.observe(response.usage)
        return response

    async def on_model_request_error(
        self, ctx: RunContext[object], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        found = await self._find(ctx, request_context.model.model_name)
        if found.context.overflowed(error) or (
            isinstance(error, ModelContextWindowExceededError) and found.context.overflowed(_OVERFLOW)
        ):
            raise RetryModelRequest from error
        raise error

    async def _find(self, ctx: RunContext[object], model_name: str) -> NativeContext[ModelMessage]:
        chosen = None if self._conversation is None else self._conversation(ctx)
        return await self.conversations.aget(
            chosen or ctx.conversation_id or ctx.run_id or "", model=model_name
        )

    def _recall_tool(self, schema: dict[str, Any]) -> Tool[object]:
        function = schema["function"]

        async def answer(ctx: RunContext[object], **arguments: Any) -> str:
            found = await self._find(ctx, ctx.model.model_name)
            run = ctx.run_id or ""
            request = self._requests.get(run)
            if request is not None and self._fitted.get(found) != run:
                # Another run has continued the same history meanwhile, perhaps another user's.
                await self._fit(found, request, run)
            return found.recall(function["name"], arguments)

        return Tool.from_schema(
            answer, function["name"], function["description"], function["parameters"], takes_ctx=True
        )


def _sent_tools(parameters: ModelRequestParameters) -> list[ToolDefinition]:
    """Return the tools that the model sees: those whose loading is deferred only once they are revealed."""
    revealed = parameters.revealed_tool_names
    visible = [tool for tool in parameters.function_tools if not tool.defer_loading or tool.name in revealed]
    return [*visible, *parameters.output_tools]


def _tool_schema(tool: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters_json_schema,
    }
    return {"type": "function", "function": function}


# ── Messages as messages of chat completions ─────────────────────────────────────────────────────────────


class PydanticAIFormat:
    """Converts pydantic-ai's messages: a request part by part, a response as one message."""

    dialect: Dialect = "openai_chat"

    def write(self, message: ModelMessage) -> Sequence[WireMessage]:
        if isinstance(message, ModelResponse):
            return [_write_response(message)]
        return [_write_request_part(part) for part in message.parts] or [_NO_TEXT]

    def build(self, pieces: Sequence[Piece], original: ModelMessage | None) -> Sequence[ModelMessage]:
        if original is None:
            return [_new_message(piece.message) for piece in pieces]
        if isinstance(original, ModelResponse):
            return [_reduced_response(original, piece.message) for piece in pieces]
        return [replace(original, parts=[_shown_request_part(original, piece) for piece in pieces])]


def _write_request_part(part: ModelRequestPart) -> WireMessage:
    match part:
        case ToolReturnPart():
            return {"role": "tool", "tool_call_id": part.tool_call_id, "content": _write_return(part)}
        case UserPromptPart():
            return {"role": "user", "content": _write_content(part.content)}
        case SystemPromptPart():
            return {"role": "system", "content": part.content}
        case InstructionDeltaPart():
            return {"role": "system", "content": part.render()}
        case SpeechPart():
            return {"role": "user", "content": part.content}
    if part.part_kind == "retry-prompt" and part.tool_name is not None:
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
    if part.part_kind == "retry-prompt" or part.part_kind == "retry-feedback":
        return {"role": "user", "content": part.model_response()}
    return _NO_TEXT


def _write_return(part: ToolReturnPart) -> str | list[WireMessage]:
    if isinstance(part.content, str):
        return part.content
    text = part.model_response_str(wrap_if_error=False)
    return _write_content([text, *part.files]) if part.files else text


def _write_content(content: str | Sequence[UserContent]) -> str | list[WireMessage]:
    return content if isinstance(content, str) else list(map(_write_item, content))


def _write_item(item: UserContent) -> WireMessage:
    match item:
        case str():
            return {"type": "text", "text": item}
        case TextContent():
            return {"type": "text", "text": item.content}
        case ImageUrl():
            return {"type": "image_url", "image_url": {"url": item.url}}
        case BinaryContent() if item.is_image:
            return {"type": "image_url", "image_url": {"url": item.data_uri}}
        case BinaryContent() if item.is_audio:
            sound = {"data": item.base64, "format": item.media_type.removeprefix("audio/")}
            return {"type": "input_audio", "input_audio": sound}
        case BinaryContent():
            return {"type": "file", "file": {"filename": item.identifier, "file_data": item.data_uri}}
        case FileUrl():
            return {"type": "file", "file": {"file_id": item.url}}
        case UploadedFile():
            return {"type": "file", "file": {"file_id": item.file_id}}
        case CachePoint():
            return {"type": item.kind}


def _write_response(message: ModelResponse) -> WireMessage:
    said = [part for part in message.parts if not isinstance(part, ToolCallPart)]
    content: Any = [_write_said(part) for part in said]
    if len(said) == 1 and isinstance(said[0], TextPart):
        content = said[0].content
    calls = [_write_call(part) for part in message.parts if isinstance(part, ToolCallPart)]
    if calls:
        return {"role": "assistant", "content": content or None, "tool_calls": calls}
    return {"role": "assistant", "content": content or ""}


def _write_said(part: ModelResponsePart) -> WireMessage:
    match part:
        case TextPart() | SpeechPart():
            return {"type": "text", "text": part.content}
        case ThinkingPart():
            return {"type": "thinking", "thinking": part.content, "signature": part.signature or ""}
        case FilePart():
            return _write_item(part.content)
        case NativeToolReturnPart():
            return {"type": part.part_kind, "text": part.model_response_str()}
        case ToolCallPart() | NativeToolCallPart():
            return {"type": part.part_kind, "text": f"{part.tool_name} {_arguments_text(part.args)}"}
        case _:
            return {"type": part.part_kind, "text": part.content or ""}


def _write_call(part: ToolCallPart) -> WireMessage:
    function = {"name": part.tool_name, "arguments": _arguments_text(part.args)}
    return {"id": part.tool_call_id, "type": "function", "function": function}


def _arguments_text(arguments: str | Mapping[str, Any] | None) -> str:
    if isinstance(arguments, str):
        return arguments or "{}"
    return json.dumps(arguments or {}, ensure_ascii=False, default=str)


# ── Reduced messages ─────────────────────────────────────────────────────────────────────────────────────


def _shown_request_part(original: ModelRequest, piece: Piece) -> ModelRequestPart:
    if piece.place is None:
        return _new_request_part(piece.message)
    part = original.parts[piece.place]
    return part if piece.whole else _reduced_request_part(part, piece.message)


def _reduced_request_part(part: ModelRequestPart, message: WireMessage) -> ModelRequestPart:
    content = message["content"]
    match part:
        case ToolReturnPart():
            items = [part.model_response_str(wrap_if_error=False), *part.files]
            # A subclass types its content, which a shortened text does not follow.
            kept = {field.name: getattr(part, field.name) for field in fields(ToolReturnPart)}
            return ToolReturnPart(**{**kept, "content": _restored(items, content), "tool_kind": None})
        case UserPromptPart():
            given = [part.content] if isinstance(part.content, str) else part.content
            return replace(part, content=_restored(given, content))
        case SystemPromptPart():
            return replace(part, content=content)
    return _new_request_part(message, getattr(part, "tool_name", None) or "")


def _restored(items: Sequence[UserContent], shown: str | list[WireMessage]) -> Any:
    """Return content as it is shown, with the given items where they are unchanged."""
    if isinstance(shown, str):
        return shown
    written = list(map(_write_item, items))
    restored: list[UserContent] = []
    for place, block in enumerate(shown):
        known = next((item for item, was in zip(items, written, strict=True) if was == block), None)
        at_place = items[place] if len(shown) == len(items) else None
        if known is None and type(at_place) is TextContent:
            known = replace(at_place, content=block["text"])
        restored.append(block.get("text", "") if known is None else known)
    return restored


def _reduced_response(original: ModelResponse, shown: WireMessage) -> ModelResponse:
    if not _shows_thinking(shown["content"]):
        original = replace(
            original, parts=[part for part in original.parts if not isinstance(part, ThinkingPart)]
        )
    arguments = {call["id"]: call["function"]["arguments"] for call in shown.get("tool_calls") or ()}
    said = iter(_said(original, shown["content"]))
    parts: list[ModelResponsePart] = []
    for part in original.parts:
        if not isinstance(part, ToolCallPart):
            parts.extend(next(said))
        elif part.tool_call_id in arguments:
            parts.append(_reduced_call(part, arguments[part.tool_call_id]))
    return replace(original, parts=parts)


def _shows_thinking(content: str | list[WireMessage] | None) -> bool:
    return isinstance(content, list) and any(block.get("type") == "thinking" for block in content)


def _said(
    original: ModelResponse, content: str | list[WireMessage] | None
) -> Iterator[list[ModelResponsePart]]:
    """Yield, for each part that is no call, what is shown of it."""
    said = [part for part in original.parts if not isinstance(part, ToolCallPart)]
    if isinstance(content, list) and len(content) == len(said):
        for part, block in zip(said, content, strict=True):
            yield [part if _write_said(part) == block else _reduced_text(part, block.get("text", ""))]
        return
    text = (
        content if isinstance(content, str) else "\n\n".join(b["text"] for b in content or () if "text" in b)
    )
    for part in said:
        if not isinstance(part, TextPart):
            yield [part]
            continue
        yield [_reduced_text(part, text)] if text else []
        text = ""  # the first text part shows all of it


def _reduced_text(part: ModelResponsePart, text: str) -> ModelResponsePart:
    return replace(part, content=text) if isinstance(part, TextPart) else TextPart(text)


def _reduced_call(part: ToolCallPart, arguments: str) -> ToolCallPart:
    if arguments == _arguments_text(part.args):
        return part
    return replace(part, args=arguments if isinstance(part.args, str) else _parsed_arguments(arguments))


def _parsed_arguments(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = text
    return parsed if isinstance(parsed, dict) else {"text": parsed}


# ── New messages ─────────────────────────────────────────────────────────────────────────────────────────


def _new_message(message: WireMessage) -> ModelMessage:
    if message["role"] != "assistant":
        return ModelRequest([_new_request_part(message)])
    parts: list[ModelResponsePart] = [TextPart(text)] if (text := _text(message["content"])) else []
    parts.extend(
        ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in message.get("tool_calls") or ()
    )
    return ModelResponse(parts)


def _new_request_part(message: WireMessage, tool_name: str = "") -> ModelRequestPart:
    text = _text(message["content"])
    match message["role"]:
        case "tool":
            return ToolReturnPart(message.get("name") or tool_name, text, message["tool_call_id"])
        case "system" | "developer":
            return SystemPromptPart(text)
        case _:
            return UserPromptPart(text)


def _text(content: str | list[WireMessage] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block["text"] for block in content if block["type"] == "text")


# ── Summaries by the agent's own model ───────────────────────────────────────────────────────────────────


async def _summarise(current: ModelRequestContext, request: SummaryRequest) -> Draft:
    parameters = ModelRequestParameters(
        function_tools=_sent_tools(current.model_request_parameters) if request.tools else [],
        instruction_parts=_instructions(current, request),
    )
    chosen = {name: value for name, value in (current.model_settings or {}).items() if name != "tool_choice"}
    messages = current.model.prepare_messages(_summary_messages(current, request), parameters)
    reply = await direct.model_request(
        current.model,
        list(_joined(messages)),
        model_settings=cast(ModelSettings, {**chosen, "max_tokens": request.max_tokens}),
        model_request_parameters=parameters,
    )
    usage = reply.usage
    return Draft(
        text=reply.text or "",
        stop=_STOP_REASONS.get(reply.finish_reason, ""),
        input=usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        output=usage.output_tokens,
    )


def _instructions(current: ModelRequestContext, request: SummaryRequest) -> list[InstructionPart]:
    """Return the instructions of the conversation, if the summary shares its prefix."""
    parts = current.model_request_parameters.instruction_parts if request.form == "shared" else None
    return parts or []


def _summary_messages(current: ModelRequestContext, request: SummaryRequest) -> list[ModelMessage]:
    """Return the messages of a summary's request. An unchanged response keeps its signatures, and with them its
    place in the cached prefix."""
    given = {
        json.dumps(_write_response(message)): message
        for message in current.messages
        if isinstance(message, ModelResponse)
    }
    beside = ("", InstructionPart.join(_instructions(current, request)))
    messages = [
        given.get(json.dumps(message)) or _new_message(message)
        for message in request.messages
        if message["role"] != "system" or message["content"] not in beside
    ]
    return list(_joined(messages))


def _joined(messages: Sequence[ModelMessage]) -> Iterator[ModelMessage]:
    """Join requests that follow each other, as an agent does: the results of one response are one message."""
    for is_request, run in groupby(messages, key=lambda message: isinstance(message, ModelRequest)):
        if is_request:
            yield ModelRequest([part for message in run for part in cast(ModelRequest, message).parts])
        else:
            yield from run
