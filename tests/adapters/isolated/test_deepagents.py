"""Agents of deepagents with LangChain's middleware: a deep agent and its subagents have contexts of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from foveal.adapters.langchain import FovealMiddleware
from support.adapter_runs import TURNS, WINDOW, count_breaks, search
from support.provider_stand_in import Answer, StandIn

THREAD: Any = {"configurable": {"thread_id": "one"}}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW) as standin:
        yield standin


def agent(provider: StandIn, middleware: FovealMiddleware) -> Any:
    model = ChatOpenAI(
        base_url=provider.openai,
        api_key="none",  # type: ignore[arg-type]
        model="gpt-4.1",
        max_retries=0,
        max_completion_tokens=1_000,
    )
    helper = {
        "name": "finder",
        "description": "Finds things.",
        "system_prompt": "Find things.",
        "tools": [search],
        "middleware": [middleware],
    }
    return create_deep_agent(
        model=model,
        tools=[search],
        system_prompt="Be careful.",
        middleware=[middleware],
        subagents=[helper],  # type: ignore[list-item]
        checkpointer=InMemorySaver(),
    )


def test_a_deep_agent_stays_inside_the_window(provider: StandIn) -> None:
    graph = agent(provider, FovealMiddleware(window=WINDOW, reserve=1_000))
    shown: list[BaseMessage] = []
    for turn in range(TURNS):
        state = graph.invoke({"messages": [HumanMessage(f"Question {turn}: look it up.")]}, THREAD)
        assert state["messages"][: len(shown)] == shown, "the stored history has changed"
        shown[:] = state["messages"]
    assert provider.faults == []
    assert len(provider.requests) == TURNS * 5
    # The prompt and the tools of deepagents take almost half of the window, so there are more cuts than elsewhere.
    assert count_breaks(provider.requests) * 100 <= 12 * len(provider.requests)


def test_a_subagent_has_a_context_of_its_own(provider: StandIn) -> None:
    def script(number: int) -> Answer:
        if number == 2:
            task = {"description": "Find the zebra.", "subagent_type": "finder"}
            return Answer(calls=(("task", task),))
        return Answer(text=f"Answer {number}.")

    provider.script = script
    middleware = FovealMiddleware(window=WINDOW, reserve=1_000)
    graph = agent(provider, middleware)
    for text in ("Hello.", "Ask the finder."):
        graph.invoke({"messages": [HumanMessage(text)]}, THREAD)
    assert provider.faults == []
    messages = [str(event.fact) for event in middleware.conversations.get("one").context.log]
    assert not any("UserSaid(content='Find the zebra." in message for message in messages)
