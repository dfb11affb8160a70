"""Bound thinking through a transport: no reduced request is refused because of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import foveal
from support.thinking_upstream import ThinkingUpstream
from support.upstream import RawUpstream

Json = dict[str, Any]


@pytest.mark.parametrize("knows_controls", [True, False])
def test_no_reduced_request_is_refused(*, knows_controls: bool) -> None:
    upstream = ThinkingUpstream(knows_controls=knows_controls)
    pool = foveal.transport.ConversationPool(window=6_000, tokenizer="estimate")
    messages: list[Json] = [{"role": "user", "content": "Find the bug."}]
    with RawUpstream(upstream) as raw, foveal.transport.httpx(pool, trust_env=False) as http:
        for number in range(20):
            body = {
                "model": "claude-fable-5-1",
                "max_tokens": 100,
                "system": "Be careful.",
                "messages": messages,
            }
            reply = http.post(f"{raw.anthropic}/v1/messages", json=body)
            assert isinstance(reply, httpx.Response)
            assert reply.status_code == 200, reply.text
            blocks = reply.json()["content"]
            text = " ".join(f"word{number}x{at}" for at in range(150))
            result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": text}
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
        assert pool.contexts[0].report().reduced
        assert upstream.refused == []
        assert upstream.unknown_fields == (0 if knows_controls else 1)
        last = json.loads(raw.seen[-1].body)
        assert ("thinking" in last) is knows_controls
