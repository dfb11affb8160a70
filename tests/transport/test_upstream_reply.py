"""Replies read from the bytes of a stream: a stream of text alone is read like any other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foveal.core.log import ModelSaid, Used
from foveal.core.wire.usage import read_usage
from foveal.transport.upstream_reply import UpstreamReply, read_reply

STOP = {"index": 0, "delta": {}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def stream(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "1", "choices": [{"index": 0, "delta": delta, **fields}]}


def read_as_events(data: bytes) -> UpstreamReply | None:
    """Read a stream with other line breaks, which is never read as text alone."""
    return read_reply(data.replace(b"\n", b"\r\n"), "openai_chat", streamed=True)


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk({"role": "assistant", "content": ""}), chunk({"content": "one"}), {"choices": [STOP]}],
        [chunk({"content": "ä\n\ndata: {}"}), {"choices": [STOP], "usage": USAGE}],
        [chunk({"content": "one"}), {"choices": [STOP]}, {"choices": [], "usage": USAGE}],
        [chunk({"content": "one", "refusal": None}, logprobs={"a": 1}), {"choices": [STOP], "usage": None}],
        [
            chunk({"reasoning_content": "hm", "content": None}),
            chunk({"content": "one"}, finish_reason="stop"),
        ],
        [chunk({"content": "one"}), chunk({"content": "two"}, index=1), {"choices": [STOP]}],
        [chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})],
        [chunk({"content": "one"}, finish_reason="length", usage=USAGE)],
        [{"choices": [{"delta": {"content": "one"}, "finish_reason": "stop"}]}],
        [chunk({"content": "one"})],
        [chunk({"content": ["one"]}), {"choices": [STOP]}],
        [{"error": {"message": "overloaded"}}],
        [],
    ],
)
def test_every_stream_is_read_as_its_events_are(chunks: list[dict[str, Any]]) -> None:
    data = stream(*chunks)
    assert read_reply(data, "openai_chat", streamed=True) == read_as_events(data)


def test_a_stream_of_text_alone_is_read() -> None:
    reply = read_reply(
        stream(chunk({"content": "one "}), chunk({"content": "two"}), {"choices": [STOP], "usage": USAGE}),
        "openai_chat",
        streamed=True,
    )
    assert reply == UpstreamReply(
        messages=[{"role": "assistant", "content": "one two"}],
        facts=(ModelSaid(content="one two"),),
        usage={**USAGE, "stop_reason": "stop"},
    )


def test_a_stream_with_a_line_that_is_no_chunk_counts_as_no_reply() -> None:
    broken = b'data: {"choices": []}\n{"choices": []}\n\ndata: {"choices"\n\ndata: [DONE]\n\n'
    assert read_reply(broken, "openai_chat", streamed=True) is None


def test_a_reply_that_reports_no_usage_has_none() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "So."}, "finish_reason": "stop"}
    reply = read_reply(json.dumps({"choices": [choice]}).encode(), "openai_chat", streamed=False)
    assert reply is not None
    assert reply.usage is None


@pytest.mark.parametrize("streamed", [False, True])
def test_a_gemini_reply_is_joined_from_its_pieces(streamed: bool) -> None:
    pieces = [
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "On"}]}}]},
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "e."}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 3},
        },
    ]
    data = b"".join(b"data: %b\n\n" % json.dumps(piece).encode() for piece in pieces)
    reply = read_reply(data if streamed else json.dumps(pieces).encode(), "gemini", streamed=streamed)
    assert reply is not None
    assert reply.messages == [{"role": "model", "parts": [{"text": "On"}, {"text": "e."}]}]
    assert reply.usage == {"promptTokenCount": 3, "stop_reason": "STOP"}


# ── What a reply says of the provider's cache ────────────────────────────────────────────────────────────


def server_events(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("output", [[], [{"type": "message", "role": "assistant", "content": "So."}]])
def test_the_usage_of_openai_has_its_diagnostics_also_without_an_answer(
    streamed: bool, output: list[Any]
) -> None:
    missed = {"type": "cache_miss", "reason": "tools_changed", "cache_missed_tokens": 40}
    usage = {"input_tokens": 90, "input_tokens_details": {"cache_write_tokens": 90}, "output_tokens": 0}
    done = {"status": "completed", "output": output, "usage": usage, "prompt_cache_diagnostics": missed}
    data = (
        server_events({"type": "response.completed", "response": done})
        if streamed
        else json.dumps(done).encode()
    )
    reply = read_reply(data, "openai_responses", streamed=streamed)
    assert reply is not None
    assert len(reply.facts) == len(output)
    assert read_usage(reply.usage) == Used(
        input=0, cache_write=90, cache_miss="tools_changed", cache_missed=40
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_the_usage_of_anthropic_has_lifetimes_and_diagnostics(streamed: bool) -> None:
    usage = {
        "input_tokens": 5, "cache_creation_input_tokens": 90, "output_tokens": 1,
        "cache_creation": {"ephemeral_1h_input_tokens": 90, "ephemeral_5m_input_tokens": 0},
    }  # fmt: skip
    reason = {"type": "tools_changed", "cache_missed_input_tokens": 40}
    message = {"type": "message", "usage": usage, "diagnostics": {"cache_miss_reason": reason}}
    text = {"type": "text", "text": "So."}
    data = server_events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {**text, "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "So."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
    )
    if not streamed:
        whole = {**message, "content": [text], "usage": {**usage, "output_tokens": 7}}
        data = json.dumps(whole | {"stop_reason": "end_turn"}).encode()
    reply = read_reply(data, "anthropic", streamed=streamed)
    assert reply is not None
    assert read_usage(reply.usage) == Used(
        input=5, cache_write=90, cache_write_1h=90, output=7, cache_miss="tools_changed", cache_missed=40
    )
