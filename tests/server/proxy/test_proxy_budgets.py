"""Budgets of drop-in clients: a header says what is left, and a request beyond a limit is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from foveal.server.auth_tokens import AuthTokens, MemoryChoice
from foveal.server.http.json_logs import LOGGER_NAME
from support.upstream import (
    DEADLINE,
    Piece,
    ProxyServer,
    RawUpstream,
    ReceivedRequest,
    answer,
    stream_head,
    until,
)

Json = dict[str, Any]
DIALECTS: Final = ("openai_chat", "openai_responses", "anthropic")
OUTPUT: Final = 100_000
"""Tokens that each answer of the stand-in reports: $0.80 with gpt-4.1, $1.50 with claude-sonnet-4-5."""


def speak(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    """Answer each request in its dialect, with usage."""
    text, path, asked = f"Answer {number}.", seen.line.split()[1], json.loads(seen.body)
    if not path.endswith(("/messages", "/responses", "/chat/completions")):
        yield answer(b"{}")
        return
    if path.endswith("/messages"):
        usage = {"input_tokens": 20, "output_tokens": OUTPUT}
        whole: Json = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}
    elif path.endswith("/responses"):
        usage = {"input_tokens": 20, "output_tokens": OUTPUT}
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content}
        whole = {"object": "response", "status": "completed", "output": [item]}
    else:
        usage = {"prompt_tokens": 20, "completion_tokens": OUTPUT}
        message = {"role": "assistant", "content": text}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    if asked.get("user") == "breaks":
        yield stream_head()
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "Answ"}}]}\n\n'
        return
    if asked.get("stream") and asked.get("user") == "silent":
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        yield stream_head()
        yield b"data: " + json.dumps({"choices": [delta]}).encode() + b"\n\ndata: [DONE]\n\n"
        return
    if asked.get("stream"):
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        yield stream_head()
        for event in ({"choices": [delta]}, {"choices": [], "usage": usage}):
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"
        return
    if asked.get("user") == "fails":
        yield answer(b'{"error": {"message": "no"}}', status="500 Broken")
        return
    yield answer(json.dumps({**whole, "usage": usage}).encode())


class Scene:
    """A server with budgets, and its upstream."""

    def __init__(self, folder: Path, upstream: RawUpstream, **budgets: Any) -> None:
        flags = {f"budgets__{name}": value for name, value in budgets.items()}
        self.upstream = upstream
        urls = {"openai": upstream.openai, "anthropic": upstream.anthropic}
        environment = {"OPENAI_API_KEY": "sk-of-the-server-0123456789abcdef"}
        self.proxy = ProxyServer(folder, **urls, environment=environment, **flags)

    def __enter__(self) -> Scene:
        self.proxy.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self.proxy.__exit__(*problem)

    def token(self, memory: str) -> str:
        tokens = AuthTokens(self.proxy.service.runtime.database)
        return self.proxy.do(tokens.create("default", memory=MemoryChoice.read(memory), now=0.0))[1]

    def ask(self, dialect: str, *texts: str, token: str = "sk-client", **fields: Any) -> httpx.Response:
        history = [
            {"role": "user" if at % 2 == 0 else "assistant", "content": t} for at, t in enumerate(texts)
        ]
        path, body = {
            "openai_chat": ("/chat/completions", {"model": "gpt-4.1", "messages": history}),
            "openai_responses": ("/responses", {"model": "gpt-4.1", "input": history}),
            "anthropic": ("/messages", {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": history}),
        }[dialect]
        headers = {"authorization": f"Bearer {token}", "x-api-key": token}
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            return http.post(f"{self.proxy.openai}{path}", json={**body, **fields}, headers=headers)

    def post(self, path: str, token: str, **body: Any) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            headers = {"authorization": f"Bearer {token}"}
            return http.post(f"{self.proxy.openai}/{path}", json=body, headers=headers)

    def usage(self) -> list[tuple[str | None, int, int, int]]:
        """Return the calls that the usage has: the model, their number, their output, and those without a price."""
        rows = self.proxy.do(self.proxy.service.runtime.usage.rows(["model"]))
        return [(row.model, row.calls, row.output, row.unpriced) for row in rows]

    def spent(self, scope: str = "tenant") -> list[int]:
        """Return the nanodollars that are counted, once nothing is reserved any more."""

        def read(sql: str) -> list[Any]:
            return self.proxy.do(self.proxy.service.runtime.database.read(lambda db: db.fetch(sql)))

        until(lambda: not read("SELECT 1 FROM spending_reservations"))
        return [
            nano for (nano,) in read(f"SELECT nanodollars FROM spending WHERE scope = '{scope}' ORDER BY key")
        ]


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    with RawUpstream(speak) as made:
        yield made


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_beyond_the_limit_is_refused_in_its_dialect(
    tmp_path: Path, upstream: RawUpstream, dialect: str
) -> None:
    with Scene(tmp_path, upstream, tenant="0.75 USD per month") as scene:
        first = scene.ask(dialect, "Why is CI red?")
        assert first.status_code == 200
        assert first.headers["x-foveal-budget"] == (
            'scope=tenant; limit="0.75 USD per month"; spent=0.0000; left=0.7500'
        )
        assert scene.spent() == [800_040_000 if dialect != "anthropic" else 1_500_060_000]
        refused = scene.ask(dialect, "Why is CI red?", "Answer 1.", "And now?")
        assert refused.status_code == 429
        assert "retry-after" not in refused.headers  # coding agents would wait until then
        assert refused.headers["x-should-retry"] == "false"
        assert refused.headers["x-foveal-budget"].startswith(
            'scope=tenant; limit="0.75 USD per month"; spent='
        )
        assert refused.headers["x-foveal-budget"].endswith("; left=0.0000")
        error = refused.json()["error"]
        assert "0.75 USD per month" in error["message"]
        if dialect == "anthropic":
            assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")
        else:  # Codex ends at this type
            assert (error["type"], error["code"]) == ("insufficient_quota", "budget_exceeded")
    assert len(upstream.seen) == 1
    with Scene(tmp_path, upstream, tenant="9 USD per month") as scene:  # as in the next month
        later = scene.ask(dialect, "Why is CI red?", "Answer 1.", "And now?")
        assert later.status_code == 200
        assert later.headers["x-foveal-session"] == first.headers["x-foveal-session"]


def test_a_refusal_of_the_server_is_told_from_one_of_the_provider(
    tmp_path: Path, upstream: RawUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)

    def lines(name: str) -> list[tuple[str, Json]]:
        return [(line.levelname, vars(line)["fields"]) for line in caplog.records if line.msg == name]

    limits = ["soft 0.5 USD per month", "0.75 USD per month"]
    with Scene(tmp_path, upstream, tenant=limits) as scene:
        for _ in range(2):
            scene.ask("openai_chat", "Hello.", user="fails")
        scene.ask("openai_chat", "Hello.")
        scene.spent()
        assert scene.ask("openai_chat", "Hello.", "Answer 1.", "And now?").status_code == 429
        logged = until(lambda: found if len(found := lines("exchange")) == 4 else None)
        assert [(level, line["status"], line.get("error")) for level, line in logged] == [
            ("WARNING", 500, None),
            ("WARNING", 500, None),
            ("INFO", 200, None),
            ("INFO", 429, "budget_exceeded"),
        ]
        ((level, reached),) = lines("soft_limit")
        assert level == "WARNING"
        assert (reached["tenant"], reached["scope"]) == ("default", "tenant")
        assert (reached["limit"], reached["spent"]) == ("soft 0.5 USD per month", 0.80004)
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            metrics = http.get(f"{scene.proxy.url}/metrics").text
            hard, soft = http.get(f"{scene.proxy.url}/api/admin/budgets").json()["limits"]
    assert {one["limit"] for one in (hard, soft)} == set(limits)
    assert (soft["scope"], soft["key"], soft["spent"]) == ("tenant", "default", 0.80004)
    for line in (
        'foveal_exchanges_total{dialect="openai_chat",error="",status="500"} 2.0',
        'foveal_exchanges_total{dialect="openai_chat",error="budget_exceeded",status="429"} 1.0',
        'foveal_soft_limits_reached_total{scope="tenant"} 1.0',
    ):
        assert line in metrics


def test_a_stream_is_counted(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, tenant="9 USD") as scene:
        reply = scene.ask("openai_chat", "Why is CI red?", stream=True)
        assert reply.text.endswith("data: [DONE]\n\n")
        assert scene.spent() == [800_040_000]


def test_what_the_upstream_refuses_costs_nothing(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, tenant="9 USD") as scene:
        assert scene.ask("openai_chat", "Why is CI red?", user="fails").status_code == 500
        assert scene.spent() == []


def test_a_request_that_is_not_managed_counts_as_estimated(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, tenant="9 USD") as scene:
        reply = scene.ask("openai_responses", previous_response_id="resp_1", input="word " * 4_000)
        assert "not managed" in reply.headers["x-foveal-reduced"]
        (nano,) = scene.spent()
        assert nano >= 4_000 * 2_000  # its prompt at 2 dollars per million


def test_a_soft_limit_is_told_in_the_header(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, conversation=["soft 0.50 USD", "50 USD"]) as scene:
        assert "soft-limit-reached" not in scene.ask("openai_chat", "Hello.").headers["x-foveal-budget"]
        scene.spent("conversation")
        reply = scene.ask("openai_chat", "Hello.", "Answer 1.", "And now?")
        assert reply.headers["x-foveal-budget"].endswith("spent=0.8000; left=0.0000; soft-limit-reached")


def test_the_user_of_a_token_pays_whatever_a_request_says(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, user="0.50 USD per month") as scene:
        ada, each = scene.token("ada"), scene.token("@request")
        assert scene.ask("openai_chat", "Hello.", token=ada).status_code == 200
        scene.spent("user")
        assert scene.ask("openai_chat", "Hello again.", token=ada, user="bob").status_code == 429
        assert scene.ask("openai_chat", "Hello.", token=each, user="bob").status_code == 200
        scene.spent("user")
        assert scene.ask("openai_chat", "Hello again.", token=each, user="bob").status_code == 429
        assert scene.ask("openai_chat", "Hello again.", token=each, user="eve").status_code == 200


def test_a_model_without_a_price_is_refused(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, tenant="5 USD") as scene:
        refused = scene.ask("openai_chat", "Hello.", model="my-finetune")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "price_unknown")
    with Scene(tmp_path, upstream, tenant=["5 USD", "5M tokens"], unknown_price="allow") as scene:
        assert scene.ask("openai_chat", "Hello.", model="my-finetune").status_code == 200


@pytest.mark.parametrize(
    "body", ['{"messages": [', "[]", '{"messages": [{"role": "user", "content": "Hi."}]}']
)
def test_a_request_that_names_no_model_is_refused_as_such(
    tmp_path: Path, upstream: RawUpstream, body: str
) -> None:
    with (
        Scene(tmp_path, upstream, tenant="5 USD") as scene,
        httpx.Client(trust_env=False, timeout=DEADLINE) as http,
    ):
        refused = http.post(f"{scene.proxy.openai}/chat/completions", content=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "no_model")
    reason = "no model is named" if body.endswith("}") else "the body is not a JSON object"
    assert error["message"] == f"{reason}: a request that a budget limits must name its model"
    assert upstream.seen == []


def test_without_budgets_nothing_is_said_or_counted(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream) as scene:
        assert "x-foveal-budget" not in scene.ask("openai_chat", "Hello.").headers
        assert scene.spent() == []


def test_each_of_several_answers_is_reserved(tmp_path: Path, upstream: RawUpstream) -> None:
    with Scene(tmp_path, upstream, tenant="0.50 USD") as scene:
        refused = scene.ask("openai_chat", "Hello.", n=128)  # 128 answers of 1,000 tokens are $1.02
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        assert scene.ask("openai_chat", "Hello.", n="many").status_code == 200
    assert len(upstream.seen) == 1


def test_usage_has_each_answered_call_once_also_without_a_report(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with Scene(tmp_path, upstream, tenant="9 USD") as scene:
        scene.ask("openai_chat", "Hello.", stream=True, user="silent")
        scene.spent()
        assert scene.usage() == [("gpt-4.1", 1, 0, 1)]
        scene.ask("openai_chat", "Hello there.", stream=True, user="breaks")
        scene.spent()
        assert scene.usage() == [("gpt-4.1", 2, 0, 2)]
        scene.ask("openai_responses", previous_response_id="resp_1", input="Hello.")
        scene.spent()
        assert scene.usage() == [("gpt-4.1", 3, 0, 3)]
        scene.ask("openai_chat", "Hello again.", stream=True)
        scene.ask("openai_chat", "Hello.", user="fails")
        scene.spent()
        assert scene.usage() == [("gpt-4.1", 4, OUTPUT, 3)]


def test_what_is_not_counted_is_refused_once_a_hard_limit_is_used_up(
    tmp_path: Path, upstream: RawUpstream
) -> None:
    with Scene(tmp_path, upstream, user=["soft 0.10 USD per month", "0.81 USD per month"]) as scene:
        ada, bob = scene.token("ada"), scene.token("bob")
        assert scene.post("embeddings", ada, model="e", input="x").status_code == 200
        refused = scene.post("completions", ada, model="gpt-4.1", prompt="x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_counted")
        assert scene.ask("openai_chat", "Hello.", token=ada).status_code == 200
        scene.spent("user")
        for path in ("embeddings", "images/generations", "audio/speech"):
            refused = scene.post(path, ada, model="e", input="x")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
            assert refused.headers["x-should-retry"] == "false"
            assert refused.headers["x-foveal-budget"] == (
                'scope=user; limit="0.81 USD per month"; spent=0.8000; left=0.0100'
            )
            assert scene.post(path, bob, model="e", input="x").status_code == 200
        assert scene.post("moderations", ada, input="x").status_code == 200
        own = "sk-client-0123456789abcdef"
        with httpx.Client(trust_env=False, timeout=DEADLINE) as http:
            headers = {"authorization": f"Bearer {own}", "x-foveal-token": ada}
            url, body = f"{scene.proxy.openai}/embeddings", {"model": "e", "input": "x"}
            assert http.post(url, json=body, headers=headers).status_code == 200
    with Scene(tmp_path, upstream, user="soft 0.10 USD per month") as scene:
        assert scene.post("completions", scene.token("ada"), model="gpt-4.1", prompt="x").status_code == 200
