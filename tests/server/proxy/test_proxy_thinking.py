"""Bound thinking behind the proxy: no reduced request is refused because of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log import ThinkingLeftOut
from foveal.server.runtime import IllegalRequestMade
from support.thinking_upstream import ThinkingUpstream, thoughts
from support.upstream import DEADLINE, ProxyServer, RawUpstream, until

Json = dict[str, Any]
KEY = "sk-client-0123456789abcdef"
TOOLS = [{"name": "bash", "input_schema": {"type": "object"}}]


class Client:
    """A client that sends results and a reminder as two messages, which a writer would join."""

    def __init__(self, proxy: ProxyServer) -> None:
        self.proxy = proxy
        self.messages: list[Json] = [{"role": "user", "content": "Find the bug."}]
        self.tools = TOOLS
        self.reduced = ""

    def ask(self, *, words: int) -> None:
        body = {
            "model": "claude-fable-5-1",
            "max_tokens": 100,
            "system": "You are careful.",
            "tools": self.tools,
            "thinking": {"type": "adaptive"},
            "messages": self.messages,
        }
        self.body = json.dumps(body).encode()
        headers = {"x-api-key": KEY, "content-type": "application/json", "anthropic-beta": "other-2026-01-01"}
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
            reply = http.post(f"{self.proxy.url}/v1/messages", content=self.body, headers=headers)
        assert reply.status_code == 200, reply.text
        self.reduced, self.session = reply.headers["x-foveal-reduced"], reply.headers["x-foveal-session"]
        blocks = reply.json()["content"]
        number = len(self.messages)
        text = " ".join(f"word{number}x{at}" for at in range(words))
        self.messages += [
            {"role": "assistant", "content": blocks},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": text}],
            },
            {"role": "user", "content": f"Reminder {number}."},
        ]

    @property
    def facts(self) -> list[Any]:
        return [event.fact for event in self.proxy.events(self.session)]


@contextmanager
def started(
    folder: Path, upstream: ThinkingUpstream, *, window: int = 6_000
) -> Iterator[tuple[Client, RawUpstream]]:
    with (
        RawUpstream(upstream) as raw,
        ProxyServer(folder, anthropic=raw.anthropic, window=window) as proxy,
    ):
        yield Client(proxy), raw


def test_no_reduced_request_is_refused(tmp_path: Path) -> None:
    upstream = ThinkingUpstream()
    with started(tmp_path, upstream) as (client, _):
        for _ in range(25):
            client.ask(words=150)
        assert client.reduced != "none"
        assert upstream.refused == []
        assert any(
            thoughts(body["messages"]) for body in upstream.bodies[-5:]
        )  # a cut may be in the last one
        illegal = [e for e in client.proxy.service_events if isinstance(e, IllegalRequestMade)]
        assert illegal == []


@pytest.mark.long
def test_no_request_for_a_summary_is_refused(tmp_path: Path) -> None:
    upstream = ThinkingUpstream()
    with started(tmp_path, upstream, window=24_000) as (client, raw):
        for _ in range(40):
            client.ask(words=150)
        sent = [json.loads(seen.body) for seen in raw.seen]
        assert any("thinking" not in body and len(body["messages"]) > 1 for body in sent)
        assert upstream.refused == []
        illegal = [e for e in client.proxy.service_events if isinstance(e, IllegalRequestMade)]
        assert illegal == []


def test_a_request_that_is_not_reduced_is_the_clients_own(tmp_path: Path) -> None:
    with started(tmp_path, ThinkingUpstream()) as (client, raw):
        for _ in range(4):
            client.ask(words=10)
            assert raw.seen[-1].body == client.body
            assert raw.seen[-1].headers["anthropic-beta"] == "other-2026-01-01"
        assert client.reduced == "none"


def test_a_reduced_request_asks_the_provider_to_drop_blocks(tmp_path: Path) -> None:
    with started(tmp_path, ThinkingUpstream()) as (client, raw):
        while client.reduced in ("", "none"):
            client.ask(words=150)
        for _ in range(2):
            client.ask(words=10)
            [*_, sent] = [seen for seen in raw.seen if b'"thinking"' in seen.body]
            assert json.loads(sent.body)["thinking"] == {
                "type": "adaptive",
                "block_binding": {"prefix_mismatch_behavior": "drop_block"},
            }
            betas = sent.headers["anthropic-beta"]
            assert betas == "other-2026-01-01,thinking-binding-controls-2026-08-01"


def test_an_upstream_that_refuses_the_field_does_not_get_it_again(tmp_path: Path) -> None:
    upstream = ThinkingUpstream(knows_controls=False)
    with started(tmp_path, upstream) as (client, _):
        for _ in range(20):
            client.ask(words=150)
        assert client.reduced != "none"
        assert upstream.unknown_fields == 1  # it was sent again without
        assert upstream.refused == []


def test_thinking_that_is_refused_is_left_out_and_the_request_sent_again(tmp_path: Path) -> None:
    upstream = ThinkingUpstream()
    with started(tmp_path, upstream) as (client, raw):
        client.ask(words=10)
        client.ask(words=10)
        client.tools = [*TOOLS, {"name": "read", "input_schema": {"type": "object"}}]
        client.ask(words=10)  # the client has changed its tools, so its thinking is refused
        assert len(raw.seen) == 4
        assert thoughts(upstream.bodies[-1]["messages"]) == []
        until(lambda: sum(isinstance(fact, ThinkingLeftOut) for fact in client.facts) == 1)
        client.ask(words=10)
        assert len(raw.seen) == 5
        assert thoughts(upstream.bodies[-1]["messages"]) == ["sig3"]
