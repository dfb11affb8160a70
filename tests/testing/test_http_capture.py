"""Requests of real client libraries and frameworks, captured on their way to a provider's stand-in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

import foveal
from foveal import Context
from foveal.stores.memory import MemoryStore
from foveal.testing import CapturedRequests, PrefixNotCached, capture
from support.provider_stand_in import Answer, StandIn, looping

Json = dict[str, Any]
SYSTEM = "You are a careful agent. Never delete anything."
SCHEMA: Json = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}]
TRANSPORTS = [
    (httpx.HTTPTransport, "handle_request"),
    (httpx.AsyncHTTPTransport, "handle_async_request"),
    (httpx2.HTTPTransport, "handle_request"),
    (httpx2.AsyncHTTPTransport, "handle_async_request"),
    (httpx2.MockTransport, "handle_request"),
    (requests.adapters.HTTPAdapter, "send"),
]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with StandIn(script=looping(steps=2)) as standin:
        yield standin


class Clock:
    """A time for each request, a second later than the one before."""

    def __init__(self) -> None:
        self._now = datetime(2026, 11, 16, 14)

    def __call__(self) -> str:
        self._now += timedelta(seconds=1)
        return self._now.isoformat()


def found(query: str) -> str:
    return f"{query} is in src/parser.py, line {len(query)}. " * 20


def run_chat(
    client: openai.OpenAI, turns: int, *, clock: Clock | None = None, ctx: Context | None = None
) -> None:
    """An agent on chat completions; with a clock, its system prompt has the time in it."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Task {turn}"})
        while True:
            if clock is not None:
                messages[0] = {"role": "system", "content": f"It is {clock()}. {SYSTEM}"}
            sent = messages if ctx is None else ctx.fit(messages, tools=CHAT_TOOLS)
            reply = client.chat.completions.create(
                model="gpt-4.1", messages=sent, tools=CHAT_TOOLS, max_tokens=500
            )
            if ctx is not None:
                ctx.observe(reply.usage)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            calls: Any = message.tool_calls or []
            for call in calls:
                text = found(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
            if not calls:
                break


async def run_claude(
    client: anthropic.AsyncAnthropic, turns: int, *, window: int = 0, is_marked: bool = True
) -> None:
    """A streaming agent on Anthropic messages; with a window, it sends only the newest messages."""
    history: list[Any] = []
    for turn in range(turns):
        history.append({"role": "user", "content": f"Task {turn}"})
        while True:
            cut = max(0, len(history) - window) & ~1 if window else 0
            async with client.messages.stream(
                model="claude-sonnet-4-6",
                max_tokens=500,
                system=SYSTEM,
                messages=history[:1] + history[1:][cut:],
                tools=[{"name": "search", "input_schema": SCHEMA}],
                extra_body={"cache_control": {"type": "ephemeral"}} if is_marked else None,
            ) as stream:
                reply = await stream.get_final_message()
            history.append({"role": "assistant", "content": [one.model_dump() for one in reply.content]})
            calls = [one for one in reply.content if one.type == "tool_use"]
            if not calls:
                break
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": found(str(one.input))}
                for one in calls
            ]
            history.append({"role": "user", "content": results})


@pytest.fixture
def client(provider: StandIn) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.openai, api_key="none", max_retries=2) as made:
        yield made


def test_a_good_agent_on_openai_passes(client: openai.OpenAI, provider: StandIn) -> None:
    with capture() as captured:
        run_chat(client, 3)
    captured.check()
    captured.check_legal()
    assert [request.messages for request in captured] == [one.body["messages"] for one in provider.requests]
    assert [cost.requests for cost in captured.costs()] == [9]


def test_a_time_in_the_system_prompt_of_an_agent_is_found(client: openai.OpenAI) -> None:
    with capture() as captured:
        run_chat(client, 2, clock=Clock())
    assert {(one.place, one.code) for one in captured.breaks()} == {("messages[0]", "changing_text")}
    assert len(captured.breaks()) == len(captured) - 1 == 5


def captured_claude(provider: StandIn, *, window: int = 0, is_marked: bool = True) -> CapturedRequests:
    async def run() -> CapturedRequests:
        async with anthropic.AsyncAnthropic(base_url=provider.anthropic, api_key="none") as claude:
            with capture() as captured:
                await run_claude(claude, 3, window=window, is_marked=is_marked)
            return captured

    return asyncio.run(run())


def test_a_stream_of_an_async_anthropic_client_is_captured(provider: StandIn) -> None:
    captured = captured_claude(provider)
    captured.check(min_requests=9)
    captured.check_legal()
    assert {request.dialect for request in captured} == {"anthropic"}


def test_an_agent_on_claude_without_cache_marks_is_found(provider: StandIn) -> None:
    captured = captured_claude(provider, is_marked=False)
    with pytest.raises(PrefixNotCached, match="has no cache mark"):
        captured.check()
    (cost,) = captured.costs()
    assert cost.cached_tokens == 0
    assert cost.lost_dollars


def test_an_agent_with_a_sliding_window_is_found(provider: StandIn) -> None:
    captured = captured_claude(provider, window=6)
    assert {(one.place, one.code) for one in captured.breaks()} == {("messages[1]", "message_removed")}


SOON = (("Retry-After-Ms", "1"),)
"""The client would wait half a second and more."""


def test_a_retry_of_the_client_is_no_break(provider: StandIn, client: openai.OpenAI) -> None:
    from support.provider_stand_in import Trouble

    provider.trouble = lambda number: Trouble(status=500, headers=SOON) if number in (2, 3) else None
    with capture() as captured:
        run_chat(client.with_options(max_retries=3), 2)
    assert len(captured) == 6 + 2
    captured.check()


def test_reductions_that_foveal_records_are_allowed(client: openai.OpenAI, provider: StandIn) -> None:
    ctx = Context("gpt-4.1", window=4_000, reserve=500)
    with capture() as captured:
        run_chat(client, 10, ctx=ctx)
    captured.check()
    recorded = captured.breaks()
    assert recorded
    assert {one.event for one in recorded} == {
        f"{one.cause} {one.why}" for one in ctx.report().breaks if one.why != "equipped"
    }
    assert provider.faults == []


def test_a_time_in_the_system_prompt_is_found_although_foveal_records_it(client: openai.OpenAI) -> None:
    with capture() as captured:
        run_chat(client, 2, clock=Clock(), ctx=Context("gpt-4.1"))
    assert {(one.place, one.event) for one in captured.breaks()} == {("messages[0]", "")}


def test_reductions_of_a_session_are_allowed(client: openai.OpenAI) -> None:
    async def run() -> list[str]:
        async with MemoryStore() as store:
            session = await foveal.Session.open(store, id="s", model=foveal.model("gpt-4.1", window=4_000))
            for turn in range(20):
                await session.append(foveal.UserSaid(content=found(f"Task {turn}") * 2))
                sent: Any = (await session.fit()).to_openai()
                reply = client.chat.completions.create(model="gpt-4.1", messages=sent)
                await session.append(foveal.ModelSaid(content=reply.choices[0].message.content or "Done."))
            return [one.why for one in (await session.report()).breaks]

    with capture() as captured:
        causes = asyncio.run(run())
    captured.check(min_requests=20)
    assert [one.event.split()[1] for one in captured.breaks()] == causes != []


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_any_httpx_client_is_captured_with_a_transport_for_tests(library: Any) -> None:
    transport = library.MockTransport(lambda request: library.Response(200, json={}))
    sent = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}

    async def send_async() -> None:
        async with library.AsyncClient(transport=transport) as made:
            await made.post("https://example.com/v1/chat/completions", json=sent)

    with capture() as captured, library.Client(transport=transport) as made:
        made.post("https://example.com/v1/chat/completions", json=sent)
        made.post("https://example.com/other", json=sent)
        made.get("https://example.com/v1/chat/completions")
        asyncio.run(send_async())
    assert [request.messages for request in captured] == [sent["messages"]] * 2


def test_requests_is_captured(provider: StandIn) -> None:
    sent = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    with capture() as captured:
        assert requests.post(f"{provider.openai}/chat/completions", json=sent, timeout=10).status_code == 200
    assert [request.messages for request in captured] == [sent["messages"]]


def test_captures_can_be_nested_and_restore_the_transports() -> None:
    before = [vars(owner)[method] for owner, method in TRANSPORTS]
    sent = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json={}))
    with httpx2.Client(transport=transport) as made:
        with capture() as outer:
            with suppress(KeyError), capture() as inner:
                made.post("https://example.com/v1/chat/completions", json=sent)
                raise KeyError
            made.post("https://example.com/v1/chat/completions", json=sent)
        made.post("https://example.com/v1/chat/completions", json=sent)
    assert (len(inner), len(outer)) == (1, 2)
    assert [vars(owner)[method] for owner, method in TRANSPORTS] == before


def test_a_langchain_agent_is_captured(provider: StandIn) -> None:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    def search(query: str) -> str:
        """Search the sources."""
        return found(query)

    own = httpx2.Client()
    model = ChatOpenAI(model="gpt-4.1", base_url=provider.openai, api_key="none", http_client=own)  # type: ignore[arg-type]
    agent: Any = create_agent(model, [search], system_prompt=SYSTEM)
    with own, capture() as captured:
        state = agent.invoke({"messages": [{"role": "user", "content": "Task 0"}]})
        agent.invoke({"messages": [*state["messages"], {"role": "user", "content": "Task 1"}]})
    captured.check(min_requests=6)
    captured.check_legal()


def test_a_pydantic_ai_agent_with_a_time_in_its_instructions_is_found(provider: StandIn) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    clock = Clock()

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=provider.openai, api_key="none") as client:
            agent: Any = Agent(OpenAIChatModel("gpt-4.1", provider=OpenAIProvider(openai_client=client)))
            agent.instructions(lambda: f"It is {clock()}. {SYSTEM}")
            agent.tool_plain(found, name="search")
            await agent.run("Task 0")

    with capture() as captured:
        asyncio.run(run())
    assert [(one.place, one.code) for one in captured.breaks()] == [("messages[0]", "changing_text")] * 2


def test_two_conversations_at_once_are_told_apart(provider: StandIn) -> None:
    provider.script = lambda number: Answer(text=f"Answer {number}.")

    async def talk(client: openai.AsyncOpenAI, name: str) -> None:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        for turn in range(5):
            messages.append({"role": "user", "content": f"{name}, question {turn}"})
            reply = await client.chat.completions.create(model="gpt-4.1", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=provider.openai, api_key="none") as client:
            await asyncio.gather(*(talk(client, name) for name in ("Ann", "Bob", "Eve")))

    with capture() as captured:
        asyncio.run(run())
    captured.check()
    assert [cost.requests for cost in captured.costs()] == [5, 5, 5]
