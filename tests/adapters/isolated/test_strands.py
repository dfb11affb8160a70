"""Strands agents with the plugin, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="runs in an environment of its own")

from botocore.config import Config
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.middleware import InvokeModelStage
from strands.models import BedrockModel, CacheConfig
from strands.models.openai import OpenAIModel
from strands.session import FileSessionManager

from foveal.adapters.strands import FovealPlugin
from foveal.core.log import Compacted, Used
from support.adapter_runs import (
    TURNS,
    WINDOW,
    SummarisingStandIn,
    Talk,
    check_memory,
    check_run,
    long_search,
    search,
)
from support.bedrock_stand_in import BedrockStandIn
from support.provider_stand_in import Answer, StandIn

FORMS = ("openai", "bedrock", "bedrock whole")
CLAUDE = "us.anthropic.claude-sonnet-4-20250514-v1:0"


class SummarisingBedrock(SummarisingStandIn, BedrockStandIn):
    pass


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NO_PROXY": "127.0.0.1",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def provider() -> Iterator[BedrockStandIn]:
    with BedrockStandIn(window=WINDOW) as standin:
        yield standin


def model(provider: StandIn, form: str = "openai") -> Any:
    if form == "openai":
        client = {"base_url": provider.openai, "api_key": "none", "max_retries": 0}
        return OpenAIModel(client_args=client, model_id="gpt-4.1", params={"max_completion_tokens": 1_000})
    return BedrockModel(
        endpoint_url=provider.anthropic,
        region_name="us-east-1",
        boto_client_config=Config(retries={"total_max_attempts": 1}),
        model_id=CLAUDE,
        max_tokens=1_000,
        streaming=form == "bedrock",
        cache_config=CacheConfig(strategy="auto"),
    )


def agent(provider: StandIn, plugin: FovealPlugin, form: str = "openai", **more: Any) -> Agent:
    arguments: dict[str, Any] = {
        "model": model(provider, form),
        "system_prompt": "You are a careful agent. Never delete anything.",
        "tools": [tool(search)],
        "plugins": [plugin],
        "conversation_manager": NullConversationManager(),
        "callback_handler": None,
        "retry_strategy": None,
    }
    return Agent(**{**arguments, **more})


def plugin(**more: Any) -> FovealPlugin:
    return FovealPlugin(**{"window": WINDOW, "reserve": 1_000, **more})


def context(plugin: FovealPlugin, agent: Agent) -> Any:
    return plugin.conversations.get(agent.session_id).context


def used(context: Any) -> int:
    return sum(isinstance(event.fact, Used) for event in context.log)


def ask(agent: Agent, turns: int) -> None:
    for turn in range(turns):
        agent(f"Question {turn}: look it up.")


async def ask_streaming(agent: Agent, question: str) -> None:
    events = [event async for event in agent.stream_async(question)]
    assert any("data" in event for event in events)
    assert "result" in events[-1]


@pytest.mark.parametrize(
    ("form", "way"),
    [
        ("openai", "async"),
        ("openai", "streaming"),
        ("bedrock", "sync"),
        ("bedrock", "async"),
        ("bedrock", "streaming"),
        ("bedrock whole", "sync"),
        ("bedrock whole", "async"),
    ],
)
def test_an_agent_stays_inside_the_window(provider: BedrockStandIn, form: str, way: str) -> None:
    foveal = plugin()
    careful = agent(provider, foveal, form)
    stored: list[Any] = []

    async def turn(question: str) -> None:
        if way == "sync":
            careful(question)
        elif way == "async":
            await careful.invoke_async(question)
        else:
            await ask_streaming(careful, question)

    async def turns() -> None:
        for number in range(TURNS):
            await turn(f"Question {number}: look it up.")
            assert careful.messages[: len(stored)] == stored, "the stored history has changed"
            stored[:] = deepcopy(careful.messages)

    asyncio.run(turns())
    check_run(provider)
    assert used(context(foveal, careful)) == len(provider.requests)
    results = [
        block["toolResult"] for message in stored for block in message["content"] if "toolResult" in block
    ]
    assert {result["content"][0]["text"] for result in results} == set(map(search, _queries(stored)))


def _queries(messages: list[Any]) -> list[str]:
    return [b["toolUse"]["input"]["query"] for m in messages for b in m["content"] if "toolUse" in b]


@pytest.mark.parametrize("form", FORMS)
def test_the_model_of_the_agent_writes_the_summaries(form: str) -> None:
    foveal = plugin(summarise="own")
    with SummarisingBedrock(window=WINDOW) as provider:
        careful = agent(provider, foveal, form)
        ask(careful, 8)
    assert provider.faults == []
    assert provider.summaries
    written = [event.fact for event in context(foveal, careful).log if isinstance(event.fact, Compacted)]
    assert {fact.by for fact in written} == {careful.model.get_config()["model_id"]}


@pytest.mark.parametrize("form", FORMS)
def test_an_overflow_of_the_provider_is_recovered(provider: BedrockStandIn, form: str) -> None:
    careful = agent(provider, FovealPlugin(window=4 * WINDOW, reserve=1_000), form)
    ask(careful, 8)
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == 8 * 5
    assert careful.messages[-1]["role"] == "assistant"


def test_another_error_of_the_provider_is_raised_once(provider: BedrockStandIn) -> None:
    provider.key = "another"
    careful = agent(provider, plugin())
    with pytest.raises(Exception, match="Incorrect API key"):
        careful("Hello.")
    assert provider.attempts == 1


def test_recall_tools_answer_from_the_conversation_that_calls_them(provider: BedrockStandIn) -> None:
    def script(number: int) -> Answer:
        if number == 3:
            return Answer(calls=(("recall_search", {"query": "zebra"}),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    foveal = plugin(recall_tools=True)
    one, two = agent(provider, foveal), agent(provider, foveal)
    one("The zebra is called Ann.")
    two("The zebra is called Bob.")
    one("What is its name?")
    (result,) = [b["toolResult"] for m in one.messages for b in m["content"] if "toolResult" in b]
    assert "called Ann" in result["content"][0]["text"]
    assert "called Bob" not in result["content"][0]["text"]


def test_context_tools_show_the_model_its_window(provider: BedrockStandIn) -> None:
    def script(number: int) -> Answer:
        return Answer(calls=(("context_status", {}),)) if number == 1 else Answer(text=f"Answer {number}.")

    provider.script = script
    one = agent(provider, plugin(context_tools=True))
    one("What fills your window?")
    (result,) = [b["toolResult"] for m in one.messages for b in m["content"] if "toolResult" in b]
    assert result["content"][0]["text"].startswith("[foveal context: the request has ")


def test_contexts_in_a_store_survive_a_restart(provider: BedrockStandIn, tmp_path: Path) -> None:
    for _ in range(2):
        foveal = plugin(store=str(tmp_path / "contexts.db"))
        session = FileSessionManager("one", storage_dir=str(tmp_path))
        ask(agent(provider, foveal, "bedrock", session_manager=session), 6)
        foveal.conversations.close()
    assert provider.faults == []
    at = len(provider.requests) // 2
    before, after = (
        _without_points(request.body["messages"]) for request in provider.requests[at - 1 : at + 1]
    )
    assert after[: len(before)] == before
    assert len(provider.requests[at].body["messages"]) < 6 * 10, "nothing was reduced before the restart"


def _without_points(messages: list[Any]) -> list[Any]:
    return [{**m, "content": [b for b in m["content"] if "cachePoint" not in b]} for m in messages]


def test_native_fields_of_shown_messages_are_not_lost(provider: BedrockStandIn) -> None:
    given: list[list[Any]] = []
    seen: list[list[Any]] = []

    async def before(context: Any) -> Any:
        given.append(context.messages)
        return context

    async def after(context: Any, next_fn: Any) -> Any:
        seen.append(context.messages)
        async for event in next_fn(context):
            yield event

    careful = agent(provider, plugin(), "bedrock", tools=[tool(long_search, name="search")])
    careful.add_middleware(InvokeModelStage.Input, before)
    careful.add_middleware(InvokeModelStage, after)
    ask(careful, 2)
    originals = {message["tracking_id"]: message for message in given[-1]}
    shown = [message for message in seen[-1] if "tracking_id" in message]
    whole = [message for message in shown if message is originals[message["tracking_id"]]]
    reduced = [message for message in shown if message is not originals[message["tracking_id"]]]
    assert len(whole) > 5
    assert reduced
    for message in reduced:
        own = originals[message["tracking_id"]]
        assert {**message, "content": None} == {**own, "content": None}
        assert _reasoning(message) == _reasoning(own)


def _reasoning(message: Any) -> list[Any]:
    return [block for block in message["content"] if "reasoningContent" in block]


def test_two_agents_at_once_do_not_mix(provider: BedrockStandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    foveal = plugin()
    agents = [agent(provider, foveal) for _ in range(2)]

    async def talk(one: Agent, name: str) -> None:
        for turn in range(5):
            await one.invoke_async(f"{name} asks {turn}.")

    async def both() -> None:
        await asyncio.gather(talk(agents[0], "Ann"), talk(agents[1], "Bob"))

    asyncio.run(both())
    assert provider.faults == []
    for request in provider.requests:
        text = str(request.body["messages"])
        assert not ("Ann asks" in text and "Bob asks" in text)
    assert [used(context(foveal, one)) for one in agents] == [5, 5]


def test_an_agent_that_is_reset_begins_another_conversation(provider: BedrockStandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")
    foveal = plugin()
    careful = agent(provider, foveal)
    ask(careful, 2)
    careful.messages.clear()
    ask(careful, 3)
    assert [used(context(foveal, careful)), len(provider.requests)] == [2, 5]
    assert len(provider.requests[2].body["messages"]) == 2


def test_a_manager_that_removes_messages_is_a_warning(provider: BedrockStandIn) -> None:
    with pytest.warns(UserWarning, match="NullConversationManager"):
        agent(provider, plugin(), conversation_manager=None)


@pytest.mark.parametrize("form", FORMS)
def test_an_agent_shows_a_memory_in_one_place_and_learns(
    provider: BedrockStandIn, tmp_path: Path, form: str
) -> None:
    async def run(settings: dict[str, Any], talk: Talk) -> None:
        await talk(agent(provider, FovealPlugin(**settings), form).invoke_async)

    asyncio.run(check_memory(provider, tmp_path / "a.db", run))
