"""Logging in and out at `foveal serve`, with the form that a browser sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foveal.server.auth_tokens import AuthTokens
from support.api_server import ApiServer
from support.chromium import Chromium


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server on which each test has a tenant of its own."""
    with ApiServer(tmp_path_factory.mktemp("server")) as running:
        yield running


def test_a_browser_logs_in_with_a_token_and_out_again(chromium: Chromium, server: ApiServer) -> None:
    with chromium.page() as watched:
        token, page = server.token("amber"), watched.page
        with server.client(token) as client:
            client.post("/api/sessions", json={"id": "one", "title": "Talk of amber"})
            address = str(client.base_url).rstrip("/")
        page.goto(f"{address}/inspect/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("Talk of amber").first.wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        page.goto(f"{address}/inspect/")
        page.get_by_label("Token").wait_for()
        watched.check(address.removeprefix("http://"))


def test_a_page_says_that_its_login_has_ended(chromium: Chromium, server: ApiServer) -> None:
    with chromium.page() as watched:
        tokens, page = AuthTokens(server.service.runtime.database), watched.page
        id, token = server.do(tokens.create("blue", now=0.0))
        with server.client(token) as client:
            client.post("/api/sessions", json={"id": "one", "title": "Talk of blue"})
            address = str(client.base_url).rstrip("/")
        page.goto(f"{address}/inspect/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Talk of blue").first.click()
        page.get_by_text("Live", exact=True).wait_for()
        server.do(tokens.revoke(id, now=1.0))
        page.get_by_text("Your login has ended", exact=True).wait_for()
        page.get_by_role("link", name="Log in again").click()
        page.get_by_label("Token").wait_for()


def test_the_point_of_an_address_is_kept_at_the_login(chromium: Chromium, server: ApiServer) -> None:
    with chromium.page() as watched:
        token, page = server.token("coral"), watched.page
        with server.client(token) as client:
            client.post("/api/sessions", json={"id": "one", "title": "Talk of coral"})
            address = str(client.base_url).rstrip("/")
            key = client.get("/inspect/api/sessions").json()["sessions"][0]["key"]
        page.goto(f"{address}/inspect/session?id={key}#e0&panel=reductions")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("tab", name="Reductions", selected=True).wait_for()
        assert page.url.endswith("#e0&panel=reductions")
        watched.check(address.removeprefix("http://"))
