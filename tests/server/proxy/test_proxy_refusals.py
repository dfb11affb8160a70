"""What the drop-in endpoints refuse, forward unmanaged, and never reveal."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log import Event, Opened, UserSaid, text_of
from foveal.server.http.json_logs import LOGGER_NAME
from foveal.server.runtime import ProxyRequestEnded
from support.upstream import DEADLINE, Piece, ProxyServer, RawUpstream, ReceivedRequest, answer, until
from support.waiting import wait_until

Json = dict[str, Any]
KEY = "sk-client-0123456789abcdef"
FINE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}]}
).encode()


def fine(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
    yield answer(FINE)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def post(proxy: ProxyServer, path: str = "/v1/chat/completions", **given: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        return http.post(f"{proxy.url}{path}", **given)


@pytest.fixture(scope="module")
def raw() -> Iterator[RawUpstream]:
    with RawUpstream(fine) as made:
        yield made


@pytest.fixture(scope="module")
def proxy(raw: RawUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    folder = tmp_path_factory.mktemp("proxy")
    settings: Json = {"server__models": ["gpt-*", "claude-*"], "server__max_messages": 5}
    with ProxyServer(folder, openai=raw.openai, anthropic=raw.anthropic, **settings) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/chat/completions", "invalid_request_error"), ("/v1/messages", "permission_error")],
)
def test_a_forbidden_model_is_refused_in_the_providers_format(
    proxy: ProxyServer, raw: RawUpstream, path: str, kind: str
) -> None:
    before = len(raw.seen)
    reply = post(proxy, path, json={"model": "o9", "messages": [user("Hello")]})
    assert reply.status_code == 403
    assert reply.json()["error"]["type"] == kind
    assert len(raw.seen) == before


def test_too_many_messages_are_refused(proxy: ProxyServer) -> None:
    reply = post(proxy, json={"model": "gpt-4.1", "messages": [user("Hello")] * 6})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "too_many_messages"


UNMANAGED: list[tuple[str, str, Any, str]] = [
    ("responses", "gpt-5", {"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
    ("responses", "gpt-5", {"input": "Hi", "conversation": "conv_1"}, "conversation"),
    ("responses", "gpt-5", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
    ("messages", "claude-x", {"messages": [user("Hi")], "thread": {"type": "continue"}}, "thread"),
    ("chat/completions", "gpt-5", {}, "not a list of messages"),
    ("chat/completions", "gpt-5", {"messages": "Hi"}, "not a list of messages"),
    ("chat/completions", "gpt-5", {"messages": []}, "not a list of messages"),
    ("chat/completions", "gpt-5", {"messages": [1, None]}, "not a list of messages"),
    ("chat/completions", "gpt-5", {"messages": [{"content": "Hi"}]}, "role: is missing"),
    ("chat/completions", "gpt-5", {"messages": [{"role": ["x"], "content": "Hi"}]}, "not a list of messages"),
    ("chat/completions", "gpt-5", {"messages": [{"role": "wizard", "content": "Hi"}]}, "wizard"),
    ("chat/completions", "gpt-5", {"messages": [{"role": "user", "content": [{"type": 7}]}]}, "content"),
    (
        "messages",
        "claude-x",
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "content",
    ),
    ("messages", "claude-x", {"messages": [user("Hi")], "system": {"not": "a text"}}, ""),
    ("responses", "gpt-5", {"input": [{"type": "compaction_trigger"}]}, "not a list of messages"),
]
COMPACTED: list[tuple[str, str, Any, str]] = [
    (
        "messages",
        "claude-x",
        {"messages": [user("Hi " * 300_000)], "compaction": {"type": "summarize"}},
        "the provider compacts this conversation, and about ",
    ),
    (
        "responses",
        "gpt-5",
        {"input": [user("Hi"), {"type": "compaction_trigger"}]},
        "(the provider compacts this conversation)",
    ),
    (
        "responses/compact",
        "gpt-5",
        {"input": [user("word " * 400_000)]},
        "(the provider compacts this conversation, and about ",
    ),
]


@pytest.mark.parametrize(("path", "model", "fields", "why"), UNMANAGED)
def test_a_request_without_history_is_forwarded_unchanged(
    proxy: ProxyServer, raw: RawUpstream, path: str, model: str, fields: Json, why: str
) -> None:
    body = json.dumps({"model": model, **fields}).encode()
    reply = post(proxy, f"/v1/{path}", content=body, headers={"authorization": f"Bearer {KEY}"})
    assert (reply.status_code, reply.content) == (200, FINE)
    assert raw.seen[-1].body == body
    assert reply.headers["x-foveal-reduced"].startswith("none; not managed (")
    assert why in reply.headers["x-foveal-reduced"]
    assert "x-foveal-session" not in reply.headers
    ended = until(lambda: [seen for seen in proxy.service_events if isinstance(seen, ProxyRequestEnded)])
    assert ended[-1].not_managed


def test_a_thread_that_begins_is_managed(proxy: ProxyServer) -> None:
    body = {"model": "claude-x", "messages": [user("Begin.")], "thread": {"type": "create"}}
    assert post(proxy, "/v1/messages", json=body, headers={"x-api-key": KEY}).headers["x-foveal-session"]


@pytest.mark.parametrize(
    ("fields", "logged"),
    [
        (
            {"input": "Hi", "previous_response_id": "resp_1"},
            "a part of the history is at the provider: previous_response_id",
        ),
        ({"input": [{"role": "secret-word", "content": "Hi"}]}, "messages[0] is malformed"),
    ],
)
def test_the_log_says_why_a_request_is_not_managed_and_quotes_nothing(
    proxy: ProxyServer, fields: Json, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER_NAME)
    headers = {"authorization": f"Bearer {KEY}"}
    post(proxy, "/v1/responses", json={"model": "gpt-5", **fields}, headers=headers)
    lines = until(lambda: [vars(line)["fields"] for line in caplog.records if line.msg == "exchange"])
    assert [line["not_managed"] for line in lines] == [logged]
    assert "secret-word" not in str(lines)


@pytest.mark.parametrize(("path", "model", "fields", "why"), COMPACTED)
def test_a_conversation_to_be_compacted_is_forwarded_unchanged(
    proxy: ProxyServer, raw: RawUpstream, path: str, model: str, fields: Json, why: str
) -> None:
    body = json.dumps({"model": model, **fields}).encode()
    reply = post(proxy, f"/v1/{path}", content=body, headers={"authorization": f"Bearer {KEY}"})
    assert (reply.status_code, reply.content) == (200, FINE)
    assert raw.seen[-1].body == body
    assert raw.seen[-1].line.split()[1] == f"/v1/{path}"
    assert reply.headers["x-foveal-reduced"].startswith("none; forwarded unchanged (")
    assert why in reply.headers["x-foveal-reduced"]
    assert proxy.events(reply.headers["x-foveal-session"])


def test_a_body_that_is_not_json_is_left_to_the_provider(raw: RawUpstream, tmp_path: Path) -> None:
    with ProxyServer(tmp_path, openai=raw.openai) as proxy:
        for body in (
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b'{"model": "x", "messages": [{"role": "user", "content": "\\ud800"}]}',
        ):
            reply = post(proxy, content=body, headers={"authorization": f"Bearer {KEY}"})
            assert reply.status_code == 200
            assert raw.seen[-1].body == body


def test_responses_accept_a_text_as_input(proxy: ProxyServer, raw: RawUpstream) -> None:
    reply = post(proxy, "/v1/responses", json={"model": "gpt-5", "input": "Just a text."})
    session = reply.headers["x-foveal-session"]
    facts = [e.fact for e in proxy.events(session) if isinstance(e.fact, UserSaid)]
    assert [text_of(fact.content) for fact in facts] == ["Just a text."]


def test_a_model_name_cannot_inject_headers(raw: RawUpstream, tmp_path: Path) -> None:
    with ProxyServer(tmp_path, openai=raw.openai) as proxy:
        name = "gpt\r\nx-evil: 1\r\n\r\nü" + "x" * 10_000
        reply = post(proxy, json={"model": name, "messages": [user("Hello")]})
    assert reply.status_code == 200
    assert "x-evil" not in reply.headers
    assert len(reply.headers["x-foveal-model"]) <= 200


# ── Keys ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_clients_key_is_forwarded_and_the_token_is_not(raw: RawUpstream, tmp_path: Path) -> None:
    environment = {"OPENAI_API_KEY": "sk-of-the-server-1", "ANTHROPIC_API_KEY": "sk-ant-of-the-server"}
    with ProxyServer(tmp_path, openai=raw.openai, anthropic=raw.anthropic, environment=environment) as proxy:
        token = proxy.token("default")
        asked = {"model": "gpt-4.1", "messages": [user("Hello")]}
        post(proxy, json=asked, headers={"authorization": f"Bearer {token}"})
        assert raw.seen[-1].headers["authorization"] == "Bearer sk-of-the-server-1"
        post(proxy, json=asked, headers={"authorization": f"Bearer {KEY}", "x-foveal-token": token})
        assert raw.seen[-1].headers["authorization"] == f"Bearer {KEY}"
        post(proxy, "/v1/messages", json=asked, headers={"x-api-key": token})
        assert raw.seen[-1].headers["x-api-key"] == "sk-ant-of-the-server"
        assert "authorization" not in raw.seen[-1].headers
        assert token not in str(raw.seen)
        assert post(proxy, json=asked, headers={"authorization": f"Bearer {KEY}"}).status_code == 401


def test_no_key_or_secret_is_stored(raw: RawUpstream, tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3" * 16
    with ProxyServer(tmp_path, openai=raw.openai) as proxy:
        asked = {"model": "gpt-4.1", "messages": [user(f"My key is {secret}, keep it.")]}
        post(proxy, json=asked, headers={"authorization": f"Bearer {KEY}"})
        assert secret in raw.seen[-1].body.decode()  # the client's own words are its own business
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in found or secret.encode() in found for found in files)


def test_the_model_gets_the_clients_text_unredacted(raw: RawUpstream, tmp_path: Path) -> None:
    """Redaction removes secrets from the log, not from the conversation."""
    secret = "sk-proj-" + "Ab3" * 16
    rule = {"role": "system", "content": f"The database is at postgres://me:{secret}@db/x."}
    messages: list[Json] = [rule]
    with ProxyServer(tmp_path, openai=raw.openai, window=3_000, compaction__mode="off") as proxy:
        for number in range(9):
            messages.append(user(f"Step {number} with {secret}. " + f"word{number} " * 200))
            reply = post(proxy, json={"model": "gpt-4.1", "messages": messages})
            messages.append({"role": "assistant", "content": "Fine."})
        assert reply.headers["x-foveal-reduced"] != "none"
        sent = json.loads(raw.seen[-1].body)["messages"]
        stored = str(proxy.events(reply.headers["x-foveal-session"]))
    assert sent != messages[:-1]
    assert sent[0] == rule
    assert sent[-1] == messages[-2]
    assert secret not in stored


def test_the_servers_own_key_is_never_returned(tmp_path: Path) -> None:
    own = "sk-of-the-server-0123456789"

    def parrot(seen: ReceivedRequest, number: int) -> Iterator[Piece]:
        body = json.dumps({"error": f"what is {seen.headers['authorization']}?"}).encode()
        yield answer(body, status=f"{(401, 400, 200)[number % 3]} So", more=f"x-echo: {own}\r\n".encode())

    with (
        RawUpstream(parrot) as upstream,
        ProxyServer(tmp_path, openai=upstream.openai, environment={"OPENAI_API_KEY": own}) as proxy,
    ):
        for number in range(3):
            reply = post(proxy, json={"model": "gpt-4.1", "messages": [user(f"Hello {number}")]})
            assert own in upstream.seen[-1].headers["authorization"]
            assert own not in reply.text + str(reply.headers)
            assert "***" in reply.text
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
            assert own not in http.get(f"{proxy.openai}/models").text


def test_a_session_of_the_native_api_cannot_be_rewound(proxy: ProxyServer) -> None:
    async def native() -> None:
        tenant = proxy.service.tenant("default")
        await tenant.fast_store.append(
            "kept", [Event(0, Opened(model="x")), Event(1, UserSaid(content="Mine."))]
        )

    proxy.do(native())
    reply = post(
        proxy, json={"model": "gpt-4.1", "messages": [user("Hi")]}, headers={"x-foveal-session": "kept"}
    )
    assert reply.status_code == 409
    assert "another id" in reply.json()["error"]["message"]
    assert len(proxy.events("kept")) == 2


def test_without_an_upstream_the_error_gives_advice(tmp_path: Path) -> None:
    environment = {"GEMINI_API_KEY": "a-key-of-google", "HOME": str(tmp_path)}
    with ProxyServer(tmp_path, environment=environment) as proxy:
        for path, variable in (("/v1/responses", "OPENAI_API_KEY"), ("/v1/messages", "ANTHROPIC_API_KEY")):
            reply = post(proxy, path, json={"model": "x", "input": "Hi", "messages": [user("Hi")]})
            assert reply.status_code == 501
            assert variable in reply.json()["error"]["message"]


def test_a_server_detects_that_it_is_its_own_upstream(tmp_path: Path) -> None:
    with RawUpstream(fine) as spare, ProxyServer(tmp_path, openai=spare.openai) as proxy:
        proxy.upstreams._addresses["openai"] = proxy.openai
        reply = post(proxy, json={"model": "gpt-4.1", "messages": [user("Hello, me")]})
    assert reply.status_code == 508
    assert "this server itself" in reply.json()["error"]["message"]


def test_an_unwritable_store_does_not_stop_the_client(raw: RawUpstream, tmp_path: Path) -> None:
    with ProxyServer(tmp_path, openai=raw.openai) as proxy:
        path = tmp_path / "server" / "tenants" / "default.db"
        path.write_bytes(b"this is no database, and it is longer than a header of one would be" * 20)
        reply = post(proxy, json={"model": "gpt-4.1", "messages": [user("Hello")]})
        assert (reply.status_code, reply.content) == (200, FINE)
        assert "not managed (the store" in reply.headers["x-foveal-reduced"]
        with pytest.raises(sqlite3.DatabaseError):
            sqlite3.connect(path).execute("SELECT * FROM sqlite_schema").fetchall()


def test_an_unusable_store_is_reported_once_per_outage(
    raw: RawUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ProxyServer(tmp_path, openai=raw.openai) as proxy:
        path = tmp_path / "server" / "tenants" / "default.db"
        path.write_bytes(b"this is no database, and it is longer than a header of one would be" * 20)
        for number in range(3):
            reply = post(proxy, json={"model": "gpt-4.1", "messages": [user(f"Hello {number}")]})
            assert reply.status_code == 200
        logged = [record for record in caplog.records if "cannot be used" in record.getMessage()]
        assert [record.levelname for record in logged] == ["ERROR"]
        assert "foveal_store_failures_total 3.0" in httpx.get(f"{proxy.url}/metrics").text
        assert httpx.get(f"{proxy.url}/healthz").json()["status"] == "degraded"
        for file in path.parent.glob("default.db*"):
            file.unlink()
        reply = post(proxy, json={"model": "gpt-4.1", "messages": [user("Hello again")]})
        assert reply.headers["x-foveal-reduced"] == "none"
        wait_until(lambda: httpx.get(f"{proxy.url}/healthz").json()["status"] == "ok")
