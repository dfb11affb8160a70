"""A client that compacts its own history, behind the proxy: Foveal steps back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.server.proxy.client_compaction import asks_for_summary
from foveal.transport.client_request import ClientRequest, RequestCache
from support.effort import rest_in_soak
from support.upstream import DEADLINE, ProxyServer, RawUpstream, ReceivedRequest, answer

Json = dict[str, Any]
PROMPT = (
    "Your task is to create a detailed summary of the conversation so far, paying close attention to the user's "
    "explicit requests and your previous actions."
)
SUMMARY = "<summary>\n1. The parts of the project are being searched one after the other.\n</summary>"
CONTINUED = (
    "This session is being continued from a previous conversation. Summary:\n" + SUMMARY.splitlines()[1]
)
OTHER = "This session is about something else, of which nothing was summarised before."
WINDOW = 400_000


def reply(seen: ReceivedRequest, number: int) -> Iterator[bytes]:
    newest = json.loads(seen.body)["messages"][-1]["content"]
    text = SUMMARY if newest == PROMPT else f"Step {number}."
    tokens = len(seen.body) // 4
    usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
    message = {"role": "assistant", "content": text}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    yield answer(json.dumps(body).encode())


class Client:
    def __init__(self, proxy: ProxyServer) -> None:
        self._proxy = proxy
        self.messages: list[Json] = []
        self.reduced: list[str] = []

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        self._post()

    def work(self, steps: int) -> None:
        for at in range(steps):
            call = {
                "id": f"c{at}",
                "type": "function",
                "function": {"name": "bash", "arguments": f'{{"at":{at}}}'},
            }
            self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            lines = "\n".join(f"part {at}, line {line}: {at * line * 7919} bytes" for line in range(180))
            self.messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": lines})
            self._post()

    def _post(self) -> None:
        body = json.dumps({"model": "gpt-4.1", "messages": self.messages})
        headers = {"authorization": "Bearer sk-one-0123456789abcdef", "content-type": "application/json"}
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
            got = http.post(f"{self._proxy.openai}/chat/completions", content=body, headers=headers)
        assert got.status_code == 200, got.text
        self.reduced.append(got.headers["x-foveal-reduced"])
        self.messages.append(got.json()["choices"][0]["message"])

    @property
    def is_reduced(self) -> bool:
        return any(reduced != "none" for reduced in self.reduced)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyServer]:
    with RawUpstream(reply) as raw, ProxyServer(tmp_path, openai=raw.openai, window=WINDOW) as started:
        yield started


@pytest.mark.parametrize(
    ("prompt", "first", "is_left"),
    rest_in_soak(
        [
            (PROMPT, CONTINUED, True),
            (PROMPT, OTHER, False),
            ("What is the next part?", CONTINUED, False),
        ],
        kept=2,
    ),
)
def test_a_history_that_the_client_has_compacted_is_left_to_the_client(
    proxy: ProxyServer, prompt: str, first: str, is_left: bool
) -> None:
    before = Client(proxy)
    before.ask("Find the parts.")
    before.ask(prompt)
    after = Client(proxy)
    after.ask(first)
    after.work(22)
    assert after.is_reduced is not is_left


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROMPT, True),
        (
            "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM.",
            True,
        ),
        (
            "Provide a detailed prompt for continuing our conversation above. Write a summary of what we did.",
            True,
        ),
        ("Please continue the conversation from where we left it off.", False),
        ("Why is CI red?", False),
    ],
)
def test_a_request_for_a_summary_is_recognised_by_its_newest_message(text: str, expected: bool) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert asks_for_summary(ClientRequest("openai_chat", body, RequestCache())) is expected
