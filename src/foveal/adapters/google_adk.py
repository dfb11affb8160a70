"""Plugin for agents of Google's Agent Development Kit.

    from foveal.adapters.google_adk import FovealAdkPlugin

    app = App(name="my_app", root_agent=agent, plugins=[FovealAdkPlugin()])

1. Each model call sends what fits; the events of the session are not changed.
2. A conversation is an agent in a session: agents of one session see its events in different forms.
3. After a provider's overflow error, the plugin sends a smaller request; this answer comes whole, also in a stream.
4. With `summarise="own"`, the model of the agent writes the summaries.
5. With `recall_tools`, the model can search and read what is no longer shown.
6. A request whose history the provider keeps (`previous_interaction_id`) is sent as it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Unpack
from urllib.parse import quote

import msgspec
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import NativeContext, Piece, WireMessage, offered_tools
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model

MAX_UNANSWERED_REQUESTS: Final = 1_000
"""Requests without an answer that are remembered."""
_KEPT_BY_CACHE: Final = ("system_instruction", "tools", "tool_config", "cached_content")
"""Fields of a config that ADK's context cache takes out of a request when it is sent."""
_NOT_FOR_SUMMARIES: Final = (
    "candidate_count",
    "cached_content",
    "response_json_schema",
    "response_mime_type",
    "response_schema",
    "stop_sequences",
    "tool_config",
)


class ContentFormat:
    """Converts the contents of google-genai."""

    dialect: Dialect = "gemini"

    def write(self, message: types.Content) -> Sequence[WireMessage]:
        return [_dump(message)]

    def build(self, pieces: Sequence[Piece], original: types.Content | None) -> Sequence[types.Content]:
        own = [] if original is None else [(_dump(part), part) for part in original.parts or ()]
        return [
            types.Content(
                role=piece.message["role"], parts=[_part(part, own) for part in piece.message["parts"]]
            )
            for piece in pieces
        ]


def _dump(value: Any) -> Any:
    """Return an object of google-genai as JSON, and anything else as it is."""
    if isinstance(value, list):
        return [_dump(item) for item in value]
    if not hasattr(value, "model_dump"):
        return value
    return value.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)


def _part(shown: WireMessage, own: Sequence[tuple[WireMessage, types.Part]]) -> types.Part:
    """Return the original's own part if it is shown unchanged."""
    for dumped, part in own:
        if dumped == shown:
            return part
    return types.Part.model_validate_json(msgspec.json.encode(shown))  # bytes are Base64 only in JSON


class _UnansweredRequest(NamedTuple):
    """A request that waits for its answer."""

    request: LlmRequest
    found: NativeContext[types.Content]
    contents: list[types.Content]
    """The contents as ADK gave them, with media of their own."""
    config: dict[str, Any]
    """The fields of its config that the context cache may take out."""


class FovealAdkPlugin(BasePlugin):
    """Keeps the model calls of all agents of a runner inside their windows.

    Args:
        model: The name by which Foveal knows the model, if it differs from ADK's. `""` takes the name in each
            request.
        name: The name of the plugin in the runner.
        recall_tools: Whether the model gets tools to search and read what is no longer shown.
        context_tools: Whether the model gets tools to see what fills its window and to ask for a cut.
        conversation: Returns the id of a call's conversation. None uses the agent and its session.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```py
        from google.adk.agents import LlmAgent
        from google.adk.apps import App

        from foveal.adapters.google_adk import FovealAdkPlugin

        agent = LlmAgent(name="reviewer", model="gemini-2.5-flash")
        app = App(name="my_app", root_agent=agent, plugins=[FovealAdkPlugin(recall_tools=True)])
        ```
    """

    def __init__(
        self,
        model: str | Model = "",
        *,
        name: str = "foveal",
        recall_tools: bool = False,
        context_tools: bool = False,
        conversation: Callable[[CallbackContext], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        super().__init__(name=name)
        self.conversations: Conversations[types.Content] = Conversations(
            ContentFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._conversation = checked_function(conversation) or conversation_id
        self._sent: OrderedDict[str, _UnansweredRequest] = OrderedDict()
        self._lock = threading.Lock()
        self._offered_tools = [
            _RecallTool(schema, self.recall)
            for schemas in offered_tools("gemini", recall=recall_tools, context=context_tools)
            for schema in schemas["functionDeclarations"]
        ]

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        if llm_request.previous_interaction_id or not llm_request.contents:
            return None
        llm_request.append_tools(
            [tool for tool in self._offered_tools if tool.name not in llm_request.tools_dict]
        )
        id = self._conversation(callback_context)
        found = await self.conversations.aget(id, model=llm_request.model or "")
        sent = _UnansweredRequest(
            llm_request,
            found,
            list(map(_with_own_media, llm_request.contents)),
            {field: getattr(llm_request.config, field) for field in _KEPT_BY_CACHE},
        )
        self._remember(id, sent)
        with own_model(partial(_summarise, callback_context, llm_request)):
            llm_request.contents = await found.afit(llm_request.contents, **_beside(sent))
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        if llm_response.usage_metadata is not None and not llm_response.partial:
            sent = self._sent.pop(self._conversation(callback_context), None)
            if sent is not None:
                sent.found.observe(llm_response.usage_metadata)
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        sent = self._sent.get(self._conversation(callback_context))
        if sent is None or sent.request is not llm_request or not sent.found.context.overflowed(error):
            return None

        async def call(contents: list[types.Content]) -> LlmResponse | None:
            callback_context.get_invocation_context().increment_llm_call_count()
            llm_request.contents = contents
            llm_request.config = llm_request.config.model_copy(update=sent.config)
            return await _ask(callback_context, llm_request)

        with own_model(partial(_summarise, callback_context, llm_request)):
            return await sent.found.asend(sent.contents, call, **_beside(sent))

    async def close(self) -> None:
        """Close the store."""
        await asyncio.to_thread(self.conversations.close)

    async def recall(self, context: ToolContext, name: str, arguments: dict[str, Any]) -> str:
        """Answer a model's call of a recall tool.

        Args:
            context: The context of the tool call.
            name: The name of the tool.
            arguments: The arguments of the call.
        """
        found = await self.conversations.aget(self._conversation(context))
        return found.recall(name, arguments)

    def _remember(self, id: str, sent: _UnansweredRequest) -> None:
        with self._lock:
            self._sent[id] = sent
            self._sent.move_to_end(id)
            if len(self._sent) > MAX_UNANSWERED_REQUESTS:
                self._sent.popitem(last=False)


def conversation_id(context: CallbackContext) -> str:
    """Return the id of a call's conversation: the agent in its session.

    Args:
        context: The context of the call.
    """
    session = context.session
    names = (
        session.app_name,
        session.user_id,
        session.id,
        context.agent_name,
        context.branch,
        context.isolation_scope,
    )
    return "/".join(quote(name or "", safe=" @:+,=") for name in names).rstrip("/")


class _RecallTool(BaseTool):
    """A recall tool, declared in each request."""

    def __init__(self, schema: dict[str, Any], answer: Callable[..., Any]) -> None:
        super().__init__(name=schema["name"], description=schema["description"])
        self._declaration = types.FunctionDeclaration(
            name=schema["name"],
            description=schema["description"],
            parameters_json_schema=schema["parametersJsonSchema"],
        )
        self._answer = answer

    def _get_declaration(self) -> types.FunctionDeclaration | None:
        return self._declaration

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return await self._answer(tool_context, self.name, args)


def _with_own_media(content: types.Content) -> types.Content:
    """Return a copy of a content with media: ADK's Gemini model changes such parts when it sends them."""
    parts = content.parts or []
    if not any(part.inline_data or part.file_data for part in parts):
        return content
    return content.model_copy(update={"parts": [part.model_copy() for part in parts]})


def _beside(sent: _UnansweredRequest) -> dict[str, Any]:
    """Return the system text and the tools of a request, as they are counted."""
    tools = [tool for tool in sent.config["tools"] or () if isinstance(tool, types.Tool)]
    return {"system": _dump(sent.config["system_instruction"]), "tools": _dump(tools)}


async def _ask(context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
    """Call the model of the agent that a callback belongs to; the last response is the whole answer."""
    agent: Any = context.get_invocation_context().agent
    model = await agent.canonical_model_async(context)
    answer = None
    async for response in model.generate_content_async(request, stream=False):
        answer = response
    return answer


async def _summarise(context: CallbackContext, request: LlmRequest, draft: SummaryRequest) -> Any:
    """Write a draft with the model of the agent; returns it in the form of a Gemini reply."""
    shared = draft.form == "shared"
    update = {
        **dict.fromkeys(_NOT_FOR_SUMMARIES),
        "system_instruction": request.config.system_instruction if shared else draft.system or None,
        "tools": request.config.tools if draft.tools else None,
        "max_output_tokens": draft.max_tokens,
    }
    contents = ContentFormat().build([Piece(message, None, whole=False) for message in draft.messages], None)
    asked = LlmRequest(
        model=request.model, contents=list(contents), config=request.config.model_copy(update=update)
    )
    answer = await _ask(context, asked)
    if answer is None or answer.error_code:
        raise RuntimeError((answer and answer.error_message) or "the model gave no answer")
    candidate = {"content": answer.content, "finish_reason": answer.finish_reason}
    return {"candidates": [candidate], "usage_metadata": answer.usage_metadata}
