"""Agents of other frameworks with the drop-in endpoint as base URL, in a window that is too small."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.provider_stand_in import Answer, StandIn, looping
from support.upstream import ProxyServer

WINDOW = 6_000
ANSWER = 600
CALLS = 24
"""From this request on (summaries included) the model answers with text."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


def script(number: int) -> Answer:
    return looping(steps=CALLS)(number) if number < CALLS else Answer(text="All parts are found.")


@pytest.fixture
def provider() -> Iterator[StandIn]:
    with StandIn(window=WINDOW, script=script) as standin:
        yield standin


@pytest.fixture
def proxy(provider: StandIn, tmp_path: Path) -> Iterator[ProxyServer]:
    with ProxyServer(
        tmp_path, openai=provider.openai, anthropic=provider.anthropic, window=WINDOW, tokenizer="auto"
    ) as made:
        yield made


def search(query: str) -> str:
    """Search the sources."""
    number = sum(map(ord, query))
    return "\n".join(f"{query}: src/module_{number}_{line}.py: value = {number * line}" for line in range(25))


def assert_one_legal_session(provider: StandIn, proxy: ProxyServer) -> None:
    """Assert that all requests were legal, within the window, and in one session."""
    answered = [request for request in provider.requests if request.body.get("tools")]
    assert provider.faults == []
    assert len(answered) >= 15
    assert max(request.prompt for request in answered) <= WINDOW - ANSWER
    assert len(proxy.sessions()) == 1
    ended = [one for one in proxy.service_events if type(one).__name__ == "ProxyRequestEnded"]
    assert all(one.status == 200 for one in ended)
    assert ended[-1].unreduced_tokens > WINDOW
    assert ended[-1].tokens < WINDOW - ANSWER


@pytest.mark.soak
def test_a_langchain_agent_stays_inside_its_window(provider: StandIn, proxy: ProxyServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they deprecate of each other is not our business
        from langchain.agents import create_agent
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI

        model: Any = ChatOpenAI(
            model="gpt-4.1",
            base_url=proxy.openai,
            api_key="sk-of-the-client",  # type: ignore[arg-type]
            max_retries=0,
            max_tokens=ANSWER,  # type: ignore[call-arg]
        )
        agent = create_agent(model, [tool(search)], system_prompt="You are careful.")
        prompt: Any = {"messages": [{"role": "user", "content": "Find all the parts."}]}
        done = agent.invoke(prompt, {"recursion_limit": 100})
        model.root_client.close()
    assert done["messages"][-1].content == "All parts are found."
    assert_one_legal_session(provider, proxy)


@pytest.mark.soak
def test_a_pydantic_ai_agent_stays_inside_its_window(provider: StandIn, proxy: ProxyServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from openai import AsyncOpenAI
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        async def run() -> Any:
            async with AsyncOpenAI(
                base_url=proxy.openai, api_key="sk-of-the-client", max_retries=0
            ) as client:
                model = OpenAIChatModel("gpt-4.1", provider=OpenAIProvider(openai_client=client))
                agent = Agent(model, instructions="You are careful.", model_settings={"max_tokens": ANSWER})
                agent.tool_plain(search)
                return await agent.run("Find all the parts.")

        done = asyncio.run(run())
    assert done.output == "All parts are found."
    assert_one_legal_session(provider, proxy)


@pytest.mark.soak
def test_a_pydantic_ai_agent_on_anthropic_stays_inside_its_window(
    provider: StandIn, proxy: ProxyServer
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from anthropic import AsyncAnthropic
        from pydantic_ai import Agent
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        async def run() -> Any:
            async with AsyncAnthropic(
                base_url=proxy.url, api_key="sk-ant-of-the-client", max_retries=0
            ) as client:
                made = AnthropicProvider(anthropic_client=client)
                model = AnthropicModel("claude-sonnet-4-6", provider=made)
                agent = Agent(model, instructions="You are careful.", model_settings={"max_tokens": ANSWER})
                agent.tool_plain(search)
                return await agent.run("Find all the parts.")

        done = asyncio.run(run())
    assert done.output == "All parts are found."
    assert_one_legal_session(provider, proxy)
