"""Real client libraries through a transport, against a provider that refuses illegal requests."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest

import foveal.transport
from foveal.core.log import Used
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.transport import ConversationPool
from support.effort import rest_in_soak
from support.provider_stand_in import Request, StandIn

SOAK = bool(os.environ.get("FOVEAL_SOAK"))
WINDOW = 16_000 if SOAK else 9_000
ANSWER = 1_000
TURNS = 13 if SOAK else 4
"""The turns of five requests that each API has in a loop: the first reduction is in the fifth."""
RULES = "You are a careful agent. Never delete anything."
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
ABOUT = {"name": "search", "description": "Search the sources."}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def provider() -> Iterator[StandIn]:
    with StandIn(window=WINDOW) as standin:
        yield standin


def search(query: str) -> str:
    """A tool with results of all sizes; some are larger than the window."""
    number = sum(map(ord, query))
    lines = 2_000 if number % 17 == 0 else 4 + number % 13
    return "\n".join(
        f"{query}: src/module_{number}_{at}.py:{at}: value = {number * at}" for at in range(lines)
    )


# ── Loops with the clients' own calls; each yields a request and receives the reply ──────────────────────


def chat(turns: int) -> Any:
    tools = [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": RULES}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Task {turn}: find the number {turn}."})
        calls: Any = True
        while calls:
            reply = yield {"model": "gpt-4.1", "messages": messages, "tools": tools, "max_tokens": ANSWER}
            message = reply.choices[0].message
            messages.append(message.to_dict())
            calls = message.tool_calls or []
            for call in calls:
                result = search(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def responses(turns: int) -> Any:
    tools = [{"type": "function", **ABOUT, "parameters": SCHEMA}]
    items: list[Any] = []
    for turn in range(turns):
        items.append({"role": "user", "content": f"Task {turn}: find the number {turn}."})
        calls: Any = True
        while calls:
            reply = yield {
                "model": "gpt-5.1",
                "instructions": RULES,
                "input": items,
                "tools": tools,
                "max_output_tokens": ANSWER,
                "store": False,
            }
            items += [item.to_dict() for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            for call in calls:
                output = search(call.arguments)
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


def messages(turns: int) -> Any:
    tools = [{**ABOUT, "input_schema": SCHEMA}]
    history: list[Any] = []
    for turn in range(turns):
        history.append({"role": "user", "content": f"Task {turn}: find the number {turn}."})
        while True:
            reply = yield {
                "model": "claude-sonnet-4-6",
                "system": RULES,
                "messages": history,
                "tools": tools,
                "max_tokens": ANSWER,
                "cache_control": {"type": "ephemeral"},
            }
            history.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                break
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": search(json.dumps(call.input))}
                for call in calls
            ]
            history.append({"role": "user", "content": results})


def run(loop: Any, ask: Any) -> None:
    body = next(loop)
    while body is not None:
        body = _next(loop, ask(body))


async def arun(loop: Any, ask: Any) -> None:
    body = next(loop)
    while body is not None:
        body = _next(loop, await ask(body))


def _next(loop: Any, reply: Any) -> Any:
    try:
        return loop.send(reply)
    except StopIteration:
        return None


# ── The clients ──────────────────────────────────────────────────────────────────────────────────────────


def without_checks(body: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call whose history is not checked by the client library: that takes nine tenths of
    the time of a test."""
    name = "messages" if "messages" in body else "input"
    return {**body, name: [], "extra_body": {name: body[name]}}


def ask_chat(client: Any, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return client.chat.completions.create(**body)
    with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
        return events.get_final_completion()


def ask_responses(client: Any, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return client.responses.create(**body)
    with client.responses.stream(**body) as events:
        return events.get_final_response()


def ask_messages(client: Any, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return client.messages.create(**body)
    with client.messages.stream(**body) as events:
        return events.get_final_message()


async def aask_chat(client: Any, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return await client.chat.completions.create(**body)
    async with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
        return await events.get_final_completion()


async def aask_responses(client: Any, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as events:
        return await events.get_final_response()


async def aask_messages(client: Any, body: dict[str, Any], *, stream: bool) -> Any:
    if not stream:
        return await client.messages.create(**body)
    async with client.messages.stream(**body) as events:
        return await events.get_final_message()


APIS = {
    "chat": (chat, ask_chat, aask_chat),
    "responses": (responses, ask_responses, aask_responses),
    "messages": (messages, ask_messages, aask_messages),
}


def client_of(api: str, provider: StandIn, http: Any, *, is_async: bool = False) -> Any:
    options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "http_client": http}
    if api == "messages":
        kind: Any = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        return kind(base_url=provider.anthropic, **options)
    kind = openai.AsyncOpenAI if is_async else openai.OpenAI
    return kind(base_url=provider.openai, **options)


def check(provider: StandIn, conversations: ConversationPool, turns: int) -> None:
    requests = provider.requests
    assert provider.faults == []
    assert len(requests) == 5 * turns
    assert max(request.prompt for request in requests) + ANSWER <= WINDOW
    [context] = conversations.contexts
    used = [event.fact for event in context.log if isinstance(event.fact, Used)]
    assert [fact.prompt for fact in used] == [request.prompt for request in requests]
    assert any(after.prompt < one.prompt for one, after in pairwise(requests)), "nothing was reduced"
    breaks = sum(not extends(sent(one), sent(after)) for one, after in pairwise(requests))
    assert breaks <= len(requests) / 10
    assert context.report().fitted == len(requests)


def sent(request: Request) -> list[Any]:
    """Return the messages of a request without cache marks, which move with every request and need a list."""
    found: list[Any] = strip_cache_marks(request.body.get("messages") or request.body["input"])
    for message in found:
        if message.get("role") == "user" and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return found


def extends(short: list[Any], long: list[Any]) -> bool:
    """Return whether the longer list begins with the shorter one."""
    return bool(long[: len(short)] == short)


@pytest.mark.parametrize(
    "stream", [pytest.param(False, marks=pytest.mark.soak, id="whole"), pytest.param(True, id="streamed")]
)
@pytest.mark.parametrize("api", APIS)
def test_a_loop_stays_inside_the_window(provider: StandIn, api: str, stream: bool) -> None:
    conversations = ConversationPool(window=WINDOW)
    loop, ask, _ = APIS[api]
    with client_of(api, provider, foveal.transport.httpx2(conversations)) as client:
        run(loop(TURNS), lambda body: ask(client, without_checks(body), stream=stream))
    check(provider, conversations, TURNS)


@pytest.mark.parametrize(
    ("api", "stream"),
    rest_in_soak(
        [
            ("chat", False),
            ("messages", True),
            ("responses", False),
            ("messages", False),
            ("chat", True),
            ("responses", True),
        ],
    ),
)
def test_an_async_loop_stays_inside_the_window(provider: StandIn, api: str, stream: bool) -> None:
    conversations = ConversationPool(window=WINDOW)
    loop, _, ask = APIS[api]

    async def main() -> None:
        http = foveal.transport.httpx2_async(conversations)
        async with client_of(api, provider, http, is_async=True) as client:
            await arun(loop(TURNS), lambda body: ask(client, without_checks(body), stream=stream))

    asyncio.run(main())
    check(provider, conversations, TURNS)
