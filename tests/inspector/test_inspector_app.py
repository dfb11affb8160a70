"""The inspector over HTTP: logins, checks of requests, the API, streams."""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.core.log.events import Call, ModelSaid, Text, ToolReturned, UserSaid
from foveal.core.policies.presets import PRESETS
from foveal.inspector.streams import Replays
from support.inspected_server import TOKEN_HEADER, InspectedServer, page_token, write_session

LONG = "a line of output that repeats nothing: {}\n"


def talk(steps: int) -> list[Any]:
    facts: list[Any] = [UserSaid(content="Find the flaky test.")]
    for step in range(steps):
        call = Call(id=f"c{step}", name="shell", arguments=json.dumps({"command": f"pytest -k {step}"}))
        facts.append(ModelSaid(content=(Text(text=f"Look {step}."), call)))
        result = "".join(LONG.format(step * 1_000 + line) for line in range(200))
        facts.append(ToolReturned(call_id=f"c{step}", content=result))
    return [*facts, ModelSaid(content="It is test_socket.")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "sessions.db"
    write_session(path, "one", talk(12), title="Flaky", window=16_000)
    write_session(path, "two", [UserSaid(content="Hello.")], title="Short")
    return path


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[InspectedServer]:
    with InspectedServer(store) as running:
        yield running


@pytest.fixture(scope="module")
def key(server: InspectedServer) -> str:
    return server.keys()["Flaky"]


# ── Logins and checks ────────────────────────────────────────────────────────────────────────────────────


def test_a_browser_without_a_login_sees_no_page_and_no_data(server: InspectedServer, key: str) -> None:
    visitor = server.visitor()
    assert visitor.get("/inspect/").headers["location"] == "login"
    assert visitor.get(f"/inspect/session?id={key}").headers["location"] == f"login?id={key}"
    answer = visitor.get(f"/inspect/api/timeline?id={key}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_logged_in")
    login = visitor.get("/inspect/login")
    assert login.status_code == 401
    assert "address that foveal inspect has printed" in login.text


def test_the_printed_address_logs_in_and_drops_its_token(server: InspectedServer, key: str) -> None:
    visitor = server.visitor()
    answer = visitor.get(server.server.url(session=key))
    assert (answer.status_code, answer.headers["location"]) == (303, f"session?id={key}")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    assert cookie.startswith(f"foveal_inspect_{server.address.rpartition(':')[2]}=")
    assert server.server.url().partition("token=")[2] not in cookie
    assert visitor.get(f"/inspect/session?id={key}").status_code == 200


def test_a_token_for_the_browser_works_once(server: InspectedServer) -> None:
    url = server.server.url(is_single_use=True)
    assert [server.visitor().get(url).status_code for _ in range(2)] == [303, 401]


def test_a_wrong_token_logs_nobody_in(server: InspectedServer) -> None:
    for token in ("", "x", "é\udcff", "x" * 5_000):
        answer = server.visitor().get("/inspect/login", params={"token": token.encode("utf-8", "replace")})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    assert server.visitor().post("/inspect/login", data={"token": "x"}).status_code == 401


def test_a_login_leads_only_to_a_session(server: InspectedServer) -> None:
    url = f"{server.server.url()}&id=%2F%2Fevil.example%2F%3Fa%3Db"
    assert server.visitor().get(url).headers["location"] == "session?id=%2F%2Fevil.example%2F%3Fa%3Db"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Encoding": "gzip"}, 415),
    ],
)
@pytest.mark.parametrize(
    "path", ["/inspect/", "/inspect/login", "/inspect/static/main.js", "/inspect/api/sessions"]
)
def test_other_sites_and_names_are_refused_on_every_path(
    server: InspectedServer, headers: dict[str, str], status: int, path: str
) -> None:
    assert server.client().get(path, headers=headers).status_code == status


def test_a_body_that_is_too_large_is_refused(server: InspectedServer, key: str) -> None:
    client = server.client()
    token = {TOKEN_HEADER: page_token(client.get("/inspect/").text)}
    body = {"action": "pin", "text": "x" * 1_000_001}
    assert client.post(f"/inspect/api/act?id={key}", json=body, headers=token).status_code == 413
    assert client.post("/inspect/logout", data={"write_token": "x" * 20_000}).status_code == 413


def test_every_response_has_the_security_headers(server: InspectedServer, key: str) -> None:
    client = server.client()
    paths = [
        "/inspect/",
        "/inspect/static/main.js",
        "/inspect/nowhere",
        "/",
        f"/inspect/api/timeline?id={key}",
    ]
    for path in [*paths, "/inspect/api/timeline?id=none"]:
        headers = client.get(path).headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


def test_a_change_needs_the_token_of_the_page(server: InspectedServer) -> None:
    client, key = server.client(), server.keys()["Short"]
    body = {"action": "pin", "text": "Answer in English."}
    for headers in (
        {},
        {TOKEN_HEADER: ""},
        {TOKEN_HEADER: page_token(server.client().get("/inspect/").text)},
    ):
        answer = client.post(f"/inspect/api/act?id={key}", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_write_token")
    token = page_token(client.get("/inspect/").text)
    answer = client.post(f"/inspect/api/act?id={key}", json=body, headers={TOKEN_HEADER: token})
    assert answer.json() == {"event": "e3", "text": "the rule is in every request"}


# ── Pages ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_overview_lists_the_sessions_with_links(server: InspectedServer, key: str) -> None:
    page = server.client().get("/inspect/").text
    assert f'<a href="session?id={key}">Flaky</a>' in page
    assert '<script type="module" src="static/main.js"></script>' in page
    assert "<noscript>" in page


def test_the_page_of_a_session_has_its_newest_events(server: InspectedServer, key: str) -> None:
    page = server.client().get(f"/inspect/session?id={key}").text
    assert f'<body data-page="session" data-id="{key}" data-policies="' in page
    assert "It is test_socket." in page
    for part in ("head", "scrubber", "main", "log-view", "panels", "status"):
        assert f'id="{part}"' in page


def test_the_page_offers_every_preset_for_a_replay(server: InspectedServer, key: str) -> None:
    page = server.client().get(f"/inspect/session?id={key}").text
    given = json.loads(html.unescape(page.partition('data-policies="')[2].partition('"')[0]))
    assert [name for name, meaning in given if meaning] == list(PRESETS)


def test_a_session_that_does_not_exist_has_a_page_that_says_so(server: InspectedServer) -> None:
    answer = server.client().get("/inspect/session?id=nowhere")
    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text
    assert server.client().get("/inspect/session").status_code == 400


@pytest.mark.parametrize("name", ["main.js", "inspector.css", "icon.svg"])
def test_static_files_are_checked_by_their_tag(server: InspectedServer, name: str) -> None:
    visitor = server.visitor()
    first = visitor.get(f"/inspect/static/{name}")
    assert first.status_code == 200
    again = visitor.get(f"/inspect/static/{name}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["..%2finspector_app.py", "%2e%2e/__init__.py", "none.js", "types.js%00"])
def test_static_files_are_those_of_the_folder(server: InspectedServer, name: str) -> None:
    assert server.visitor().get(f"/inspect/static/{name}").status_code == 404


# ── API ──────────────────────────────────────────────────────────────────────────────────────────────────


def get(server: InspectedServer, path: str, **parameters: Any) -> Any:
    answer = server.client().get(f"/inspect/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_timeline_has_rows_changes_requests_and_reductions(server: InspectedServer, key: str) -> None:
    timeline = get(server, "timeline", id=key)
    assert [row["seq"] for row in timeline["rows"]] == list(range(timeline["next"]))
    assert timeline["id"] == key
    assert timeline["title"] == "Flaky"
    assert timeline["reductions"]
    later = get(server, "timeline", id=key, first=10)
    assert later["rows"] == timeline["rows"][10:]
    assert get(server, "timeline", id=key, first=10**9).get("rows", []) == []


@pytest.mark.long
def test_a_long_timeline_is_compressed_if_the_client_accepts_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_session(path, "long", [ModelSaid(content=f"{n} {'word ' * 40}") for n in range(300)], title="Long")
    with InspectedServer(path) as server:
        client, url = server.client(), f"/inspect/api/timeline?id={server.keys()['Long']}"
        plain = client.get(url, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        with client.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert gzip.decompress(b"".join(answer.iter_raw())) == plain.content


def test_the_statements_of_the_user_are_those_at_the_point(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_session(path, "rules", [UserSaid(content="Never push to main.")], title="Rules")
    with InspectedServer(path) as server:
        key = server.keys()["Rules"]
        rule = {
            "handle": "e2",
            "text": "Never push to main.",
            "kind": "rule",
            "replaced_by": "",
            "shown": "verbatim",
        }
        assert get(server, "statements", id=key, at=2) == {"at": 2, "statements": [rule]}
        assert get(server, "statements", id=key, at=1) == {"at": 1}
        client = server.client()
        assert client.get("/inspect/api/statements", params={"id": key, "at": 99}).status_code == 404
        assert client.get("/inspect/api/statements", params={"id": key}).status_code == 400


def test_texts_requests_diffs_and_hits_are_those_of_the_log(server: InspectedServer, key: str) -> None:
    text = get(server, "text", id=key, event=4)
    assert text["parts"][0]["text"].startswith(LONG.format(0))
    part = get(server, "text", id=key, event=4, chars=10, **{"from": 5})
    assert (part["parts"][0]["text"], part["truncated"]) == (text["parts"][0]["text"][5:15], True)
    end = get(server, "timeline", id=key)["next"] - 1
    assert get(server, "shown", id=key, key="e2", at=end)["parts"][0]["text"] == "Find the flaky test."
    request = get(server, "request", id=key, at=end)
    assert request["messages"][-1]["role"] == "assistant"
    assert get(server, "diff", id=key, a=5, b=end)["rows"]
    assert get(server, "search", id=key, q="test_socket")["hits"] == [[f"e{end}", -1]]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("timeline", 400, "invalid_query"),
        ("timeline?id=none", 404, "unknown_session"),
        ("timeline?id={key}&first=-1", 400, "invalid_query"),
        ("timeline?id={key}&id={key}", 400, "invalid_query"),
        ("timeline?id={key}&other=1", 400, "invalid_query"),
        ("text?id={key}&event=99999", 404, "unknown_handle"),
        ("text?id={key}&event=2&chars=99999999", 400, "invalid_query"),
        ("shown?id={key}&key=x&at=3", 404, "unknown_handle"),
        ("shown?id={key}&key=e2&at=99999", 404, "unknown_handle"),
        ("request?id={key}&at=99999", 404, "unknown_handle"),
        ("request?id={key}&at=5&dialect=latin", 400, "bad_setting"),
        ("search?id={key}&q=x", 400, "bad_setting"),
        ("live?id=none", 404, "unknown_session"),
    ],
)
def test_wrong_questions_get_an_error_with_advice(
    server: InspectedServer, key: str, path: str, status: int, code: str
) -> None:
    answer = server.client().get(f"/inspect/api/{path.format(key=key)}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert len(answer.json()["error"]["message"]) > 10


def test_paths_and_methods_that_do_not_exist_are_refused(server: InspectedServer) -> None:
    client = server.client()
    assert client.get("/inspect/api/nothing").status_code == 404
    assert client.get("/inspect/api/act").status_code == 405
    assert client.post("/inspect/api/timeline").status_code == 405
    assert client.get("/inspect").headers["location"] == "inspect/"
    assert client.get("/").headers["location"] == "/inspect/"


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────────────


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream, each with its fields."""
    fields: dict[str, Any] = {}
    for line in answer.iter_lines():
        if line.startswith(":"):
            continue
        if not line:
            if fields:
                yield fields
            fields = {}
            continue
        name, _, value = line.partition(": ")
        fields[name] = json.loads(value) if name == "data" else value


def test_a_stream_continues_after_the_last_event_that_a_page_has(server: InspectedServer, key: str) -> None:
    end = get(server, "timeline", id=key)["next"]
    client = server.client()
    for parameters, headers in (({"after": 9}, {}), ({"after": 0}, {"Last-Event-ID": "9"})):
        url = "/inspect/api/live"
        with client.stream("GET", url, params={"id": key, **parameters}, headers=headers) as answer:
            first = next(events(answer))
        assert (first["event"], first["id"], first["data"]["first"]) == ("timeline", str(end - 1), 10)
    assert client.get(url, params={"id": key}, headers={"Last-Event-ID": "x"}).status_code == 400


def spoken(number: int, text: str, *, id: str, kind: str = "assistant") -> str:
    """A line of a transcript of Claude Code."""
    message = {"id": id, "role": kind, "content": [{"type": "text", "text": text}]}
    line = {"type": kind, "uuid": f"u{number}", "sessionId": "s-1", "message": message}
    return json.dumps({**line, "timestamp": f"2026-01-01T00:00:{number:02}Z"}) + "\n"


def test_a_page_that_missed_a_regrouping_gets_everything_again(tmp_path: Path) -> None:
    path = tmp_path / "s-1.jsonl"
    before = spoken(0, "count", id="m0", kind="user") + spoken(1, "one", id="m1")
    path.write_text(before)
    with InspectedServer(path) as server:
        client = server.client()
        (row,) = client.get("/inspect/api/sessions").json()["sessions"]
        key = row["key"]
        known = get(server, "timeline", id=key)
        path.write_text(before + spoken(2, "two", id="m1") + spoken(3, "go on", id="m2", kind="user"))
        position = {"after": known["next"] - 1, "generation": known["generation"]}
        for parameters, headers in (
            (position, {}),
            ({"after": 0}, {"Last-Event-ID": f"{position['after']}.{known['generation']}"}),
        ):
            with client.stream(
                "GET", "/inspect/api/live", params={"id": key, **parameters}, headers=headers
            ) as answer:
                first = next(events(answer))
            assert (first["data"].get("first", 0), first["data"]["generation"] > known["generation"]) == (
                0,
                True,
            )
            assert first["id"] == f"{first['data']['next'] - 1}.{first['data']['generation']}"


def test_a_stream_follows_a_session_that_another_connection_writes(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_session(path, "live", [UserSaid(content="Hello.")], title="Live")
    with InspectedServer(path) as server:
        key = server.keys()["Live"]
        with server.client().stream("GET", "/inspect/api/live", params={"id": key, "after": -1}) as answer:
            stream = events(answer)
            assert next(stream)["data"]["next"] == 3
            write_session(path, "live", [ModelSaid(content="Hi there.")], begin=[])
            assert [row["preview"] for row in next(stream)["data"]["rows"]] == ["Hi there."]


def test_the_list_of_sessions_is_followed_too(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_session(path, "old", [UserSaid(content="Hello.")], title="Old")
    with InspectedServer(path) as server, server.client().stream("GET", "/inspect/api/live") as answer:
        write_session(path, "new", [UserSaid(content="Hello.")], title="New")
        found = next(event for event in events(answer) if event["data"][0]["title"] == "New")
        assert found["event"] == "sessions"


def test_streams_end_when_the_server_stops(store: Path) -> None:
    with InspectedServer(store) as server:
        key = server.keys()["Flaky"]
        answer = server.client().send(
            server.client().build_request("GET", f"/inspect/api/live?id={key}"), stream=True
        )
        stream = events(answer)
        next(stream)
        server.end()
        assert list(stream) == []


def test_a_replay_reports_its_progress_and_its_result(server: InspectedServer, key: str) -> None:
    with server.client().stream("GET", f"/inspect/api/whatif?id={key}&policy=recent&window=") as answer:
        found = list(events(answer))
    assert {event["event"] for event in found[:-1]} <= {"progress"}
    assert (found[-1]["event"], found[-1]["data"]["timeline"]["policy"]) == ("result", "recent")


def test_a_replay_that_is_not_possible_says_why(server: InspectedServer, key: str) -> None:
    with server.client().stream("GET", f"/inspect/api/whatif?id={key}&policy=none") as answer:
        found = list(events(answer))
    assert found[-1]["event"] == "problem"
    assert "economy" in found[-1]["data"]["message"]


def test_a_replay_in_a_window_that_is_too_large_says_the_limit(server: InspectedServer, key: str) -> None:
    url = f"/inspect/api/whatif?id={key}&policy=recent&window=2000000000"
    with server.client().stream("GET", url) as answer:
        found = list(events(answer))
    assert found[-1]["event"] == "problem"
    assert "a whole number from 1 to 1,000,000,000 (tokens)" in found[-1]["data"]["message"]


def test_a_replay_ends_with_its_stream_and_only_then_another_begins() -> None:
    asked, is_over = threading.Event(), threading.Event()

    def endless(report: Callable[[int, int], None], should_stop: Callable[[], bool]) -> None:
        report(1, 2)
        asked.set()
        while not should_stop():
            threading.Event().wait(0.01)
        is_over.set()

    async def follow() -> None:
        replays, stopping = Replays(), asyncio.Event()
        first = replays.stream(endless, stopping=stopping)
        await anext(first)
        assert await asyncio.to_thread(asked.wait, 60)
        refused = [event async for event in replays.stream(endless, stopping=stopping)]
        assert len(refused) == 1
        assert b"another replay is running" in refused[0]
        await first.aclose()
        assert is_over.is_set()
        again = [event async for event in replays.stream(lambda report, should_stop: {}, stopping=stopping)]
        assert again[-1].startswith(b"event: result")

    asyncio.run(follow())


@pytest.mark.long
def test_a_page_that_is_closed_ends_its_replay(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_session(path, "long", talk(120), title="Long", window=16_000)
    with InspectedServer(path) as server:
        url = f"/inspect/api/whatif?id={server.keys()['Long']}&policy=handoff"
        client, other = server.client(), server.client()
        with client.stream("GET", url) as answer:
            assert next(events(answer))["event"] == "progress"
            with other.stream("GET", url) as refused:
                assert "another replay is running" in list(events(refused))[-1]["data"]["message"]
        for _ in range(200):
            with other.stream("GET", url) as answer:
                first = next(events(answer))
            if first["event"] == "progress":
                break
        assert first["event"] == "progress"


def test_actions_are_recorded_and_told(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write_session(path, "one", talk(12), title="Flaky", window=16_000)
    with InspectedServer(path) as server:
        client, key = server.client(), server.keys()["Flaky"]
        token = {TOKEN_HEADER: page_token(client.get("/inspect/").text)}
        before = get(server, "timeline", id=key)

        def act(**body: str) -> httpx.Response:
            return client.post(f"/inspect/api/act?id={key}", json=body, headers=token)

        undone = act(action="undo", event=f"e{before['reductions'][-1]['seq']}")
        assert undone.status_code == 200, undone.text
        after = get(server, "timeline", id=key, first=before["next"])
        assert after["rows"][0]["kind"] == "reverted"
        assert undone.json()["event"] == f"e{before['next']}"
        assert act(action="undo", event="e0").status_code == 404
        assert act(action="explode").status_code == 400
        assert act(action="undo", other="x").status_code == 400
