"""Logging in and out at `foveal serve`, with the form that a browser sends."""

from __future__ import annotations

from pathlib import Path

from support.api_server import ApiServer
from support.chromium import Chromium


def test_a_browser_logs_in_with_a_token_and_out_again(chromium: Chromium, tmp_path: Path) -> None:
    with ApiServer(tmp_path) as server, chromium.page() as watched:
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
