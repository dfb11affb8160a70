"""Agents of smolagents on Foveal's model, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.memory import ActionStep

from foveal.adapters.smolagents import FovealModel
from foveal.core.log import Compacted, Used
from support.adapter_runs import TURNS, WINDOW, SummarisingStandIn, Talk, check_memory, count_breaks, search
from support.framework_runs import ask_in_turns, ending_with
from support.provider_stand_in import StandIn, looping

SCRIPT = ending_with("final_answer", "answer", looping("look_up"))


@tool
def look_up(query: str) -> str:
    """Search the sources.

    Args:
        query: What to search for.
    """
    return search(query)


def agent(provider: StandIn, *, streaming: bool = False, **settings: Any) -> ToolCallingAgent:
    own = OpenAIModel("gpt-4.1", api_base=provider.openai, api_key="none", max_tokens=1_000)
    model = FovealModel(own, conversation="one", **{"window": WINDOW, "reserve": 1_000, **settings})
    careful = ToolCallingAgent([look_up], model, stream_outputs=streaming, verbosity_level=0, max_steps=8)
    # As short as in the tests of the other frameworks: the default one takes a tenth of the window.
    careful.prompt_templates["system_prompt"] = "You are a careful agent. Never delete anything."
    return careful


def ask(agent: ToolCallingAgent, turns: int) -> None:
    ask_in_turns(lambda question: agent.run(question, reset=False), turns)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_agent_stays_inside_the_window(streaming: bool) -> None:
    with StandIn(window=WINDOW, script=SCRIPT) as provider:
        careful = agent(provider, streaming=streaming)
        ask(careful, TURNS)
    assert provider.faults == []
    assert WINDOW // 2 < max(request.prompt for request in provider.requests) <= WINDOW
    # 10.8 per 100 requests, above the 10 of the other frameworks: smolagents also sends every call as a text.
    assert len(provider.requests) == 65
    assert count_breaks(provider.requests) <= 7
    log = careful.model.conversations.get("one").context.log
    assert sum(isinstance(event.fact, Used) for event in log) == len(provider.requests)
    steps = [step for step in careful.memory.steps if isinstance(step, ActionStep)]
    queries = [[call.arguments.get("query") for call in step.tool_calls] for step in steps]
    kept = [step.observations for step, asked in zip(steps, queries, strict=True) if asked[0]]
    assert kept == ["\n".join(map(search, asked)) for asked in queries if asked[0]]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_overflow_of_the_provider_is_recovered(streaming: bool) -> None:
    with StandIn(window=WINDOW, script=SCRIPT) as provider:
        ask(agent(provider, streaming=streaming, window=4 * WINDOW), 8)
    refused = [request for request in provider.requests if request.faults]
    assert refused
    assert len(provider.requests) - len(refused) == 8 * 5


def test_the_model_of_the_agent_writes_the_summaries() -> None:
    with SummarisingStandIn(window=WINDOW, script=SCRIPT) as provider:
        careful = agent(provider, summarise="own")
        ask(careful, 8)
    assert provider.faults == []
    assert provider.summaries
    facts = [event.fact for event in careful.model.conversations.get("one").context.log]
    assert any(fact.by == "gpt-4.1" for fact in facts if isinstance(fact, Compacted))


def test_contexts_in_a_store_survive_a_restart(tmp_path: Path) -> None:
    with StandIn(window=WINDOW, script=SCRIPT) as provider:
        first = agent(provider, store=str(tmp_path / "contexts.db"))
        ask(first, 6)
        first.model.conversations.close()
        second = agent(provider, store=str(tmp_path / "contexts.db"))
        second.memory = first.memory
        second.run("Question 6: look it up.", reset=False)
        second.model.conversations.close()
    assert provider.faults == []
    sent = [request.body["messages"] for request in provider.requests]
    assert sent[30][: len(sent[29])] == sent[29]


def test_an_agent_shows_a_memory_in_one_place(tmp_path: Path) -> None:
    async def run(settings: dict[str, Any], talk: Talk) -> None:
        careful = agent(provider, **settings)
        await talk(lambda question: asyncio.to_thread(careful.run, question, reset=False))

    with StandIn(window=WINDOW, script=SCRIPT) as provider:
        # smolagents writes "New task:" in front of the user's words.
        asyncio.run(check_memory(provider, tmp_path / "a.db", run, learns=False))
