"""Attacks on a server process with two tenants, an honest upstream and a lying one.

`test_guard` covers the requests that the guard refuses.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from foveal import config
from foveal.errors import StoreUnusable
from foveal.server import AuthTokens, DataFolder, Service
from support.made_secrets import made
from support.provider_stand_in import StandIn
from support.serve_process import CANARY, HttpReply, Server, raw, serving, until
from support.upstream import RawUpstream, ReceivedRequest, answer

OWN_KEY = "sk-" + made(40, seed=99)
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


class Attacked(NamedTuple):
    server: Server
    upstream: StandIn
    liar: RawUpstream
    trap: RawUpstream
    """The target of the redirects of the lying upstream."""
    alice: str
    bob: str
    monitor: str
    """A token that reads the metrics."""

    def ask(self, path: str, **how: Any) -> HttpReply:
        """Send a request with Alice's token, unless another one is given."""
        return self.server.ask(path, **{"token": self.alice, **how})

    def metrics_text(self) -> str:
        """Return the metrics, after the log has all lines so far."""
        response = self.ask("/metrics", token=self.monitor)
        self.server.wait_for("request", request=response.headers["x-request-id"])
        return response.body.decode()


def lying_upstream(trap: RawUpstream, seen: ReceivedRequest, number: int) -> Iterable[bytes]:
    """Answer in the way that the name of the requested model says."""
    asked = json.loads(seen.body.decode("utf-8", "replace"))["model"]
    more = {
        "redirect": f"location: {trap.anthropic}/v1/messages\r\n".encode(),
        "spoof": b"x-foveal-session: mine\r\nset-cookie: a=b\r\nx-content-type-options: none\r\n"
        b"access-control-allow-origin: *\r\n",
    }
    status = {"redirect": "307 Temporary Redirect", "echo": "400 Bad Request"}.get(asked, "200 OK")
    body = {"type": "message", "content": [], "message": seen.headers.get("x-api-key")}
    yield answer(json.dumps(body).encode(), status=status, more=more.get(asked, b""))


def create_tokens(folder: Path, *tenants: str) -> list[str]:
    """Create a token of each tenant, and one that reads the metrics."""

    async def create() -> list[str]:
        database = DataFolder.create(folder).open_database()
        try:
            tokens = AuthTokens(database)
            made = [await tokens.create(tenant, now=0.0) for tenant in tenants]
            made.append(await tokens.create("", role="metrics", now=0.0))
            return [secret for _, secret in made]
        finally:
            await database.close()

    return asyncio.run(create())


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked") / "server"
    alice, bob, monitor = create_tokens(folder, "alice", "bob")
    with (
        StandIn(window=60_000) as upstream,
        RawUpstream(lambda *_: [answer(b"caught")]) as trap,
        RawUpstream(partial(lying_upstream, trap)) as liar,
    ):
        settings = {
            "server.openai_url": upstream.openai,
            "server.anthropic_url": liar.anthropic,
            "server.rate": 0,
        }
        keys = {"OPENAI_API_KEY": OWN_KEY, "ANTHROPIC_API_KEY": OWN_KEY}
        with serving(folder=folder, settings=settings, environment=keys) as server:
            yield Attacked(server, upstream, liar, trap, alice, bob, monitor)


def chat(*texts: str, model: str = "gpt-4o") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text} for text in texts]}


def words_found_in(folder: Path, words: Iterable[str]) -> set[str]:
    """Return the words that occur in a file of the folder."""
    data = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return {word for word in words if any(word.encode() in one for one in data)}


# ── Requests on the wire ───────────────────────────────────────────────────────────────────────────────

SMUGGLED = b"GET /api/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Transfer-Encoding: xchunked\r\nContent-Length: 5",
        b"Transfer-Encoding: chunked, identity",
        b"Content-Length: 0\r\nContent-Length: 5",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length: 99999999999999999999999",
        b"Content-Length : 5",
        b"X-A: b\r\n c: d\r\nContent-Length: 5",
        b"X-A: b\x00c",
        b"X-A: b\nContent-Length: 5",
    ],
)
def test_a_request_with_ambiguous_length_is_refused(attacked: Attacked, headers: bytes) -> None:
    come = raw(
        attacked.server.url,
        b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n0\r\n\r\n" + SMUGGLED,
    )
    assert come.startswith(b"HTTP/1.1 400 ")
    assert come.count(b"HTTP/1.1 ") == 1


UNUSUAL_PATHS = (
    "/api/sessions/..%2f..%2fetc%2fpasswd",
    "/api/sessions/%2e%2e",
    "/api/sessions/a%00b",
    "/api/sessions/%ff%fe",
    "/api/sessions/" + "a" * 5_000,
    "/api//sessions",
    "//api/sessions",
    "/api/sessions/",
    "/API/sessions",
    "/healthz/..%2fapi/sessions",
    "/healthz%2f..%2fapi%2fsessions",
    "/v1/models/..%2f..%2fadmin",
    "/v1/models/a%3fb",
    "/v1/models/%2f%2flocalhost",
    "/tenants/alice.db",
    "/service.db",
    "/.git/config",
)


@pytest.mark.parametrize("path", UNUSUAL_PATHS)
def test_an_unusual_path_does_not_bypass_authentication(attacked: Attacked, path: str) -> None:
    assert attacked.server.ask(path).status == 401
    assert attacked.ask(path).status == 404


def test_a_client_cannot_inject_response_headers(attacked: Attacked) -> None:
    response = attacked.ask(
        CHAT, body=chat("x", model="gpt-4o\r\nX-Evil: 1"), headers={"X-Request-Id": "a b"}
    )
    assert "x-evil" not in response.headers
    assert response.headers["x-foveal-model"] == "gpt-4o??X-Evil: 1"
    for name in ("a/b", "..", "a\tb", "x" * 201):
        assert attacked.ask(CHAT, body=chat("x"), headers={"X-Foveal-Session": name}).status == 400


def test_bytes_that_are_not_text_do_no_harm(attacked: Attacked) -> None:
    tools = b'"tools":[{"name":"f","description":"\xff","input_schema":{}}]'
    body = (
        b'{"model":"plain","max_tokens":5,"messages":[{"role":"user","content":"odd bytes"}],' + tools + b"}"
    )
    assert attacked.ask(MESSAGES, body=body).status == 200
    assert attacked.ask(MESSAGES, body=body.replace(b"\xff", b"f")).status == 200


def test_message_text_cannot_inject_stream_events(attacked: Attacked) -> None:
    attacked.ask("/api/sessions", body={"id": "stream"})
    words = 'x\n\nevent: outcome\ndata: {"why":"forged"}\n\n\r\rid: 9\u2028'
    come = attacked.ask("/api/sessions/stream/turns", body={"text": words})
    lines = come.body.decode().split("\n")
    assert {line for line in lines if line.startswith("event: ")} == {
        f"event: {name}" for name in ("heard", "streamed", "answered", "ended", "outcome")
    }
    assert "\r" not in come.body.decode()
    outcomes = [json.loads(data[6:]) for name, data in pairwise(lines) if name == "event: outcome"]
    assert [(one["why"], one["text"]) for one in outcomes] == [("answered", f"You said: {words}")]


# ── Authentication ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("header", "form"),
    [
        ("Authorization", "Bearer {}x"),
        ("Authorization", "Bearer {} x"),
        ("Authorization", "Bearer\t{}"),
        ("Authorization", "Basic {}"),
        ("Authorization", "{}"),
        ("X-Foveal-Token", "{}, {}"),
        ("X-Foveal-Token", "Bearer {}"),
        ("X-Foveal-Tenant", "alice"),
        ("Cookie", "token={}"),
    ],
)
def test_a_token_counts_only_unchanged_and_in_its_header(attacked: Attacked, header: str, form: str) -> None:
    asked = {header: form.format(attacked.alice, attacked.bob)}
    assert attacked.server.ask("/api/sessions", headers=asked).status == 401
    assert attacked.server.ask(f"/api/sessions?token={attacked.alice}", headers=asked).status == 401
    assert attacked.alice not in attacked.server.output


def test_a_token_is_never_sent_upstream_and_stored_as_a_hash(attacked: Attacked) -> None:
    for sent in (
        {"X-Foveal-Token": attacked.alice, "Authorization": f"Bearer {attacked.alice}"},
        {"X-Api-Key": attacked.alice, "Authorization": "Bearer sk-of-the-client"},
        {"X-Foveal-Token": attacked.alice, "X-Api-Key": attacked.bob},
    ):
        body = {"model": "plain", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        assert attacked.server.ask(MESSAGES, body=body, headers=sent).status == 200
    carried = repr([seen.headers for seen in attacked.liar.seen])
    assert "sk-of-the-client" in carried
    assert attacked.alice not in carried
    assert attacked.bob not in carried
    assert words_found_in(attacked.server.folder, [attacked.alice, attacked.bob]) == set()


def test_tenants_share_neither_ids_nor_keys_nor_conversations(attacked: Attacked) -> None:
    mine = attacked.ask(CHAT, body=chat("what only Alice knows"))
    same = attacked.ask(CHAT, body=chat("what only Alice knows"), token=attacked.bob)
    session = mine.headers["x-foveal-session"]
    assert same.headers["x-foveal-session"] != session
    named = attacked.ask(
        CHAT, body=chat("something"), token=attacked.bob, headers={"X-Foveal-Session": session}
    )
    assert (
        named.headers["x-foveal-whole"]
        == attacked.ask(CHAT, body=chat("something")).headers["x-foveal-whole"]
    )
    assert b"Alice" not in attacked.ask(f"/api/sessions/{session}/events", token=attacked.bob).body
    for token, words in ((attacked.alice, "of Alice"), (attacked.bob, "of Bob")):
        assert attacked.ask("/api/sessions", body={"id": "shared"}, token=token).status == 201
        how = {"body": {"text": words, "key": "k", "stream": False}, "token": token}
        assert (
            attacked.ask("/api/sessions/shared/turns", **how).json["outcome"]["text"] == f"You said: {words}"
        )
    turn = attacked.ask(
        "/api/sessions/shared/turns", body={"text": "of Alice", "key": "k", "stream": False}
    ).json["turn"]
    assert attacked.ask(f"/api/sessions/shared/turns/{turn}", token=attacked.bob).status == 404
    assert b"of Alice" not in attacked.ask("/api/sessions/shared/search?q=Alice", token=attacked.bob).body


@pytest.mark.parametrize(
    "act", ["events", "context", "usage", "export", "search?q=x", "turns/t1", "fork", "DELETE"]
)
def test_a_session_of_another_tenant_is_unknown(attacked: Attacked, act: str) -> None:
    attacked.ask("/api/sessions", body={"id": "hidden"})
    attacked.ask("/api/sessions/hidden/events", body={"text": "hidden words"})
    how: dict[str, Any] = {"fork": {"body": {}}, "DELETE": {"method": "DELETE"}}.get(act, {})
    path = "/api/sessions/{}" + ("" if act == "DELETE" else f"/{act}")
    there = attacked.ask(path.format("hidden"), token=attacked.bob, **how)
    never = attacked.ask(path.format("absent"), token=attacked.bob, **how)
    assert there.status == never.status == 404
    assert there.body.replace(b"hidden", b"absent") == never.body
    assert b"hidden words" in attacked.ask("/api/sessions/hidden/events").body


# ── Upstreams ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "model",
    [
        "vllm/x@http://127.0.0.1:1/v1",
        "openai/x@169.254.169.254",
        "local//etc/passwd",
        "local/../x.gguf",
        "local/x.gguf",
        "LOCAL/x.gguf",
        "openai//x",
        "http://127.0.0.1:1/v1",
        "../x",
        " openai/x",
        "openai/x\x00",
        "gpt-4o\n",
        "vllm/x",
        "ollama/x",
    ],
)
def test_a_client_cannot_choose_an_address_or_a_file(attacked: Attacked, model: str) -> None:
    refused = attacked.ask("/api/sessions", body={"model": model})
    assert refused.status in (400, 422)
    assert b"No such file" not in refused.body


def test_a_redirect_of_the_upstream_is_not_followed(attacked: Attacked) -> None:
    body = {"model": "redirect", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    assert attacked.ask(MESSAGES, body=body).status == 307
    assert attacked.trap.seen == []


def test_the_upstream_cannot_set_headers_of_the_server(attacked: Attacked) -> None:
    body = {"model": "spoof", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    headers = attacked.ask(MESSAGES, body=body).headers
    assert headers["x-foveal-session"] != "mine"
    assert not {"set-cookie", "access-control-allow-origin"} & headers.keys()
    assert headers["x-content-type-options"] == "nosniff"


def test_an_echoed_server_key_does_not_reach_clients(attacked: Attacked) -> None:
    body = {"model": "echo", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    response = attacked.ask(MESSAGES, body=body)
    assert response.status == 400
    assert OWN_KEY not in response.body.decode()


# ── Stored and logged data ─────────────────────────────────────────────────────────────────────────────


def secrets_of(*places: str) -> dict[str, str]:
    return {name: "sk-proj-" + made(60, seed=1_000 + number) for number, name in enumerate(places)}


def test_secrets_are_in_no_file_log_or_metric(attacked: Attacked) -> None:
    s = secrets_of(
        "system", "turn", "later", "said", "call", "result", "pin", "schedule", "instruction", "chat", "tool"
    )
    calls = [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": s["call"]})}}
    ]
    messages = [
        {"role": "user", "content": s["said"]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": s["result"]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": s["tool"], "parameters": {}}}]
    system = {"role": "system", "content": s["instruction"]}
    asked = [
        ("/api/sessions", {"id": "secrets", "system": s["system"]}),
        ("/api/sessions/secrets/turns", {"text": s["turn"], "stream": False}),
        ("/api/sessions/secrets/events", {"messages": messages}),
        ("/api/sessions/secrets/pins", {"text": s["pin"]}),
        ("/api/schedules", {"name": "s", "session": "secrets", "cron": "0 0 1 1 *", "prompt": s["schedule"]}),
        (CHAT, {**chat(s["chat"]), "messages": [system, *chat(s["chat"])["messages"]], "tools": tools}),
        ("/api/sessions/secrets/turns", {"text": s["later"], "background": True}),
    ]
    assert [attacked.ask(path, body=body).status for path, body in asked] == [
        201,
        200,
        201,
        201,
        201,
        200,
        202,
    ]
    events = until(lambda: _events_after(attacked, "secrets", s["later"][-4:]))
    assert [word for word in s.values() if word in events] == []
    assert all(f"…{s[name][-4:]}]" in events for name in ("system", "turn", "said", "call", "result", "pin"))
    assert words_found_in(attacked.server.folder, s.values()) == set()
    metrics = attacked.metrics_text()
    assert [word for word in s.values() if word in attacked.server.output or word in metrics] == []


def _events_after(attacked: Attacked, session: str, tail: str) -> str:
    """Return the events of a session after the turn with this text was answered."""
    events = attacked.ask(f"/api/sessions/{session}/events?limit=1000").body.decode()
    return events if f"You said: [foveal: redacted OpenAI key …{tail}]" in events else ""


def test_a_secret_in_a_title_is_not_stored(attacked: Attacked) -> None:
    (secret,) = secrets_of("title").values()
    attacked.ask("/api/sessions", body={"id": "titled", "title": secret})
    attacked.ask("/api/sessions/titled", method="PATCH", body={"title": f"again {secret}"})
    assert words_found_in(attacked.server.folder, [secret]) == set()


def test_an_erased_session_leaves_no_text_in_any_file(attacked: Attacked) -> None:
    words = [f"zebrafish{name}" for name in ("title", "system", "turn", "key", "said", "prompt")]
    title, system, turn, key, said, prompt = words
    attacked.ask("/api/sessions", body={"id": "erased", "title": title, "system": system})
    attacked.ask("/api/sessions/erased/turns", body={"text": turn, "key": key, "stream": False})
    attacked.ask("/api/sessions/erased/events", body={"text": said})
    attacked.ask(
        "/api/schedules", body={"name": "e", "session": "erased", "cron": "0 0 1 1 *", "prompt": prompt}
    )
    assert words_found_in(attacked.server.folder, words) == set(words)
    assert attacked.ask("/api/sessions/erased", method="DELETE").status == 204
    assert until(lambda: not words_found_in(attacked.server.folder, words))


def test_no_log_line_contains_messages_or_keys(attacked: Attacked) -> None:
    attacked.ask("/api/sessions", body={"id": "log"})
    bad: list[tuple[str, Any]] = [
        ("/api/sessions/log/turns", {"text": CANARY, "stream": False}),
        ("/api/sessions/log/turns", {"text": CANARY, CANARY: 1}),
        ("/api/sessions/log/events", {"messages": [{"role": CANARY, "content": CANARY}]}),
        (f"/api/sessions/log/search?q={CANARY}", None),
        (f"/{CANARY}", None),
        (CHAT, chat(CANARY)),
        (CHAT, {"model": "gpt-4o", "messages": [{"role": CANARY}]}),
        (CHAT, CANARY),
        (MESSAGES, {"model": "plain", "messages": [{"role": "user", "content": CANARY}]}),
    ]
    for path, body in bad:
        attacked.ask(path, body=body, headers={"X-Canary": CANARY, "Cookie": CANARY})
    metrics = attacked.metrics_text()
    assert CANARY not in attacked.server.output + metrics
    assert OWN_KEY not in attacked.server.output + metrics


# ── Failures of the machine ────────────────────────────────────────────────────────────────────────────


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Let no file of the process grow."""
    import resource

    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can be set on Linux only")
def test_a_full_disk_is_reported_and_loses_nothing(attacked: Attacked) -> None:
    attacked.ask("/api/sessions", body={"id": "full"})
    assert attacked.ask("/api/sessions/full/turns", body={"text": "before", "stream": False}).status == 200
    with full_disk(attacked.server.pid):
        assert attacked.ask("/api/sessions", body={"id": "fuller"}).status == 503
        assert (
            attacked.ask("/api/sessions/full/turns", body={"text": "during", "stream": False}).status == 503
        )
        assert attacked.ask("/api/sessions/full/events", body={"text": "during"}).status == 503
        passed = attacked.ask(CHAT, body=chat("during"))
        assert (passed.status, passed.headers["x-foveal-reduced"][:18]) == (200, "none; not managed ")
        assert b"You said: before" in attacked.ask("/api/sessions/full/events").body
        assert until(lambda: attacked.server.ask("/healthz").status == 503)
    after = attacked.ask("/api/sessions/full/turns", body={"text": "after", "stream": False})
    assert after.json["outcome"]["text"] == "You said: after"
    kept = attacked.ask("/api/sessions/full/events").body
    assert b"during" not in kept
    assert b"You said: before" in kept
    assert until(lambda: attacked.server.ask("/healthz").status == 200)


def test_a_clock_that_goes_back_loses_nothing(tmp_path: Path) -> None:
    times = iter(range(2_000_000_000, 0, -1_000_000))

    async def main() -> list[str]:
        loaded = config.load(tmp_path, flags={"tokenizer": "estimate"}, environ={}, user_folder=tmp_path)
        scripted = {"FOVEAL_PROVIDER": "support.serve_process:scripted"}
        opened = Service.open(
            loaded, folder=tmp_path / "server", environment=scripted, clock=lambda: float(next(times))
        )
        async with opened as service:
            session = await service.tenant("default").create("a")
            answers = [
                (await (await session.submit(f"number {n}", key=f"k{n}")).outcome()).text for n in range(3)
            ]
            again = await (await session.submit("number 1", key="k1")).outcome()
            assert again.text == answers[1]
            assert [info.id for info in await service.tenant("default").sessions()] == ["a"]
            events = await session.events()
            assert [event.seq for event in events] == list(range(len(events)))
            return answers

    assert asyncio.run(main()) == [f"You said: number {n}" for n in range(3)]


def test_an_unusable_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    nowhere = tmp_path / "dangling"
    nowhere.symlink_to(tmp_path / "not there" / "at all")
    file = tmp_path / "file"
    file.write_text("mine")
    for attacked in (nowhere, file, file / "below"):
        with pytest.raises(StoreUnusable, match=r"server\.folder"):
            DataFolder.create(attacked)
    assert file.read_text() == "mine"


def test_a_foreign_file_in_the_folder_is_not_changed(tmp_path: Path) -> None:
    places = DataFolder.create(tmp_path / "server")
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else" * 100)
    (places.path / "service.db").symlink_to(other)

    async def look() -> None:
        database = places.open_database()
        try:
            await database.read(lambda db: db.fetch("SELECT 1"))
        finally:
            await database.close()

    with pytest.raises(StoreUnusable):
        asyncio.run(look())
    assert other.read_bytes() == b"of somebody else" * 100
