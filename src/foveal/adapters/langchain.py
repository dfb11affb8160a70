"""Middleware for LangChain agents: `create_agent`, LangGraph, deepagents.

    from foveal.adapters.langchain import FovealMiddleware

    agent = create_agent("openai:gpt-4.1", tools, middleware=[FovealMiddleware()])

1. Each model call sends what fits; the state of the agent is not changed.
2. A conversation is found by the `thread_id` of the run; a run without one, and a subagent, by its first message.
3. With `summarise="own"`, the model of the agent writes the summaries.
4. With `recall_tools`, the model can search and read what is no longer shown.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final, Unpack, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    convert_to_messages,
    convert_to_openai_messages,
)
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import (
    UNKNOWN_CONVERSATION,
    NativeContext,
    Piece,
    WireMessage,
    offered_tools,
)
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model

_HOW: Final = 'pass `config={"configurable": {"thread_id": …}}`, or set `conversation`'
NO_STREAM_TAG: Final = "nostream"
"""The tag by which LangGraph keeps the tokens of a model call out of its streams."""
MAX_NAMED_CONVERSATIONS: Final = 10_000
"""Conversations whose own id is remembered for the recall tools."""
MAX_KNOWN_TOOLS: Final = 1_000
"""Tools whose schemas are kept."""


_THINKING_TYPES: Final = ("thinking", "redacted_thinking", "reasoning")


class LangChainFormat:
    """Converts LangChain's messages."""

    dialect: Dialect = "openai_chat"

    def write(self, message: BaseMessage) -> Sequence[WireMessage]:
        return convert_to_openai_messages([message])

    def build(self, pieces: Sequence[Piece], original: BaseMessage | None) -> Sequence[BaseMessage]:
        if original is None or len(pieces) != 1:
            return convert_to_messages([piece.message for piece in pieces])
        message = pieces[0].message
        update: dict[str, Any] = {"content": message["content"] or ""}
        if isinstance(original, AIMessage):
            update = _reduced_answer(original, message)
        return [original.model_copy(update=update)]


def _reduced_answer(original: AIMessage, message: WireMessage) -> dict[str, Any]:
    """Return the fields of an answer whose text or arguments are shown shorter."""
    arguments = {
        call["id"]: _arguments(call["function"]["arguments"]) for call in message.get("tool_calls", ())
    }
    calls = [{**call, "args": arguments.get(call["id"], call["args"])} for call in original.tool_calls]
    return {
        "content": _reduced_content(original.content, message["content"], arguments),
        "tool_calls": calls,
        "additional_kwargs": {k: v for k, v in original.additional_kwargs.items() if k != "tool_calls"},
    }


def _reduced_content(content: Any, shown: Any, arguments: dict[str, Any]) -> Any:
    """Return the content of an answer with the texts and arguments that are shown; other blocks stay."""
    texts = _texts(shown)
    if isinstance(content, str):
        return "\n".join(texts)
    if len(texts) != len(_texts(content)):
        texts = ["\n".join(texts)]
    left = iter(texts)
    shows_thinking = isinstance(shown, list) and any(block.get("type") in _THINKING_TYPES for block in shown)
    blocks = [_reduced_block(block, left, arguments, shows_thinking=shows_thinking) for block in content]
    return [block for block in blocks if block]


def _reduced_block(
    block: Any, texts: Iterator[str], arguments: dict[str, Any], *, shows_thinking: bool
) -> Any:
    """Return a block as it is shown; "" for a text that is not."""
    if not isinstance(block, dict):
        return next(texts, "")
    match block.get("type"):
        case "text":
            text = next(texts, "")
            return {**block, "text": text} if text else ""
        case "tool_use" if block.get("id") in arguments:
            return {**block, "input": arguments[block["id"]]}
        case "function_call" if block.get("call_id") in arguments:
            return {**block, "arguments": json.dumps(arguments[block["call_id"]])}
        case kind if kind in _THINKING_TYPES and not shows_thinking:
            return ""
        case _:
            return block


def _texts(content: Any) -> list[str]:
    """Return the texts of a content."""
    if not isinstance(content, list):
        return [content or ""]
    blocks = (b if isinstance(b, dict) else {"type": "text", "text": b} for b in content)
    return [block["text"] for block in blocks if block.get("type") == "text" and "text" in block]


def _arguments(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = text
    return parsed if isinstance(parsed, dict) else {"text": parsed}


class FovealMiddleware(AgentMiddleware[Any, Any, Any]):
    """Keeps the model calls of a LangChain agent inside the model's window.

    Args:
        model: The name by which Foveal knows the model, if it differs from LangChain's. `""` takes the name in
            each request.
        recall_tools: Whether the model gets tools to search and read what is no longer shown.
        context_tools: Whether the model gets tools to see what fills its window and to ask for a cut.
        conversation: Returns the id of a request's conversation. None uses the `thread_id` of the run.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```python
        from langchain.agents import create_agent

        from foveal.adapters.langchain import FovealMiddleware

        fitted = FovealMiddleware(window=32_000)
        agent = create_agent("openai:gpt-4.1", [], middleware=[fitted])
        agent.invoke({"messages": [{"role": "user", "content": "Why is CI red?"}]})
        assert len(fitted.conversations.ids()) == 1
        ```
    """

    def __init__(
        self,
        model: str | Model = "",
        *,
        recall_tools: bool = False,
        context_tools: bool = False,
        conversation: Callable[[ModelRequest[Any]], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        super().__init__()
        self.conversations: Conversations[BaseMessage] = Conversations(
            LangChainFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._conversation = checked_function(conversation)
        self._named: dict[str, str] = {}
        """The ids that `conversation` has returned, for the recall tools, which see no request."""
        self._tool_schemas: dict[int, tuple[Any, dict[str, Any]]] = {}
        offered = offered_tools("openai_chat", recall=recall_tools, context=context_tools)
        self.tools = [self._recall_tool(schema) for schema in offered]
        """The recall and context tools, as far as they are offered."""

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        found = self.conversations.get(self._id(request), model=_model_name(request.model))
        with own_model(partial(_summarise, request.model)):
            reply = found.send(
                request.messages,
                lambda messages: handler(_override(request, messages)),
                **self._beside(request),
            )
        _observe(found, reply)
        return reply

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        found = await self.conversations.aget(self._id(request), model=_model_name(request.model))
        with own_model(partial(_summarise_async, request.model)):
            reply = await found.asend(
                request.messages,
                lambda messages: handler(_override(request, messages)),
                **self._beside(request),
            )
        _observe(found, reply)
        return reply

    def _id(self, request: ModelRequest[Any]) -> str:
        id = _named_id(request.messages)
        if self._conversation is None:
            thread = _thread_id()
            self.conversations.check_named(thread, how=_HOW)
            return id or self.conversations.recognise(request.messages, how=_HOW, scope=f"{thread}/")
        if len(self._named) >= MAX_NAMED_CONVERSATIONS:
            self._named.clear()
        named = self._named[id] = self._conversation(request)
        return named

    def _beside(self, request: ModelRequest[Any]) -> dict[str, Any]:
        """Return the system text and the tools of a request, as they are counted."""
        system = request.system_message
        return {
            "system": None if system is None else system.content,
            "tools": [self._schema(tool) for tool in request.tools],
        }

    def _schema(self, tool: BaseTool | dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a tool. LangChain derives it anew each time, which takes longer than a fit."""
        if isinstance(tool, dict):  # often a new one for each request, and quick
            return _tool_schema(tool)
        known = self._tool_schemas.get(id(tool))
        if known is None or known[0] is not tool:
            if len(self._tool_schemas) >= MAX_KNOWN_TOOLS:
                self._tool_schemas.clear()
            known = self._tool_schemas[id(tool)] = (tool, _tool_schema(tool))
        return known[1]

    def _recall_tool(self, schema: dict[str, Any]) -> BaseTool:
        name = schema["function"]["name"]

        def answer(runtime: ToolRuntime, **arguments: Any) -> str:
            messages, known = runtime.state["messages"], self.conversations
            id = _named_id(messages)
            found = (
                known.find(self._named.get(id, id))
                if id
                else known.recognised(messages, scope=f"{_thread_id()}/")
            )
            return UNKNOWN_CONVERSATION if found is None else found.recall(name, arguments)

        return StructuredTool(
            name=name,
            description=schema["function"]["description"],
            args_schema=schema["function"]["parameters"],
            func=answer,
        )


def conversation_id(messages: Sequence[AnyMessage | BaseMessage]) -> str:
    """Return the id of the conversation that the current run belongs to; a new one if nothing names it."""
    return _named_id(messages) or token_hex(8)


def _named_id(messages: Sequence[AnyMessage | BaseMessage]) -> str:
    """Return the id by the thread of a run, and by its first message in a subgraph; "" if nothing names it."""
    thread, inside = _thread_id(), "|" in str(_configured().get("checkpoint_ns", ""))
    if thread and not inside:
        return thread
    first = getattr(messages[0], "id", None) if messages else None
    return f"{thread}/{first}" if first else ""


def _thread_id() -> str:
    return str(_configured().get("thread_id") or "")


def _configured() -> Mapping[str, Any]:
    try:
        return get_config().get("configurable", {})
    except RuntimeError:  # outside of a graph
        return {}


def _override(request: ModelRequest[Any], messages: list[BaseMessage]) -> ModelRequest[Any]:
    return request.override(messages=cast(list[AnyMessage], messages))


def _observe(found: NativeContext[BaseMessage], reply: Any) -> None:
    messages = [reply] if isinstance(reply, AIMessage) else getattr(reply, "result", ())
    for message in messages:
        if isinstance(message, AIMessage):
            found.observe(message.usage_metadata)


def _model_name(model: Any) -> str:
    names = (getattr(model, field, "") for field in ("model_name", "model", "model_id"))
    return next((name for name in names if isinstance(name, str) and name), "")


def _tool_schema(tool: BaseTool | dict[str, Any]) -> dict[str, Any]:
    return tool if isinstance(tool, dict) and "type" in tool else convert_to_openai_tool(tool)


# ── Summaries by the agent's own model ───────────────────────────────────────────────────────────────────


_SUMMARY_CONFIG: Final[Any] = {"tags": [NO_STREAM_TAG], "run_name": "foveal summary"}


def _summarise(model: BaseChatModel, request: SummaryRequest) -> Draft:
    writer, messages = _writer(model, request)
    return _draft(writer.invoke(messages, config=_SUMMARY_CONFIG))


async def _summarise_async(model: BaseChatModel, request: SummaryRequest) -> Draft:
    writer, messages = _writer(model, request)
    return _draft(await writer.ainvoke(messages, config=_SUMMARY_CONFIG))


def _writer(model: BaseChatModel, request: SummaryRequest) -> tuple[Any, list[BaseMessage]]:
    writer = model.bind_tools(request.tools) if request.tools else model
    return writer, convert_to_messages(request.messages)


def _draft(reply: AIMessage) -> Draft:
    usage = cast(dict[str, Any], reply.usage_metadata or {})
    cached = usage.get("input_token_details", {}).get("cache_read", 0)
    return Draft(
        text=reply.text,
        input=usage.get("input_tokens", 0) - cached,
        cache_read=cached,
        output=usage.get("output_tokens", 0),
    )
