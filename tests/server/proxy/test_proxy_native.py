"""Summaries of proxied conversations that the provider itself writes, with its own compaction API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log.events import Compacted, unraw
from foveal.core.wire.native_compaction import COMPACTION_BETA
from support.effort import rest_in_soak
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer

Json = dict[str, Any]


class CompactingUpstream:
    """Answers with a call, and with a compaction where one is asked for."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.compactions: list[ReceivedRequest] = []
        self.answered: list[Json] = []

    def __call__(self, seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        body: Json = json.loads(seen.body)
        usage = {"input_tokens": len(seen.body) // 4, "output_tokens": 5}
        is_anthropic = "messages" in body
        asked = (
            "compaction" in body if is_anthropic else body["input"][-1].get("type") == "compaction_trigger"
        )
        if asked:
            self.compactions.append(seen)
            if self.refuses:
                yield answer(b'{"error": {"message": "compaction is unavailable"}}', status="400 Bad Request")
                return
        else:
            self.answered.append(body)
        if is_anthropic:
            block: Json = {"type": "tool_use", "id": f"c{number}", "name": "bash", "input": {}}
            if asked:
                block = {"type": "compaction", "content": f"Summary {number}.", "signature": "c2ln"}
            whole = {"type": "message", "role": "assistant", "content": [block], "usage": usage}
        else:
            item: Json = {"type": "function_call", "call_id": f"c{number}", "name": "bash", "arguments": "{}"}
            if asked:
                item = {"type": "compaction", "id": f"cmp_{number}", "encrypted_content": "gAAA" * 30}
            whole = {"object": "response", "status": "completed", "output": [item], "usage": usage}
        yield answer(json.dumps(whole).encode())


class Client:
    """A coding agent that resends its history."""

    def __init__(self, proxy: ProxyServer, dialect: str) -> None:
        self.proxy, self.is_anthropic = proxy, dialect == "anthropic"
        self.history: list[Json] = [{"role": "user", "content": "Find the bug."}]
        self.session = ""

    def ask(self) -> None:
        path, body = "/v1/responses", {"model": "gpt-5.1", "input": self.history, "store": False}
        headers = {"authorization": "Bearer sk-of-the-client"}
        if self.is_anthropic:
            path = "/v1/messages"
            body = {"model": "claude-opus-5-5", "max_tokens": 500, "messages": self.history}
            headers = {"x-api-key": "sk-of-the-client"}
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            reply = http.post(f"{self.proxy.url}{path}", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        self.session = reply.headers["x-foveal-session"]
        number = len(self.history)
        text = " ".join(f"word{number}x{at}" for at in range(250))
        if self.is_anthropic:
            said = reply.json()["content"]
            result = {"type": "tool_result", "tool_use_id": said[-1]["id"], "content": text}
            self.history += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": [result]},
            ]
        else:
            call = reply.json()["output"][-1]
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": text}
            self.history += [call, output]


def first(body: Json) -> Json:
    """Return the first block or item of a request."""
    message: Json = (body.get("messages") or body.get("input"))[0]
    content = message.get("content")
    return content[0] if isinstance(content, list) else message


@pytest.mark.long
@pytest.mark.parametrize("dialect", rest_in_soak(["anthropic", "openai_responses"]))
def test_the_provider_compacts_what_does_not_fit(tmp_path: Path, dialect: str) -> None:
    upstream = CompactingUpstream()
    settings = {"window": 12_000, "context__policy": "handoff", "compaction__summarise": "native"}
    with (
        RawUpstream(upstream) as raw,
        ProxyServer(tmp_path, anthropic=raw.anthropic, openai=raw.openai, **settings) as proxy,
    ):
        client = Client(proxy, dialect)
        for _ in range(25):
            client.ask()
        facts = [event.fact for event in proxy.events(client.session)]
    made = [fact for fact in facts if isinstance(fact, Compacted) and fact.native]
    assert len(made) > 1
    assert all(fact.summary.startswith("[foveal: record of") for fact in made)
    blocks = [unraw(fact.native) for fact in made]
    assert any(first(body) in blocks for body in upstream.answered)
    betas = {seen.headers.get("anthropic-beta", "") for seen in upstream.compactions}
    assert betas == ({COMPACTION_BETA} if dialect == "anthropic" else {""})


@pytest.mark.long
def test_a_refused_compaction_is_written_by_other_means(tmp_path: Path) -> None:
    upstream = CompactingUpstream(refuses=True)
    settings = {"window": 12_000, "context__policy": "handoff", "compaction__summarise": "native"}
    with RawUpstream(upstream) as raw, ProxyServer(tmp_path, anthropic=raw.anthropic, **settings) as proxy:
        client = Client(proxy, "anthropic")
        for _ in range(20):
            client.ask()
        facts = [event.fact for event in proxy.events(client.session)]
    made = [fact for fact in facts if isinstance(fact, Compacted)]
    assert upstream.compactions
    assert made
    assert not any(fact.native for fact in made)
