"""Crews on Foveal's LLM, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from foveal.adapters.crewai import CrewCall, FovealLLM
from foveal.core.log import Compacted, Used
from foveal.errors import BadSetting
from support.adapter_runs import (
    TURNS,
    WINDOW,
    SummarisingStandIn,
    Talk,
    check_memory,
    check_run,
    count_breaks,
    search,
)
from support.provider_stand_in import Answer, StandIn, looping

STEPS = 64
"""Requests with calls in the one turn that a task has."""


@tool("search")
def look_up(query: str) -> str:
    """Search the sources."""
    return search(query)


def provider(steps: int = STEPS) -> StandIn:
    return StandIn(window=WINDOW, script=looping(steps=steps), keep_alive=False)


def fitted(standin: StandIn, *, streaming: bool = False, **settings: Any) -> FovealLLM:
    own = LLM(
        "openai/gpt-4.1",
        base_url=standin.openai,
        api_key="none",
        stream=streaming,
        max_completion_tokens=1_000,
        max_retries=0,
    )
    return FovealLLM(own, **{"window": WINDOW, "reserve": 1_000, **settings})


def searcher(llm: FovealLLM, *, role: str = "Searcher") -> Agent:
    return Agent(
        role=role, goal="Look it up.", backstory="Careful.", llm=llm, tools=[look_up], max_iter=STEPS + 10
    )


def crew(llm: FovealLLM, *, role: str = "Searcher") -> tuple[Crew, Agent]:
    agent = searcher(llm, role=role)
    task = Task(description="Look it up.", expected_output="The answer.", agent=agent)
    return Crew(agents=[agent], tasks=[task]), agent


def used(llm: FovealLLM, id: str) -> int:
    found = llm.conversations.find(id)
    assert found is not None
    return sum(isinstance(event.fact, Used) for event in found.context.log)


def messages_of(agent: Agent) -> list[Any]:
    assert agent.agent_executor is not None
    return list(agent.agent_executor.messages)


def check_stored_results(messages: list[Any]) -> None:
    """Assert that a history has every result of a tool as the tool returned it."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results == [search(**json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_crew_stays_inside_the_window(is_async: bool, streaming: bool) -> None:
    with provider() as standin:
        llm = fitted(standin, streaming=streaming)
        careful, agent = crew(llm)
        done = asyncio.run(careful.akickoff()) if is_async else careful.kickoff()
    assert "is done" in str(done)
    assert all(bool(request.body.get("stream")) is streaming for request in standin.requests)
    assert standin.faults == []
    assert WINDOW // 2 < max(request.prompt for request in standin.requests) <= WINDOW
    # 10.8 per 100 requests, above the 10 of the other frameworks: every request but the last one has new results.
    assert count_breaks(standin.requests) <= 7
    (id,) = llm.conversations.ids()
    assert used(llm, id) == len(standin.requests) == STEPS + 1 == done.token_usage.successful_requests
    check_stored_results(messages_of(agent))


def test_an_overflow_of_the_provider_is_recovered() -> None:
    with provider() as standin:
        careful, agent = crew(fitted(standin, window=4 * WINDOW))
        careful.kickoff()
    refused = [request for request in standin.requests if request.faults]
    assert refused
    assert len(standin.requests) - len(refused) == STEPS + 1
    check_stored_results(messages_of(agent))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_llm_of_the_agent_writes_the_summaries(is_async: bool) -> None:
    with SummarisingStandIn(window=WINDOW, script=looping(steps=STEPS), keep_alive=False) as standin:
        llm = fitted(standin, summarise="own")
        careful, agent = crew(llm)
        asyncio.run(careful.akickoff()) if is_async else careful.kickoff()
    assert standin.faults == []
    assert standin.summaries
    (id,) = llm.conversations.ids()
    facts = [event.fact for event in llm.conversations.get(id).context.log]
    assert any(fact.by == "gpt-4.1" for fact in facts if isinstance(fact, Compacted))
    check_stored_results(messages_of(agent))


def test_contexts_in_a_store_survive_a_restart_in_each_turn(tmp_path: Path) -> None:
    history: list[Any] = []
    with provider(steps=4) as standin:
        for turn in range(TURNS):
            llm = fitted(standin, store=str(tmp_path / "contexts.db"), conversation=lambda call: "one")
            question = {"role": "user", "content": f"Question {turn}: look it up."}
            done = searcher(llm).kickoff([*history, question])
            history = [message for message in done.messages if message["role"] != "system"]
            llm.conversations.close()
    check_run(standin)
    check_stored_results(history)


def test_agents_that_share_an_llm_have_conversations_of_their_own() -> None:
    with StandIn(window=WINDOW, script=lambda number: Answer(text="Done."), keep_alive=False) as standin:
        llm = fitted(standin)
        for role in ("One", "Two"):
            crew(llm, role=role)[0].kickoff()
    first, second = llm.conversations.ids()
    assert (first.partition("/")[0], second.partition("/")[0]) == ("One", "Two")
    assert (used(llm, first), used(llm, second)) == (1, 1)


def test_every_input_of_a_crew_has_a_conversation_of_its_own() -> None:
    with StandIn(window=WINDOW, script=lambda number: Answer(text="Done."), keep_alive=False) as standin:
        llm = fitted(standin)
        careful, _ = crew(llm)
        careful.tasks[0].description = "Look up {name}."
        careful.kickoff_for_each([{"name": "one"}, {"name": "two"}])
    assert [used(llm, id) for id in llm.conversations.ids()] == [1, 1]


def test_a_function_names_the_conversation() -> None:
    def name(call: CrewCall) -> str:
        return str(call.task.name)

    with StandIn(window=WINDOW, script=lambda number: Answer(text="Done."), keep_alive=False) as standin:
        llm = fitted(standin, conversation=name)
        careful, _ = crew(llm)
        careful.tasks[0].name = "ci"
        careful.kickoff()
    assert llm.conversations.ids() == ["ci"]


def test_streamed_events_of_a_call() -> None:
    with StandIn(window=WINDOW, script=lambda number: Answer(text="Done."), keep_alive=False) as standin:
        llm = fitted(standin)
        frames = list(llm.stream_events("Why is CI red?"))
    assert frames
    assert [request.body["stream"] for request in standin.requests] == [True]


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(BadSetting):
        FovealLLM(LLM("openai/gpt-4.1", api_key="none"), windw=1)  # type: ignore[call-arg]


def test_a_crew_shows_a_memory_in_one_place(tmp_path: Path) -> None:
    async def run(settings: dict[str, Any], talk: Talk) -> None:
        agent = searcher(fitted(standin, **settings))

        async def ask(question: str) -> None:
            task = Task(description=question, expected_output="The answer.", agent=agent)
            await asyncio.to_thread(Crew(agents=[agent], tasks=[task]).kickoff)

        await talk(ask)

    with provider(steps=3) as standin:
        asyncio.run(check_memory(standin, tmp_path / "a.db", run, learns=False))
