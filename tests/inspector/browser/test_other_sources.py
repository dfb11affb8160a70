"""Transcripts of Claude Code and Codex, and an exported file, in a real browser."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from support.chromium import Chromium
from support.inspected_pages import ROWS
from support.inspected_server import InspectedServer
from support.paths import TRANSCRIPTS

SHOP = "Orders are shipped twice"
PANELS = (
    "What happened",
    "Message",
    "Reductions",
    "Requests",
    "Diff",
    "Composition",
    "Statements",
    "Search",
    "What if",
)


@pytest.fixture
def transcripts(tmp_path: Path, serve: Any) -> InspectedServer:
    """The inspector with transcripts of other programs."""
    for name in ("claude_code.jsonl", "codex.jsonl"):
        copyfile(TRANSCRIPTS / name, tmp_path / name)
    found: InspectedServer = serve(tmp_path)
    return found


@pytest.mark.parametrize(
    ("title", "model", "word"),
    [
        pytest.param("Counting apples", "claude-sonnet-4-5", "apples", id="claude_code"),
        pytest.param("", "gpt-5-codex", "", id="codex"),
    ],
)
@pytest.mark.soak
def test_a_transcript_is_clicked_through(
    opener: Any, transcripts: InspectedServer, title: str, model: str, word: str
) -> None:
    """`make test` opens the panels of a malicious transcript, and the messages of one that grows."""
    rows = transcripts.client().get("/inspect/api/sessions").json()["sessions"]
    row = next(row for row in rows if row["model"] == model and row.get("title", "").startswith(title))
    inspected = opener(transcripts, row["title"])
    page = inspected.page
    assert model in page.locator("#head").inner_text()
    inspected.page.keyboard.press("Home")
    inspected.until_where("event 0 of")
    page.keyboard.press("End")
    for name in PANELS:
        panel = inspected.panel(name)
        assert panel.inner_text().strip()
    page.get_by_text("Roles and tools").click()
    page.get_by_role("group", name="Roles").get_by_role("button", name="User").click()
    inspected.until("location.hash.includes('role=user')")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    panel = inspected.open_panel("Message")
    panel.locator(".message-text pre, .message-text .empty-state").first.wait_for()
    for name in ("Pin", "Drop"):
        assert panel.get_by_role("button", name=name, exact=True).is_disabled()
    assert panel.locator(".action-note").inner_text()
    page.keyboard.press("/")
    page.keyboard.type(word or "the")
    page.keyboard.press("Enter")
    inspected.open_panel("Search").locator(".search-answer").wait_for()
    page.locator("summary", has_text="Export").click()
    with page.expect_download() as download:
        page.get_by_text("Save as one HTML file").click()
    assert download.value.suggested_filename.endswith(".html")


def test_subagents_are_lanes_also_when_the_list_was_not_complete_at_first(
    chromium: Chromium, transcripts: InspectedServer
) -> None:
    """A busy server answers with rows that it has not read yet."""
    url = transcripts.server.url(session=transcripts.keys()["Counting apples"])
    answered: list[str] = []

    def answer(route: Any) -> None:
        answered.append(route.request.url)
        if len(answered) > 1:
            route.continue_()
            return
        response = route.fetch()
        rows = [
            {"key": row["key"], "title": row["title"], "partial": True} for row in response.json()["sessions"]
        ]
        route.fulfill(response=response, json={**response.json(), "sessions": rows})

    with chromium.page(size=(1280, 1000)) as watched:
        page = watched.page
        page.route("**/inspect/api/sessions?*", answer)
        page.goto(url)
        page.locator(".lanes-box").get_by_text("Look into the barn").first.wait_for()
        assert len(answered) > 1
        watched.check(transcripts.address.removeprefix("http://"))


def test_a_growing_transcript_is_followed_and_has_no_actions(
    opener: Any, transcripts: InspectedServer, tmp_path: Path
) -> None:
    inspected = opener(transcripts, "Counting apples")
    assert "claude-sonnet-4-5" in inspected.page.locator("#head").inner_text()
    inspected.page.locator(".live-line[data-status=live]").wait_for()
    message = {"role": "user", "content": "And the pears?"}
    line = {"type": "user", "uuid": "u9", "parentUuid": "a5", "isSidechain": False, "sessionId": "s-1",
            "timestamp": "2026-01-02T10:05:00.000Z", "message": message}  # fmt: skip
    with (tmp_path / "claude_code.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    inspected.page.locator(ROWS, has_text="And the pears?").first.click()
    panel = inspected.open_panel("Message")
    panel.locator(".message-text", has_text="And the pears?").wait_for()
    for name in ("Pin", "Drop"):
        assert panel.get_by_role("button", name=name, exact=True).is_disabled()
    assert panel.locator(".action-note").inner_text()


@pytest.fixture(scope="module")
def exported(shop: InspectedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported file of a session with reductions."""
    answer = shop.client().get("/inspect/api/export", params={"id": shop.keys()[SHOP]})
    path = tmp_path_factory.mktemp("exported") / "session.html"
    path.write_bytes(answer.content)
    return path


@pytest.mark.soak
def test_an_exported_file_opens_from_disk_without_a_network(chromium: Chromium, exported: Path) -> None:
    """`make test` opens the panels of a malicious one, and one with statements without a network."""
    with chromium.page(offline=True) as watched:
        page = watched.page
        page.goto(exported.as_uri())
        page.locator(ROWS).first.wait_for()
        page.keyboard.press("Home")
        page.locator(".scrubber-where", has_text="event 0 of").wait_for()
        page.keyboard.press("End")
        for name in PANELS:
            page.get_by_role("tab", name=name).click()
            page.get_by_role("tabpanel", name=name).wait_for()
        page.get_by_text("A replay needs `foveal inspect`").wait_for()
        page.get_by_role("tab", name="Diff").click()
        page.locator(".diff-lead").wait_for()
        page.get_by_role("tab", name="Search").click()
        page.get_by_label("When did the model last see").fill("max_weight")
        page.keyboard.press("Enter")
        page.locator(".search-answer", has_text="max_weight").wait_for()
        page.locator(ROWS).first.click()
        page.locator(".message-text pre, .message-text .empty-state").first.wait_for()
        assert page.locator(".live-control").inner_text() == "Exported file"
        assert re.search(r"exported file", page.locator(".action-note").first.inner_text())
        watched.check()
        assert {url.split(":")[0] for url in watched.urls} <= {"file", "data"}
