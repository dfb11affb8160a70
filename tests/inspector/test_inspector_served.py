"""The inspector of `foveal serve`: the server's tokens, tenants and live sessions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveal.inspector.streams import LOGIN_ENDED
from foveal.server.auth_tokens import LOGIN_PREFIX, MAX_LOGIN_S, AuthTokens
from support.api_server import ApiServer
from support.inspected_server import TOKEN_HEADER, page_token
from support.waiting import wait_until


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server on loopback without any token."""
    with ApiServer(tmp_path_factory.mktemp("open")) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server with a session of each of two tenants."""
    with ApiServer(tmp_path_factory.mktemp("closed")) as running:
        for tenant in ("amber", "blue"):
            with running.client(running.token(tenant)) as client:
                client.post("/api/sessions", json={"id": f"of-{tenant}", "title": f"Talk of {tenant}"})
                client.post(f"/api/sessions/of-{tenant}/turns", json={"text": f"secret of {tenant}"})
        yield running


@pytest.fixture
def browser(server: ApiServer) -> Iterator[httpx.Client]:
    """A browser that has logged in as tenant amber."""
    with server.client() as client:
        answer = client.post("/inspect/login", data={"token": server.token("amber")})
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        yield client


def key_of(client: httpx.Client, title: str) -> str:
    def find() -> str:
        rows = client.get("/inspect/api/sessions").json()["sessions"]
        return next((row["key"] for row in rows if row["title"] == title), "")

    return wait_until(find)


def test_on_loopback_without_tokens_no_login_is_needed(open_server: ApiServer) -> None:
    with open_server.client() as client:
        client.post("/api/sessions", json={"id": "one", "title": "Open"})
        page = client.get("/inspect/")
        assert page.status_code == 200
        assert "Open" in page.text
        assert "Log out" not in page.text
        body, url = {"action": "pin", "text": "Be kind."}, f"/inspect/api/act?id={key_of(client, 'Open')}"
        assert client.post(url, json=body).status_code == 403
        assert client.post(url, json=body, headers={TOKEN_HEADER: page_token(page.text)}).status_code == 200


def test_pages_need_a_login_and_the_api_a_token(server: ApiServer) -> None:
    with server.client() as client:
        assert client.get("/inspect").headers["location"] == "inspect/"
        assert client.get("/inspect/").headers["location"] == "login"
        assert client.get("/inspect/api/sessions").status_code == 401
        assert client.get("/inspect/static/main.js").status_code == 200
        login = client.get("/inspect/login")
        assert login.status_code == 200
        assert '<form method="post" action="login">' in login.text
        assert "script-src 'self'" in login.headers["content-security-policy"]


def test_a_wrong_token_or_one_in_the_address_does_not_log_in(server: ApiServer) -> None:
    with server.client() as client:
        refused = client.post("/inspect/login", data={"token": "fv_wrong"})
        assert refused.status_code == 401
        assert "unknown, used up or revoked" in refused.text
        answer = client.get("/inspect/login", params={"token": server.token("amber")})
        assert "set-cookie" not in answer.headers


def test_a_login_returns_to_the_session_that_was_asked_for(server: ApiServer) -> None:
    with server.client() as client:
        asked = client.get("/inspect/session", params={"id": "//evil.example/<x>"})
        assert asked.headers["location"] == "login?id=%2F%2Fevil.example%2F%3Cx%3E"
        login = client.get(f"/inspect/{asked.headers['location']}")
        assert '<input type="hidden" name="id" value="//evil.example/&lt;x&gt;">' in login.text
        form = {"token": server.token("amber"), "id": "//evil.example/<x>"}
        answer = client.post("/inspect/login", data=form)
        assert answer.headers["location"] == "session?id=%2F%2Fevil.example%2F%3Cx%3E"


def test_a_tenant_sees_its_own_sessions_only(server: ApiServer, browser: httpx.Client) -> None:
    with server.client(server.token("blue")) as other:
        foreign = key_of(other, "Talk of blue")
    page = browser.get("/inspect/").text
    assert "Talk of amber" in page
    assert "blue" not in page
    for path in ("session", "api/timeline", "api/live", "api/export"):
        assert browser.get(f"/inspect/{path}", params={"id": foreign}).status_code == 404
        assert browser.get(f"/inspect/{path}", params={"id": "of-blue"}).status_code == 404
    key = key_of(browser, "Talk of amber")
    assert "secret of amber" in browser.get(f"/inspect/session?id={key}").text


def test_an_empty_list_says_how_a_server_gets_sessions(server: ApiServer) -> None:
    with server.client() as client:
        client.post("/inspect/login", data={"token": server.token("white")})
        page = client.get("/inspect/").text
    assert "one begins with the first request of an agent or of the API" in page
    assert "foveal chat" not in page


def test_a_login_counts_for_the_inspector_only(browser: httpx.Client) -> None:
    assert browser.get("/inspect/api/sessions").status_code == 200
    assert browser.get("/api/sessions").status_code == 401


def test_a_revoked_token_ends_its_logins(server: ApiServer) -> None:
    tokens = AuthTokens(server.service.runtime.database)
    id, secret = server.do(tokens.create("amber", now=0.0))
    with server.client() as client:
        client.post("/inspect/login", data={"token": secret})
        assert client.get("/inspect/api/sessions").status_code == 200
        server.do(tokens.revoke(id, now=1.0))
        wait_until(lambda: client.get("/inspect/api/sessions").status_code == 401, interval_s=0.05)
        assert client.get("/inspect/").headers["location"] == "login"


def test_a_revoked_token_ends_its_streams(server: ApiServer) -> None:
    """Those of programs and of browsers, of one session and of the list."""
    tokens = AuthTokens(server.service.runtime.database)
    id, secret = server.do(tokens.create("amber", now=0.0))
    with server.client(secret) as program, server.client() as browser, ExitStack() as stack:
        browser.post("/inspect/login", data={"token": secret})
        one = {"id": key_of(program, "Talk of amber")}
        opened = [
            client.stream("GET", "/inspect/api/live", params=query, timeout=20.0)
            for client in (program, browser)
            for query in ({}, one)
        ]
        streams = [stack.enter_context(each) for each in opened]
        assert [stream.status_code for stream in streams] == [200] * 4
        server.do(tokens.revoke(id, now=1.0))
        for stream in streams:
            assert b"".join(stream.iter_bytes()).endswith(LOGIN_ENDED)


def test_a_revoked_token_ends_the_stream_of_a_turn(server: ApiServer) -> None:
    tokens = AuthTokens(server.service.runtime.database)
    id, secret = server.do(tokens.create("amber", now=0.0))
    turn = {"text": "hold revoked", "stream": True}
    try:
        with (
            server.client(secret) as client,
            client.stream("POST", "/api/sessions/of-amber/turns", json=turn, timeout=20.0) as stream,
        ):
            server.do(tokens.revoke(id, now=1.0))
            received = b"".join(stream.iter_bytes())
            assert b"event: outcome" not in received
            last = received.strip().rpartition(b"event: error\ndata: ")[2]
            assert json.loads(last)["type"] == "urn:foveal:token_revoked"
    finally:
        server.release("revoked")


def test_a_log_out_in_another_tab_ends_the_streams(browser: httpx.Client) -> None:
    written = page_token(browser.get("/inspect/").text)
    with browser.stream("GET", "/inspect/api/live", timeout=20.0) as stream:
        assert browser.post("/inspect/logout", data={"write_token": written}).status_code == 303
        assert b"".join(stream.iter_bytes()).endswith(LOGIN_ENDED)


def test_a_log_out_ends_the_login(browser: httpx.Client) -> None:
    page = browser.get("/inspect/").text
    assert browser.post("/inspect/logout", data={"write_token": "x"}).status_code == 403
    answer = browser.post("/inspect/logout", data={"write_token": page_token(page)})
    assert (answer.status_code, "Max-Age=0" in answer.headers["set-cookie"]) == (303, True)
    assert browser.get("/inspect/api/sessions").status_code == 401


def test_a_login_is_no_token_for_the_api(server: ApiServer, browser: httpx.Client) -> None:
    (id,) = browser.cookies.values()
    for secret in (id, f"{LOGIN_PREFIX}{id}"):
        with server.client() as client:
            for name in ("X-Foveal-Token", "X-Api-Key"):
                assert client.get("/api/sessions", headers={name: secret}).status_code == 401
                assert client.get("/inspect/api/sessions", headers={name: secret}).status_code == 401


def test_a_login_ends_after_a_week_and_its_id_is_not_stored(server: ApiServer, browser: httpx.Client) -> None:
    (id,), database = browser.cookies.values(), server.service.runtime.database
    rows = server.do(database.read(lambda db: db.fetch("SELECT id, token, until FROM browser_logins")))
    assert id not in str(rows)
    later = AuthTokens(database, clock=lambda: time.time() + MAX_LOGIN_S + 1)
    assert server.do(later.authenticate(f"{LOGIN_PREFIX}{id}")) is None
    assert browser.get("/inspect/api/sessions").status_code == 200
    server.do(later.log_in("other", server.token("amber")))  # removes what has ended
    wait_until(lambda: browser.get("/inspect/api/sessions").status_code == 401, interval_s=0.05)


def test_a_login_at_one_machine_is_valid_at_the_other(tmp_path: Path, service_url: str) -> None:
    settings: dict[str, Any] = {"server__database": service_url}
    with (
        ApiServer(tmp_path / "one", **settings) as one,
        ApiServer(tmp_path / "two", **settings) as two,
        one.client() as here,
        two.client() as there,
    ):
        host = {"Host": "localhost"}  # of the load balancer
        assert (
            here.post("/inspect/login", data={"token": one.token("amber")}, headers=host).status_code == 303
        )
        there.headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in here.cookies.items())
        page = there.get("/inspect/", headers=host)
        assert page.status_code == 200
        written = page_token(page.text)
        assert written == page_token(here.get("/inspect/", headers=host).text)
        assert here.post("/inspect/logout", data={"write_token": written}, headers=host).status_code == 303
        wait_until(
            lambda: there.get("/inspect/api/sessions", headers=host).status_code == 401, interval_s=0.05
        )


def test_a_login_over_https_sets_a_secure_cookie(server: ApiServer) -> None:
    with server.client() as client:
        host = client.base_url.netloc.decode()
        headers = {"Origin": f"https://{host}"}
        answer = client.post("/inspect/login", data={"token": server.token("amber")}, headers=headers)
        assert answer.headers["set-cookie"].endswith("; Secure")


def test_programs_send_their_token_and_need_no_other(server: ApiServer) -> None:
    with server.client(server.token("amber")) as client:
        url = f"/inspect/api/act?id={key_of(client, 'Talk of amber')}"
        answer = client.post(url, json={"action": "pin", "text": "Be exact."})
        assert answer.status_code == 200, answer.text
        pinned = client.get(f"/api/sessions/of-amber/events/{answer.json()['event']}").json()
        assert pinned["original"] == "Be exact."


def test_an_action_waits_for_no_turn_and_breaks_none(server: ApiServer, browser: httpx.Client) -> None:
    token = {TOKEN_HEADER: page_token(browser.get("/inspect/").text)}
    with server.client(server.token("amber")) as client:
        client.post("/api/sessions", json={"id": "busy", "title": "Busy"})
        done: list[httpx.Response] = []

        def run() -> None:
            done.append(client.post("/api/sessions/busy/turns", json={"text": "hold inspected"}))

        turn = threading.Thread(target=run)
        turn.start()
        try:
            url = f"/inspect/api/act?id={key_of(browser, 'Busy')}"
            pin = {"action": "undo", "event": "e1"}
            answer = wait_until(
                lambda: (got := browser.post(url, json=pin, headers=token)).status_code == 409 and got
            )
            assert answer.json()["error"]["code"] == "busy"
        finally:
            server.release("inspected")
            turn.join()
        assert done[0].status_code == 200
        assert browser.post(url, json={"action": "pin", "text": "x"}, headers=token).status_code == 200
