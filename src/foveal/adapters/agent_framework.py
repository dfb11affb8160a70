"""Chat middleware for agents of the Microsoft Agent Framework.

    from foveal.adapters.agent_framework import FovealChatMiddleware

    middleware = FovealChatMiddleware()
    agent = Agent(client, tools=[*tools, *middleware.recall_tools], middleware=[middleware])

1. Each model call sends what fits; the messages of the session are not changed.
2. A conversation is found by the `session_id` of the run. The framework makes a session for each run that is given
   none, so pass the session of a conversation to all of its runs.
3. After a provider's overflow error, the request is fitted and sent again.
4. With `summarise="own"`, the chat client of the agent writes the summaries.
5. With `recall_tools` among the tools of the agent, the model can search and read what is no longer shown.
6. Requests whose history the service keeps (`conversation_id`) are passed on unchanged.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any, Final, Unpack

from agent_framework import (
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    Message,
    ResponseStream,
)

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
from foveal.core.wire.openai_chat import THINKING_FIELD
from foveal.core.wire.usage import usage_or_none

_HOW: Final = "pass `session=` to `run`, or set `conversation`"
MAX_KNOWN_SESSIONS: Final = 10_000
"""Sessions whose conversation is remembered for the recall tools."""
_NO_TEXT: Final[WireMessage] = {"role": "system", "content": ""}
"""Stands for a message that no model reads, such as an approval: system messages are never dropped."""
_THOUGHT: Final = "text_reasoning"
_SYSTEM_ROLES: Final = ("system", "developer")
_is_summary: ContextVar[bool] = ContextVar("foveal_agent_framework_summary", default=False)
"""Whether the current request is for a summary, which passes the middleware of the client too."""


class FovealChatMiddleware(ChatMiddleware):
    """Keeps the model calls of Microsoft Agent Framework agents inside the window.

    Args:
        model: The name by which Foveal knows the model, if it differs from the framework's. `""` takes the name
            in each request.
        conversation: Returns the id of a request's conversation. None uses the `session_id` of the run.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```python
        from agent_framework import Agent
        from agent_framework.openai import OpenAIChatCompletionClient

        from foveal.adapters.agent_framework import FovealChatMiddleware

        fitted = FovealChatMiddleware(window=32_000)
        agent = Agent(OpenAIChatCompletionClient("gpt-4.1"), middleware=[fitted])
        reply = await agent.run("Why is CI red?")
        ```
    """

    def __init__(
        self,
        model: str | Model = "",
        *,
        conversation: Callable[[ChatContext], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        self.conversations: Conversations[Message] = Conversations(
            AgentFrameworkFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._conversation = checked_function(conversation)
        self._by_session: OrderedDict[str, str] = OrderedDict()

    @property
    def recall_tools(self) -> list[FunctionTool]:
        """Tools for `Agent(tools=…)`, with which the model searches and reads what is no longer shown."""
        return [self._recall_tool(schema["function"]) for schema in offered_tools("openai_chat", recall=True)]

    @property
    def context_tools(self) -> list[FunctionTool]:
        """Tools for `Agent(tools=…)`, with which the model sees what fills its window and asks for a cut."""
        return [
            self._recall_tool(schema["function"]) for schema in offered_tools("openai_chat", context=True)
        ]

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        options = context.options or {}
        if options.get("conversation_id") or _is_summary.get():
            await call_next()
            return
        found = await self.conversations.aget(self._id(context), model=_model_name(context))

        async def call(messages: list[Message]) -> None:
            context.messages = messages
            await call_next()
            if isinstance(context.result, ResponseStream):
                context.result = await _opened(context.result)

        with own_model(partial(_summarise, context)):
            await found.asend(
                list(context.messages),
                call,
                tools=[_tool_schema(tool) for tool in options.get("tools") or ()],
                system=options.get("instructions"),
            )
        if isinstance(context.result, ResponseStream):
            context.stream_result_hooks.append(partial(_observe, found))
        else:
            _observe(found, context.result)

    def _id(self, context: ChatContext) -> str:
        session = context.session.session_id if context.session is not None else ""
        if self._conversation is not None:
            id = self._conversation(context)
        else:
            id = session or self.conversations.recognise(context.messages, how=_HOW)
        if session:
            self._by_session[session] = id
            self._by_session.move_to_end(session)
            if len(self._by_session) > MAX_KNOWN_SESSIONS:
                self._by_session.popitem(last=False)
        return id

    def _recall_tool(self, function: dict[str, Any]) -> FunctionTool:
        def answer(ctx: FunctionInvocationContext, **arguments: Any) -> str:
            session = ctx.session.session_id if ctx.session is not None else ""
            if session not in self._by_session:
                return UNKNOWN_CONVERSATION
            return self.conversations.get(self._by_session[session]).recall(function["name"], arguments)

        return FunctionTool(
            name=function["name"],
            description=function["description"],
            input_model=function["parameters"],
            func=answer,
        )


def _observe(found: NativeContext[Message], reply: Any) -> None:
    if isinstance(reply, ChatResponse):
        found.observe(reply.usage_details)


async def _opened(stream: ResponseStream[Any, Any]) -> ResponseStream[Any, Any]:
    """Return a stream whose first update has been read, because a provider's error comes there."""
    updates = aiter(stream)
    first = [update] if (update := await anext(updates, None)) is not None else []

    async def all_updates() -> AsyncIterator[Any]:
        try:
            for update in first:
                yield update
            async for update in updates:
                yield update
        finally:
            await stream.close()

    async def final(_: Sequence[Any]) -> Any:
        return await stream.get_final_response()

    return ResponseStream(all_updates(), finalizer=final)


def _model_name(context: ChatContext) -> str:
    name = (context.options or {}).get("model") or getattr(context.client, "model", "")
    return name if isinstance(name, str) else ""


def _tool_schema(tool: Any) -> Any:
    """Return a tool as it is counted; a tool of the service is a dict."""
    return tool.to_json_schema_spec() if isinstance(tool, FunctionTool) else tool


# ── Messages as messages of chat completions ─────────────────────────────────────────────────────────────


class AgentFrameworkFormat:
    """Converts the framework's messages: each tool result as one message, every other message as one."""

    dialect: Dialect = "openai_chat"

    def write(self, message: Message) -> Sequence[WireMessage]:
        results = [
            _write_result(content) for content in message.contents if content.type == "function_result"
        ]
        return results or [_write_message(message)]

    def build(self, pieces: Sequence[Piece], original: Message | None) -> Sequence[Message]:
        if original is None:
            return [_new_message(piece.message) for piece in pieces]
        contents = list(original.contents)
        if any(content.type == "function_result" for content in contents):
            return [_with_contents(original, _shown_results(contents, pieces))]
        return [_with_contents(original, _shown_contents(contents, piece.message)) for piece in pieces]


def _write_result(content: Content) -> WireMessage:
    return {"role": "tool", "tool_call_id": content.call_id, "content": _result_text(content)}


def _result_text(content: Content) -> str:
    result = content.result
    return result if isinstance(result, str) else "" if result is None else json.dumps(result, default=str)


def _write_message(message: Message) -> WireMessage:
    role = str(message.role)
    texts = [content.text or "" for content in message.contents if content.type == "text"]
    if role in _SYSTEM_ROLES:
        return {"role": "system", "content": "\n".join(texts)}
    if role != "assistant":
        parts = [part for content in message.contents if (part := _write_part(content))]
        if not parts:
            return _NO_TEXT
        return {"role": "user", "content": "\n".join(texts) if len(texts) == len(parts) else parts}
    calls = [_write_call(content) for content in message.contents if content.type == "function_call"]
    thoughts = [_write_thought(content) for content in message.contents if content.type == _THOUGHT]
    if not (calls or texts or thoughts):
        return _NO_TEXT
    written: WireMessage = {"role": "assistant", "content": "\n".join(texts) or None}
    if calls:
        written["tool_calls"] = calls
    if thoughts:
        written[THINKING_FIELD] = thoughts
    return written


def _write_thought(content: Content) -> WireMessage:
    return {"type": "thinking", "thinking": content.text or "", "signature": content.protected_data or ""}


def _write_call(content: Content) -> WireMessage:
    arguments = content.arguments
    text = json.dumps(arguments, default=str) if isinstance(arguments, Mapping) else arguments or ""
    return {
        "id": content.call_id,
        "type": "function",
        "function": {"name": content.name, "arguments": text},
    }


def _write_part(content: Content) -> WireMessage | None:
    """Return a text, image or file of a user's message; None for what no model reads."""
    if content.type == "text":
        return {"type": "text", "text": content.text or ""}
    if content.type not in ("data", "uri") or not content.uri:
        return None
    if (content.media_type or "").startswith("image/"):
        return {"type": "image_url", "image_url": {"url": content.uri}}
    if content.uri.startswith("data:"):
        return {"type": "file", "file": {"file_data": content.uri, "filename": content.name or "file"}}
    return {"type": "text", "text": content.uri}


def _with_contents(original: Message, contents: list[Content]) -> Message:
    shown = copy(original)
    shown.contents = contents
    return shown


def _shown_results(contents: list[Content], pieces: Sequence[Piece]) -> list[Content]:
    results = [content for content in contents if content.type == "function_result"]
    shown: list[Content] = []
    for piece in pieces:
        own = results[piece.place] if piece.place is not None else None
        text = _text(piece.message["content"])
        if own is None:
            shown.append(Content.from_function_result(piece.message["tool_call_id"], result=text))
        elif piece.whole or text == _result_text(own):
            shown.append(own)
        else:
            shown.append(_with_result(own, text))
    return [*shown, *(content for content in contents if content.type != "function_result")]


def _with_result(own: Content, text: str) -> Content:
    """Return a result with another text. Its pictures are not sent again: the text says what is missing."""
    return _copied(own, result=text, items=[Content.from_text(text)])


def _shown_contents(contents: list[Content], message: WireMessage) -> list[Content]:
    """Return the contents of a message with the text and the arguments that are shown."""
    text = _text(message.get("content"))
    parts = message["content"] if isinstance(message.get("content"), list) else []
    calls = {call["id"]: call["function"]["arguments"] for call in message.get("tool_calls") or ()}
    texts = [content for content in contents if content.type == "text"]
    is_same_text = text == "\n".join(content.text or "" for content in texts)
    shown: list[Content] = []
    for content in contents:
        if content.type == "text":
            if is_same_text:
                shown.append(content)
            elif content is texts[0] and text:
                shown.append(_copied(content, text=text))
        elif content.type == "function_call":
            if content.call_id in calls:
                shown.append(_with_arguments(content, calls[content.call_id]))
        elif content.type == _THOUGHT:
            if message.get(THINKING_FIELD):
                shown.append(content)
        elif content.type not in ("data", "uri") or _write_part(content) in parts:
            shown.append(content)
    if text and not texts:
        shown.append(Content.from_text(text))
    return shown


def _with_arguments(content: Content, arguments: str) -> Content:
    if _write_call(content)["function"]["arguments"] == arguments:
        return content
    is_object = isinstance(content.arguments, Mapping)
    return _copied(content, arguments=_parsed(arguments) if is_object else arguments)


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"text": value}


def _copied(content: Content, **changes: Any) -> Content:
    changed = copy(content)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _new_message(message: WireMessage) -> Message:
    text = _text(message.get("content"))
    if message["role"] == "tool":
        return Message("tool", [Content.from_function_result(message["tool_call_id"], result=text)])
    contents = [Content.from_text(text)] if text else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        contents.append(
            Content.from_function_call(call["id"], function["name"], arguments=function["arguments"])
        )
    return Message(message["role"], contents)


def _text(content: str | list[WireMessage] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content if part["type"] == "text")


# ── Summaries by the agent's own model ───────────────────────────────────────────────────────────────────


async def _summarise(context: ChatContext, request: SummaryRequest) -> Draft:
    """Write a summary with the client of the request."""
    given = context.options or {}
    options: dict[str, Any] = {
        name: value
        for name, value in given.items()
        if name not in ("tools", "tool_choice", "instructions", "response_format")
    }
    options["max_tokens"] = request.max_tokens
    if request.tools:
        options.update(tools=given.get("tools"), tool_choice="none")
    client: Any = context.client
    token = _is_summary.set(True)
    try:
        messages = [_new_message(message) for message in request.messages]
        reply = await client.get_response(messages, options=options)
    finally:
        _is_summary.reset(token)
    used = usage_or_none(reply.usage_details)
    if used is None:
        return Draft(text=reply.text)
    return Draft(
        text=reply.text,
        input=used.input,
        cache_read=used.cache_read,
        cache_write=used.cache_write,
        output=used.output,
    )
