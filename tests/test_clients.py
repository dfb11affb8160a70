"""The three lines of the README with the real client libraries, against a provider that refuses the illegal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest

import foveal
from foveal import Context, Report
from standin import Answer, Request, StandIn, looping

WINDOW = 6_000
ANSWER = 700
"""Tokens that each request leaves for the answer."""
TURNS = 13
"""Thirteen turns of five requests: 65 in all."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def provider() -> Iterator[StandIn]:
    with StandIn(window=WINDOW) as standin:
        yield standin


def search(query: str) -> str:
    """A tool with results of all sizes: some of them are larger than the whole window."""
    number = sum(map(ord, query))
    lines = 2_000 if number % 17 == 0 else 3 + number % 23
    found = (
        f"{query}: src/module_{number}_{line}.py:{line}: value = {number * line}" for line in range(lines)
    )
    return "\n".join(found) + ("\nError: index is stale" if number % 5 == 0 else "")


def results(calls: list[tuple[str, str]], number: int) -> Iterator[tuple[str, str]]:
    """The results of calls by id; in the ninth utterance the user interrupts, and the last one is missing."""
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
                done = results(calls, ctx.report().calls)
                messages += [{"role": "tool", "tool_call_id": i, "content": text} for i, text in done]
                if not calls:
                    break
                if ctx.report().calls == 9:
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
                done = results(calls, ctx.report().calls)
                items += [{"type": "function_call_output", "call_id": i, "output": text} for i, text in done]
                if not calls:
                    break
                if ctx.report().calls == 9:
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
                    model="claude-sonnet-4-5",
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
                    for i, text in results(calls, ctx.report().calls)
                ]
                if ctx.report().calls == 9:
                    blocks.append({"type": "text", "text": "Stop, I have interrupted you. Go on."})
                history.append({"role": "user", "content": blocks})
    return history


LOOPS = [
    pytest.param(chat, "gpt-4.1", id="openai chat"),
    pytest.param(responses, "gpt-5.1", id="openai responses"),
    pytest.param(messages, "claude-sonnet-4-5", id="anthropic"),
]


def run(
    loop: Callable[[str, Context], list[Any]], model: str, provider: StandIn
) -> tuple[Context, list[Any]]:
    ctx = Context(model, window=WINDOW, reserve=ANSWER)
    url = provider.anthropic if loop is messages else provider.openai
    return ctx, loop(url, ctx)


def unreduced(request: Request) -> str:
    return str(request.body.get("messages") or request.body.get("input"))


@pytest.mark.parametrize(("loop", "model"), LOOPS)
def test_a_long_loop_is_never_refused_and_the_report_is_measured(
    loop: Callable[[str, Context], list[Any]], model: str, provider: StandIn
) -> None:
    ctx, history = run(loop, model, provider)
    report = ctx.report()
    assert provider.faults == []
    assert len(provider.requests) == report.calls == 5 * TURNS
    assert max(request.prompt for request in provider.requests) + ANSWER <= WINDOW
    assert len(str(history)) > 4 * max(len(unreduced(request)) for request in provider.requests)
    assert report.measured
    _calibrated(ctx, provider)
    _cheap(report, provider)


def _calibrated(ctx: Context, provider: StandIn) -> None:
    """After the first calls the prediction is close to what the provider counts."""
    used = [event.fact for event in ctx.log if type(event.fact).__name__ == "Used"]
    errors = sorted(abs(fact.predicted - fact.prompt) / fact.prompt for fact in used[5:])  # type: ignore[union-attr]
    assert [fact.prompt for fact in used] == [request.prompt for request in provider.requests]  # type: ignore[union-attr]
    assert errors[len(errors) // 2] < 0.05


def _cheap(report: Report, provider: StandIn) -> None:
    """Most of what is sent had been read before, because the beginning moves seldom."""
    cached = sum(request.cached for request in provider.requests)
    assert report.cached_share == provider.requests[-1].cached / provider.requests[-1].prompt
    assert cached > 0.4 * sum(request.prompt for request in provider.requests)
    assert len(report.breaks) <= report.calls / 4
    assert report.spent is not None
    assert report.spent > 0


@pytest.mark.parametrize(("loop", "model"), LOOPS)
def test_every_prefix_break_that_the_provider_sees_is_in_the_report(
    loop: Callable[[str, Context], list[Any]], model: str, provider: StandIn
) -> None:
    ctx, _ = run(loop, model, provider)
    broken = [
        number
        for number, (one, next_one) in enumerate(pairwise(provider.requests), 2)
        if not extends(_sent(one), _sent(next_one))
    ]
    assert broken == [found.call for found in ctx.report().breaks]


def _sent(request: Request) -> list[Any]:
    sent: list[Any] = request.body.get("messages") or request.body["input"]
    return sent


def extends(short: list[Any], long: list[Any]) -> bool:
    """The longer list begins with the shorter; Anthropic may add results and words to the last message."""
    if long[: len(short)] == short:
        return True
    last = len(short) - 1
    if long[:last] != short[:last] or long[last].get("role") != short[last].get("role"):
        return False
    return _blocks(long[last])[: len(_blocks(short[last]))] == _blocks(short[last])


def _blocks(message: Any) -> list[Any]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


@pytest.mark.parametrize(("loop", "model"), LOOPS)
def test_an_aborted_call_is_answered_in_the_request_and_told_in_the_report(
    loop: Callable[[str, Context], list[Any]], model: str, provider: StandIn
) -> None:
    run(loop, model, provider)
    assert "has no recorded result; it was interrupted" in unreduced(provider.requests[9])
    first = Context(model, window=200_000)
    with StandIn(window=200_000, script=looping(steps=4)) as roomy:
        loop(roomy.anthropic if loop is messages else roomy.openai, first)
    assert [repair.done for repair in first.report().repairs] == ["a synthetic result is shown"]
    assert roomy.faults == []


def test_without_foveal_the_same_loop_is_refused(provider: StandIn) -> None:
    class Everything(Context):
        def fit(self, messages: Any = None, *, tools: Any = (), system: Any = None) -> Any:
            super().fit(messages[:1], tools=tools)
            return messages

    with pytest.raises(openai.BadRequestError, match="maximum context length is 6000"):
        chat(provider.openai, Everything("gpt-4.1"))


def test_the_stand_in_refuses_what_a_provider_refuses(provider: StandIn) -> None:
    orphan: Any = [{"role": "tool", "tool_call_id": "call_x", "content": "found"}]
    with (
        openai.OpenAI(base_url=provider.openai, api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="which nobody called"),
    ):
        client.chat.completions.create(model="gpt-4.1", messages=orphan)
    with (
        anthropic.Anthropic(base_url=provider.anthropic, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.BadRequestError, match="prompt is too long"),
    ):
        claude.messages.create(
            model="claude-sonnet-4-5", messages=[{"role": "user", "content": "word " * 9_000}], max_tokens=100
        )


def test_an_answer_without_calls_ends_the_turn() -> None:
    assert looping(steps=2)(3) == Answer(text="Turn 1 is done: the answer is 3.")
    assert foveal.__version__
