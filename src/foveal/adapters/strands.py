"""Plugin for Strands agents.

    from strands.agent.conversation_manager import NullConversationManager

    from foveal.adapters.strands import FovealPlugin

    agent = Agent(tools=tools, plugins=[FovealPlugin()], conversation_manager=NullConversationManager())

1. Each model call sends what fits; `agent.messages` and the agent's session are not changed.
2. A conversation is found by the `session_id` and the `agent_id` of the agent. If the messages of an agent are
   reset, its next call begins another conversation.
3. After a provider's overflow error, the request is fitted and sent again.
4. With `summarise="own"`, the model of the call writes the summaries.
5. With `recall_tools`, the model can search and read what is no longer shown.
6. Models that keep the conversation on the server (`model.stateful`) are called unchanged.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Unpack
from weakref import WeakKeyDictionary

from strands.agent.conversation_manager import NullConversationManager
from strands.middleware import InvokeModelContext, InvokeModelStage, MiddlewareNext, ModelStopReason
from strands.plugins import Plugin
from strands.tools import PythonAgentTool
from strands.types.content import split_system_prompt

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import NativeContext, Piece, WireMessage, offered_tools
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model

DEFAULT_AGENT_ID: Final = "default"
"""The `agent_id` of an agent that is given none."""

StrandsMessage = Any
"""A message of Strands: a dict in the form of Bedrock's Converse API."""


class StrandsFormat:
    """Converts the messages of Strands, which have fields of their own beside those of Bedrock."""

    dialect: Dialect = "bedrock"

    def write(self, message: StrandsMessage) -> Sequence[WireMessage]:
        return [{"role": message["role"], "content": message["content"]}]

    def build(self, pieces: Sequence[Piece], original: StrandsMessage | None) -> Sequence[StrandsMessage]:
        return [{**(original or {}), **piece.message} for piece in pieces]


class _LastCall(NamedTuple):
    """The last model call of an agent."""

    conversation: str
    newest: str
    """The `tracking_id` of its last message."""


class FovealPlugin(Plugin):
    """Keeps the model calls of Strands agents inside the model's window.

    One plugin can serve several agents.

    Args:
        model: The name by which Foveal knows the model, if it differs from Strands'. `""` takes the name in
            each request.
        recall_tools: Whether the model gets tools to search and read what is no longer shown.
        context_tools: Whether the model gets tools to see what fills its window and to ask for a cut.
        conversation: Returns the id of a call's conversation. None uses the `session_id` and the `agent_id`.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```py
        from strands import Agent
        from strands.agent.conversation_manager import NullConversationManager

        from foveal.adapters.strands import FovealPlugin

        agent = Agent(plugins=[FovealPlugin()], conversation_manager=NullConversationManager())
        ```
    """

    name = "foveal"
    """The name of the plugin in Strands."""

    def __init__(
        self,
        model: str | Model = "",
        *,
        recall_tools: bool = False,
        context_tools: bool = False,
        conversation: Callable[[InvokeModelContext], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        super().__init__()
        self.conversations: Conversations[StrandsMessage] = Conversations(
            StrandsFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._conversation = checked_function(conversation)
        self._offered_tools = offered_tools("bedrock", recall=recall_tools, context=context_tools)
        self._last_calls: WeakKeyDictionary[Any, _LastCall] = WeakKeyDictionary()

    def init_agent(self, agent: Any) -> None:
        agent.add_middleware(InvokeModelStage, self._invoke_model)
        if self._offered_tools:
            made = [self._recall_tool(schema["toolSpec"]) for schema in self._offered_tools]
            agent.tool_registry.process_tools(made)
        manager = agent.conversation_manager
        if not isinstance(manager, NullConversationManager):
            warnings.warn(
                f"{type(manager).__name__} removes messages from the agent before Foveal sees them: "
                "create the agent with `conversation_manager=NullConversationManager()`",
                stacklevel=2,
            )

    async def _invoke_model(
        self, context: InvokeModelContext, next_fn: MiddlewareNext[InvokeModelContext, Any]
    ) -> AsyncGenerator[Any, None]:
        if context.model.stateful:
            async for event in next_fn(context):
                yield event
            return
        found = await self.conversations.aget(self._id(context), model=_model_name(context.model))
        is_sent = False
        while not is_sent:
            fitted = await _fit(found, context)
            try:
                async for event in next_fn(context.replace(messages=fitted)):
                    if isinstance(event, ModelStopReason):
                        found.observe(event.usage)
                    yield event
                is_sent = True
            except Exception as error:
                if not found.context.overflowed(error):
                    raise

    def _id(self, context: InvokeModelContext) -> str:
        agent, last = context.agent, self._last_calls.get(context.agent)
        messages = agent.messages
        if self._conversation is not None:
            id = self._conversation(context)
        elif last is None:
            id = _agent_conversation(agent)
        elif any(message.get("tracking_id") == last.newest for message in reversed(messages)):
            id = last.conversation
        else:  # the messages were reset
            id = f"{_agent_conversation(agent)}/{_tracking_id(messages[:1])}"
        self._last_calls[agent] = _LastCall(id, _tracking_id(messages[-1:]))
        return id

    def _recall_tool(self, spec: Any) -> PythonAgentTool:
        def answer(tool_use: Any, *, agent: Any, **_: Any) -> Any:
            last = self._last_calls.get(agent)
            found = self.conversations.get(last.conversation if last else _agent_conversation(agent))
            text = found.recall(spec["name"], tool_use["input"])
            return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}

        return PythonAgentTool(spec["name"], spec, answer)


def _agent_conversation(agent: Any) -> str:
    session = str(agent.session_id)
    return session if agent.agent_id == DEFAULT_AGENT_ID else f"{session}/{agent.agent_id}"


def _tracking_id(messages: Sequence[StrandsMessage]) -> str:
    """Return the id that Strands gives to the message in a list of at most one."""
    return next((message.get("tracking_id") or "" for message in messages), "")


def _model_name(model: Any) -> str:
    settings = model.get_config()
    name = settings.get("model_id") if isinstance(settings, dict) else None
    return name if isinstance(name, str) else ""


async def _fit(found: NativeContext[StrandsMessage], context: InvokeModelContext) -> list[StrandsMessage]:
    # The writer is set for the fit alone: the caller runs between the events of a stream.
    with own_model(partial(_summarise, context.model)):
        return await found.afit(
            context.messages,
            tools=[{"toolSpec": spec} for spec in context.tool_specs],
            system=context.system_prompt,
        )


async def _summarise(model: Any, request: SummaryRequest) -> dict[str, Any]:
    """Return the model's answer in the form of Converse. Strands has no limit of tokens for one call."""
    text, blocks = split_system_prompt(request.system or None)
    specs = [tool["toolSpec"] for tool in request.tools]
    reply: dict[str, Any] = {}
    written: list[str] = []
    async for event in model.stream(request.messages, specs or None, text, system_prompt_content=blocks):
        written.append(event.get("contentBlockDelta", {}).get("delta", {}).get("text") or "")
        reply.update(event.get("messageStop", {}))
        reply.update(event.get("metadata", {}))
    return {**reply, "output": {"message": {"role": "assistant", "content": [{"text": "".join(written)}]}}}
