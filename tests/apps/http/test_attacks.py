"""A server among people who mean it ill: a real process, two tenants, an upstream that behaves and one that lies.

What holds is proved here; what the guard refuses at the door is in `test_guard`.
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
from support.serve_process import CANARY, Answers, Server, raw, serving, until
from support.upstream import Raw, Seen, answer

OWN_KEY = "sk-" + made(40, seed=99)
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


class Place(NamedTuple):
    server: Server
    upstream: StandIn
    liar: Raw
    trap: Raw
    """Where the liar sends people."""
    alice: str
    bob: str

    def ask(self, path: str, **how: Any) -> Answers:
        """A request of Alice's, unless it says whose it is."""
        return self.server.ask(path, **{"token": self.alice, **how})

    def figures(self) -> str:
        """What is told in figures, when the log has everything up to here."""
        told = self.ask("/metrics")
        self.server.wait_for("request", request=told.headers["x-request-id"])
        return told.body.decode()


def lie(trap: Raw, seen: Seen, number: int) -> Iterable[bytes]:
    """How the liar answers is what the client calls its model."""
    asked = json.loads(seen.body.decode("utf-8", "replace"))["model"]
    more = {
        "redirect": f"location: {trap.anthropic}/v1/messages\r\n".encode(),
        "spoof": b"x-foveal-session: mine\r\nset-cookie: a=b\r\nx-content-type-options: none\r\n"
        b"access-control-allow-origin: *\r\n",
    }
    status = {"redirect": "307 Temporary Redirect", "echo": "400 Bad Request"}.get(asked, "200 OK")
    body = {"type": "message", "content": [], "message": seen.headers.get("x-api-key")}
    yield answer(json.dumps(body).encode(), status=status, more=more.get(asked, b""))


def tokens_in(folder: Path, *tenants: str) -> list[str]:
    async def create() -> list[str]:
        database = DataFolder.made(folder).database()
        try:
            return [(await AuthTokens(database).create(tenant, now=0.0))[1] for tenant in tenants]
        finally:
            await database.close()

    return asyncio.run(create())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("attacked") / "server"
    alice, bob = tokens_in(folder, "alice", "bob")
    with (
        StandIn(window=60_000) as upstream,
        Raw(lambda *_: [answer(b"caught")]) as trap,
        Raw(partial(lie, trap)) as liar,
    ):
        settings = {
            "server.openai_url": upstream.openai,
            "server.anthropic_url": liar.anthropic,
            "server.rate": 0,
        }
        keys = {"OPENAI_API_KEY": OWN_KEY, "ANTHROPIC_API_KEY": OWN_KEY}
        with serving(folder=folder, settings=settings, environment=keys) as server:
            yield Place(server, upstream, liar, trap, alice, bob)


def chat(*texts: str, model: str = "gpt-4o") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text} for text in texts]}


def holding(folder: Path, words: Iterable[str]) -> set[str]:
    """The words that stand in some file of a folder."""
    data = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return {word for word in words if any(word.encode() in one for one in data)}


# ── the wire ─────────────────────────────────────────────────────────────────────────────────────────────

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
def test_a_request_whose_end_can_be_disputed_is_refused_whole(place: Place, headers: bytes) -> None:
    come = raw(
        place.server.url,
        b"POST /api/sessions HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n0\r\n\r\n" + SMUGGLED,
    )
    assert come.startswith(b"HTTP/1.1 400 ")
    assert come.count(b"HTTP/1.1 ") == 1


STRANGE = (
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


@pytest.mark.parametrize("path", STRANGE)
def test_a_strange_path_leads_nowhere_and_not_past_the_door(place: Place, path: str) -> None:
    assert place.server.ask(path).status == 401
    assert place.ask(path).status == 404


def test_a_client_cannot_write_headers_of_an_answer(place: Place) -> None:
    told = place.ask(CHAT, body=chat("x", model="gpt-4o\r\nX-Evil: 1"), headers={"X-Request-Id": "a b"})
    assert "x-evil" not in told.headers
    assert told.headers["x-foveal-model"] == "gpt-4o??X-Evil: 1"
    for name in ("a/b", "..", "a\tb", "x" * 201):
        assert place.ask(CHAT, body=chat("x"), headers={"X-Foveal-Session": name}).status == 400


def test_bytes_that_are_no_text_break_nothing(place: Place) -> None:
    tools = b'"tools":[{"name":"f","description":"\xff","input_schema":{}}]'
    body = (
        b'{"model":"plain","max_tokens":5,"messages":[{"role":"user","content":"odd bytes"}],' + tools + b"}"
    )
    assert place.ask(MESSAGES, body=body).status == 200
    assert place.ask(MESSAGES, body=body.replace(b"\xff", b"f")).status == 200


def test_words_cannot_become_events_of_a_stream(place: Place) -> None:
    place.ask("/api/sessions", body={"id": "stream"})
    words = 'x\n\nevent: outcome\ndata: {"why":"forged"}\n\n\r\rid: 9\u2028'
    come = place.ask("/api/sessions/stream/turns", body={"text": words})
    lines = come.body.decode().split("\n")
    assert {line for line in lines if line.startswith("event: ")} == {
        f"event: {name}" for name in ("heard", "streamed", "answered", "ended", "outcome")
    }
    assert "\r" not in come.body.decode()
    outcomes = [json.loads(data[6:]) for name, data in pairwise(lines) if name == "event: outcome"]
    assert [(one["why"], one["text"]) for one in outcomes] == [("answered", f"You said: {words}")]


# ── who one is ───────────────────────────────────────────────────────────────────────────────────────────


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
def test_a_token_counts_only_as_it_is_and_where_it_belongs(place: Place, header: str, form: str) -> None:
    asked = {header: form.format(place.alice, place.bob)}
    assert place.server.ask("/api/sessions", headers=asked).status == 401
    assert place.server.ask(f"/api/sessions?token={place.alice}", headers=asked).status == 401
    assert place.alice not in place.server.output


def test_a_token_never_goes_upstream_and_is_kept_as_a_hash(place: Place) -> None:
    for sent in (
        {"X-Foveal-Token": place.alice, "Authorization": f"Bearer {place.alice}"},
        {"X-Api-Key": place.alice, "Authorization": "Bearer sk-of-the-client"},
        {"X-Foveal-Token": place.alice, "X-Api-Key": place.bob},
    ):
        body = {"model": "plain", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        assert place.server.ask(MESSAGES, body=body, headers=sent).status == 200
    carried = repr([seen.headers for seen in place.liar.seen])
    assert "sk-of-the-client" in carried
    assert place.alice not in carried
    assert place.bob not in carried
    assert holding(place.server.folder, [place.alice, place.bob]) == set()


def test_tenants_share_neither_ids_nor_keys_nor_conversations(place: Place) -> None:
    mine = place.ask(CHAT, body=chat("what only Alice knows"))
    same = place.ask(CHAT, body=chat("what only Alice knows"), token=place.bob)
    session = mine.headers["x-foveal-session"]
    assert same.headers["x-foveal-session"] != session
    named = place.ask(CHAT, body=chat("something"), token=place.bob, headers={"X-Foveal-Session": session})
    assert (
        named.headers["x-foveal-whole"] == place.ask(CHAT, body=chat("something")).headers["x-foveal-whole"]
    )
    assert b"Alice" not in place.ask(f"/api/sessions/{session}/events", token=place.bob).body
    for token, words in ((place.alice, "of Alice"), (place.bob, "of Bob")):
        assert place.ask("/api/sessions", body={"id": "shared"}, token=token).status == 201
        how = {"body": {"text": words, "key": "k", "stream": False}, "token": token}
        assert place.ask("/api/sessions/shared/turns", **how).json["outcome"]["text"] == f"You said: {words}"
    turn = place.ask(
        "/api/sessions/shared/turns", body={"text": "of Alice", "key": "k", "stream": False}
    ).json["turn"]
    assert place.ask(f"/api/sessions/shared/turns/{turn}", token=place.bob).status == 404
    assert b"of Alice" not in place.ask("/api/sessions/shared/search?q=Alice", token=place.bob).body


@pytest.mark.parametrize(
    "act", ["events", "context", "usage", "export", "search?q=x", "turns/t1", "fork", "DELETE"]
)
def test_a_session_of_another_tenant_is_as_unknown_as_one_that_never_was(place: Place, act: str) -> None:
    place.ask("/api/sessions", body={"id": "hidden"})
    place.ask("/api/sessions/hidden/events", body={"text": "hidden words"})
    how: dict[str, Any] = {"fork": {"body": {}}, "DELETE": {"method": "DELETE"}}.get(act, {})
    path = "/api/sessions/{}" + ("" if act == "DELETE" else f"/{act}")
    there = place.ask(path.format("hidden"), token=place.bob, **how)
    never = place.ask(path.format("absent"), token=place.bob, **how)
    assert there.status == never.status == 404
    assert there.body.replace(b"hidden", b"absent") == never.body
    assert b"hidden words" in place.ask("/api/sessions/hidden/events").body


# ── where it leads ───────────────────────────────────────────────────────────────────────────────────────


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
def test_a_client_chooses_neither_an_address_nor_a_file(place: Place, model: str) -> None:
    refused = place.ask("/api/sessions", body={"model": model})
    assert refused.status in (400, 422)
    assert b"No such file" not in refused.body


def test_a_redirect_of_upstream_is_not_followed(place: Place) -> None:
    body = {"model": "redirect", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    assert place.ask(MESSAGES, body=body).status == 307
    assert place.trap.seen == []


def test_upstream_cannot_speak_in_the_servers_name(place: Place) -> None:
    body = {"model": "spoof", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    told = place.ask(MESSAGES, body=body).headers
    assert told["x-foveal-session"] != "mine"
    assert not {"set-cookie", "access-control-allow-origin"} & told.keys()
    assert told["x-content-type-options"] == "nosniff"


def test_an_upstream_that_echoes_the_servers_key_does_not_hand_it_to_clients(place: Place) -> None:
    body = {"model": "echo", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    told = place.ask(MESSAGES, body=body)
    assert told.status == 400
    assert OWN_KEY not in told.body.decode()


# ── what is kept, and what is told ───────────────────────────────────────────────────────────────────────


def secrets_of(*places: str) -> dict[str, str]:
    return {name: "sk-proj-" + made(60, seed=1_000 + number) for number, name in enumerate(places)}


def test_secrets_are_in_no_file_no_log_and_no_figures(place: Place) -> None:
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
    assert [place.ask(path, body=body).status for path, body in asked] == [201, 200, 201, 201, 201, 200, 202]
    events = until(lambda: _ended(place, "secrets", s["later"][-4:]))
    assert [word for word in s.values() if word in events] == []
    assert all(f"…{s[name][-4:]}]" in events for name in ("system", "turn", "said", "call", "result", "pin"))
    assert holding(place.server.folder, s.values()) == set()
    figures = place.figures()
    assert [word for word in s.values() if word in place.server.output or word in figures] == []


def _ended(place: Place, session: str, tail: str) -> str:
    """The events of a session, once the turn with these words has been answered."""
    told = place.ask(f"/api/sessions/{session}/events?limit=1000").body.decode()
    return told if f"You said: [foveal: redacted OpenAI key …{tail}]" in told else ""


def test_a_secret_in_a_title_is_not_stored(place: Place) -> None:
    (secret,) = secrets_of("title").values()
    place.ask("/api/sessions", body={"id": "titled", "title": secret})
    place.ask("/api/sessions/titled", method="PATCH", body={"title": f"again {secret}"})
    assert holding(place.server.folder, [secret]) == set()


def test_an_erased_session_leaves_no_word_in_any_file(place: Place) -> None:
    words = [f"zebrafish{name}" for name in ("title", "system", "turn", "key", "said", "prompt")]
    title, system, turn, key, said, prompt = words
    place.ask("/api/sessions", body={"id": "erased", "title": title, "system": system})
    place.ask("/api/sessions/erased/turns", body={"text": turn, "key": key, "stream": False})
    place.ask("/api/sessions/erased/events", body={"text": said})
    place.ask(
        "/api/schedules", body={"name": "e", "session": "erased", "cron": "0 0 1 1 *", "prompt": prompt}
    )
    assert holding(place.server.folder, words) == set(words)
    assert place.ask("/api/sessions/erased", method="DELETE").status == 204
    assert until(lambda: not holding(place.server.folder, words))


def test_words_and_keys_are_in_no_line_of_the_log_whatever_goes_wrong(place: Place) -> None:
    place.ask("/api/sessions", body={"id": "log"})
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
        place.ask(path, body=body, headers={"X-Canary": CANARY, "Cookie": CANARY})
    figures = place.figures()
    assert CANARY not in place.server.output + figures
    assert OWN_KEY not in place.server.output + figures


# ── what breaks ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """No file of a process can grow."""
    import resource

    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process can be set on Linux only")
def test_a_full_disk_is_told_and_what_was_stored_before_is_still_there(place: Place) -> None:
    place.ask("/api/sessions", body={"id": "full"})
    assert place.ask("/api/sessions/full/turns", body={"text": "before", "stream": False}).status == 200
    with full_disk(place.server.pid):
        assert place.ask("/api/sessions", body={"id": "fuller"}).status == 503
        assert place.ask("/api/sessions/full/turns", body={"text": "during", "stream": False}).status == 503
        assert place.ask("/api/sessions/full/events", body={"text": "during"}).status == 503
        passed = place.ask(CHAT, body=chat("during"))
        assert (passed.status, passed.headers["x-foveal-reduced"][:18]) == (200, "none; not managed ")
        assert b"You said: before" in place.ask("/api/sessions/full/events").body
        assert until(lambda: place.server.ask("/healthz").status == 503)
    after = place.ask("/api/sessions/full/turns", body={"text": "after", "stream": False})
    assert after.json["outcome"]["text"] == "You said: after"
    kept = place.ask("/api/sessions/full/events").body
    assert b"during" not in kept
    assert b"You said: before" in kept
    assert until(lambda: place.server.ask("/healthz").status == 200)


def test_a_clock_that_goes_back_loses_nothing_and_changes_no_order(tmp_path: Path) -> None:
    times = iter(range(2_000_000_000, 0, -1_000_000))

    async def main() -> list[str]:
        loaded = config.load(tmp_path, flags={"tokenizer": "estimate"}, environ={}, user_folder=tmp_path)
        scripted = {"FOVEAL_PROVIDER": "support.serve_process:scripted"}
        opened = Service.open(
            loaded, folder=tmp_path / "server", environment=scripted, clock=lambda: float(next(times))
        )
        async with opened as service:
            room = await service.tenant("default").create("a")
            said = [(await (await room.say(f"number {n}", key=f"k{n}")).outcome()).text for n in range(3)]
            again = await (await room.say("other words", key="k1")).outcome()
            assert again.text == said[1]
            assert [info.id for info in await service.tenant("default").sessions()] == ["a"]
            events = await room.events()
            assert [event.seq for event in events] == list(range(len(events)))
            return said

    assert asyncio.run(main()) == [f"You said: number {n}" for n in range(3)]


def test_a_folder_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    nowhere = tmp_path / "dangling"
    nowhere.symlink_to(tmp_path / "not there" / "at all")
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (nowhere, file, file / "below"):
        with pytest.raises(StoreUnusable, match=r"server\.folder"):
            DataFolder.made(place)
    assert file.read_text() == "mine"


def test_a_file_of_somebody_else_in_the_folder_is_left_as_it_is(tmp_path: Path) -> None:
    places = DataFolder.made(tmp_path / "server")
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else" * 100)
    (places.folder / "service.db").symlink_to(other)

    async def look() -> None:
        database = places.database()
        try:
            await database.look(lambda connection: None)
        finally:
            await database.close()

    with pytest.raises(StoreUnusable):
        asyncio.run(look())
    assert other.read_bytes() == b"of somebody else" * 100
