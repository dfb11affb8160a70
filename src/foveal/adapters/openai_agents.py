"""Models and sessions for the OpenAI Agents SDK: what fits into the window, and what lasts.

    from foveal.adapters.openai_agents import FovealModelProvider

    foveal_models = FovealModelProvider()
    await Runner.run(agent, "…", session=session, run_config=RunConfig(model_provider=foveal_models))

1. `FovealModelProvider` wraps the models of another provider; `wrap` wraps a model that an agent holds itself.
2. The items that the runner, its results and its sessions keep are not changed.
3. A conversation is found by the session of the run; without one, by its `group_id` and its items. A nested run
   without a session is a conversation of its own.
4. Requests whose history the server keeps (`conversation_id`, `previous_response_id`) are passed on unchanged.
5. With `summarise="own"`, the model of the current agent writes the summaries.

The runner tells a model its session only through `prompt_cache_key`, and only if the model has the method
`_supports_default_prompt_cache_key`. That method and `_cleanup_on_run_end` are private names of the SDK.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, Unpack
from weakref import WeakValueDictionary

from agents import FunctionTool, Model, ModelProvider, ModelResponse, MultiProvider
from agents.items import ItemHelpers
from agents.memory import Session
from agents.tool_context import ToolContext
from msgspec import Raw

from foveal.adapters.conversations import AdapterArguments, Conversations, checked_function, own_model
from foveal.adapters.native_context import NativeContext, Piece, WireMessage, offered_tools
from foveal.context import Context
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.engine.stored_messages import MESSAGE_FACTS
from foveal.core.log.events import AnyFact, Dialect, Event, Opened, Rewound, SnapshotTaken, unraw
from foveal.core.models.model import Model as KnownModel
from foveal.core.view.fold import effective_events
from foveal.core.wire import MessageChunk, wire_for
from foveal.core.wire.usage import usage_or_none
from foveal.errors import BadSetting, Conflict, MalformedMessage, PicklableError, UnknownSession
from foveal.ports import Store
from foveal.sessions.event_writer import MAX_CONFLICTS

_HOW: Final = "pass `session=` to `Runner.run`, or set `conversation`"
CACHE_KEY: Final = "prompt_cache_key"
SESSION_KEY_PREFIX: Final = "agents-sdk:session:"
SESSION_KEY_DIGITS: Final = 32
"""Hexadecimal digits of a session's digest."""
GROUP_KEY_PREFIX: Final = "agents-sdk:group:"
RUN_KEY_PREFIX: Final = "agents-sdk:run:"
MAX_OPEN_RECALLS: Final = 1_000
"""Calls of recall tools that wait for their answer."""
_BEGINNING: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Stream events that come before an answer or an error."""
_FAILED: Final = frozenset({"response.failed", "response.error", "error"})

__all__ = ["FittedModel", "FovealModelProvider", "FovealSession", "ModelRequest"]


class ItemFormat:
    """Passes items on: the SDK keeps them in the form of a dialect."""

    dialect: Dialect = "openai_responses"

    def write(self, message: Item) -> Sequence[WireMessage]:
        return [message]

    def build(self, pieces: Sequence[Piece], original: Item | None) -> Sequence[Item]:
        return [piece.message for piece in pieces]


class FovealModelProvider(ModelProvider):
    """Looks up models of the OpenAI Agents SDK and fits their requests.

    Args:
        model: The name by which Foveal knows the model, if it differs from the SDK's. `""` takes the name in
            each request.
        provider: Looks up the models. None looks them up as the SDK does.
        conversation: Returns the id of a request's conversation. None uses the session of the run, or its
            items.
        **settings: The settings of every adapter, as in `AdapterArguments`: `window`, `policy`, `summarise`,
            `store` and others.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```python
        from agents import Agent, RunConfig, Runner, set_default_openai_api

        from foveal.adapters.openai_agents import FovealModelProvider

        set_default_openai_api("chat_completions")
        fitted = FovealModelProvider(window=32_000)
        agent = Agent(name="reviewer", model="gpt-4.1")
        reply = await Runner.run(agent, "Why is CI red?", run_config=RunConfig(model_provider=fitted))
        ```
    """

    def __init__(
        self,
        model: str | KnownModel = "",
        *,
        provider: ModelProvider | None = None,
        conversation: Callable[[ModelRequest], str] | None = None,
        **settings: Unpack[AdapterArguments],
    ) -> None:
        if isinstance(model, ModelProvider | Model):
            raise BadSetting(
                "model",
                model,
                "a name or a `foveal.Model`; pass a provider as `provider=`, a model to `wrap`",
            )
        self.conversations: Conversations[Item] = Conversations(
            ItemFormat(), model, has_own_model=True, **settings
        )
        """The contexts of the conversations."""
        self._provider = provider or MultiProvider()
        self._conversation = checked_function(conversation)
        self._models: WeakValueDictionary[int, FittedModel] = WeakValueDictionary()
        self._recalls: OrderedDict[tuple[str, str], NativeContext[Item]] = OrderedDict()

    def get_model(self, model_name: str | None) -> Model:
        return self.wrap(self._provider.get_model(model_name), name=model_name or "")

    def wrap(self, model: Model, *, name: str = "") -> Model:
        """Return a model that sends what fits to another model.

        Args:
            model: The model of the SDK that an agent holds itself.
            name: The name of a model without the attribute `model`.
        """
        if isinstance(model, FittedModel):
            return model
        wrapped = self._models.get(id(model))
        if wrapped is None:  # the runner compares models by identity
            wrapped = self._models[id(model)] = FittedModel(model, self, name)
        return wrapped

    @property
    def recall_tools(self) -> list[FunctionTool]:
        """Tools for `Agent(tools=…)`, with which the model searches and reads what is no longer shown."""
        return [self._recall_tool(schema) for schema in offered_tools("openai_responses", recall=True)]

    @property
    def context_tools(self) -> list[FunctionTool]:
        """Tools for `Agent(tools=…)`, with which the model sees what fills its window and asks for a cut."""
        return [self._recall_tool(schema) for schema in offered_tools("openai_responses", context=True)]

    def conversation_id(self, session: Session | str) -> str:
        """Return the id under which the conversation of a session is kept.

        It does not apply if `conversation` is set.

        Args:
            session: The session, or its id.
        """
        name = session if isinstance(session, str) else session.session_id
        # the SDK makes its cache key in the same way
        return SESSION_KEY_PREFIX + sha256(name.strip().encode()).hexdigest()[:SESSION_KEY_DIGITS]

    def context(self, session: Session | str) -> Context | None:
        """Return the context of a session; None before its first request.

        Args:
            session: The session, or its id.
        """
        found = self.conversations.find(self.conversation_id(session))
        return None if found is None else found.context

    async def aclose(self) -> None:
        """Close the store and the provider of the models."""
        self.conversations.close()
        await self._provider.aclose()

    async def find(self, request: ModelRequest, name: str) -> NativeContext[Item]:
        """Return the context of the conversation that a request belongs to.

        Args:
            request: The request.
            name: The name of the model.
        """
        return await self.conversations.aget(self._id(request), model=name)

    def expect_recalls(self, found: NativeContext[Item], output: Sequence[Any]) -> None:
        """Remember which conversation the recall calls in an answer belong to.

        Args:
            found: The conversation.
            output: The items of the answer.
        """
        for item in output:
            if getattr(item, "type", "") == "function_call":
                self._recalls[item.call_id, item.name] = found
                if len(self._recalls) > MAX_OPEN_RECALLS:
                    self._recalls.popitem(last=False)

    def _id(self, request: ModelRequest) -> str:
        if self._conversation is not None:
            return self._conversation(request)
        key = str((request.settings.extra_args or {}).get(CACHE_KEY) or "")
        if key.startswith(SESSION_KEY_PREFIX):
            return key
        scope = f"{key}/" if key.startswith(GROUP_KEY_PREFIX) else ""
        run = key if key.startswith(RUN_KEY_PREFIX) else ""
        return self.conversations.recognise(request.items, how=_HOW, scope=scope, run=run)

    def _recall_tool(self, schema: dict[str, Any]) -> FunctionTool:
        name = schema["name"]

        async def answer(context: ToolContext[Any], arguments: str) -> str:
            found = self._recalls.get((context.tool_call_id, name))
            if found is None:
                return "The conversation of this call is not open any more. Ask the user instead."
            return found.recall(name, arguments)

        return FunctionTool(
            name=name,
            description=schema["description"],
            params_json_schema=schema["parameters"],
            on_invoke_tool=answer,
            strict_json_schema=False,
        )


class ModelRequest(NamedTuple):
    """What the runner passes to a model, as `conversation` gets it.

    Examples:
        ```python
        from foveal.adapters.openai_agents import FovealModelProvider, ModelRequest


        def by_question(request: ModelRequest) -> str:
            return str(request.items[0])


        fitted = FovealModelProvider(conversation=by_question)
        ```
    """

    system: str | None
    """The instructions of the agent."""
    items: list[Item]
    """The input items."""
    settings: Any
    """The settings of the model."""
    tools: list[Any]
    """The tools of the agent."""
    output_schema: Any
    """The schema of the output; None for text."""
    handoffs: list[Any]
    """The agents to which the model can hand over."""
    tracing: Any
    """Whether the call is traced."""
    server_state: Mapping[str, Any]
    """The arguments that name a history which the server keeps, and a prompt that it keeps."""

    @property
    def is_kept_by_server(self) -> bool:
        """Whether the server keeps the history."""
        state = self.server_state
        return bool(state["previous_response_id"] or state["conversation_id"])

    def arguments(self, items: list[Item]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of a call with other items.

        Args:
            items: The items to send.
        """
        given = (
            self.system,
            items,
            self.settings,
            self.tools,
            self.output_schema,
            self.handoffs,
            self.tracing,
        )
        return given, self.server_state

    def schemas(self) -> list[dict[str, Any]]:
        """Return what the model reads beside the items, as it is counted.

        These are the tools, the handoffs and the schema of the output.
        """
        schemas = [_tool_schema(tool) for tool in self.tools]
        schemas += [
            _function(handoff.tool_name, handoff.tool_description, handoff.input_json_schema)
            for handoff in self.handoffs
        ]
        output = self.output_schema
        if output is not None and not output.is_plain_text():
            schemas.append({"type": "json_schema", "name": output.name(), "schema": output.json_schema()})
        return schemas


class FittedModel(Model):
    """A model of the SDK that sends what fits to another one.

    `FovealModelProvider` creates it.

    Args:
        model: The model that answers.
        provider: Has the contexts.
        name: The name of a model without the attribute `model`.

    Examples:
        ```python
        import openai
        from agents import Agent, OpenAIChatCompletionsModel

        from foveal.adapters.openai_agents import FovealModelProvider

        model = OpenAIChatCompletionsModel("gpt-4.1", openai.AsyncOpenAI())
        agent = Agent(name="reviewer", model=FovealModelProvider().wrap(model))
        ```
    """

    def __init__(self, model: Model, provider: FovealModelProvider, name: str) -> None:
        self._model = model
        self._provider = provider
        self._name = _model_name(model) or name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        request = self._request(*given, **named)
        if request.is_kept_by_server:
            positional, state = request.arguments(request.items)
            return await self._model.get_response(*positional, **state)
        found = await self._provider.find(request, self._name)
        request = self._without_added_key(request)

        async def call(items: list[Item]) -> ModelResponse:
            positional, state = request.arguments(items)
            return await self._model.get_response(*positional, **state)

        reply: ModelResponse = await self._send(found, request, call)
        found.observe(reply.usage)
        self._provider.expect_recalls(found, reply.output)
        return reply

    async def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        request = self._request(*given, **named)
        if request.is_kept_by_server:
            found, opened = None, _BegunStream(self._stream(request, request.items))
        else:
            found = await self._provider.find(request, self._name)
            request = self._without_added_key(request)
            opened = await self._send_stream(found, request)
        async for event in opened.events():
            if found is not None and event.type == "response.completed":
                found.observe(event.response)
                self._provider.expect_recalls(found, event.response.output)
            yield event

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    def _supports_default_prompt_cache_key(self) -> bool:
        return True

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)

    def _request(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **server_state: Any,
    ) -> ModelRequest:
        items = ItemHelpers.input_to_new_input_list(input) if isinstance(input, str) else input
        return ModelRequest(
            system_instructions, items, model_settings, tools, output_schema, handoffs, tracing, server_state
        )

    def _without_added_key(self, request: ModelRequest) -> ModelRequest:
        """Take out the cache key that the runner added for this wrapper, if the model would not have got one."""
        extra = request.settings.extra_args or {}
        takes_key = getattr(self._model, "_supports_default_prompt_cache_key", None)
        if not str(extra.get(CACHE_KEY, "")).startswith("agents-sdk:") or (takes_key and takes_key()):
            return request
        others = {name: value for name, value in extra.items() if name != CACHE_KEY}
        return request._replace(settings=replace(request.settings, extra_args=others or None))

    async def _send(self, found: NativeContext[Item], request: ModelRequest, call: Any) -> Any:
        async def summarise(draft: SummaryRequest) -> Draft:
            return await _summarise(self._model, request, draft)

        with own_model(summarise):
            return await found.asend(request.items, call, tools=request.schemas(), system=request.system)

    async def _send_stream(self, found: NativeContext[Item], request: ModelRequest) -> _BegunStream:
        async def call(items: list[Item]) -> _BegunStream:
            opened = _BegunStream(self._stream(request, items))
            await opened.begin()
            return opened

        try:
            opened: _BegunStream = await self._send(found, request, call)
        except _StreamFailed as failed:  # for another reason than its size: the runner reads the event
            return failed.opened
        return opened

    def _stream(self, request: ModelRequest, items: list[Item]) -> AsyncIterator[Any]:
        positional, state = request.arguments(items)
        stream: AsyncIterator[Any] = self._model.stream_response(*positional, **state)
        return stream


class _BegunStream:
    """A stream whose first events have been read, because an overflow is reported there."""

    def __init__(self, stream: AsyncIterator[Any]) -> None:
        self._stream = stream
        self._head: list[Any] = []

    async def begin(self) -> None:
        """Read up to the first event of an answer; raises `_StreamFailed`."""
        async for event in self._stream:
            self._head.append(event)
            if event.type in _FAILED:
                raise _StreamFailed(event, self)
            if event.type not in _BEGINNING:
                return

    async def events(self) -> AsyncIterator[Any]:
        try:
            for event in self._head:
                yield event
            async for event in self._stream:
                yield event
        finally:
            await self.close()

    async def close(self) -> None:
        if close := getattr(self._stream, "aclose", None):
            await close()


class _StreamFailed(PicklableError, Exception):
    """A stream that reports an error in place of an answer."""

    def __init__(self, event: Any, opened: _BegunStream) -> None:
        response = getattr(event, "response", None)
        super().__init__(str(getattr(response, "error", None) or getattr(event, "message", "")))
        self.body = event
        self.opened = opened


def _tool_schema(tool: Any) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        return _function(tool.name, tool.description, tool.params_json_schema)
    return {
        "type": getattr(tool, "name", "tool")
    }  # a tool that runs at the provider, whose schema is not known


def _function(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


def _model_name(model: Any) -> str:
    name = getattr(model, "model", "")
    return name if isinstance(name, str) else ""


# ── Summaries by the agent's own model ───────────────────────────────────────────────────────────────────


async def _summarise(model: Model, request: ModelRequest, draft: SummaryRequest) -> Draft:
    items, system = draft.messages, None
    if items and items[0].get("role") == "system" and items[0].get("content") == request.system:
        items, system = items[1:], request.system  # where the cached prefix has it
    settings = replace(request.settings, max_tokens=draft.max_tokens, tool_choice=None)
    tools, handoffs = (request.tools, request.handoffs) if draft.tools else ([], [])
    state = dict.fromkeys(request.server_state)
    reply = await model.get_response(system, items, settings, tools, None, handoffs, request.tracing, **state)
    usage = usage_or_none(reply.usage)
    text = "".join(ItemHelpers.extract_text(item) or "" for item in reply.output)
    if usage is None:
        return Draft(text=text)
    return Draft(
        text=text,
        input=usage.input,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
        output=usage.output,
    )


Item = Any
"""An input item of the SDK, in the form of OpenAI Responses."""
EXACT_ITEMS: Final = "openai-agents: exact items"
"""Label of the snapshot that holds items as they were added, in place of the messages before it."""
_WIRE: Final = wire_for("openai_responses")


class _Unit(NamedTuple):
    """Items that are taken back together."""

    before: int
    """The seq before their first event."""
    texts: tuple[str, ...]
    """Each item as JSON."""


class FovealSession:
    """Keeps the items of one conversation of the OpenAI Agents SDK in a store.

    1. Items come back as they were added, also after a restart and in another process.
    2. They are recorded as messages, so the session can be listed, searched and inspected like any other.
    3. Items that the log cannot write again exactly (an unknown kind, reasoning without an answer) are recorded as
       they are beside their messages.
    4. `pop_item` and `clear_session` record a rewind: the log keeps what they take back.

    Args:
        session_id: The id of the session in the store.
        store: The store.
        model: The name of the model, recorded in a new session for the programs that show it.
        clock: Returns the time in seconds since 1970.

    Examples:
        ```python
        import foveal
        from foveal.adapters.openai_agents import FovealSession

        async with foveal.open_store("chats.db") as store:
            session = FovealSession("user-42", store, model="gpt-4.1")
            await session.add_items([{"role": "user", "content": "Why is CI red?"}])
            assert len(await session.get_items()) == 1
        ```
    """

    def __init__(
        self, session_id: str, store: Store, *, model: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.session_id = session_id
        """The id of the session in the store."""
        self.session_settings: Any = None
        """The settings of the SDK; their `limit` applies to `get_items`."""
        self._store = store
        self._model = model
        self._clock = clock
        self._log: list[Event] = []
        self._lock = asyncio.Lock()

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the newest items, oldest first.

        Args:
            limit: Most items to return. None takes the limit of `session_settings`, or all.
        """
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        async with self._lock:
            await self._catch_up()
        texts = [text for unit in _units(self._log) for text in unit.texts]
        chosen = texts if limit is None else texts[len(texts) - max(0, min(limit, len(texts))) :]
        return [json.loads(text) for text in chosen]

    async def add_items(self, items: list[Item]) -> None:
        """Append items.

        Args:
            items: The items.

        Raises:
            Conflict: Other processes append to the same session all the time.
        """
        facts = list(_facts(items))
        if facts:
            await self._append(lambda: facts)

    async def pop_item(self) -> Item | None:
        """Take back the newest item and return it; None if there is none."""
        popped: list[str] = []

        def facts() -> list[AnyFact]:
            popped.clear()
            units = _units(self._log)
            if not units:
                return []
            *rest, last = units[-1].texts
            popped.append(last)
            return [Rewound(to=units[-1].before), *_facts([json.loads(text) for text in rest])]

        await self._append(facts)
        return json.loads(popped[0]) if popped else None

    async def clear_session(self) -> None:
        """Take back all items."""

        def facts() -> list[AnyFact]:
            units = _units(self._log)
            return [Rewound(to=units[0].before)] if units else []

        await self._append(facts)

    async def _append(self, decide: Callable[[], list[AnyFact]]) -> None:
        """Append the facts that `decide` returns for the log as it is; it is called again after a conflict."""
        async with self._lock:
            for attempt in range(MAX_CONFLICTS):
                await self._catch_up()
                if not (facts := decide()):
                    return
                if not self._log:
                    facts = [Opened(model=self._model), *facts]
                first, now = len(self._log), self._clock()
                events = [Event(first + place, fact, now) for place, fact in enumerate(facts)]
                try:
                    await self._store.append(self.session_id, events)
                except Conflict:
                    if attempt == MAX_CONFLICTS - 1:
                        raise
                else:
                    self._log += events
                    return

    async def _catch_up(self) -> None:
        """Read what other processes have appended."""
        try:
            new, erased = await self._store.read_new(self.session_id, first=len(self._log))
        except UnknownSession:
            return
        if erased:
            self._log = await self._store.read(self.session_id)
        else:
            self._log += new


def _facts(items: Sequence[Item]) -> Iterator[AnyFact]:
    """Yield the facts that record items."""
    try:
        chunks = list(_WIRE.read(items))
    except MalformedMessage:
        chunks = [MessageChunk(len(items), ())]
    start = 0
    for chunk in chunks:
        given = [_text(item) for item in items[start : start + chunk.messages]]
        start += chunk.messages
        yield from chunk.facts
        if given != [_text(item) for fact in chunk.facts for item in _WIRE.write(fact)]:
            data = json.dumps({"facts": len(chunk.facts), "items": [json.loads(text) for text in given]})
            yield SnapshotTaken(data=Raw(data.encode()), label=EXACT_ITEMS)


def _units(log: Sequence[Event]) -> list[_Unit]:
    """Return the items in a log."""
    units: list[_Unit] = []
    for event in effective_events(log):
        fact = event.fact
        if isinstance(fact, MESSAGE_FACTS):
            units.append(_Unit(event.seq - 1, tuple(map(_text, _WIRE.write(fact)))))
        elif isinstance(fact, SnapshotTaken) and fact.label == EXACT_ITEMS:
            exact = unraw(fact.data)
            replaced = units[len(units) - exact["facts"] :]
            del units[len(units) - exact["facts"] :]
            before = replaced[0].before if replaced else event.seq - 1
            units.append(_Unit(before, tuple(map(_text, exact["items"]))))
    return [unit for unit in units if unit.texts]


def _text(item: Item) -> str:
    return json.dumps(item, sort_keys=True)
