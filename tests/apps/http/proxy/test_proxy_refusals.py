"""What the drop-in endpoints refuse, let through unmanaged, forward and never tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log import Event, Opened, UserSaid, text_of
from support.upstream import DEADLINE, Front, Piece, Raw, Seen, answer

Json = dict[str, Any]
KEY = "sk-client-0123456789abcdef"
FINE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}]}
).encode()


def fine(seen: Seen, number: int) -> Iterator[Piece]:
    yield answer(FINE)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def post(front: Front, path: str = "/v1/chat/completions", **given: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
        return http.post(f"{front.url}{path}", **given)


@pytest.fixture(scope="module")
def raw() -> Iterator[Raw]:
    with Raw(fine) as made:
        yield made


@pytest.fixture(scope="module")
def front(raw: Raw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    settings: Json = {"server__models": ["gpt-*", "claude-*"], "server__max_messages": 5}
    with Front(folder, openai=raw.openai, anthropic=raw.anthropic, **settings) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/chat/completions", "invalid_request_error"), ("/v1/messages", "permission_error")],
)
def test_a_model_that_is_not_allowed_is_refused_in_the_providers_shape(
    front: Front, raw: Raw, path: str, kind: str
) -> None:
    before = len(raw.seen)
    reply = post(front, path, json={"model": "o9", "messages": [user("Hello")]})
    assert reply.status_code == 403
    assert reply.json()["error"]["type"] == kind
    assert len(raw.seen) == before


def test_too_many_messages_are_refused(front: Front) -> None:
    reply = post(front, json={"model": "gpt-4.1", "messages": [user("Hello")] * 6})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "too_many_messages"


UNMANAGED: list[tuple[str, str, Any, str]] = [
    ("responses", "gpt-5", {"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
    ("responses", "gpt-5", {"input": "Hi", "conversation": "conv_1"}, "conversation"),
    ("responses", "gpt-5", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
    ("chat/completions", "gpt-5", {}, "no list of messages"),
    ("chat/completions", "gpt-5", {"messages": "Hi"}, "no list of messages"),
    ("chat/completions", "gpt-5", {"messages": []}, "no list of messages"),
    ("chat/completions", "gpt-5", {"messages": [1, None]}, "no list of messages"),
    ("chat/completions", "gpt-5", {"messages": [{"content": "Hi"}]}, "role: is missing"),
    ("chat/completions", "gpt-5", {"messages": [{"role": ["x"], "content": "Hi"}]}, "no list of messages"),
    ("chat/completions", "gpt-5", {"messages": [{"role": "wizard", "content": "Hi"}]}, "wizard"),
    ("chat/completions", "gpt-5", {"messages": [{"role": "user", "content": [{"type": 7}]}]}, "content"),
    (
        "messages",
        "claude-x",
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "content",
    ),
    ("messages", "claude-x", {"messages": [user("Hi")], "system": {"not": "a text"}}, ""),
]


@pytest.mark.parametrize(("path", "model", "fields", "why"), UNMANAGED)
def test_what_is_no_history_goes_on_as_it_came(
    front: Front, raw: Raw, path: str, model: str, fields: Json, why: str
) -> None:
    body = json.dumps({"model": model, **fields}).encode()
    reply = post(front, f"/v1/{path}", content=body, headers={"authorization": f"Bearer {KEY}"})
    assert (reply.status_code, reply.content) == (200, FINE)
    assert raw.seen[-1].body == body
    assert reply.headers["x-foveal-reduced"].startswith("none; not managed (")
    assert why in reply.headers["x-foveal-reduced"]
    assert "x-foveal-session" not in reply.headers


def test_a_body_that_is_no_json_is_the_providers_to_refuse(raw: Raw, tmp_path: Path) -> None:
    with Front(tmp_path, openai=raw.openai) as front:
        for body in (
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b'{"model": "x", "messages": [{"role": "user", "content": "\\ud800"}]}',
        ):
            reply = post(front, content=body, headers={"authorization": f"Bearer {KEY}"})
            assert reply.status_code == 200
            assert raw.seen[-1].body == body


def test_a_text_is_as_good_as_a_list_for_responses(front: Front, raw: Raw) -> None:
    reply = post(front, "/v1/responses", json={"model": "gpt-5", "input": "Just a text."})
    session = reply.headers["x-foveal-session"]
    said = [e.fact for e in front.events(session) if isinstance(e.fact, UserSaid)]
    assert [text_of(fact.content) for fact in said] == ["Just a text."]


def test_a_name_of_a_model_cannot_write_headers(raw: Raw, tmp_path: Path) -> None:
    with Front(tmp_path, openai=raw.openai) as front:
        name = "gpt\r\nx-evil: 1\r\n\r\nü" + "x" * 10_000
        reply = post(front, json={"model": name, "messages": [user("Hello")]})
    assert reply.status_code == 200
    assert "x-evil" not in reply.headers
    assert len(reply.headers["x-foveal-model"]) <= 200


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_of_the_client_goes_on_a_token_of_ours_does_not(raw: Raw, tmp_path: Path) -> None:
    environment = {"OPENAI_API_KEY": "sk-of-the-server-1", "ANTHROPIC_API_KEY": "sk-ant-of-the-server"}
    with Front(tmp_path, openai=raw.openai, anthropic=raw.anthropic, environment=environment) as front:
        token = front.token("default")
        asked = {"model": "gpt-4.1", "messages": [user("Hello")]}
        post(front, json=asked, headers={"authorization": f"Bearer {token}"})
        assert raw.seen[-1].headers["authorization"] == "Bearer sk-of-the-server-1"
        post(front, json=asked, headers={"authorization": f"Bearer {KEY}", "x-foveal-token": token})
        assert raw.seen[-1].headers["authorization"] == f"Bearer {KEY}"
        post(front, "/v1/messages", json=asked, headers={"x-api-key": token})
        assert raw.seen[-1].headers["x-api-key"] == "sk-ant-of-the-server"
        assert "authorization" not in raw.seen[-1].headers
        assert token not in str(raw.seen)
        assert post(front, json=asked, headers={"authorization": f"Bearer {KEY}"}).status_code == 401


def test_no_key_and_no_secret_is_ever_stored(raw: Raw, tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3" * 16
    with Front(tmp_path, openai=raw.openai) as front:
        asked = {"model": "gpt-4.1", "messages": [user(f"My key is {secret}, keep it.")]}
        post(front, json=asked, headers={"authorization": f"Bearer {KEY}"})
        assert secret in raw.seen[-1].body.decode()  # the client's own words are its own business
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in found or secret.encode() in found for found in files)


def test_what_is_shown_whole_reaches_the_model_in_the_clients_own_words(raw: Raw, tmp_path: Path) -> None:
    """Secrets are kept out of the log, not out of the conversation."""
    secret = "sk-proj-" + "Ab3" * 16
    rule = {"role": "system", "content": f"The database is at postgres://me:{secret}@db/x."}
    messages: list[Json] = [rule]
    with Front(tmp_path, openai=raw.openai, window=3_000, compaction__mode="off") as front:
        for number in range(9):
            messages.append(user(f"Step {number} with {secret}. " + f"word{number} " * 200))
            reply = post(front, json={"model": "gpt-4.1", "messages": messages})
            messages.append({"role": "assistant", "content": "Fine."})
        assert reply.headers["x-foveal-reduced"] != "none"
        sent = json.loads(raw.seen[-1].body)["messages"]
        stored = str(front.events(reply.headers["x-foveal-session"]))
    assert len(sent) < len(messages) - 1
    assert sent[0] == rule
    assert sent[-1] == messages[-2]
    assert secret not in stored


def test_the_servers_own_key_never_comes_back(tmp_path: Path) -> None:
    own = "sk-of-the-server-0123456789"

    def parrot(seen: Seen, number: int) -> Iterator[Piece]:
        said = json.dumps({"error": f"what is {seen.headers['authorization']}?"}).encode()
        yield answer(said, status=f"{(401, 400, 200)[number % 3]} So", more=f"x-echo: {own}\r\n".encode())

    with (
        Raw(parrot) as upstream,
        Front(tmp_path, openai=upstream.openai, environment={"OPENAI_API_KEY": own}) as front,
    ):
        for number in range(3):
            reply = post(front, json={"model": "gpt-4.1", "messages": [user(f"Hello {number}")]})
            assert own in upstream.seen[-1].headers["authorization"]
            assert own not in reply.text + str(reply.headers)
            assert "***" in reply.text
        with httpx.Client(trust_env=False, verify=False, timeout=DEADLINE) as http:
            assert own not in http.get(f"{front.openai}/models").text


def test_a_session_that_the_server_keeps_is_not_a_clients_to_rewind(front: Front) -> None:
    async def native() -> None:
        tenant = front.service.tenant("default")
        await tenant.quick.append("kept", [Event(0, Opened(model="x")), Event(1, UserSaid(content="Mine."))])

    front.do(native())
    reply = post(
        front, json={"model": "gpt-4.1", "messages": [user("Hi")]}, headers={"x-foveal-session": "kept"}
    )
    assert reply.status_code == 409
    assert "another id" in reply.json()["error"]["message"]
    assert len(front.events("kept")) == 2


def test_without_any_upstream_it_says_what_to_do(tmp_path: Path) -> None:
    environment = {"GEMINI_API_KEY": "a-key-of-google", "HOME": str(tmp_path)}
    with Front(tmp_path, environment=environment) as front:
        for path, variable in (("/v1/responses", "OPENAI_API_KEY"), ("/v1/messages", "ANTHROPIC_API_KEY")):
            reply = post(front, path, json={"model": "x", "input": "Hi", "messages": [user("Hi")]})
            assert reply.status_code == 501
            assert variable in reply.json()["error"]["message"]


def test_a_server_that_is_its_own_upstream_notices(tmp_path: Path) -> None:
    with Raw(fine) as spare, Front(tmp_path, openai=spare.openai) as front:
        front.upstreams._addresses["openai"] = front.openai
        reply = post(front, json={"model": "gpt-4.1", "messages": [user("Hello, me")]})
    assert reply.status_code == 508
    assert "this server itself" in reply.json()["error"]["message"]


def test_a_store_that_cannot_be_written_does_not_stop_the_client(raw: Raw, tmp_path: Path) -> None:
    with Front(tmp_path, openai=raw.openai) as front:
        path = front.service.ground.places.tenant("default")
        path.write_bytes(b"this is no database, and it is longer than a header of one would be" * 20)
        reply = post(front, json={"model": "gpt-4.1", "messages": [user("Hello")]})
        assert (reply.status_code, reply.content) == (200, FINE)
        assert "not managed (the store" in reply.headers["x-foveal-reduced"]
        with pytest.raises(sqlite3.DatabaseError):
            sqlite3.connect(path).execute("SELECT * FROM sqlite_schema").fetchall()
