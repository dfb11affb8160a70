"""The README's loop with real client libraries, against a provider that refuses illegal requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

from foveal import Context
from foveal.core.log import Used
from support.provider_stand_in import Answer, Request, StandIn, looping

SOAK = bool(os.environ.get("FOVEAL_SOAK"))
WINDOW = 6_000 if SOAK else 4_000
ANSWER = 700
"""Tokens that each request leaves for the answer."""
TURNS = 13 if SOAK else 7
"""Turns of five requests each."""


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
    lines = 2_000 if number % 17 == 0 else 2 + number % 13
    found = (
        f"{query}: src/module_{number}_{line}.py:{line}: value = {number * line}" for line in range(lines)
    )
    return "\n".join(found) + ("\nError: index is stale" if number % 5 == 0 else "")


def results(calls: list[tuple[str, str]], number: int) -> Iterator[tuple[str, str]]:
    """Yield the results of calls by id; in the ninth answer the user interrupts, and the last result is missing."""
    done = calls[:-1] if number == 9 else calls
    for call_id, query in done:
        yield call_id, search(query)


SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
ABOUT = {"name": "search", "description": "Search the sources."}


def chat(url: str, ctx: Context) -> list[Any]:
    tools: Any = [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": "You are a careful agent. Never delete anything."}]
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Task {turn}: find the number {turn}."})
            while True:
                reply = client.chat.completions.create(
                    model="gpt-4.1", messages=ctx.fit(messages, tools=tools), tools=tools, max_tokens=ANSWER
                )
                ctx.observe(reply.usage)
                message = reply.choices[0].message
                messages.append(message)
                calls = [(call.id, call.function.arguments) for call in message.tool_calls or []]  # type: ignore[union-attr]
                done = results(calls, ctx.report().fitted)
                messages += [{"role": "tool", "tool_call_id": i, "content": text} for i, text in done]
                if not calls:
                    break
                if ctx.report().fitted == 9:
                    messages.append({"role": "user", "content": "Stop, I have interrupted you. Go on."})
    return messages


def responses(url: str, ctx: Context) -> list[Any]:
    tools: Any = [{"type": "function", **ABOUT, "parameters": SCHEMA}]
    items: list[Any] = []
    rules = "You are a careful agent. Never delete anything."
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for turn in range(TURNS):
            items.append({"role": "user", "content": f"Task {turn}: find the number {turn}."})
            while True:
                reply = client.responses.create(
                    model="gpt-5.1",
                    instructions=rules,
                    input=ctx.fit(items, tools=tools, system=rules),  # type: ignore[arg-type]
                    tools=tools,
                    max_output_tokens=ANSWER,
                    store=False,
                )
                ctx.observe(reply.usage)
                items += reply.output
                calls = [
                    (item.call_id, item.arguments) for item in reply.output if item.type == "function_call"
                ]
                done = results(calls, ctx.report().fitted)
                items += [{"type": "function_call_output", "call_id": i, "output": text} for i, text in done]
                if not calls:
                    break
                if ctx.report().fitted == 9:
                    items.append({"role": "user", "content": "Stop, I have interrupted you. Go on."})
    return items


def messages(url: str, ctx: Context) -> list[Any]:
    tools: Any = [{**ABOUT, "input_schema": SCHEMA}]
    history: list[Any] = []
    rules = "You are a careful agent. Never delete anything."
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        for turn in range(TURNS):
            history.append({"role": "user", "content": f"Task {turn}: find the number {turn}."})
            while True:
                reply = client.messages.create(
                    model="claude-sonnet-4-6",
                    system=rules,
                    messages=ctx.fit(history, tools=tools, system=rules),  # type: ignore[arg-type]
                    tools=tools,
                    max_tokens=ANSWER,
                    cache_control={"type": "ephemeral"},
                )
                ctx.observe(reply.usage)
                history.append({"role": "assistant", "content": reply.content})
                calls = [(block.id, str(block.input)) for block in reply.content if block.type == "tool_use"]
                if not calls:
                    break
                blocks: list[Any] = [
                    {"type": "tool_result", "tool_use_id": i, "content": text}
                    for i, text in results(calls, ctx.report().fitted)
                ]
                if ctx.report().fitted == 9:
                    blocks.append({"type": "text", "text": "Stop, I have interrupted you. Go on."})
                history.append({"role": "user", "content": blocks})
    return history


class Run(NamedTuple):
    """The outcome of a loop."""

    provider: StandIn
    ctx: Context
    history: list[Any]


LOOPS = {
    "openai chat": (chat, "gpt-4.1"),
    "openai responses": (responses, "gpt-5.1"),
    "anthropic": (messages, "claude-sonnet-4-6"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_long_loop_is_never_refused_and_matches_the_report(name: str) -> None:
    loop, model = LOOPS[name]
    with StandIn(window=WINDOW) as provider:
        ctx = Context(model, window=WINDOW, reserve=ANSWER)
        ran = Run(provider, ctx, loop(provider.anthropic if loop is messages else provider.openai, ctx))
    _every_request_was_legal_and_within_the_window(ran)
    _counting_learned_from_the_provider(ran)
    _most_of_what_was_sent_came_from_the_cache(ran)
    _every_prefix_break_is_in_the_report(ran)
    _the_aborted_call_got_a_synthetic_result(ran, model)


def _every_request_was_legal_and_within_the_window(ran: Run) -> None:
    requests = ran.provider.requests
    assert ran.provider.faults == []
    assert len(requests) == ran.ctx.report().fitted == 5 * TURNS
    assert max(request.prompt for request in requests) + ANSWER <= WINDOW
    assert len(str(ran.history)) > 3 * max(len(str(sent(request))) for request in requests)


def _counting_learned_from_the_provider(ran: Run) -> None:
    """Check that after the first calls the predicted tokens are close to the reported ones."""
    used = [event.fact for event in ran.ctx.log if isinstance(event.fact, Used)]
    errors = sorted(abs(fact.predicted - fact.prompt) / fact.prompt for fact in used[5:])
    assert [fact.prompt for fact in used] == [request.prompt for request in ran.provider.requests]
    assert errors[len(errors) // 2] < 0.02
    assert ran.ctx.report().measured


def _most_of_what_was_sent_came_from_the_cache(ran: Run) -> None:
    requests, report = ran.provider.requests, ran.ctx.report()
    assert report.cached_share == requests[-1].cached / requests[-1].prompt
    assert sum(request.cached for request in requests) > 0.6 * sum(request.prompt for request in requests)
    assert len(report.breaks) <= report.calls / 3
    assert report.spent is not None
    assert report.spent > 0


def _every_prefix_break_is_in_the_report(ran: Run) -> None:
    broken = [
        number
        for number, (one, after) in enumerate(pairwise(ran.provider.requests), 2)
        if not extends(sent(one), sent(after))
    ]
    assert broken == [found.call for found in ran.ctx.report().breaks]


def _the_aborted_call_got_a_synthetic_result(ran: Run, model: str) -> None:
    assert "has no recorded result; it was interrupted" in str(sent(ran.provider.requests[9]))
    roomy = Context(model, window=10_000_000)
    roomy.fit(ran.history)
    assert [repair.done for repair in roomy.report().repairs] == ["a synthetic result is shown"]


def sent(request: Request) -> list[Any]:
    found: list[Any] = request.body.get("messages") or request.body["input"]
    return found


def extends(short: list[Any], long: list[Any]) -> bool:
    """Return whether the longer list begins with the shorter one; Anthropic's last message may have grown."""
    last = len(short) - 1
    if long[:last] != short[:last] or long[last].get("role") != short[last].get("role"):
        return False
    if long[last].get("role") != "user" or not isinstance(long[last]["content"], list):
        return bool(long[last] == short[last])
    said = short[last]["content"]
    blocks = [{"type": "text", "text": said}] if isinstance(said, str) else said
    return bool(long[last]["content"][: len(blocks)] == blocks)


def test_without_foveal_the_same_loop_is_refused(provider: StandIn) -> None:
    class Everything(Context):
        def fit(self, messages: Any = None, *, tools: Any = (), system: Any = None) -> Any:
            super().fit(messages[:1], tools=tools)
            return messages

    with pytest.raises(
        openai.BadRequestError, match=rf"maximum context length is {WINDOW}|before the results of"
    ):
        chat(provider.openai, Everything("gpt-4.1"))


def test_the_stand_in_refuses_illegal_requests(provider: StandIn) -> None:
    orphan: Any = [{"role": "tool", "tool_call_id": "call_x", "content": "found"}]
    with (
        openai.OpenAI(base_url=provider.openai, api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="which has no call"),
    ):
        client.chat.completions.create(model="gpt-4.1", messages=orphan)
    with (
        anthropic.Anthropic(base_url=provider.anthropic, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError, match="prompt is too long"),
    ):
        claude.messages.create(
            model="claude-sonnet-4-6", messages=[{"role": "user", "content": "word " * 9_000}], max_tokens=100
        )


def test_an_answer_without_calls_ends_the_turn() -> None:
    assert looping(steps=2)(3) == Answer(text="Turn 1 is done: the answer is 3.")
