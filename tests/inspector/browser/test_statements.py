"""The panel with what the user said: of a session, of a transcript, and of an exported file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log.events import Compacted, ModelSaid, UserSaid
from support.chromium import Chromium
from support.inspected_pages import ROWS
from support.inspected_server import InspectedServer, write_session

TITLE = "A shop for Bolivia"
FACTS = [
    UserSaid(content="Never push to main. The budget is 12,450.50 EUR."),  # e2
    ModelSaid(content="All right."),
    UserSaid(content="We ship to Bolivia first."),  # e4
    ModelSaid(content="I see."),
    Compacted(
        first=2, last=5, summary="The user said:\ne2: Never push to main. The budget is 12,450.50 EUR."
    ),
    UserSaid(content="You can push to main now."),  # e7
    ModelSaid(content="Good."),
    UserSaid(content="Why is CI red?"),  # e9
]
LEAD = "3 statements hold: 1 in its message, 1 in a record, 1 shown nowhere. 1 was replaced later."


@pytest.fixture
def shop_store(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.db"
    from concurrent.futures import ThreadPoolExecutor  # the thread of the browser has an event loop already

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: write_session(path, "shop", FACTS, title=TITLE, window=16_000)).result()
    return path


def test_statements_are_listed_by_where_they_are_shown(opener: Any, serve: Any, shop_store: Path) -> None:
    inspected = opener(serve(shop_store), TITLE)
    panel = inspected.panel("Statements")
    assert panel.locator(".lead").inner_text() == LEAD
    assert (
        panel.locator(".statements-warning")
        .inner_text()
        .startswith("1 statement of the user is shown nowhere")
    )
    items = panel.locator(".statement-list:visible .stated")
    assert [item.split("\n")[0] for item in items.all_inner_texts()] == ["e4", "e7", "e2"]
    assert items.first.locator(".badge.is-miss").inner_text() == "shown nowhere"
    panel.locator("summary", has_text="Replaced (1)").click()
    replaced = panel.locator(".replaced-statements .stated")
    assert "Never push to main." in replaced.inner_text()
    replaced.get_by_role("button", name="e7", exact=True).click()
    inspected.open_panel("Message").get_by_text("You can push to main now.").first.wait_for()
    inspected.go_to(4)
    panel = inspected.panel("Statements")
    panel.locator(".lead", has_text="3 statements hold: 3 in their messages.").wait_for()


def test_a_statement_is_pinned_and_replaced_from_the_list(opener: Any, serve: Any, shop_store: Path) -> None:
    inspected = opener(serve(shop_store), TITLE)
    panel = inspected.panel("Statements")
    bolivia = panel.locator(".stated", has_text="We ship to Bolivia first.")
    inspected.act(bolivia, "Restore")
    bolivia.locator(".badge", has_text="pinned").wait_for()
    bolivia.get_by_text("in its message").wait_for()
    assert panel.locator(".statements-warning").count() == 0
    budget = panel.locator(".stated", has_text="12,450.50")
    inspected.act(budget, "Replaced by…")
    panel.locator(".lead", has_text="2 were replaced later").wait_for()
    panel.locator("summary", has_text="Replaced (2)").click()
    inspected.act(panel.locator(".replaced-statements"), "Holds again")
    panel.locator(".lead", has_text="1 was replaced later").wait_for()


def test_a_transcript_has_statements_without_buttons(opener: Any, serve: Any, tmp_path: Path) -> None:
    lines = [
        {"role": "user", "content": "Never push to main."},
        {"role": "assistant", "content": "All right."},
    ]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    server: InspectedServer = serve(tmp_path / "talk.jsonl")
    inspected = opener(server, next(iter(server.keys())))
    panel = inspected.panel("Statements")
    panel.locator(".stated", has_text="Never push to main.").wait_for()
    assert panel.get_by_role("button", name=re.compile("Pin|Restore")).count() == 0
    assert "Pin, Replaced by…:" in panel.locator(".action-note").inner_text()


def test_an_exported_file_has_the_statements_and_a_search_without_a_network(
    chromium: Chromium, shop_store: Path, tmp_path: Path
) -> None:
    with InspectedServer(shop_store) as server:
        answer = server.client().get("/inspect/api/export", params={"id": server.keys()[TITLE]})
    path = tmp_path / "session.html"
    path.write_bytes(answer.content)
    with chromium.page(offline=True) as watched:
        page = watched.page
        page.goto(path.as_uri())
        page.locator(ROWS).first.wait_for()
        page.get_by_role("tab", name="Statements").click()
        panel = page.get_by_role("tabpanel", name="Statements")
        panel.locator(".lead", has_text=LEAD).wait_for()
        assert panel.get_by_role("button", name=re.compile("Pin|Restore")).count() == 0
        page.evaluate("location.hash = 'e3&panel=statements'")
        panel.get_by_text("An exported file has the statements at its newest event only.").wait_for()
        page.get_by_role("tab", name="What if").click()
        page.get_by_text("A replay needs `foveal inspect`").wait_for()
        page.get_by_role("tab", name="Search").click()
        page.get_by_label("When did the model last see").fill("Bolivia")
        page.keyboard.press("Enter")
        page.locator(".search-answer", has_text="Bolivia").wait_for()
        assert page.locator(".live-control").inner_text() == "Exported file"
        watched.check()
        assert {url.split(":")[0] for url in watched.urls} <= {"file", "data"}
