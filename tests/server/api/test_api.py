"""The API over real HTTP: what each operation does, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.config import Config, load
from foveal.core.log import UserSaid
from foveal.server import Service
from foveal.server.api.session_endpoints import check_model
from foveal.transcripts import read
from foveal.web.event_stream import KEEP_ALIVE_COMMENT, with_keep_alive
from foveal.web.http_errors import HttpError
from support.api_server import DEADLINE, ApiServer

Json = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("api"), server__max_messages=50) as served:
        yield served


@pytest.fixture(scope="module")
def tokens(server: ApiServer) -> dict[str, str]:
    return {name: server.token(name) for name in ("default", "other")}


@pytest.fixture(scope="module")
def client(server: ApiServer, tokens: dict[str, str]) -> Iterator[httpx.Client]:
    with server.client(tokens["default"]) as made:
        yield made


@pytest.fixture
def session(client: httpx.Client) -> str:
    """The path of a new session."""
    made = client.post("/api/sessions", json={})
    assert made.status_code == 201
    return made.headers["location"]


def run_turn(client: httpx.Client, session: str, text: str, **more: Any) -> Json:
    """Run a turn and return its outcome."""
    done = client.post(f"{session}/turns", json={"text": text, "stream": False, **more})
    assert done.status_code == 200, done.text
    return done.json()


def parse_events(lines: Iterator[str]) -> Iterator[tuple[str, str, Json]]:
    """Yield id, name and data of server-sent events."""
    held: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            held[name] = value
        elif held:
            yield held.get("id", ""), held["event"], json.loads(held["data"])
            held = {}


def problem(answer: httpx.Response, status: int) -> str:
    """Return the detail of a problem document, after checking its form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert {"type", "title", "detail"} <= document.keys()
    return str(document["detail"])


# ── Sessions ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_is_created_described_and_renamed(client: httpx.Client) -> None:
    given = {"id": "work", "title": "Work", "model": "scripted/other", "system": "Be brief."}
    made = client.post("/api/sessions", json=given)
    assert made.status_code == 201
    assert made.headers["location"] == "/api/sessions/work"
    assert (made.json()["id"], made.json()["title"], made.json()["model"]) == (
        "work",
        "Work",
        "scripted/other",
    )

    renamed = client.patch("/api/sessions/work", json={"title": "Rest \x00 \N{SNOWMAN}"})
    assert renamed.json()["title"] == "Rest \x00 \N{SNOWMAN}"
    assert client.get("/api/sessions/work").json() == renamed.json()
    log = client.get("/api/sessions/work/events").json()["events"]
    assert [event["kind"] for event in log] == ["opened", "instructed"]
    assert log[1]["fact"]["content"] == "Be brief."


def test_an_id_is_used_once(client: httpx.Client) -> None:
    assert client.post("/api/sessions", json={"id": "once"}).status_code == 201
    assert "once" in problem(client.post("/api/sessions", json={"id": "once"}), 409)
    assert client.delete("/api/sessions/once").status_code == 204
    problem(client.post("/api/sessions", json={"id": "once"}), 409)


@pytest.mark.parametrize("id", ["", "a/b", "a b", "../x", ".", "\x00", "x" * 201, "ü", "a%2fb", 5, ["a"], {}])
def test_an_invalid_id_is_refused(client: httpx.Client, id: Any) -> None:
    detail = problem(client.post("/api/sessions", json={"id": id}), 400)
    allowed = "text, 1 to 200 characters: letters, digits and . _ ~ : @ -, a letter or digit first; or null"
    assert detail.partition(", not ")[0] == f"id must be {allowed}"


@pytest.mark.parametrize(
    "model", ["openai/x@http://127.0.0.1:9/v1", "local//etc/passwd", "local/../x.gguf", "x y", "a//b"]
)
def test_a_model_is_never_an_address_or_a_path(client: httpx.Client, model: str) -> None:
    detail = problem(client.post("/api/sessions", json={"model": model}), 400)
    assert detail.startswith(
        "model must be text, at most 200 characters: a name such as openai/gpt-5.1, without"
    )


@pytest.mark.parametrize("model", ["local/secret.gguf", "openai/gpt-5.1"])
def test_an_unavailable_model_is_refused_with_the_available_ones(client: httpx.Client, model: str) -> None:
    refused = client.post("/api/sessions", json={"model": model})
    assert problem(refused, 422) == (
        f"{model!r} is not among the models of this server; it has local/qwen2.5-coder-0.5b, "
        "local/qwen2.5-coder-1.5b, and its own when `model` is not given"
    )
    assert refused.json()["type"] == "urn:foveal:model_not_allowed"


def test_an_unknown_service_or_missing_key_is_a_422(tmp_path: Path) -> None:
    async def create_error(model: str) -> str:
        environment = {"OPENAI_API_KEY": "sk-test", "VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
        async with Service.open(Config(values={}), folder=tmp_path, environment=environment) as service:
            check_model("gpt-4.1", service.runtime)
            with pytest.raises(HttpError) as refused:
                check_model(model, service.runtime)
        assert refused.value.status == 422
        return refused.value.detail

    for model in ("nosuch/x", "claude-sonnet-4-6", "ollama/x"):
        assert asyncio.run(create_error(model)).startswith(
            f"{model!r} is not among the models of this server; it has openai/MODEL, responses/MODEL, vllm/MODEL, "
        )


def test_any_model_name_is_allowed_at_the_configured_address(tmp_path: Path) -> None:
    async def main() -> None:
        flags = {"model": "mine", "base_url": "http://127.0.0.1:9/v1"}
        config = load(tmp_path, flags=flags, environ={}, user_folder=tmp_path)
        async with Service.open(config, folder=tmp_path, environment={}) as service:
            for model in ("", "other", "openai/other"):
                check_model(model, service.runtime)
                assert service.runtime.provider(model).name
            with pytest.raises(HttpError, match=r"it has openai/MODEL, responses/MODEL, local/"):
                check_model("ollama/x", service.runtime)

    asyncio.run(main())


def test_sessions_are_listed_page_by_page_newest_first(server: ApiServer) -> None:
    with server.client(server.token("paging")) as mine:
        made = [mine.post("/api/sessions", json={"id": f"s{number}"}).json()["id"] for number in range(5)]
        run_turn(mine, "/api/sessions/s1", "Hello")
        pages, after = [], ""
        while True:
            page = mine.get("/api/sessions", params={"limit": 2, "after": after}).json()
            pages.append([each["id"] for each in page["sessions"]])
            if page["next"] is None:
                break
            after = page["next"]
        assert [len(page) for page in pages] == [2, 2, 1]
        assert pages[0][0] == "s1"
        assert sorted(id for page in pages for id in page) == made
        problem(mine.get("/api/sessions", params={"after": "nonsense"}), 422)


def test_a_deleted_session_is_gone(client: httpx.Client, session: str) -> None:
    run_turn(client, session, "My word is tulip.")
    assert client.delete(session).status_code == 204
    for path in ("", "/context", "/events", "/export", "/usage", "/search?q=tulip", "/turns/t1"):
        problem(client.get(session + path), 404)
    problem(client.delete(session), 404)
    problem(client.post(f"{session}/turns", json={"text": "Hello"}), 404)


def test_a_session_continues_another(client: httpx.Client, session: str) -> None:
    run_turn(client, session, "Never say tulip.")
    name = session.removeprefix("/api/sessions/")
    for number, carry in enumerate(("record", "summary", "rules", ["e2", "3"])):
        body = {"id": f"next-{number}", "continue_from": name, "carry": carry}
        assert client.post("/api/sessions", json=body).status_code == 201
        events = client.get(f"/api/sessions/next-{number}/events").json()["events"]
        assert [event["kind"] for event in events] == ["opened", "instructed", "noted", "user_said"]
        assert "Never say tulip." in json.dumps(events[-1])
    for body, status in (
        ({"continue_from": "nowhere"}, 404),
        ({"continue_from": name, "carry": "everything"}, 400),
        ({"continue_from": name, "carry": ["e10000"]}, 422),
        ({"continue_from": name, "id": "next-0"}, 409),
    ):
        problem(client.post("/api/sessions", json=body), status)


def test_a_fork_is_independent(client: httpx.Client, session: str) -> None:
    run_turn(client, session, "One")
    whole = client.get(session).json()["events"]
    forked = client.post(f"{session}/fork", json={"id": "branch", "at": "e3"})
    assert forked.status_code == 201
    assert forked.headers["location"] == "/api/sessions/branch"
    run_turn(client, "/api/sessions/branch", "Two")
    assert client.get(session).json()["events"] == whole
    assert client.get("/api/sessions/branch/search", params={"q": "Two"}).json()["hits"]
    problem(client.post(f"{session}/fork", json={"id": "branch"}), 409)
    problem(client.post(f"{session}/fork", json={"at": "e10000"}), 422)


# ── Turns ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_turn_is_streamed_to_its_outcome(client: httpx.Client, session: str) -> None:
    with client.stream("POST", f"{session}/turns", json={"text": "Hello"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        turn, place = stream.headers["x-foveal-turn"], stream.headers["location"]
        streamed = list(parse_events(stream.iter_lines()))
    # Redaction holds the last word back until the answer ends.
    assert [name for _, name, _ in streamed] == [
        "heard",
        "streamed",
        "streamed",
        "answered",
        "ended",
        "outcome",
    ]
    assert [id for id, _, _ in streamed] == ["1", "2", "3", "4", "5", ""]
    assert streamed[1][2] == {"happening": "streamed", "piece": {"text": "You said: ", "kind": "text"}}
    assert streamed[2][2] == {"happening": "streamed", "piece": {"text": "Hello", "kind": "text"}}
    outcome = streamed[-1][2]
    assert (outcome["text"], outcome["why"]) == ("You said: Hello", "answered")
    stored = client.get(f"{session}/events/{streamed[0][2]['handle']}").json()
    assert (stored["original"], stored["shown"]["level"]) == ("Hello", "full")
    assert place == f"{session}/turns/{turn}"
    again = client.get(place, params={"stream": False}).json()
    assert (again["state"], again["outcome"]) == ("ended", outcome)


def test_a_turn_without_stream_returns_its_outcome(client: httpx.Client, session: str) -> None:
    done = run_turn(client, session, "Hello")
    assert (done["state"], done["outcome"]["text"]) == ("ended", "You said: Hello")
    assert done["outcome"]["context"] == {
        name: client.get(f"{session}/context").json()[name]
        for name in ("used", "limit", "window", "state", "question", "notice")
    }


def test_content_may_have_parts_of_any_dialect(client: httpx.Client, session: str) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": dot}}
    content = [{"type": "text", "text": "What is this?"}, image]
    done = client.post(f"{session}/turns", json={"content": content, "stream": False}).json()
    assert done["outcome"]["text"] == "You said: What is this? (image_url)"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"text": ""}, 400),
        ({"text": "a", "content": [{"type": "text", "text": "b"}]}, 400),
        ({"text": 5}, 400),
        ({"text": "a", "strem": True}, 400),
        ({"text": "a", "stream": "yes"}, 400),
        ({"text": "a", "key": "k" * 201}, 400),
        ({"content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}, 422),
        ({"content": []}, 400),
        ({"text": "a", "background": True}, 503),
    ],
)
def test_an_invalid_turn_is_refused_and_not_stored(
    client: httpx.Client, session: str, body: Json, status: int
) -> None:
    before = client.get(session).json()["events"]
    problem(client.post(f"{session}/turns", json=body), status)
    assert client.get(session).json()["events"] == before


def test_a_key_sent_again_with_another_text_is_refused(client: httpx.Client, session: str) -> None:
    turn = {"text": "Pay Ann.", "key": "k1", "stream": False}
    first = client.post(f"{session}/turns", json=turn).json()
    assert client.post(f"{session}/turns", json=turn).json() == first
    other = client.post(f"{session}/turns", json=turn | {"text": "Pay Bob."})
    assert "another message with this key" in problem(other, 409)
    assert other.json()["type"] == "urn:foveal:key_reused"


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        (
            "turns",
            {"txt": "a"},
            "there is no field 'txt' here; known are background, content, key, stream, text",
        ),
        ("turns", {"x" * 9_000: "a"}, f"there is no field '{'x' * 63}…' here; known are background"),
        ("turns", {"text": ""}, "text must be text, not empty"),
        ("turns", {"text": "a", "stream": "yes"}, "stream must be true or false, not text"),
        ("turns", {"content": [1]}, "content must be a list of objects, not empty"),
        ("turns", {"content": {}}, "content must be a list of objects, not empty, not an object"),
        ("turns", [], "the body must be an object, not a list"),
        ("pins", {}, "the field text is missing: it must be text, 1 to 20,000 characters"),
        ("undo", {"handle": "x"}, "handle must be text: the handle of an event, such as e2; or null"),
        ("events", {"dialect": "klingon"}, 'dialect must be "" or "anthropic" or "bedrock" or "gemini" or'),
    ],
)
def test_an_invalid_body_is_explained_in_words(
    client: httpx.Client, session: str, path: str, body: Any, detail: str
) -> None:
    assert problem(client.post(f"{session}/{path}", json=body), 400).startswith(detail)


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("frist=1", "in the query: there is no parameter 'frist' here; known are first, last, limit"),
        ("limit=0", "in the query: limit must be a whole number, 1 to 1,000"),
        ("first=x", "in the query: first must be a whole number, 0 to"),
    ],
)
def test_an_invalid_query_is_explained_in_words(
    client: httpx.Client, session: str, query: str, detail: str
) -> None:
    assert problem(client.get(f"{session}/events?{query}"), 400).startswith(detail)


def test_a_failed_turn_can_be_retried(client: httpx.Client, session: str) -> None:
    answer = client.post(f"{session}/turns", json={"text": "fail rate", "stream": False})
    assert problem(answer, 502) == "the provider is out of order (rate)"
    assert (answer.json()["cause"], answer.json()["session"]) == ("rate", session.rpartition("/")[2])
    with client.stream("POST", f"{session}/again", json={}) as stream:
        streamed = list(parse_events(stream.iter_lines()))
    assert streamed[-1][1:] == (
        "outcome",
        {
            "text": "",
            "why": "failed",
            "problem": "the provider is out of order (rate)",
            "code": "rate",
            "context": None,
        },
    )
    run_turn(client, session, "Hello")
    problem(client.post(f"{session}/again"), 409)


def test_the_same_key_is_the_same_turn(client: httpx.Client, session: str) -> None:
    first = run_turn(client, session, "Hello", key="k1")
    size = client.get(session).json()["events"]
    assert run_turn(client, session, "Hello", key="k1") == first
    assert client.get(session).json()["events"] == size


def test_a_client_can_follow_a_turn_after_a_disconnect(
    server: ApiServer, client: httpx.Client, session: str
) -> None:
    with client.stream("POST", f"{session}/turns", json={"text": "hold hang-up"}) as stream:
        place = stream.headers["location"]
        seen = parse_events(stream.iter_lines())
        assert [next(seen)[1], next(seen)[1]] == ["heard", "streamed"]
    assert client.get(place, params={"stream": False}).json()["state"] == "running"
    problem(client.post(f"{session}/events", json={"text": "not now"}), 409)
    problem(client.post(f"{session}/compact"), 409)
    with client.stream("GET", place, headers={"Last-Event-ID": "1"}) as stream:
        rest_of_stream = parse_events(stream.iter_lines())
        assert next(rest_of_stream)[:2] == ("2", "streamed")
        server.release("hang-up")
        rest = list(rest_of_stream)
    assert rest[-1][2]["text"] == "You said: hold hang-up"
    with client.stream("GET", place, headers={"Last-Event-ID": rest[-2][0]}) as stream:
        assert [name for _, name, _ in parse_events(stream.iter_lines())] == ["outcome"]
    problem(client.get(place, headers={"Last-Event-ID": "x"}), 400)


def test_two_messages_at_once_are_answered_in_order(
    server: ApiServer, client: httpx.Client, session: str
) -> None:
    with (
        client.stream("POST", f"{session}/turns", json={"text": "hold order"}) as one,
        client.stream("POST", f"{session}/turns", json={"text": "second"}) as two,
    ):
        assert client.get(two.headers["location"], params={"stream": False}).json()["state"] == "waiting"
        server.release("order")
        assert [list(parse_events(each.iter_lines()))[-1][2]["why"] for each in (one, two)] == [
            "answered"
        ] * 2
    log = client.get(f"{session}/events").json()["events"]
    texts_in_log = [event["fact"]["content"] for event in log if event["kind"] in ("user_said", "model_said")]
    assert texts_in_log == ["hold order", "You said: hold order", "second", "You said: second"]


def test_many_messages_at_once_are_answered_one_by_one(client: httpx.Client, session: str) -> None:
    texts = [f"message {number}" for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        done = list(pool.map(lambda text: run_turn(client, session, text), texts))
    assert [each["outcome"]["text"] for each in done] == [f"You said: {text}" for text in texts]
    log = client.get(f"{session}/events", params={"limit": 200}).json()["events"]
    texts_in_log = [event["fact"]["content"] for event in log if event["kind"] in ("user_said", "model_said")]
    assert sorted(texts_in_log[::2]) == sorted(texts)
    assert texts_in_log[1::2] == [f"You said: {text}" for text in texts_in_log[::2]]


def test_a_turn_can_be_followed_after_a_restart(tmp_path: Path) -> None:
    with ApiServer(tmp_path) as first, first.client() as client:
        client.post("/api/sessions", json={"id": "demo"})
        done = client.post("/api/sessions/demo/turns", json={"text": "Hello.", "stream": False})
    with ApiServer(tmp_path) as second, second.client() as client:
        place = done.headers["location"]
        assert client.get(place, params={"stream": "false"}).json() == done.json()
        with client.stream("GET", place, headers={"Last-Event-ID": "1"}) as stream:
            names = [name for _, name, _ in parse_events(stream.iter_lines())]
        assert names == ["answered", "ended", "outcome"]
        problem(client.get("/api/sessions/demo/turns/0123456789abcdef"), 404)


def test_a_stopped_turn_keeps_its_text(client: httpx.Client, session: str) -> None:
    with client.stream("POST", f"{session}/turns", json={"text": "hold for-ever"}) as stream:
        streamed = parse_events(stream.iter_lines())
        assert [next(streamed)[1], next(streamed)[1]] == ["heard", "streamed"]
        stopped = client.post(stream.headers["location"] + "/stop").json()
        assert (stopped["state"], stopped["outcome"]["why"]) == ("ended", "stopped")
        assert list(streamed)[-1][2]["why"] == "stopped"
        assert client.post(stream.headers["location"] + "/stop").json() == stopped
    log = client.get(f"{session}/events").json()["events"]
    assert "Well … " in [event["fact"].get("content") for event in log]
    problem(client.post(f"{session}/turns/t0/stop"), 404)


def test_a_waiting_turn_can_be_stopped(server: ApiServer, client: httpx.Client, session: str) -> None:
    with (
        client.stream("POST", f"{session}/turns", json={"text": "hold withdrawn"}) as one,
        client.stream("POST", f"{session}/turns", json={"text": "Forget this"}) as two,
    ):
        assert client.post(two.headers["location"] + "/stop").json()["state"] == "waiting"
        server.release("withdrawn")
        assert list(parse_events(one.iter_lines()))[-1][2]["why"] == "answered"
        assert list(parse_events(two.iter_lines()))[-1][2]["why"] == "stopped"
    assert run_turn(client, session, "Hello")["outcome"]["text"] == "You said: Hello"


def test_a_message_that_cannot_fit_is_stored_and_refused_with_advice(
    client: httpx.Client, session: str
) -> None:
    answer = client.post(f"{session}/turns", json={"text": "word " * 150_000, "stream": False})
    assert "shorten it" in problem(answer, 413)
    assert answer.json()["cause"] == "ContextOverflow"


def test_deleting_a_session_stops_its_turn(client: httpx.Client, session: str) -> None:
    with client.stream("POST", f"{session}/turns", json={"text": "hold deleted"}) as stream:
        streamed = parse_events(stream.iter_lines())
        assert [next(streamed)[1], next(streamed)[1]] == ["heard", "streamed"]
        assert client.delete(session).status_code == 204
        assert list(streamed)[-1][2]["why"] == "stopped"
    problem(client.get(session), 404)


def test_a_silent_stream_sends_keep_alive_comments() -> None:
    async def scene() -> list[bytes]:
        released = asyncio.Event()

        async def events_after_release() -> AsyncGenerator[bytes, None]:
            await released.wait()
            yield b"data: {}\n\n"

        chunks = []
        async for each in with_keep_alive(events_after_release(), interval=0.01):
            chunks.append(each)
            released.set()
        return chunks

    assert asyncio.run(scene()) == [KEEP_ALIVE_COMMENT, b"data: {}\n\n"]


# ── Messages, summaries, pins, events, search ──────────────────────────────────────────────────────────


def test_messages_of_every_dialect_are_stored_and_not_answered(client: httpx.Client, session: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    ]
    anthropic = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c2", "name": "ls", "input": {}}]}
    ]
    responses = [{"type": "function_call_output", "call_id": "c2", "output": "b.txt"}]
    handles = []
    for messages in (chat, anthropic, responses):
        stored = client.post(f"{session}/events", json={"messages": messages})
        assert stored.status_code == 201
        handles += stored.json()["handles"]
    handles += client.post(f"{session}/events", json={"text": "And now?"}).json()["handles"]
    assert handles == ["e2", "e3", "e4", "e5", "e6", "e7"]
    log = client.get(f"{session}/events", params={"first": 2}).json()["events"]
    assert [event["kind"] for event in log] == [
        "user_said", "model_said", "tool_returned", "model_said", "tool_returned", "user_said",
    ]  # fmt: skip


def test_invalid_messages_are_refused_as_a_whole(client: httpx.Client, session: str) -> None:
    bad = [{"role": "user", "content": "Hello"}, {"role": "tool", "content": "x"}]
    detail = problem(client.post(f"{session}/events", json={"messages": bad}), 422)
    assert detail == "messages[1].tool_call_id: is missing"
    many = [{"role": "user", "content": "x"}] * 51
    assert "51 messages" in problem(client.post(f"{session}/events", json={"messages": many}), 413)
    problem(client.post(f"{session}/events", json={"text": "a", "messages": bad}), 400)
    problem(client.post(f"{session}/events", json={"messages": bad, "dialect": "klingon"}), 400)
    assert client.get(session).json()["events"] == 2


def test_a_compaction_is_reported_and_undone(client: httpx.Client, session: str) -> None:
    problem(client.post(f"{session}/compact"), 409)
    problem(client.post(f"{session}/undo"), 409)
    for part in range(4):
        turn = [
            {"role": "user", "content": f"Look at part {part}."},
            {"role": "assistant", "content": f"Part {part} has a bound that is wrong. " * 200},
        ]
        client.post(f"{session}/events", json={"messages": turn})
    client.post(f"{session}/events", json={"text": "Which was the first?"})
    done = client.post(f"{session}/compact", json={"focus": "the first"}).json()
    assert done["after"] < done["before"]
    assert done["summary"]
    report = client.get(f"{session}/context").json()
    assert report["used"] == done["after"]
    assert sum(report["totals"].values()) == report["window"]
    assert client.get(f"{session}/events/{done['handle']}").json()["event"]["kind"] == "compacted"
    assert client.get(f"{session}/events/e5").json()["shown"]["by"] == done["handle"]
    undone = client.post(f"{session}/undo").json()
    assert undone == {"handle": done["handle"], "kind": "compacted", "warning": ""}
    assert client.get(f"{session}/context").json()["used"] == done["before"]
    problem(client.post(f"{session}/undo", json={"handle": "e9999"}), 422)
    problem(client.post(f"{session}/compact", json={"background": True}), 503)


def test_the_question_of_mode_confirm_is_answered_with_yes(tmp_path: Path) -> None:
    confirming = {"window": 4_000, "compaction__mode": "confirm"}
    with (
        ApiServer(tmp_path / "confirm", **confirming) as server,
        server.client(server.token("default")) as client,
    ):
        session = client.post("/api/sessions", json={}).headers["location"]
        assert "asks nothing" not in problem(client.post(f"{session}/compact", json={"agreed": True}), 409)
        turn = [{"role": "user", "content": "more"}, {"role": "assistant", "content": "word " * 40}]
        client.post(f"{session}/events", json={"messages": turn * 25})
        asked: list[str] = []
        while len(asked) < 2:  # the first question is not answered, and the next answer repeats it
            client.post(f"{session}/events", json={"messages": turn})
            report = client.get(f"{session}/context").json()
            asked += filter(None, [report["question"]])
            assert report["state"] != "over"
        assert asked[0] != asked[1], "each has its numbers"
        assert asked[1].startswith("Context usage at ")
        kinds = {event["kind"] for event in client.get(f"{session}/events?limit=1000").json()["events"]}
        assert kinds.isdisjoint({"compacted", "masked", "dropped", "clipped"})
        problem(client.post(f"{session}/compact", json={"agreed": True, "background": True}), 422)
        agreed = client.post(f"{session}/compact", json={"agreed": True}).json()
        assert agreed["after"] < agreed["before"]
        assert (
            client.get(f"{session}/events/{agreed['handle']}").json()["event"]["fact"]["rule"]
            == "economy: agreed"
        )
        assert client.get(f"{session}/context").json()["question"] == ""


def test_a_message_is_superseded_until_undo(client: httpx.Client) -> None:
    session = client.post("/api/sessions", json={}).headers["location"]
    said = [{"role": "user", "content": "Never push."}, {"role": "user", "content": "You can push now."}]
    old, new = client.post(f"{session}/events", json={"messages": said}).json()["handles"]
    recorded = client.post(f"{session}/supersede", json={"handle": old, "by": new})
    assert recorded.status_code == 200
    fact = client.get(f"{session}/events/{recorded.json()['handle']}").json()["event"]["fact"]
    assert fact == {"kind": "superseded", "target": int(old[1:]), "by": int(new[1:])}
    shown = client.get(f"{session}/export?to=openai").json()
    assert shown[-2]["content"] == f"Never push.\n[foveal: replaced by {new}]"
    problem(client.post(f"{session}/supersede", json={"handle": new, "by": old}), 422)
    problem(client.post(f"{session}/supersede", json={"handle": old, "by": "e999"}), 422)
    assert client.post(f"{session}/undo", json={}).json()["kind"] == "superseded"


def test_a_rule_is_pinned_and_unpinned(client: httpx.Client, session: str) -> None:
    pinned = client.post(f"{session}/pins", json={"text": "Never touch the API."})
    assert pinned.status_code == 201
    assert client.get(f"{session}/context").json()["totals"]["pinned"] > 0
    assert client.post(f"{session}/undo", json=pinned.json()).json()["kind"] == "pinned"
    assert client.get(f"{session}/context").json()["totals"]["pinned"] == 0
    problem(client.post(f"{session}/pins", json={"text": ""}), 400)


def test_a_message_gets_a_priority_and_loses_it(client: httpx.Client, session: str) -> None:
    said = client.post(f"{session}/events", json={"text": "The key is in the safe."}).json()["handles"][0]
    marked = client.post(f"{session}/mark", json={"handle": said, "priority": "high"})
    assert marked.status_code == 200
    recorded = client.get(f"{session}/events/{marked.json()['handle']}").json()["event"]["fact"]
    assert recorded == {"kind": "prioritised", "target": int(said[1:]), "priority": "high"}
    shown = client.get(f"{session}/events/{said}").json()["shown"]
    assert (shown["priority"], shown["priority_since"]) == ("high", marked.json()["handle"])
    assert client.post(f"{session}/undo", json=marked.json()).json()["kind"] == "prioritised"
    assert not client.get(f"{session}/events/{said}").json()["shown"].get("priority")
    problem(client.post(f"{session}/mark", json={"handle": said, "priority": "urgent"}), 400)
    problem(client.post(f"{session}/mark", json={"handle": "e9999", "priority": "low"}), 422)
    problem(client.post(f"{session}/mark", json={"handle": said}), 400)


def test_a_message_is_dropped_and_shown_again(client: httpx.Client, session: str) -> None:
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    handles = client.post(f"{session}/events", json={"messages": said}).json()["handles"]
    latest = client.post(f"{session}/events", json={"text": "three"}).json()["handles"][0]
    dropped = client.post(f"{session}/drop", json={"handle": handles[1]})
    assert dropped.status_code == 200
    shown = client.get(f"{session}/events/{handles[1]}").json()["shown"]
    assert (shown["level"], shown["by"]) == ("dropped", dropped.json()["handle"])
    assert client.post(f"{session}/undo").json() == {**dropped.json(), "kind": "dropped", "warning": ""}
    assert client.get(f"{session}/events/{handles[1]}").json()["shown"]["level"] == "full"
    assert "the latest message of the user" in problem(
        client.post(f"{session}/drop", json={"handle": latest}), 409
    )
    problem(client.post(f"{session}/drop", json={"handle": "e9999"}), 422)
    problem(client.post(f"{session}/drop", json={}), 400)


def test_events_are_listed_page_by_page(client: httpx.Client, session: str) -> None:
    many = [{"role": "user", "content": f"message {number}"} for number in range(10)]
    client.post(f"{session}/events", json={"messages": many})
    found, first = [], 0
    while first is not None:
        page = client.get(f"{session}/events", params={"first": first, "limit": 5}).json()
        assert len(page["events"]) <= 5
        found += page["events"]
        first = page["next"]
    assert [event["seq"] for event in found] == list(range(12))
    middle = client.get(f"{session}/events", params={"first": 3, "last": 4}).json()
    assert ([event["handle"] for event in middle["events"]], middle["next"]) == (["e3", "e4"], None)
    assert client.get(f"{session}/events", params={"first": 99}).json() == {"events": [], "next": None}


def test_a_page_of_large_events_is_limited_by_bytes(client: httpx.Client, session: str) -> None:
    for _ in range(3):
        client.post(f"{session}/events", json={"text": "x" * 2_500_000})
    page = client.get(f"{session}/events", params={"first": 2}).json()
    assert (len(page["events"]), page["next"]) == (2, 4)
    assert len(client.get(f"{session}/events", params={"first": 4}).json()["events"]) == 1


def test_search_finds_messages(client: httpx.Client, session: str) -> None:
    client.post(f"{session}/events", json={"text": "filler " * 500 + "the tulip is red" + " filler" * 500})
    (hit,) = client.get(f"{session}/search", params={"q": "tulip"}).json()["hits"]
    assert (hit["handle"], hit["kind"]) == ("e2", "user_said")
    assert "the tulip is red" in hit["excerpt"]
    assert len(hit["excerpt"]) < 300
    assert client.get(f"{session}/search", params={"q": '" OR ("'}).status_code == 200
    problem(client.get(f"{session}/search"), 400)


def test_messages_that_a_client_stores_are_no_calls(client: httpx.Client, session: str) -> None:
    stored = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, reader."}]
    assert client.post(f"{session}/events", json={"messages": stored}).status_code == 201
    for calls in (0, 1):
        counts = [client.get(f"{session}/{name}").json() for name in ("context", "usage")]
        assert [count["calls"] for count in counts] == [calls, calls]
        assert counts[0]["unknown_calls"] == counts[1]["unknown_calls"] <= calls
        run_turn(client, session, "Go on.")


def test_usage_adds_up(client: httpx.Client, session: str) -> None:
    assert client.get(f"{session}/usage").json()["calls"] == 0
    run_turn(client, session, "One")
    run_turn(client, session, "Two")
    used = client.get(f"{session}/usage").json()
    assert (used["calls"], used["input"], used["output"]) == (2, 100, 10)


def test_an_export_can_be_imported_unchanged(client: httpx.Client, session: str, tmp_path: Path) -> None:
    run_turn(client, session, "Hello")
    client.post(
        f"{session}/events", json={"messages": [{"role": "user", "content": f"m{n}"} for n in range(45)]}
    )
    client.post(
        f"{session}/events", json={"messages": [{"role": "user", "content": f"n{n}"} for n in range(50)]}
    )
    client.post(
        f"{session}/events", json={"messages": [{"role": "user", "content": f"o{n}"} for n in range(50)]}
    )
    answer = client.get(f"{session}/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    (tmp_path / "all.jsonl").write_bytes(answer.content)
    (recording,) = read(tmp_path / "all.jsonl")
    assert f"/api/sessions/{recording.id}" == session
    assert len(recording.facts) == client.get(session).json()["events"]
    for dialect in ("openai", "responses", "anthropic", "gemini"):
        messages = client.get(f"{session}/export", params={"to": dialect}).json()
        assert "Hello" in json.dumps(messages)
    problem(client.get(f"{session}/export", params={"to": "word"}), 400)


@pytest.mark.parametrize("to", ["foveal", "openai"])
def test_an_export_lets_other_requests_be_served_after_each_part(tmp_path: Path, to: str) -> None:
    with ApiServer(tmp_path) as server, server.client() as client:
        client.post("/api/sessions", json={"id": "long"})
        said = [{"role": "user", "content": f"message {number} " + "word " * 100} for number in range(1_500)]
        assert client.post("/api/sessions/long/events", json={"messages": said}).status_code == 201
        exported, stretches = server.do(sizes_between_turns(server, f"/api/sessions/long/export?to={to}"))
    assert exported.count(b"message ") == 1_500
    assert len(exported) > 10 * max(stretches)


async def sizes_between_turns(server: ApiServer, url: str) -> tuple[bytes, list[int]]:
    """Return a response to a client that reads at once, and how many bytes were sent in each turn of the loop."""
    path, _, query = url.partition("?")
    sent: dict[int, bytes] = {}
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(DEADLINE)
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        sent[turns] = sent.get(turns, b"") + message.get("body", b"")

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "root_path": ""}
    scope |= {
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "asgi": {"spec_version": "2.4"},
    }
    counting = asyncio.create_task(count_turns())
    try:
        await server.app(scope, receive, send)
    finally:
        counting.cancel()
    return b"".join(sent.values()), list(map(len, sent.values()))


# ── Tenants and invalid requests ───────────────────────────────────────────────────────────────────────


def test_one_tenant_never_sees_anothers_session(
    server: ApiServer, tokens: dict[str, str], client: httpx.Client, session: str
) -> None:
    turn = run_turn(client, session, "My word is tulip.")["turn"]
    with server.client(tokens["other"]) as other:
        gets = (
            "",
            "/context",
            "/usage",
            "/events",
            "/events/e2",
            "/search?q=tulip",
            "/export",
            f"/turns/{turn}",
        )
        strange = [other.get(session + path) for path in gets]
        strange += [other.post(session + path, json={}) for path in ("/compact", "/undo", "/fork", "/again")]
        strange += [other.post(session + path, json={"text": "x"}) for path in ("/turns", "/events", "/pins")]
        strange += [other.patch(session, json={"title": "mine"}), other.delete(session)]
        strange += [other.post(f"{session}/turns/{turn}/stop")]
        missing = problem(other.get("/api/sessions/no-such-session"), 404)
        for answer in strange:
            detail = problem(answer, 404)
            assert detail == missing.replace("no-such-session", session.rpartition("/")[2])
        assert other.get("/api/sessions").json()["sessions"] == []
        own = other.post("/api/sessions", json={"id": session.rpartition("/")[2]})
        assert own.status_code == 201
        assert other.get(f"{session}/search", params={"q": "tulip"}).json()["hits"] == []
    assert client.get(f"{session}/search", params={"q": "tulip"}).json()["hits"]


def test_a_wrong_method_gets_the_allowed_ones(client: httpx.Client, session: str) -> None:
    answer = client.put(session, json={})
    problem(answer, 405)
    assert sorted(answer.headers["allow"].split(", ")) == ["DELETE", "GET", "PATCH"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b'{"text":"x"}', "text/plain", 415),
        (b'{"text":"x"}', "", 415),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"text":"\\ud800"}', "application/json", 400),
        (b'{"text":"\xff"}', "application/json", 400),
        (b'{"text":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "application/json", 400),
        (b'{"text":1e999}', "application/json", 400),
    ],
)
def test_a_body_of_the_wrong_type_is_refused(
    client: httpx.Client, session: str, body: bytes, content_type: str, status: int
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    problem(client.post(f"{session}/turns", content=body, headers=headers), status)


@pytest.mark.parametrize(
    "query",
    [
        "first=-1", "first=99999999999999999999", "first=x", "limit=0", "limit=1001", "limit=1&limit=2", "frist=1",
        "last=1e400", "first=%00", "first=",
    ],
)  # fmt: skip
def test_an_invalid_query_is_refused(client: httpx.Client, session: str, query: str) -> None:
    problem(client.get(f"{session}/events?{query}"), 400)


def test_numbers_out_of_bounds_are_refused(client: httpx.Client, session: str) -> None:
    for huge in (b'{"at":' + b"9" * 400 + b"}", b'{"at":"e' + b"9" * 400 + b'"}', b'{"at":1e400}'):
        answer = client.post(f"{session}/fork", content=huge, headers={"Content-Type": "application/json"})
        problem(answer, 400)
    problem(client.get(f"{session}/events/{'9' * 400}"), 404)
    problem(client.get(f"{session}/events/-1"), 404)


@pytest.mark.parametrize("id", ["%2e%2e", "a%2fb", "%00", "%ff", "%ed%a0%80", "x" * 5_000, "%0a", "☃"])
def test_an_unusual_id_in_a_path_is_unknown(client: httpx.Client, id: str) -> None:
    assert client.get(f"/api/sessions/{id}").status_code == 404


def test_every_character_survives(client: httpx.Client, session: str) -> None:
    text = "\x00\x01\x1b[31m\u202e\ufeff\U000e0041 \U0001f469\u200d\U0001f52c \ufffd \uffff"
    (handle,) = client.post(f"{session}/events", json={"text": text}).json()["handles"]
    assert client.get(f"{session}/events/{handle}").json()["original"] == text
    assert json.dumps(text)[1:-1] in json.dumps(
        client.get(f"{session}/export", params={"to": "openai"}).json()
    )


def test_a_lone_surrogate_in_the_log_breaks_no_response(
    server: ApiServer, client: httpx.Client, session: str
) -> None:
    text, id = "half \ud83d of it", session.rpartition("/")[2]

    async def store() -> None:
        await (await server.service.tenant("default").session(id)).append(UserSaid(content=text))

    server.do(store())
    assert client.get(f"{session}/events/e2").json()["original"] == text
    assert client.get(f"{session}/events").json()["events"][2]["fact"]["content"] == text
    assert client.get(f"{session}/search", params={"q": "half"}).json()["hits"][0]["handle"] == "e2"
    assert client.get(f"{session}/export", params={"to": "openai"}).json()[-1]["content"] == text
    assert json.loads(client.get(f"{session}/export").text.splitlines()[-1])["fact"]["content"] == text
    assert client.get(f"{session}/context").status_code == 200


def test_a_reduction_is_streamed_and_another_server_continues(tmp_path: Path) -> None:
    with ApiServer(tmp_path, window=4_000, server__models=["scripted/*"]) as first, first.client() as client:
        problem(client.post("/api/sessions", json={"model": "openai/gpt-5.1"}), 422)
        session = client.post("/api/sessions", json={"model": "scripted/model"}).headers["location"]
        for number in range(12):
            call = {"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            turn = [
                {"role": "user", "content": f"List {number}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "content": f"file {number}\n" * 150},
                {"role": "assistant", "content": "Done."},
            ]
            assert client.post(f"{session}/events", json={"messages": turn}).status_code == 201
        with client.stream("POST", f"{session}/turns", json={"text": "Thanks", "key": "k"}) as stream:
            streamed = {name: data for _, name, data in parse_events(stream.iter_lines())}
        assert streamed["reduced"]["after"] < streamed["reduced"]["before"]
        assert {each["kind"] for each in streamed["reduced"]["events"]} & {
            "masked",
            "clipped",
            "dropped",
            "compacted",
        }
        assert streamed["outcome"]["context"]["used"] <= streamed["outcome"]["context"]["limit"]
        size = client.get(session).json()["events"]
    with ApiServer(tmp_path, window=4_000) as second, second.client() as client:
        again = run_turn(client, session, "Thanks", key="k")
        assert (again["outcome"]["text"], again["outcome"]["why"]) == ("You said: Thanks", "answered")
        assert client.get(session).json()["events"] == size
        assert client.get(session).json()["model"] == "scripted/model"
