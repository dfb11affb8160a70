"""pydantic-ai agents with the capability, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from pydantic_ai import Agent, BinaryContent, RunContext, Tool
from pydantic_ai.messages import (
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from foveal.adapters.native_context import Piece
from foveal.adapters.pydantic_ai import FovealCapability, PydanticAIFormat
from foveal.core.log import Compacted, Used
from foveal.core.policies.presets import policy
from foveal.errors import HistoryDiverged
from support.adapter_runs import (
    OVERFLOW_TURNS,
    SHORT_TURNS,
    TURNS,
    WINDOW,
    SummarisingStandIn,
    check_run,
    long_search,
    search,
)
from support.effort import rest_in_soak
from support.provider_stand_in import Answer, StandIn

T = TypeVar("T")
INSTRUCTIONS = "You are a careful agent. Never delete anything."


class Endpoint:
    """A stand-in, with an event loop and an HTTP client for the agents that call it."""

    def __init__(self, provider: StandIn) -> None:
        self.provider = provider
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)  # `run_sync` uses it, and would otherwise leave one open
        self.client = httpx2.AsyncClient(trust_env=False)

    def close(self) -> None:
        self.loop.run_until_complete(self.client.aclose())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def model(self, api: str = "chat") -> Model:
        if api == "anthropic":
            url = self.provider.anthropic
            claude = AnthropicProvider(api_key="none", base_url=url, http_client=self.client)
            return AnthropicModel("claude-sonnet-5", provider=claude)
        openai = OpenAIProvider(base_url=self.provider.openai, api_key="none", http_client=self.client)
        if api == "responses":
            return OpenAIResponsesModel("gpt-5", provider=openai)
        return OpenAIChatModel("gpt-4.1", provider=openai)

    def agent(self, capability: FovealCapability, *, api: str = "chat") -> Agent[object, str]:
        return agent(self.model(api), capability)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with StandIn(window=WINDOW) as provider, closing(Endpoint(provider)) as opened:
        yield opened


def agent(
    model: Model, capability: FovealCapability, tool: Callable[[str], str] = search
) -> Agent[object, str]:
    return Agent(
        model,
        instructions=INSTRUCTIONS,
        tools=[Tool(tool, name="search", takes_ctx=False)],
        capabilities=[capability],
        model_settings={"max_tokens": 1_000},
    )


def settings(**more: Any) -> dict[str, Any]:
    return {"window": WINDOW, "reserve": 1_000, **more}


def question(turn: int) -> str:
    return f"Question {turn}: look it up."


async def read_stream(ctx: RunContext[object], events: AsyncIterable[Any]) -> None:
    """Make pydantic-ai stream each model request, and read the streams to their ends."""
    async for _ in events:
        pass


def ask_sync(runner: Agent[object, str], turns: int, *, streaming: bool = False) -> list[ModelMessage]:
    history: list[ModelMessage] = []
    handler = read_stream if streaming else None
    for turn in range(turns):
        before = deepcopy(history)
        done = runner.run_sync(
            question(turn), message_history=history, conversation_id="one", event_stream_handler=handler
        )
        history = done.all_messages()
        assert history[: len(before)] == before, "the stored history has changed"
    return history


async def ask(
    runner: Agent[object, str], turns: int, *, streaming: bool = False, name: str = "one"
) -> list[ModelMessage]:
    history: list[ModelMessage] = []
    handler = read_stream if streaming else None
    for turn in range(turns):
        before = deepcopy(history)
        done = await runner.run(
            question(turn), message_history=history, conversation_id=name, event_stream_handler=handler
        )
        history = done.all_messages()
        assert history[: len(before)] == before, "the stored history has changed"
    return history


def used(capability: FovealCapability, name: str = "one") -> int:
    log = capability.conversations.get(name).context.log
    return sum(isinstance(event.fact, Used) for event in log)


@pytest.mark.parametrize(
    ("is_async", "streaming", "turns"),
    [
        pytest.param(False, False, SHORT_TURNS, id="sync-whole"),
        pytest.param(False, True, SHORT_TURNS, marks=pytest.mark.soak, id="sync-streaming"),
        pytest.param(True, False, SHORT_TURNS, marks=pytest.mark.soak, id="async-whole"),
        pytest.param(True, True, TURNS, id="async-streaming"),
    ],
)
def test_an_agent_stays_inside_the_window(
    endpoint: Endpoint, *, is_async: bool, streaming: bool, turns: int
) -> None:
    capability = FovealCapability(**settings())
    runner = endpoint.agent(capability)
    if is_async:
        history = endpoint.run(ask(runner, turns, streaming=streaming))
    else:
        history = ask_sync(runner, turns, streaming=streaming)
    check_run(endpoint.provider, requests=5 * turns)
    assert used(capability) == len(endpoint.provider.requests)
    calls = {call.tool_call_id: call for message in history for call in _calls(message)}
    results = _results(history)
    assert len(results) > turns
    assert all(p.content == search(**calls[p.tool_call_id].args_as_dict()) for p in results)


def _results(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def _calls(message: ModelMessage) -> list[ToolCallPart]:
    return [part for part in message.parts if isinstance(part, ToolCallPart)]


@pytest.mark.parametrize("api", rest_in_soak(["anthropic", "responses"]))
def test_reasoning_stays_signed_with_other_apis(endpoint: Endpoint, api: str) -> None:
    capability = FovealCapability(**settings())
    endpoint.run(ask(endpoint.agent(capability, api=api), SHORT_TURNS))
    assert endpoint.provider.faults == []
    assert used(capability) == len(endpoint.provider.requests) == SHORT_TURNS * 5


@pytest.mark.parametrize(
    "streaming", [pytest.param(False, marks=pytest.mark.soak, id="whole"), pytest.param(True, id="streaming")]
)
def test_an_overflow_of_the_provider_is_recovered(endpoint: Endpoint, *, streaming: bool) -> None:
    runner = endpoint.agent(FovealCapability(window=4 * WINDOW, reserve=1_000))
    history = endpoint.run(ask(runner, OVERFLOW_TURNS, streaming=streaming))
    refused = [request for request in endpoint.provider.requests if request.faults]
    assert refused
    assert len(endpoint.provider.requests) - len(refused) == OVERFLOW_TURNS * 5
    assert isinstance(history[-1], ModelResponse)


@pytest.mark.parametrize("api", rest_in_soak(["chat", "responses", "anthropic"]))
def test_the_model_of_the_agent_writes_the_summaries(api: str) -> None:
    capability = FovealCapability(**settings(summarise="own"))
    with SummarisingStandIn(window=WINDOW) as provider, closing(Endpoint(provider)) as endpoint:
        endpoint.run(ask(endpoint.agent(capability, api=api), SHORT_TURNS))
        name = endpoint.model(api).model_name
    assert provider.faults == []
    assert provider.summaries
    log = capability.conversations.get("one").context.log
    written = [event.fact for event in log if isinstance(event.fact, Compacted)]
    assert any(fact.by == name for fact in written), [fact.by for fact in written]


@pytest.mark.parametrize("api", rest_in_soak(["chat", "anthropic", "responses"], kept=2))
def test_a_summary_by_the_own_model_begins_like_the_request_before_it(api: str) -> None:
    early = policy("economy", act_tokens=10_000)
    capability = FovealCapability(window=4 * WINDOW, reserve=1_000, summarise="own", policy=early)
    with SummarisingStandIn(window=4 * WINDOW) as provider, closing(Endpoint(provider)) as endpoint:
        endpoint.run(ask(endpoint.agent(capability, api=api), 3))
    assert provider.faults == []
    assert provider.summaries
    bodies = [request.body for request in provider.requests]
    for before, body in pairwise(bodies):
        if "</summary>" in str(_messages(body)[-1]):
            begin = _messages(body)[:-1]  # up to the end of what is summarised: all of it is cached
            assert begin == _messages(before)[: len(begin)]
            assert len(begin) > 2
            assert body["tools"] == before["tools"]
            assert body.get("system") == before.get("system")


def _messages(body: dict[str, Any]) -> list[Any]:
    messages: list[Any] = body.get("messages") or body["input"]
    return messages


def test_run_stream_yields_the_text_of_the_answer(endpoint: Endpoint) -> None:
    endpoint.provider.script = lambda number: Answer(text=f"Answer {number}.")
    capability = FovealCapability(**settings())
    runner = endpoint.agent(capability)

    async def stream() -> str:
        async with runner.run_stream("Hello", conversation_id="one") as result:
            return "".join([text async for text in result.stream_text(delta=True)])

    assert endpoint.run(stream()) == "Answer 1."
    assert used(capability) == 1


def test_recall_tools_answer_from_the_conversation_that_calls_them(endpoint: Endpoint) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    endpoint.provider.script = script
    runner = endpoint.agent(FovealCapability(**settings(recall_tools=True)))
    first = runner.run_sync("The zebra is called Ann.").all_messages()
    runner.run_sync("The zebra is called Bob.")
    messages = runner.run_sync("What is its name?", message_history=first).new_messages()
    (result,) = _results(messages)
    assert "called Ann" in str(result.content)
    assert "called Bob" not in str(result.content)


def test_context_tools_show_the_model_its_window(endpoint: Endpoint) -> None:
    def script(number: int) -> Answer:
        return Answer(calls=(("context_status", {}),)) if number == 1 else Answer(text=f"Answer {number}.")

    endpoint.provider.script = script
    runner = endpoint.agent(FovealCapability(**settings(context_tools=True)))
    (result,) = _results(runner.run_sync("What fills your window?").new_messages())
    assert str(result.content).startswith("[foveal context: the request has ")


def test_contexts_in_a_store_survive_a_restart(endpoint: Endpoint, tmp_path: Path) -> None:
    history: list[ModelMessage] = []
    for turns in (SHORT_TURNS, 1):
        at = len(endpoint.provider.requests)
        capability = FovealCapability(**settings(store=str(tmp_path / "contexts.db")))
        runner = endpoint.agent(capability)
        for turn in range(turns):
            done = runner.run_sync(question(turn), message_history=history, conversation_id="one")
            history = done.all_messages()
        capability.conversations.close()
    assert endpoint.provider.faults == []
    before, after = (request.body["messages"] for request in endpoint.provider.requests[at - 1 : at + 1])
    assert after[: len(before)] == before


def test_two_conversations_at_once_do_not_mix(endpoint: Endpoint) -> None:
    capability = FovealCapability(**settings())
    runner = endpoint.agent(capability)

    async def both() -> tuple[list[ModelMessage], list[ModelMessage]]:
        return await asyncio.gather(
            ask(runner, SHORT_TURNS, name="one"), ask(runner, SHORT_TURNS, name="two")
        )

    one, two = endpoint.run(both())
    assert endpoint.provider.faults == []
    assert used(capability, "one") + used(capability, "two") == len(endpoint.provider.requests)
    assert len(capability.conversations.get("one").context.log) > len(one)
    assert len(capability.conversations.get("two").context.log) > len(two)


def test_a_callable_names_the_conversation_of_a_run(endpoint: Endpoint) -> None:
    def by_tenant(ctx: RunContext[Any]) -> str:
        return f"tenant {ctx.deps}"

    capability = FovealCapability(**settings(conversation=by_tenant))
    endpoint.agent(capability).run_sync("Look it up.", deps="7")
    assert used(capability, "tenant 7") == len(endpoint.provider.requests)


class SeenRequests(WrapperModel):
    """Keeps the messages that reach the model."""

    def __init__(self, wrapped: Model) -> None:
        super().__init__(wrapped)
        self.seen: list[list[ModelMessage]] = []

    async def request(self, messages: list[ModelMessage], *rest: Any) -> ModelResponse:
        self.seen.append(messages)
        return await super().request(messages, *rest)

    @asynccontextmanager
    async def request_stream(self, messages: list[ModelMessage], *rest: Any) -> AsyncIterator[Any]:
        self.seen.append(messages)
        async with super().request_stream(messages, *rest) as response:
            yield response


def test_native_fields_of_shown_messages_are_not_lost(endpoint: Endpoint) -> None:
    watched = SeenRequests(endpoint.model())
    history = ask_sync(agent(watched, FovealCapability(**settings()), long_search), 3)
    sent = [message for messages in watched.seen for message in messages]
    own = {message.provider_response_id: message for message in history if isinstance(message, ModelResponse)}
    for message in (message for message in sent if isinstance(message, ModelResponse)):
        assert message is own[message.provider_response_id]
    results: dict[str, Any] = {part.tool_call_id: part for part in _results(history)}
    reduced: list[Any] = [part for part in _results(sent) if part is not results[part.tool_call_id]]
    assert reduced
    for part in reduced:
        assert len(part.content) < len(results[part.tool_call_id].content)
        assert replace(part, content="") == replace(results[part.tool_call_id], content="")


# ── Messages of pydantic-ai, without a model ─────────────────────────────────────────────────────────────


def shown(original: ModelMessage, *, changed: dict[int, Any]) -> ModelMessage:
    """Build a message from what it was written as, with some of the messages changed."""
    format = PydanticAIFormat()
    pieces = [
        Piece({**message, **changed.get(place, {})}, place, whole=place not in changed)
        for place, message in enumerate(format.write(original))
    ]
    return format.build(pieces, original)[0]


def test_only_the_changed_part_of_a_request_is_another_object() -> None:
    image = BinaryContent(b"\x89PNG", media_type="image/png")
    noted = TextContent("a long text", metadata={"source": 7})
    request = ModelRequest(
        [
            ToolReturnPart("search", "found much", "call_1", metadata={"rows": 3}),
            UserPromptPart(["Look: ", image, CachePoint(), noted, ImageUrl("https://example.com/a.png")]),
            ToolAvailabilityDeltaPart(tools_added=["zoom"]),
        ],
        run_id="run 1",
    )
    blocks = PydanticAIFormat().write(request)[1]["content"]
    shortened = [*blocks[:3], {"type": "text", "text": "a long…"}, {"type": "text", "text": "[image]"}]
    built = shown(request, changed={1: {"content": shortened}})
    prompt = request.parts[1]
    assert isinstance(prompt, UserPromptPart)
    content: list[Any] = ["Look: ", image, CachePoint(), replace(noted, content="a long…"), "[image]"]
    assert built == replace(
        request, parts=[request.parts[0], replace(prompt, content=content), request.parts[2]]
    )
    assert built.parts[0] is request.parts[0]
    assert built.parts[2] is request.parts[2]


def test_a_shortened_result_keeps_its_files_and_its_outcome() -> None:
    image = BinaryContent(b"\x89PNG", media_type="image/png")
    part = ToolReturnPart(
        "search", [{"rows": [1, 2, 3]}, image], "call_1", outcome="failed", metadata={"a": 1}
    )
    request = ModelRequest([part])
    _, media = PydanticAIFormat().write(request)[0]["content"]
    built = shown(request, changed={0: {"content": [{"type": "text", "text": "{…"}, media]}})
    assert built == replace(request, parts=[replace(part, content=["{…", image])])


def test_a_shortened_response_keeps_its_signatures_and_ids() -> None:
    response = ModelResponse(
        [
            ThinkingPart("hm", signature="sealed", provider_name="anthropic"),
            TextPart("a long text", id="msg_1"),
            ToolCallPart("write", {"text": "long"}, "call_1", id="fc_1"),
            ToolCallPart("write", '{"text":"long"}', "call_2"),
        ],
        provider_response_id="resp_1",
    )
    (written,) = PydanticAIFormat().write(response)
    calls = [
        {**call, "function": {"name": "write", "arguments": '{"text":"l…"}'}}
        for call in written["tool_calls"]
    ]
    content = [written["content"][0], {"type": "text", "text": "a long…"}]
    built = shown(response, changed={0: {"content": content, "tool_calls": calls}})
    assert built == ModelResponse(
        [
            response.parts[0],
            TextPart("a long…", id="msg_1"),
            ToolCallPart("write", {"text": "l…"}, "call_1", id="fc_1"),
            ToolCallPart("write", '{"text":"l…"}', "call_2"),
        ],
        provider_response_id="resp_1",
        timestamp=response.timestamp,
    )
    assert built.parts[0] is response.parts[0]


def test_a_message_without_text_for_the_model_is_sent_on() -> None:
    given: list[ModelMessage] = [
        ModelRequest([SystemPromptPart("Be kind."), UserPromptPart("Hello")]),
        ModelResponse([]),
        ModelRequest([ToolAvailabilityDeltaPart(tools_added=["zoom"])]),
        ModelRequest([]),
    ]
    fitted = FovealCapability("gpt-4.1").conversations.get("one").fit(given)
    assert all(one is other for one, other in zip(given, fitted, strict=True))


@pytest.mark.soak
@pytest.mark.filterwarnings(
    "ignore::foveal.errors.UnrelatedConversation", "ignore::foveal.errors.HistoryDiverged"
)
def test_unrelated_runs_under_one_id_at_once_stay_inside_the_window(endpoint: Endpoint) -> None:
    runner = endpoint.agent(FovealCapability(**settings()))

    async def talk(name: str, turns: int) -> None:
        history: list[ModelMessage] = []
        for turn in range(turns):
            asked = f"{name}, question {turn}. " + f"{name} waits for it. " * (turn * 100)
            done = await runner.run(asked, message_history=history, conversation_id="one")
            history = done.all_messages()

    async def all_at_once() -> None:
        await asyncio.gather(*(talk(f"Talk {number}", 2 + 2 * number) for number in range(4)))

    endpoint.run(all_at_once())
    assert endpoint.provider.faults == []


def test_recall_of_a_run_does_not_find_what_another_run_with_the_same_beginning_said() -> None:
    capability = FovealCapability(model="gpt-4.1", window=8_000, recall_tools=True)
    answers: list[str] = []

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if isinstance(last, UserPromptPart) and "Bob" in str(last.content):
            await agent.run("I am Alice, my PIN is tulip-7731.", message_history=history)
            calls = [
                ("recall_search", {"query": "PIN tulip-7731 Bob"}),
                ("recall_read", {"handle": "e0-e40"}),
            ]
            return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in calls])
        if isinstance(last, ToolReturnPart):
            answers.extend(
                str(part.content) for part in messages[-1].parts if isinstance(part, ToolReturnPart)
            )
        return ModelResponse(parts=[TextPart("Sure.")])

    agent = Agent(FunctionModel(reply), capabilities=[capability])

    async def run() -> None:
        nonlocal history
        history = (await agent.run("Hi")).all_messages()
        await agent.run("I am Bob.", message_history=history)

    history: list[ModelMessage] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryDiverged)
        asyncio.run(run())
    assert len(answers) == 2
    assert "tulip" not in answers[0].replace("PIN tulip-7731 Bob", "")
    assert "tulip" not in answers[1]
    assert "I am Bob" in answers[1]
