"""A memory that an adapter is given is in the requests of its framework, and learns from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from foveal.errors import BadSetting
from support.adapter_runs import WINDOW, Talk, check_memory, search
from support.effort import rest_in_soak
from support.provider_stand_in import StandIn


async def with_langchain(provider: StandIn, settings: dict[str, Any], talk: Talk) -> None:
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

    from foveal.adapters.langchain import FovealMiddleware

    model = ChatOpenAI(base_url=provider.openai, api_key="none", model="gpt-4.1", max_retries=0)  # type: ignore[arg-type]
    graph: Any = create_agent(
        model,
        [],
        system_prompt="Be careful.",
        middleware=[FovealMiddleware(**settings)],
        checkpointer=InMemorySaver(),
    )
    thread = {"configurable": {"thread_id": "one"}}
    await talk(lambda question: graph.ainvoke({"messages": [HumanMessage(question)]}, thread))


async def with_openai_agents(provider: StandIn, settings: dict[str, Any], talk: Talk) -> None:
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, function_tool
    from openai import AsyncOpenAI

    from foveal.adapters.openai_agents import FovealModelProvider

    models = FovealModelProvider(**settings)
    async with AsyncOpenAI(base_url=provider.openai, api_key="none", max_retries=0) as client:
        model = models.wrap(OpenAIResponsesModel("gpt-4.1", openai_client=client))
        tools: list[Any] = [function_tool(search)]
        agent = Agent(name="careful", instructions="Be careful.", model=model, tools=tools)
        session = SQLiteSession("one")
        config = RunConfig(tracing_disabled=True)
        await talk(lambda question: Runner.run(agent, question, session=session, run_config=config))


async def with_pydantic_ai(provider: StandIn, settings: dict[str, Any], talk: Talk) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from foveal.adapters.pydantic_ai import FovealCapability

    async with httpx2.AsyncClient(trust_env=False) as client:
        openai = OpenAIProvider(base_url=provider.openai, api_key="none", http_client=client)
        agent = Agent(
            OpenAIChatModel("gpt-4.1", provider=openai),
            instructions="Be careful.",
            tools=[search],
            capabilities=[FovealCapability(**settings)],
        )
        history: list[Any] = []

        async def ask(question: str) -> None:
            history[:] = (await agent.run(question, message_history=history)).all_messages()

        await talk(ask)


async def with_agent_framework(provider: StandIn, settings: dict[str, Any], talk: Talk) -> None:
    from agent_framework import Agent, AgentSession
    from agent_framework.openai import OpenAIChatCompletionClient
    from openai import AsyncOpenAI

    from foveal.adapters.agent_framework import FovealChatMiddleware

    async with AsyncOpenAI(base_url=provider.openai, api_key="none", max_retries=0) as client:
        agent = Agent(
            OpenAIChatCompletionClient(model="gpt-4.1", async_client=client),
            instructions="Be careful.",
            middleware=[FovealChatMiddleware(**settings)],
        )
        session = AgentSession(session_id="one")
        await talk(lambda question: agent.run(question, session=session))


FRAMEWORKS = (with_langchain, with_openai_agents, with_pydantic_ai, with_agent_framework)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(window=WINDOW) as standin:
        yield standin


@pytest.mark.parametrize(
    "framework", rest_in_soak(FRAMEWORKS, kept=2), ids=lambda one: one.__name__.removeprefix("with_")
)
def test_an_adapter_shows_a_memory_and_learns(
    provider: StandIn, tmp_path: Path, framework: Callable[..., Any]
) -> None:
    asyncio.run(check_memory(provider, tmp_path / "a.db", partial(framework, provider)))


def test_what_is_no_memory_is_refused_at_once() -> None:
    from foveal.adapters.langchain import FovealMiddleware

    with pytest.raises(BadSetting):
        FovealMiddleware(memory="ada")
