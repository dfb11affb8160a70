"""Conversations that the provider compacts, through a transport: the context has what its summaries stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import foveal
from support.compacting_upstream import COMPACTION, CompactingUpstream
from support.upstream import RawUpstream

Json = dict[str, Any]
TRIGGER = {"type": "compaction_trigger"}


class Client:
    """A client of Responses that compacts as Codex does: the messages of the user stay, and the item."""

    def __init__(self, upstream: CompactingUpstream, raw: RawUpstream, http: Any) -> None:
        self.upstream, self.url, self.http = upstream, f"{raw.openai}/responses", http
        self.model, self.key = "gpt-5", "sk-one"
        self.items: list[Json] = []

    def post(self, items: list[Json]) -> list[Json]:
        headers = {"authorization": f"Bearer {self.key}"}
        reply = self.http.post(self.url, json={"model": self.model, "input": items}, headers=headers)
        assert reply.status_code == 200, reply.text
        output: list[Json] = reply.json()["output"]
        return output

    def ask(self, text: str) -> None:
        call_id = f"c{len(self.items)}"
        call = {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": call_id, "output": f"src/found_{call_id}.py: 17"}
        self.items += [call, result, {"role": "user", "content": text}]
        self.items += self.post(self.items)

    def compact(self) -> None:
        whole = [*self.items, TRIGGER]
        output = self.post(whole)
        assert self.upstream.bodies[-1]["input"] == whole
        self.items = [*(one for one in self.items if one.get("role") == "user"), *output]

    @property
    def sent(self) -> str:
        return json.dumps(self.upstream.bodies[-1]["input"])


@pytest.fixture(name="client")
def started() -> Iterator[Client]:
    upstream = CompactingUpstream()
    pool = foveal.transport.ConversationPool(window=24_000, tokenizer="estimate")
    with RawUpstream(upstream) as raw, foveal.transport.httpx(pool, trust_env=False) as http:
        yield Client(upstream, raw, http)


@pytest.mark.parametrize("change", ["model", "key"])
def test_after_a_switch_the_log_says_what_the_item_stood_for(client: Client, change: str) -> None:
    for number in range(4):
        client.ask(f"Look at {number}.")
    client.compact()
    client.ask("Go on.")
    setattr(client, change, "gpt-4.1" if change == "model" else "sk-two")
    client.ask("And now?")
    assert client.upstream.refused == (change == "key")
    assert COMPACTION not in client.sent
    assert "found_c12.py" in client.sent
    client.ask("And then?")
    assert client.upstream.refused == (change == "key")
    assert "found_c12.py" in client.sent


def test_messages_that_are_still_there_are_shown_again(client: Client) -> None:
    client.ask("Look at one.")
    client.items += client.post([*client.items, TRIGGER])
    client.ask("Go on.")
    client.key = "sk-two"
    client.ask("And now?")
    assert client.upstream.refused == 1
    assert client.upstream.bodies[-1]["input"] == [
        item for item in client.items[:-1] if item.get("type") != COMPACTION
    ]
