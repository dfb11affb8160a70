"""A tool loop on litellm with Foveal's functions and callback, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import litellm
import pytest

from foveal.adapters.litellm import FovealCallback
from foveal.core.log import Compacted, Used
from foveal.errors import ConversationIdMissing
from support.adapter_runs import TURNS, WINDOW, SummarisingStandIn, Talk, check_memory, check_run, search
from support.provider_stand_in import Answer, StandIn
from support.raw_upstream import RawUpstream
from support.thinking_upstream import ThinkingUpstream
from support.waiting import until

SYSTEM = {"role": "system", "content": "You are a careful agent. Never delete anything."}
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOL = {
    "type": "function",
    "function": {"name": "search", "description": "Search.", "parameters": PARAMETERS},
}
SESSION = {"session_id": "one"}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW) as standin:
        yield standin


@pytest.fixture(autouse=True)
def without_callbacks() -> Iterator[None]:
    yield
    litellm.callbacks = []
    litellm.logging_callback_manager._reset_all_callbacks()


def settings(**more: Any) -> dict[str, Any]:
    return {"window": WINDOW, "reserve": 1_000, **more}


class Agent:
    """A tool loop, as users of litellm write it."""

    def __init__(self, provider: StandIn, complete: Any, **options: Any) -> None:
        self.complete = complete
        self.messages: list[Any] = [SYSTEM]
        self.fitted: FovealCallback | None = getattr(complete, "__self__", None)
        self.options = {
            "model": "openai/gpt-4.1",
            "api_base": provider.openai,
            "api_key": "none",
            "tools": [TOOL],
            "max_completion_tokens": 1_000,
            "max_retries": 0,
            **options,
        }

    async def ask(self, question: str) -> str:
        self.messages.append({"role": "user", "content": question})
        while True:
            answer = await self.answer()
            self.messages.append(answer)
            if not answer.tool_calls:
                return str(answer.content)
            for call in answer.tool_calls:
                result = {"role": "tool", "tool_call_id": call.id, "content": self.run_tool(call.function)}
                self.messages.append(result)

    async def answer(self) -> Any:
        before = deepcopy(self.messages)
        reply = self.complete(messages=self.messages, **self.options)
        if asyncio.iscoroutine(reply):
            reply = await reply
        if self.options.get("stream"):
            is_async = hasattr(self.complete, "__wrapped__") or "acompletion" in repr(self.complete)
            chunks = [chunk async for chunk in reply] if is_async else list(reply)
            reply = litellm.stream_chunk_builder(chunks)
        assert self.messages == before, "the stored history has changed"
        return reply.choices[0].message

    def run_tool(self, function: Any) -> str:
        if function.name.startswith(("recall_", "context_")):
            assert self.fitted is not None
            return self.fitted.recall(function.name, function.arguments, self.messages)
        return search(**json.loads(function.arguments))


def run(agent: Agent, turns: int = TURNS, *, is_reported: Callable[[], bool] = lambda: True) -> None:
    async def ask() -> None:
        for turn in range(turns):
            await agent.ask(f"Question {turn}: look it up.")
        await asyncio.sleep(0.1)  # litellm reports the last stream in a task
        await until(is_reported)

    asyncio.run(ask())


def used(fitted: FovealCallback, id: str = "one") -> int:
    return sum(isinstance(event.fact, Used) for event in fitted.conversations.get(id).context.log)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("function", ["completion", "acompletion", "callback"])
def test_an_agent_stays_inside_the_window(provider: StandIn, function: str, streaming: bool) -> None:
    fitted = FovealCallback(**settings())
    if function == "callback":
        litellm.callbacks = [fitted]
    complete = litellm.acompletion if function == "callback" else getattr(fitted, function)
    agent = Agent(provider, complete, metadata=SESSION, stream=streaming)
    run(agent, is_reported=lambda: used(fitted) >= len(provider.requests))
    check_run(provider)
    assert used(fitted) == len(provider.requests)


def test_a_router_sends_what_fits(provider: StandIn) -> None:
    fitted = FovealCallback(**settings())
    litellm.callbacks = [fitted]
    parameters = {"model": "openai/gpt-4.1", "api_base": provider.openai, "api_key": "none"}
    router = litellm.Router([{"model_name": "careful", "litellm_params": parameters}])
    agent = Agent(provider, router.acompletion, metadata=SESSION)
    agent.options = {**agent.options, "model": "careful"}
    del agent.options["api_base"]
    run(agent, 8, is_reported=lambda: used(fitted) >= len(provider.requests))
    assert provider.faults == []
    assert max(request.prompt for request in provider.requests) > WINDOW // 2
    assert used(fitted) == len(provider.requests) == 40


@pytest.mark.parametrize("function", ["completion", "acompletion"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_overflow_of_the_provider_is_recovered(provider: StandIn, function: str, streaming: bool) -> None:
    fitted = FovealCallback(window=4 * WINDOW, reserve=1_000)
    run(Agent(provider, getattr(fitted, function), stream=streaming), 8)
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == 8 * 5


def test_the_callback_learns_the_limit_of_a_provider(provider: StandIn) -> None:
    fitted = FovealCallback(window=4 * WINDOW, reserve=1_000)
    litellm.callbacks = [fitted]
    agent = Agent(provider, litellm.acompletion)
    refusals = 0

    async def ask() -> None:
        nonlocal refusals
        for turn in range(8):
            agent.messages.append({"role": "user", "content": f"Question {turn}: look it up."})
            while True:
                try:
                    answer = await agent.answer()
                except litellm.ContextWindowExceededError:
                    refusals += 1
                    assert refusals < 5
                    continue
                agent.messages.append(answer)
                if not answer.tool_calls:
                    break
                agent.messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": agent.run_tool(call.function)}
                    for call in answer.tool_calls
                ]

    asyncio.run(ask())
    assert refusals
    assert len(provider.requests) == 8 * 5 + refusals


@pytest.mark.parametrize("function", ["completion", "acompletion", "callback"])
def test_the_model_of_the_call_writes_the_summaries(function: str) -> None:
    fitted = FovealCallback(**settings(summarise="own"))
    if function == "callback":
        litellm.callbacks = [fitted]
    complete = litellm.acompletion if function == "callback" else getattr(fitted, function)
    with SummarisingStandIn(window=WINDOW) as provider:
        run(Agent(provider, complete, metadata=SESSION, tool_choice="auto", temperature=0), 8)
    assert provider.faults == []
    assert provider.summaries
    facts = [event.fact for event in fitted.conversations.get("one").context.log]
    assert any(fact.by == "openai/gpt-4.1" for fact in facts if isinstance(fact, Compacted))


def test_recall_tools_answer_from_the_conversation_that_calls_them(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    fitted = FovealCallback(**settings(recall_tools=True))
    one, two = Agent(provider, fitted.completion), Agent(provider, fitted.completion)

    async def ask() -> None:
        await one.ask("The zebra is called Ann.")
        await two.ask("The zebra is called Bob.")
        await one.ask("What is its name?")

    asyncio.run(ask())
    (result,) = [message["content"] for message in one.messages if message["role"] == "tool"]
    assert "called Ann" in result
    assert "called Bob" not in result


def test_context_tools_show_the_model_its_window(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        return Answer(calls=(("context_status", {}),)) if number == 1 else Answer(text=f"Answer {number}.")

    provider.script = script
    one = Agent(provider, FovealCallback(**settings(context_tools=True)).completion)
    asyncio.run(one.ask("What fills your window?"))
    (result,) = [message["content"] for message in one.messages if message["role"] == "tool"]
    assert result.startswith("[foveal context: the request has ")


def test_contexts_in_a_store_survive_a_restart(provider: StandIn, tmp_path: Path) -> None:
    messages: list[Any] = []
    for _ in range(2):
        fitted = FovealCallback(**settings(store=str(tmp_path / "contexts.db")))
        agent = Agent(provider, fitted.completion, litellm_session_id="one")
        agent.messages += messages
        run(agent, 6)
        messages = agent.messages[1:]
        fitted.conversations.close()
    assert provider.faults == []
    sent = [request.body["messages"] for request in provider.requests]
    at = len(sent) // 2
    assert sent[at][: len(sent[at - 1])] == sent[at - 1]


def test_two_conversations_at_once_stay_apart(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    fitted = FovealCallback(**settings())
    agents = [Agent(provider, fitted.acompletion, user=f"user {number}") for number in range(2)]

    async def ask(agent: Agent) -> None:
        for turn in range(4):
            await agent.ask(f"Question {turn}")

    async def both() -> None:
        await asyncio.gather(*map(ask, agents))

    asyncio.run(both())
    sent = [request.body["messages"] for request in provider.requests]
    assert sorted(map(len, sent)) == sorted([2, 4, 6, 8] * 2)
    for agent in agents:
        answers = [message["content"] for message in sent[-1] if message["role"] == "assistant"]
        assert len(set(answers)) == 3, agent


def test_a_message_shown_whole_is_the_given_object(provider: StandIn) -> None:
    fitted = FovealCallback(**settings())
    agent = Agent(provider, fitted.completion, metadata=SESSION)
    run(agent, 4)
    shown = fitted.conversations.get("one").fit(agent.messages, tools=[TOOL])
    given = {id(message) for message in agent.messages}
    assert sum(id(message) in given for message in shown) > 5
    assert any(id(message) not in given for message in shown)


def test_a_call_with_positional_arguments_is_not_fitted_in_silence(provider: StandIn) -> None:
    litellm.callbacks = [FovealCallback(**settings())]
    arguments: dict[str, Any] = {"api_base": provider.openai, "api_key": "none"}
    with pytest.warns(UserWarning, match="keyword"):
        asyncio.run(litellm.acompletion("openai/gpt-4.1", [SYSTEM], **arguments))


@pytest.mark.parametrize("knows_controls", [True, False])
def test_bound_thinking_is_never_refused(*, knows_controls: bool) -> None:
    upstream = ThinkingUpstream(knows_controls=knows_controls)
    fitted = FovealCallback(window=6_000, reserve=1_000)
    messages: list[Any] = [{"role": "user", "content": "Find the bug."}]
    with RawUpstream(upstream) as raw:
        for number in range(20):
            reply = fitted.completion(
                "anthropic/claude-fable-5-1",
                messages,
                api_base=raw.anthropic,
                api_key="none",
                max_tokens=1_000,
                thinking={"type": "adaptive"},
                tools=[TOOL],
                metadata=SESSION,
                num_retries=0,
            )
            answer = reply.choices[0].message
            assert answer.thinking_blocks
            text = " ".join(f"word{number}x{at}" for at in range(150))
            result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": text}
            messages += [answer, result]
        assert fitted.conversations.get("one").context.report().reduced
        assert upstream.refused == []
        assert upstream.unknown_fields == (0 if knows_controls else 1)
        last = json.loads(raw.seen[-1].body)
        assert ("block_binding" in last["thinking"]) is knows_controls


def test_two_users_who_begin_and_go_on_alike_stay_apart(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text="Fine.")
    fitted = FovealCallback(**settings(), recall_tools=True)
    users = {name: Agent(provider, fitted.completion) for name in ("ANN", "BOB")}

    async def ask() -> None:
        for turn in range(4):
            for name, agent in users.items():
                await agent.ask(f"my password is SECRET-{name}" if turn == 1 else "Go on.")
                other = "BOB" if name == "ANN" else "ANN"
                found = fitted.recall("recall_search", {"query": "password SECRET"}, agent.messages)
                assert f"SECRET-{other}" not in found

    asyncio.run(ask())
    logs = [fitted.conversations.get(id).context.save() for id in fitted.conversations.ids()]
    assert not [log for log in logs if b"SECRET-ANN" in log and b"SECRET-BOB" in log]


def test_with_strict_ids_a_call_without_a_session_is_an_error(provider: StandIn) -> None:
    fitted = FovealCallback(**settings(strict_ids=True))
    with pytest.raises(ConversationIdMissing, match="session_id"):
        asyncio.run(Agent(provider, fitted.completion).ask("Hi"))
    asyncio.run(Agent(provider, fitted.completion, metadata={"session_id": "one"}).ask("Hi"))
    assert fitted.conversations.ids() == ["one"]


@pytest.mark.parametrize("function", ["completion", "acompletion", "callback"])
def test_an_agent_shows_a_memory_in_one_place_and_learns(
    provider: StandIn, tmp_path: Path, function: str
) -> None:
    async def run(settings: dict[str, Any], talk: Talk) -> None:
        fitted = FovealCallback(**settings)
        if function == "callback":
            litellm.callbacks = [fitted]
        complete = litellm.acompletion if function == "callback" else getattr(fitted, function)
        await talk(Agent(provider, complete, metadata=SESSION).ask)

    asyncio.run(check_memory(provider, tmp_path / "a.db", run))
