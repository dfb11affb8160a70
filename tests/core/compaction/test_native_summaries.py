"""Summaries that the provider itself writes, through its own compaction API."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, Final

import pytest

import foveal
from foveal.core.compaction.health import CompactionMetrics
from foveal.core.compaction.summariser import SummaryRequest
from foveal.core.log.events import Compacted, unraw
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.legality import request_faults
from foveal.core.wire.native_compaction import COMPACTION_BETA, COMPACTION_TRIGGER
from foveal.errors import SummariserFailed
from support.effort import rest_in_soak

Json = dict[str, Any]
LONG: Final = "\n".join(f"line {number}: value {number * 7919 % 1000}" for number in range(120))
PRESETS: Final = ("handoff", "recent-summary", "sliding-summary")


class Provider:
    """Compacts conversations, and remembers what it was sent."""

    def __init__(self, *, is_empty: bool = False) -> None:
        self.requests: list[SummaryRequest] = []
        self.is_empty = is_empty

    def compact(self, request: SummaryRequest) -> Json:
        self.requests.append(request)
        text = None if self.is_empty else f"Summary {len(self.requests)}."
        usage = {"input_tokens": 900, "output_tokens": 30}
        if request.dialect == "anthropic":
            block = {"type": "compaction", "content": text, "signature": f"sig{len(self.requests)}"}
            return {"role": "assistant", "content": [block], "stop_reason": "compaction", "usage": usage}
        item = {"type": "compaction", "id": "cmp_1", "encrypted_content": text and text * 20}
        return {"output": [item], "status": "completed", "usage": usage}


def turns(dialect: str, count: int) -> list[Json]:
    messages: list[Json] = []
    for turn in range(count):
        text = f"{turn}\n{LONG}"
        if dialect == "anthropic":
            call = {"type": "tool_use", "id": f"t{turn}", "name": "bash", "input": {"command": f"run {turn}"}}
            result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": text}
            messages += [
                {"role": "user", "content": f"Task {turn}: look at file_{turn}.py"},
                {"role": "assistant", "content": [{"type": "text", "text": f"I look {turn}."}, call]},
                {"role": "user", "content": [result]},
                {"role": "assistant", "content": f"Done with {turn}."},
            ]
        else:
            call = {"type": "function_call", "call_id": f"c{turn}", "name": "bash", "arguments": "{}"}
            messages += [
                {"role": "user", "content": f"Task {turn}: look at file_{turn}.py"},
                call,
                {"type": "function_call_output", "call_id": f"c{turn}", "output": text},
                {"role": "assistant", "content": f"Done with {turn}."},
            ]
    return messages


def context(provider: Provider, dialect: str, policy: str = "handoff") -> foveal.Context:
    model = "claude-opus-5-5" if dialect == "anthropic" else "gpt-5.1"
    return foveal.Context(
        model,
        policy=policy,
        window=16_000,
        reserve=1_000,
        dialect=dialect,
        summarise=foveal.Summariser(provider.compact, native=True),
    )


def run(ctx: foveal.Context, history: list[Json], **beside: Any) -> list[Json]:
    """Fit a history as it grows, and return the last request."""
    sent: list[Json] = []
    for end in range(1, len(history) + 1, 2):
        sent = ctx.fit(history[:end], **beside)
    return sent


def compactions(ctx: foveal.Context) -> list[Compacted]:
    return [event.fact for event in ctx.log if isinstance(event.fact, Compacted)]


def native(message: Json) -> Json:
    """Return the compaction block or item that a message is, or begins with."""
    content = message.get("content")
    return content[0] if isinstance(content, list) else message


def is_native(message: Json) -> bool:
    return native(message).get("type") == "compaction"


@pytest.mark.parametrize(
    ("dialect", "policy"), rest_in_soak(product(["anthropic", "openai_responses"], PRESETS), every=2)
)
def test_requests_begin_with_what_the_provider_wrote(dialect: str, policy: str) -> None:
    provider, history = Provider(), turns(dialect, 40)
    ctx = context(provider, dialect, policy)
    for end in range(1, len(history) + 1, 2):
        sent = ctx.fit(history[:end], system="Be careful.")
        assert request_faults(dialect, sent, thinking=ThinkingCheck()) == []
        made = [fact for fact in compactions(ctx) if fact.native]
        found = [native(message) for message in sent if is_native(message)]
        if made:
            assert is_native(sent[0])
            assert found == [unraw(made[-1].native)]
    assert len(provider.requests) > 1
    for fact in compactions(ctx):
        assert fact.by == ctx.report().model
        assert fact.summary.startswith("[foveal: record of")


def test_the_request_is_the_conversation_with_the_fields_of_the_provider() -> None:
    provider = Provider()
    ctx = context(provider, "anthropic")
    tools = [{"name": "bash", "input_schema": {}}]
    run(ctx, turns("anthropic", 14), system="Be careful.", tools=tools)
    arguments = provider.requests[0].arguments()
    assert arguments["compaction"] == {"type": "summarize"}
    assert arguments["betas"] == [COMPACTION_BETA]
    assert (arguments["system"], len(arguments["tools"])) == ("Be careful.", 1)
    assert arguments["messages"][0] == {"role": "user", "content": "Task 0: look at file_0.py"}
    ctx = context(other := Provider(), "openai_responses")
    run(ctx, turns("openai_responses", 14))
    assert other.requests[0].arguments()["input"][-1] == COMPACTION_TRIGGER


@pytest.mark.parametrize("dialect", ["anthropic", "openai_responses"])
def test_an_undo_and_another_model_show_what_the_log_has(dialect: str) -> None:
    provider, history = Provider(), turns(dialect, 14)
    ctx = context(provider, dialect)
    assert is_native(run(ctx, history)[0])
    made = compactions(ctx)[-1]
    assert "file_0.py" in ctx.recall("recall_search", {"query": "file_0.py"})
    (summary,) = ctx.report().summaries
    ctx.undo(summary.handle)
    events = {status.handle: status.level for status in ctx.report().events}
    assert events[f"e{made.first}"] == "full"
    ctx = context(provider, dialect)
    run(ctx, history)
    ctx.use("claude-sonnet-4-5" if dialect == "anthropic" else "gpt-4.1", window=16_000)
    other = ctx.fit(history[:-1])
    # Anthropic's block is readable, for every model of Anthropic. OpenAI's item is not.
    assert any(map(is_native, other)) is (dialect == "anthropic")
    assert made.summary.startswith("[foveal: record of")


@pytest.mark.parametrize("dialect", ["anthropic", "openai_responses", "openai_chat"])
def test_an_empty_or_failed_compaction_falls_back_to_the_ledger(dialect: str) -> None:
    def fail(request: SummaryRequest) -> Json:
        raise ConnectionError("no connection")

    for write in (Provider(is_empty=True).compact, fail):
        ctx = foveal.Context(
            "claude-opus-5-5",
            policy="handoff",
            window=16_000,
            reserve=1_000,
            dialect=dialect,
            summarise=foveal.Summariser(write, native=True),
        )
        history = turns(dialect, 16) if dialect != "openai_chat" else _chat_turns(16)
        with pytest.warns(SummariserFailed):
            run(ctx, history)
        fact = compactions(ctx)[0]
        assert (fact.by, bool(fact.native)) == ("ledger", False)
        summary = ctx.report().summaries[0]
        assert isinstance(summary.measures, CompactionMetrics)
        assert summary.measures.checks


def test_all_that_a_compaction_takes_is_counted() -> None:
    """The reply has its counts in `iterations`, and none or few around them."""
    entry = {"type": "compaction", "input_tokens": 5_000, "output_tokens": 100}

    def compact(request: SummaryRequest, around: int) -> Json:
        block = {"type": "compaction", "content": "The user counts words.", "signature": "c2ln"}
        usage = {"input_tokens": around, "output_tokens": around, "iterations": [entry]}
        return {"role": "assistant", "content": [block], "stop_reason": "compaction", "usage": usage}

    for around in (0, 5):
        write = foveal.Summariser(partial(compact, around=around), native=True)
        ctx = foveal.Context("claude-opus-5-5", policy="handoff", window=16_000, summarise=write)
        run(ctx, turns("anthropic", 14))
        (summary,) = ctx.report().summaries
        assert (summary.measures.input, summary.measures.output) == (5_000 + around, 100 + around)
        assert summary.measures.cost


def test_another_vendors_model_gets_the_record() -> None:
    provider, history = Provider(), turns("anthropic", 14)
    ctx = context(provider, "anthropic")
    assert is_native(run(ctx, history)[0])
    ctx.use("gpt-4.1", window=16_000)
    other = ctx.fit(history[:-1])
    assert not any(map(is_native, other))
    assert "[foveal: record of" in str(other)


def _chat_turns(count: int) -> list[Json]:
    messages: list[Json] = []
    for turn in range(count):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"Task {turn}: look at file_{turn}.py"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn}\n{LONG}"},
            {"role": "assistant", "content": f"Done with {turn}."},
        ]
    return messages


def test_the_word_alone_needs_a_client() -> None:
    with pytest.raises(foveal.BadSetting, match="native=True"):
        foveal.Context("claude-opus-5-5", summarise="native")  # type: ignore[arg-type]
    with pytest.raises(foveal.BadSetting, match="its own conversation"):
        foveal.Summariser(Provider().compact, model="gpt-4.1", native=True)
