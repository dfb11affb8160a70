"""Conversations that the provider compacts, behind the proxy: the log has what its summaries stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log import ForeignSummary, Noted
from support.compacting_upstream import COMPACTION, CompactingUpstream
from support.effort import rest_in_soak
from support.upstream import DEADLINE, ProxyServer, RawUpstream, until

Json = dict[str, Any]
TRIGGER = {"type": "compaction_trigger"}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


class Client:
    """A client of Responses that compacts as Codex does: the messages of the user stay, and the item."""

    def __init__(self, proxy: ProxyServer) -> None:
        self.proxy = proxy
        self.model, self.key = "gpt-5", "sk-one-0123456789abcdef"
        self.items: list[Json] = []
        self.sessions: list[str] = []
        self.calls = 0

    def post(self, items: list[Json], path: str = "") -> httpx.Response:
        self.body = json.dumps({"model": self.model, "input": items}).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
            reply = http.post(f"{self.proxy.openai}/responses{path}", content=self.body, headers=headers)
        assert reply.status_code == 200, reply.text
        self.headers = reply.headers
        self.sessions.append(reply.headers.get("x-foveal-session", ""))
        return reply

    def ask(self, text: str, *, calls: int = 0) -> None:
        for _ in range(calls):
            self.calls += 1
            call_id = f"c{self.calls}"
            call = {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": "{}"}
            output = f"src/found_{self.calls}.py: 17 lines"
            self.items += [call, {"type": "function_call_output", "call_id": call_id, "output": output}]
        self.items.append(user(text))
        self.items += self.post(self.items).json()["output"]

    def compact(self) -> None:
        (item,) = self.post([*self.items, TRIGGER]).json()["output"]
        assert item["type"] == COMPACTION
        self.items = [*(one for one in self.items if one.get("role") == "user"), item]

    @property
    def facts(self) -> list[Any]:
        return [event.fact for event in self.proxy.events(self.sessions[-1])]


@pytest.fixture(name="upstream")
def compacting() -> CompactingUpstream:
    return CompactingUpstream()


@pytest.fixture(name="client")
def started(tmp_path: Path, upstream: CompactingUpstream) -> Iterator[Client]:
    with RawUpstream(upstream) as raw, ProxyServer(tmp_path, openai=raw.openai, window=24_000) as proxy:
        yield Client(proxy)


def sent(upstream: CompactingUpstream) -> str:
    return json.dumps(upstream.bodies[-1]["input"])


def test_a_request_to_compact_is_recorded_and_forwarded_unchanged(
    client: Client, upstream: CompactingUpstream
) -> None:
    client.ask("Look at one.", calls=3)
    client.ask("Look at two.", calls=3)
    whole = list(client.items)
    client.compact()
    assert upstream.bodies[-1]["input"] == [*whole, TRIGGER]
    assert client.headers["x-foveal-reduced"].startswith("none; forwarded unchanged (")
    until(lambda: any(isinstance(fact, ForeignSummary) for fact in client.facts))
    client.ask("Go on.")
    assert upstream.bodies[-1]["input"] == client.items[:-1]
    assert len(set(client.sessions)) == 1


def test_a_conversation_that_is_too_large_to_be_compacted_is_sent_reduced(
    client: Client, upstream: CompactingUpstream
) -> None:
    upstream.max_bytes = 130_000
    for number in range(40):
        client.items += [
            user(f"Part {number}."),
            {"role": "assistant", "content": f"{number} " + "word " * 1_000},
        ]
    client.ask("Go on.")
    client.compact()
    assert upstream.too_large == 1
    assert upstream.bodies[-1]["input"][-1] == TRIGGER
    assert "[foveal:" in sent(upstream)
    assert client.headers["x-foveal-reduced"] != "none"
    assert "unchanged" not in client.headers["x-foveal-reduced"]
    client.ask("And now?")
    assert COMPACTION in sent(upstream)
    assert upstream.too_large == 1
    assert len(set(client.sessions)) == 1


@pytest.mark.parametrize("change", ["model", "key"])
def test_after_a_switch_the_log_says_what_the_item_stood_for(
    client: Client, upstream: CompactingUpstream, change: str
) -> None:
    for number in range(5):
        client.ask(f"Look at {number}.", calls=3)
    client.compact()
    for number in range(5, 10):
        client.ask(f"Look at {number}.", calls=3)
    newer = list(client.items)
    setattr(client, change, "gpt-4.1" if change == "model" else "sk-two-0123456789abcdef")
    client.ask("Go on.")
    assert upstream.refused == (change == "key")
    assert COMPACTION not in sent(upstream)
    assert "found_2.py" in sent(upstream)
    shown = upstream.bodies[-1]["input"]
    assert [item for item in newer if item in shown] == [i for i in newer if i.get("type") != COMPACTION]
    assert "summarised=" in client.headers["x-foveal-reduced"]
    until(lambda: any(isinstance(fact, Noted) for fact in client.facts))
    client.ask("And now?")
    assert upstream.refused == (change == "key")
    assert "found_2.py" in sent(upstream)
    assert len(set(client.sessions)) == 1


def test_the_endpoint_that_compacts_is_recorded_too(client: Client, upstream: CompactingUpstream) -> None:
    client.ask("Look at one.", calls=3)
    client.ask("Look at two.", calls=3)
    client.items = client.post(client.items, "/compact").json()["output"]
    client.ask("Go on.")
    client.model = "gpt-4.1"
    client.ask("And now?")
    assert COMPACTION not in sent(upstream)
    assert "found_2.py" in sent(upstream)


def test_a_list_that_begins_with_the_item_continues_its_session(
    client: Client, upstream: CompactingUpstream
) -> None:
    client.ask("Look at one.", calls=3)
    client.compact()
    client.items = client.items[-1:]
    client.ask("Go on.")
    client.key = "sk-two-0123456789abcdef"
    client.ask("And now?")
    assert "found_2.py" in sent(upstream)


def test_two_clients_that_go_on_after_one_item_are_apart(
    client: Client, upstream: CompactingUpstream
) -> None:
    client.ask("Look at one.", calls=3)
    client.compact()
    other = Client(client.proxy)
    other.items = list(client.items)
    client.ask("Say red.")
    other.ask("Say blue.")
    client.ask("And now red?")
    assert "blue" not in sent(upstream)
    other.key = "sk-two-0123456789abcdef"
    other.ask("And now blue?")
    assert "red" not in sent(upstream).replace("required", "")
    assert "found_2.py" in sent(upstream)


def test_an_item_of_another_account_that_nothing_is_known_of(
    client: Client, upstream: CompactingUpstream
) -> None:
    client.items = [{"type": COMPACTION, "id": "x", "encrypted_content": '["other", 1]'}]
    client.ask("Go on.")
    assert upstream.refused == 1
    assert "not shown here" in sent(upstream)


@pytest.mark.long
@pytest.mark.parametrize("window", rest_in_soak([24_000, 4_000_000]))
def test_a_large_body_with_an_item(tmp_path: Path, upstream: CompactingUpstream, window: int) -> None:
    with RawUpstream(upstream) as raw, ProxyServer(tmp_path, openai=raw.openai, window=window) as proxy:
        client = Client(proxy)
        client.ask("Look at one.", calls=3)
        client.compact()
        for number in range(30):
            said = {"role": "assistant", "content": f"{number} " + "word " * 18_000}
            client.items += [user(f"Part {number}"), said]
        client.ask("Go on.")
    assert len(client.body) > 2_700_000
    assert COMPACTION in sent(upstream)
