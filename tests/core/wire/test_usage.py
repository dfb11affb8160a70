"""Usage reports of providers and frameworks: where cached tokens are counted, and what is not understood."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foveal.core.log import Event, Used
from foveal.core.models.cost import UsageTotals
from foveal.core.wire.usage import read_usage, usage_or_none
from foveal.errors import BadSetting
from support.histories import plain_model

SAME = Used(input=300, cache_read=600, cache_write=100, output=200)
"""A request of 1,000 tokens, of which 600 were read from the cache and 100 written."""
THOUGHT = Used(input=400, cache_read=600, output=200, reasoning=150)

GEMINI = {
    "promptTokenCount": 1_000,
    "cachedContentTokenCount": 600,
    "candidatesTokenCount": 50,
    "thoughtsTokenCount": 150,
    "toolUsePromptTokenCount": 70,
    "totalTokenCount": 1_270,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1_000}],
}
BEDROCK = {
    "inputTokens": 300,
    "cacheReadInputTokens": 600,
    "cacheWriteInputTokens": 100,
    "outputTokens": 200,
    "totalTokens": 1_200,
}
LANGCHAIN = {
    "input_tokens": 1_000,
    "output_tokens": 200,
    "total_tokens": 1_200,
    "input_token_details": {"cache_read": 600, "cache_creation": 100},
}
RESPONSES = {
    "input_tokens": 1_000,
    "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
    "output_tokens": 200,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1_200,
}
AGENT_FRAMEWORK = {
    "input_token_count": 300,
    "output_token_count": 200,
    "cache_read_input_token_count": 600,
    "cache_creation_input_token_count": 100,
}


def snake_case(fields: dict[str, Any]) -> dict[str, Any]:
    return {"".join(f"_{c.lower()}" if c.isupper() else c for c in name): fields[name] for name in fields}


# ── Dicts, as each service sends them ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(BEDROCK, id="bedrock"),
        pytest.param({"metadata": {"usage": BEDROCK, "metrics": {"latencyMs": 1}}}, id="bedrock stream"),
        pytest.param(LANGCHAIN, id="langchain"),
        pytest.param(RESPONSES, id="responses"),
        pytest.param({"type": "response.completed", "response": {"usage": RESPONSES}}, id="responses stream"),
        pytest.param(BEDROCK | {"inputTokens": 1_000}, id="strands with OpenAI"),
        pytest.param(AGENT_FRAMEWORK, id="agent-framework with Anthropic"),
        pytest.param(AGENT_FRAMEWORK | {"total_token_count": 1_200}, id="agent-framework with Bedrock"),
        pytest.param(
            AGENT_FRAMEWORK | {"input_token_count": 1_000, "total_token_count": 1_200},
            id="agent-framework with OpenAI",
        ),
        pytest.param(SimpleNamespace(usage_details=AGENT_FRAMEWORK), id="agent-framework's reply"),
        pytest.param(
            {
                "prompt_tokens": 1_000,
                "completion_tokens": 200,
                "cached_prompt_tokens": 600,
                "cache_creation_tokens": 100,
                "successful_requests": 1,
            },
            id="crewai",
        ),
        pytest.param({"usage": {"prompt_tokens": 1_000, "completion_tokens": 200} | {
            "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100}}, id="litellm's dict in dspy"),
    ],
)  # fmt: skip
def test_the_same_request_is_read_alike_from_every_service(report: Any) -> None:
    assert read_usage(report) == SAME


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(GEMINI, id="REST"),
        pytest.param({"candidates": [], "usageMetadata": GEMINI}, id="REST reply"),
        pytest.param(SimpleNamespace(**snake_case(GEMINI)), id="google-genai"),
        pytest.param(SimpleNamespace(usage_metadata=SimpleNamespace(**snake_case(GEMINI))), id="google-adk"),
        pytest.param(
            {
                "input_token_count": 1_000,
                "output_token_count": 50,
                "total_token_count": 1_200,
                "cache_read_input_token_count": 600,
                "reasoning_output_token_count": 150,
            },
            id="agent-framework",
        ),
    ],
)
def test_gemini_counts_thoughts_beside_the_candidates(report: Any) -> None:
    assert read_usage(report) == THOUGHT


@pytest.mark.parametrize("shape", [dict, lambda **fields: SimpleNamespace(**fields)])
def test_ollama_counts_stand_in_the_reply_itself(shape: Any) -> None:
    reply = shape(message=shape(role="assistant", content="hi"), prompt_eval_count=900, eval_count=40)
    assert read_usage(reply) == Used(input=900, output=40)


def test_a_message_of_haystack_or_smolagents_is_a_reply() -> None:
    counts = {"prompt_tokens": 900, "completion_tokens": 40}
    assert read_usage(SimpleNamespace(meta={"usage": counts})) == Used(input=900, output=40)
    counted = SimpleNamespace(input_tokens=900, output_tokens=40, total_tokens=940)
    assert read_usage(SimpleNamespace(token_usage=counted)) == Used(input=900, output=40)


def test_a_reply_of_llama_index_holds_the_providers_reply() -> None:
    raw = SimpleNamespace(usage=SimpleNamespace(prompt_tokens=900, completion_tokens=40))
    assert read_usage(SimpleNamespace(raw=raw, message=SimpleNamespace())) == Used(input=900, output=40)


# ── Objects of the libraries ─────────────────────────────────────────────────────────────────────────────


def test_langchain_message() -> None:
    messages = pytest.importorskip("langchain_core.messages")
    reply = messages.AIMessage("hi", usage_metadata=LANGCHAIN)
    assert read_usage(reply) == SAME
    assert read_usage(messages.AIMessageChunk("hi", usage_metadata=LANGCHAIN)) == SAME


def test_langchain_splits_anthropics_cache_writes_by_lifetime() -> None:
    details = {"cache_read": 600, "cache_creation": 0, "ephemeral_5m_input_tokens": 30}
    details["ephemeral_1h_input_tokens"] = 70
    assert read_usage(LANGCHAIN | {"input_token_details": details}) == Used(
        input=300, cache_read=600, cache_write=100, cache_write_1h=70, output=200
    )


@pytest.mark.long
def test_pydantic_ai_reply_and_usage() -> None:
    usage = pytest.importorskip("pydantic_ai.usage")
    messages = pytest.importorskip("pydantic_ai.messages")
    counted = usage.RequestUsage(
        input_tokens=1_000, cache_read_tokens=600, cache_write_tokens=100, output_tokens=200
    )
    assert read_usage(counted) == SAME
    assert read_usage(messages.ModelResponse(parts=[], usage=counted)) == SAME
    assert read_usage(usage.RunUsage(requests=1, input_tokens=1_000, output_tokens=200)) == Used(
        input=1_000, output=200
    )
    with pytest.raises(BadSetting, match="the sum of 3"):
        read_usage(usage.RunUsage(requests=3, input_tokens=3_000, output_tokens=200))


def test_litellm_reply_of_anthropic() -> None:
    types = pytest.importorskip("litellm.types.utils")
    counted = types.Usage(
        prompt_tokens=1_000,
        completion_tokens=200,
        total_tokens=1_200,
        cache_read_input_tokens=600,
        cache_creation_input_tokens=100,
    )
    assert read_usage(counted) == SAME
    assert read_usage(types.ModelResponse(usage=counted)) == SAME


def test_openai_objects() -> None:
    from openai.types.chat import ChatCompletionChunk
    from openai.types.responses import ResponseUsage

    assert read_usage(ResponseUsage.model_validate(RESPONSES)) == SAME
    counted = {"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940}
    chunk = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk", "choices": []}
    last = ChatCompletionChunk.model_validate(chunk | {"usage": counted})
    assert read_usage(last) == Used(input=900, output=40)


def test_openai_agents_lists_the_requests_of_a_run() -> None:
    entry = SimpleNamespace(**RESPONSES)
    run = SimpleNamespace(
        requests=2, request_usage_entries=[SimpleNamespace(input_tokens=5), entry], **RESPONSES
    )
    assert read_usage(run) == SAME
    run.request_usage_entries = []
    with pytest.raises(BadSetting, match="the sum of 2"):
        read_usage(SimpleNamespace(usage=run))


# ── Anthropic: lifetimes of the cache, and diagnostics ───────────────────────────────────────────────────


def test_anthropic_reply_with_hour_writes_thinking_and_diagnostics() -> None:
    from anthropic.types import Message

    reply = Message.model_validate(
        {
            "id": "m", "type": "message", "role": "assistant", "model": "claude", "content": [],
            "stop_reason": "end_turn", "stop_sequence": None,
            "usage": {
                "input_tokens": 300, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 100,
                "cache_creation": {"ephemeral_1h_input_tokens": 70, "ephemeral_5m_input_tokens": 30},
                "output_tokens": 200, "output_tokens_details": {"thinking_tokens": 150},
            },
            "diagnostics": {
                "cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 8_000}
            },
        }
    )  # fmt: skip
    expected = Used(
        input=300,
        cache_read=600,
        cache_write=100,
        cache_write_1h=70,
        output=200,
        reasoning=150,
        cache_miss="tools_changed",
        cache_missed=8_000,
    )
    assert read_usage(reply) == expected
    assert read_usage(reply.model_dump()) == expected


@pytest.mark.parametrize("reason", [None, {"type": 5}, {"type": "two words\n"}, "text"])
def test_a_malformed_diagnosis_is_left_out(reason: Any) -> None:
    reply = {"usage": {"input_tokens": 9}, "diagnostics": {"cache_miss_reason": reason}}
    assert read_usage(reply) == Used(input=9)


# ── OpenAI: lifetimes of the cache, and diagnostics ──────────────────────────────────────────────────────


def responses_reply(**more: Any) -> Any:
    from openai.types.responses import Response

    details = {
        "cached_tokens": 600,
        "cache_write_tokens": 100,
        "cache_write_tokens_details": {"ttl_12h_tokens": 70, "ttl_30m_tokens": 30},
    }
    usage = {
        "input_tokens": 1_000, "input_tokens_details": details, "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 1_000,
    }  # fmt: skip
    fields = {"id": "r", "created_at": 0, "model": "gpt-5.6", "object": "response", "output": [], "tools": []}
    more = {"tool_choice": "auto", "parallel_tool_calls": True, "status": "completed", **more}
    return Response.model_validate({**fields, **more, "usage": usage})


def test_openais_reply_with_12_hour_writes_and_diagnostics() -> None:
    missed = {"type": "cache_miss", "reason": "context_compacted", "cache_missed_tokens": 8_000}
    reply = responses_reply(prompt_cache_diagnostics=missed)
    counts = {"input": 300, "cache_read": 600, "cache_write": 100, "cache_write_12h": 70}
    expected = Used(**counts, cache_miss="context_compacted", cache_missed=8_000)
    assert read_usage(reply) == expected
    assert read_usage(reply.model_dump()) == expected
    assert read_usage({"type": "response.completed", "response": reply.model_dump()}) == expected


@pytest.mark.parametrize(
    "diagnostics",
    [
        None,
        {"type": "cache_hit"},
        {"type": "comparison_response_not_found"},
        {"type": "cache_miss", "reason": "two words\n"},
        {"type": "cache_miss", "reason": 5},
        "text",
    ],
)
def test_diagnostics_that_name_no_miss_are_left_out(diagnostics: Any) -> None:
    reply = {"usage": {"input_tokens": 9}, "prompt_cache_diagnostics": diagnostics}
    assert read_usage(reply) == Used(input=9)


def test_bedrock_details_split_cache_writes_by_lifetime() -> None:
    details = [{"ttl": "1h", "inputTokens": 70}, {"ttl": "5m", "inputTokens": 30}]
    assert read_usage(BEDROCK | {"cacheDetails": details}) == Used(
        input=300, cache_read=600, cache_write=100, cache_write_1h=70, output=200
    )


# ── What is not usage ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "report",
    [
        "text",
        b"text",
        5,
        [],
        {},
        {"tokens": 5},
        object(),
        SimpleNamespace(usage={}),
        {"usage": {"tokens": 5}},
    ],
)
def test_a_report_without_known_counts_is_refused(report: Any) -> None:
    with pytest.raises(BadSetting) as caught:
        read_usage(report)
    assert caught.value.field == "usage"
    assert usage_or_none(report) is None


def test_the_refusal_names_the_fields_but_no_text() -> None:
    with pytest.raises(BadSetting) as caught:
        read_usage({"choices": [{"text": "secret"}], "id": "x"})
    assert "dict with the fields choices, id" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("report", [None, {"usage": None}, SimpleNamespace(usage_metadata=None)])
def test_a_reply_without_usage_is_none(report: Any) -> None:
    assert read_usage(report) is None


@pytest.mark.parametrize(
    "report",
    [{"output_tokens": 5}, {"prompt_tokens": 0}, {"usage": {"input_tokens": None, "output_tokens": 3}}],
)
def test_an_aborted_reply_has_counts_but_no_prompt(report: Any) -> None:
    assert read_usage(report) is None


@pytest.mark.parametrize("count", ["900", -5, 10**12, float("nan"), float("inf"), True, [900], object()])
@pytest.mark.parametrize("name", ["prompt_tokens", "inputTokens", "prompt_eval_count"])
def test_a_prompt_that_is_no_count_is_refused(name: str, count: Any) -> None:
    with pytest.raises(BadSetting, match="whole number"):
        read_usage({name: count, "output_tokens": 5})
    assert usage_or_none({name: count}) is None


def test_a_cached_prompt_beside_a_malformed_count_is_refused() -> None:
    with pytest.raises(BadSetting, match="whole number"):
        read_usage({"input_tokens": -1, "cache_read_input_tokens": 600, "output_tokens": 5})


def test_of_several_iterations_the_last_message_is_the_size_and_all_are_billed() -> None:
    first = {"type": "message", "input_tokens": 50_000, "output_tokens": 10}
    compaction = {"type": "compaction", "input_tokens": 3_000, "output_tokens": 900}
    last = {"type": "message", "input_tokens": 1_000, "cache_read_input_tokens": 16_000, "output_tokens": 20}
    usage = {
        "input_tokens": 51_000,
        "cache_read_input_tokens": 16_000,
        "output_tokens": 30,
        "iterations": [first, compaction, last, {**compaction, "input_tokens": 7}],
    }
    used = read_usage(usage)
    assert used is not None
    assert used.prompt == 17_000
    assert sum(one.input for one in used.billed) == 54_007
    assert sum(one.output for one in used.billed) == 1_830
    totals = UsageTotals().after(Event(0, used), plain_model(200_000))
    assert (totals.input, totals.cache_read, totals.output, totals.calls) == (54_007, 16_000, 1_830, 1)


@pytest.mark.parametrize("iterations", [None, [], "x", [None], [3], [{"type": "message"}], {"a": 1}])
def test_iterations_that_say_nothing_are_ignored(iterations: Any) -> None:
    usage = {"input_tokens": 100, "output_tokens": 5}
    assert read_usage({**usage, "iterations": iterations}) == read_usage(usage)
