"""A recorded session with reductions, clicked through in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log.events import AnyFact, Compacted, ModelSaid, UserSaid
from support.coding_agent import CUSTOMER
from support.inspected_pages import ROWS, InspectedPage
from support.inspected_server import InspectedServer, write_session
from support.waiting import wait_until

TITLE = "Orders are shipped twice"


@pytest.fixture(scope="module")
def timeline(shop: InspectedServer) -> dict[str, Any]:
    """The timeline of the session, as the page receives it."""
    found: dict[str, Any] = (
        shop.client().get("/inspect/api/timeline", params={"id": shop.keys()[TITLE]}).json()
    )
    return found


@pytest.fixture(scope="module")
def masked(timeline: dict[str, Any]) -> dict[str, Any]:
    """The first reduction: a mask."""
    return next(card for card in timeline["reductions"] if card["kind"] == "masked")


@pytest.fixture(scope="module")
def summary(timeline: dict[str, Any]) -> dict[str, Any]:
    return next(card for card in timeline["reductions"] if card["kind"] == "compacted")


def filter_by_role_tool_level_and_text(inspected: InspectedPage, rows: list[dict[str, Any]]) -> None:
    page = inspected.page
    grid = page.get_by_role("grid", name="Events of the log")

    def count(expected: int) -> None:
        page.locator(f".log-body [role=grid][aria-rowcount='{expected}']").wait_for()

    before = int(grid.get_attribute("aria-rowcount") or 0)
    page.get_by_text("Roles and tools").click()
    page.get_by_role("group", name="Roles").get_by_role("button", name="User").click()
    count(sum(row["kind"] == "user_said" for row in rows))
    page.get_by_role("button", name="Clear filters").click()
    count(before)
    page.get_by_role("group", name="Tools").get_by_role("button", name="search").click()
    inspected.until("document.querySelector('.log-body [role=grid]').getAttribute('aria-rowcount') < 40")
    page.get_by_role("button", name="Clear filters").click()
    level = page.get_by_role("group", name="Levels").get_by_role("button", name="Summarised")
    number = int(level.locator(".chip-count").inner_text())
    assert number > 20
    level.click()
    count(number)
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Filter the log by text").fill(CUSTOMER)
    inspected.until("document.querySelector('.log-body [role=grid]').getAttribute('aria-rowcount') <= 3")
    inspected.until(f"location.hash.includes('text={CUSTOMER}')")


def test_the_log_shows_every_event_beside_what_the_model_sees_and_filters_them(
    opener: Any, shop: Any, timeline: Any
) -> None:
    inspected = opener(shop, TITLE)
    page = inspected.page
    last = timeline["next"] - 1
    assert f"{last + 1} events" in page.locator(".column-heads").inner_text()
    assert inspected.where().startswith(f"event {last} of {last}, request {len(timeline['requests'])}, ")
    grid = page.get_by_role("grid", name="Events of the log")
    # The summary stands a second time, at its place in the request.
    assert int(grid.get_attribute("aria-rowcount") or 0) >= last + 1
    assert page.locator(ROWS).count() < 60
    filter_by_role_tool_level_and_text(inspected, timeline["rows"])


def test_a_masked_result_names_its_level_rule_event_and_sizes(opener: Any, shop: Any, masked: Any) -> None:
    inspected = opener(shop, TITLE, f"#e{masked['seq']}&message={masked['keys'][0]}")
    row = inspected.row(masked["keys"][0])
    seen = row.locator(".seen")
    assert re.search(
        rf"Masked\s+economy\s+by e{masked['seq']}\s+[\d.,k ]+→ \d+", seen.inner_text().replace("\n", " ")
    )
    panel = inspected.open_panel("Message")
    panel.locator(".message-text pre").wait_for()
    assert panel.locator(".message-level").inner_text().startswith("▒ Masked ")
    assert panel.get_by_role("button", name=f"e{masked['seq']}").count() >= 1
    original = panel.locator(".message-text").inner_text()
    panel.get_by_role("button", name="As shown at this point").click()
    panel.locator(".message-text", has_text="foveal").wait_for()
    shown = panel.locator(".message-text").inner_text()
    assert 0 < len(shown) < len(original) / 2
    panel.get_by_role("button", name="JSON").click()
    panel.locator(".message-text", has_text='"tool_').first.wait_for()


def test_the_scrubber_folds_the_view_at_any_point(opener: Any, shop: Any, timeline: Any) -> None:
    inspected = opener(shop, TITLE)
    page, last = inspected.page, timeline["next"] - 1
    page.get_by_role("button", name="First event").click()
    inspected.until_where("event 0 of")
    assert inspected.where() == f"event 0 of {last}, before the first request"
    page.get_by_role("button", name="Next step").click()
    inspected.until_where("event 1 of")
    page.get_by_label("Step by").select_option("request")
    for number in (1, 2):
        page.get_by_role("button", name="Next step").click()
        inspected.until_where(f", request {number}, ")
    assert inspected.point() == timeline["requests"][1]["at"]
    inspected.until("location.hash === '#r2&panel=happened'")
    page.get_by_label("Step by").select_option("event")
    page.get_by_label("Speed of play").select_option("60")
    page.get_by_role("button", name="Play").click()
    started = inspected.point()
    wait_until(lambda: inspected.point() > started + 3)
    page.get_by_role("group", name="Steps").get_by_role("button", name="Pause").click()
    slider = page.get_by_role("slider", name="Event")
    slider.fill("50")
    inspected.until("location.hash === '#e50&panel=happened'")
    assert inspected.point() == 50
    page.reload()
    page.locator(ROWS).first.wait_for()
    assert inspected.point() == 50


def test_requests_are_shown_as_they_were_sent_with_their_parts_and_the_misses_of_the_cache(
    opener: Any, shop: Any, timeline: Any
) -> None:
    inspected = opener(shop, TITLE)
    sent = shop.client().get(
        "/inspect/api/request", params={"id": shop.keys()[TITLE], "at": timeline["requests"][30]["at"]}
    )
    add_up_to_the_request(inspected, timeline["requests"])
    have_its_messages(inspected, sent.json(), at=timeline["requests"][30]["at"])
    name_each_miss(inspected, timeline["requests"])


def add_up_to_the_request(inspected: InspectedPage, requests: list[dict[str, Any]]) -> None:
    """The composition of the last request."""
    request = requests[-1]
    inspected.page.keyboard.press("Shift+ArrowLeft")
    inspected.until(f"location.hash.startsWith('#r{len(requests)}')")
    panel = inspected.panel("Composition")
    panel.locator(".lead", has_text="as the provider reported").wait_for()
    assert (
        panel.locator(".lead")
        .inner_text()
        .startswith(f"Request {len(requests)}: {request['tokens']:,} tokens")
    )
    rows = panel.locator("tbody tr.depth-0")
    parts = [int(text.replace(",", "")) for text in rows.locator("td:nth-of-type(1)").all_inner_texts()]
    assert abs(sum(parts) - request["tokens"]) <= len(parts)
    results = panel.get_by_role("button", name=re.compile("results", re.IGNORECASE)).first
    results.click()
    panel.locator("tbody tr.depth-1").first.wait_for()
    panel.locator("tbody tr.depth-1 button.disclosure").first.click()
    panel.locator("tbody tr.depth-2").first.wait_for()


def have_its_messages(inspected: InspectedPage, sent: dict[str, Any], *, at: int) -> None:
    """The view at a request has the messages that the request had."""
    inspected.go_to(at)
    said = {key for message in sent["messages"] for key in message["keys"]}
    heads = inspected.page.locator(".column-heads").inner_text()
    shown = int(re.search(r"View.* · ([\d,]+) message", heads.replace("\n", " "))[1])  # type: ignore[index]
    assert shown >= len(said) > 5


def name_each_miss(inspected: InspectedPage, requests: list[dict[str, Any]]) -> None:
    """The cache map, with the cause of each miss."""
    panel = inspected.panel("Requests")
    totals = panel.locator(".lead").first.inner_text()
    assert totals.startswith(f"{len(requests)} requests; ")
    read = sum(request.get("read", 0) for request in requests)
    all_input = sum(request.get(name, 0) for request in requests for name in ("read", "written", "uncached"))
    assert f"{read / all_input * 100:.1f} % of {all_input:,} input tokens" in totals
    causes = panel.get_by_role("table", name="Misses by cause").inner_text()
    for cause in ("cache expired", "reduction", "tools changed"):
        assert cause in causes
    panel.get_by_label("Order").select_option("largest loss first")
    first = panel.locator(".cache-row").first
    first.locator(".badge").wait_for()
    first.click()
    current = panel.get_by_role("region", name="Current request")
    current.get_by_text("Missed").wait_for()
    assert re.search(r"Lost\s+[\d,]+ tokens, \$\d", current.inner_text())


def test_the_diff_names_the_first_byte_and_what_moved_it(opener: Any, shop: Any, summary: Any) -> None:
    inspected = opener(shop, TITLE, f"#e{summary['seq']}")
    panel = inspected.panel("Reductions")
    panel.get_by_role("button", name="Diff of the requests around it").click()
    diff = inspected.open_panel("Diff")
    diff.locator(".moved-by").wait_for()
    lead = diff.locator(".diff-lead").inner_text()
    assert re.search(r"The requests diverge at message \d+ \(e\d+\), byte [\d,]+", lead)
    assert re.search(rf"Moved by .*e{summary['seq']}: ", lead)
    assert diff.locator(".diff-area").inner_text().count("\n") > 10
    number = diff.get_by_label("From request")
    number.fill("1")
    number.press("Enter")
    inspected.until("location.hash.includes('compare=1-')")
    diff.get_by_role("button", name="Follow the scrubber").click()
    inspected.until("!location.hash.includes('compare=')")


def test_a_summarised_message_leaves_a_ghost_and_a_card_with_the_summary_its_checks_and_its_price(
    opener: Any, shop: Any, summary: Any
) -> None:
    inspected = opener(shop, TITLE, f"#e{summary['seq']}&message={summary['keys'][0]}")
    seen = inspected.row(summary["keys"][0]).locator(".seen")
    assert "ghost" in (seen.get_attribute("class") or "")
    assert f"summarised into e{summary['seq']}" in seen.inner_text()
    inspected.page.evaluate("place => { location.hash = place; }", f"e{summary['seq']}&panel=reductions")
    card = inspected.open_panel("Reductions").get_by_role("region", name="Reduction at the current point")
    card.get_by_text("from here on by claude").wait_for()
    text = card.inner_text()
    for part in (
        f"{summary['before']:,}",
        f"{summary['after']:,}",
        "Undo",
        "Expand",
        "Pin",
        "Drop",
        "## Goal",
    ):
        assert part in text
    assert re.search(r"pays|calls", text)


@pytest.fixture(scope="module")
def lossy_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session whose summary lacks a rule."""
    path = tmp_path_factory.mktemp("lossy") / "sessions.db"
    facts: list[AnyFact] = [
        UserSaid(content="Never change the file src/billing/tax_table.py, it is generated."),
        ModelSaid(content="I will not change src/billing/tax_table.py."),
        UserSaid(content="Fix the rounding."),
        ModelSaid(content="Done."),
        Compacted(first=2, last=5, summary="The rounding was fixed.", by="ledger"),
        UserSaid(content="Go on."),
    ]
    write_session(path, "lossy", facts, title="A rule is lost")
    return path


def test_a_reduction_card_lists_what_the_summary_lost(opener: Any, serve: Any, lossy_store: Path) -> None:
    server: InspectedServer = serve(lossy_store)
    lost = (
        opener(server, "A rule is lost", "#e6&panel=reductions")
        .open_panel("Reductions")
        .get_by_role("region", name="Not in the summary")
    )
    lost.locator(".lost-list li").nth(1).wait_for()
    listed = lost.locator(".lost-list li").all_inner_texts()
    assert len(listed) == 2
    assert "Never change the file src/billing/tax_table.py, it is generated." in listed[0]
    assert "e2" in listed[0]
    assert "src/billing/tax_table.py" in listed[1]
    key = server.keys()["A rule is lost"]
    no_summary = server.client().get("/inspect/api/lost", params={"id": key, "event": 1})
    assert (no_summary.status_code, no_summary.json()["error"]["message"]) == (
        404, "no compaction has the handle 'e1'",
    )  # fmt: skip


def test_search_says_when_the_model_last_saw_a_text(opener: Any, shop: Any, summary: Any) -> None:
    inspected = opener(shop, TITLE)
    inspected.page.keyboard.press("/")
    inspected.page.keyboard.type("max_weight")
    inspected.page.keyboard.press("Enter")
    panel = inspected.open_panel("Search")
    answer = panel.locator(".search-answer")
    answer.wait_for()
    assert re.match(r"The model (last saw|sees) “max_weight”", answer.inner_text())
    hit = panel.locator(".hit").last
    assert re.search(r"Visible in \d+ of \d+ requests", hit.inner_text(), re.IGNORECASE)
    assert panel.get_by_role("button", name="Restore").count() >= 1
    field = panel.get_by_label("When did the model last see")
    field.fill("no such text anywhere")
    field.press("Enter")
    panel.get_by_text("Neither the log nor any request contains").wait_for()


def test_what_if_replays_the_log_beside_the_recording_or_says_why_not(opener: Any, shop: Any) -> None:
    inspected = opener(shop, TITLE)
    panel = inspected.panel("What if")
    panel.get_by_label("Policy").select_option("recent")
    panel.get_by_label("Window (tokens)").fill("12000")
    panel.get_by_role("button", name="Replay", exact=True).click()
    panel.get_by_role("button", name="Show the view: replay").click()
    inspected.page.locator(".column-heads", has_text="what the model would see").wait_for()
    figures = panel.locator("table.figures").first.inner_text()
    assert "Recorded" in figures
    panel.get_by_role("button", name="Show the view: recorded").click()
    inspected.page.locator(".column-heads", has_text="what the model sees").wait_for()
    panel.get_by_role("button", name="Forget the replay").click()
    panel.get_by_text("No replay yet").wait_for()
    for window, reason in (("2e9", "a whole number from 1 to 1,000,000,000"), ("1e30", "in the query:")):
        panel.get_by_label("Window (tokens)").fill(window)
        panel.get_by_role("button", name="Replay", exact=True).click()
        panel.get_by_text(reason).wait_for()
    # The stream, and the question why: the browser itself reports both.
    refused = "error: Failed to load resource: the server responded with a status of 400 (Bad Request)"
    assert inspected.watched.complaints == [refused, refused]
    inspected.watched.complaints.clear()


def test_a_session_is_exported_and_copied_from_the_menu(opener: Any, shop: Any, tmp_path: Path) -> None:
    inspected = opener(shop, TITLE, permissions=["clipboard-read", "clipboard-write"])
    page = inspected.page
    page.locator("summary", has_text="Export").click()
    page.get_by_role("button", name="Copy request as curl").click()
    page.locator("#status", has_text="Copied the curl command").wait_for()
    curl = page.evaluate("navigator.clipboard.readText()")
    assert curl.startswith("curl ")
    assert "sk-" not in curl
    page.locator("summary", has_text="Export").click()
    with page.expect_download() as download:
        page.get_by_text("Save as one HTML file").click()
    path = tmp_path / "export.html"
    download.value.save_as(path)
    assert path.read_text("utf-8").startswith("<!doctype html>")


def test_the_overview_lists_searches_and_sorts_sessions(opener: Any, shop: Any) -> None:
    inspected = opener(shop)
    page = inspected.page
    assert page.locator(".session-table tbody tr").count() == 4
    row = page.locator(".session-table tbody tr", has=page.get_by_role("link", name=TITLE, exact=True))
    inspected.until("!document.querySelector('.session-table').textContent.includes('…')")
    assert re.search(r"\$0\.\d+", row.inner_text())
    assert row.locator("svg").count() >= 1
    page.get_by_role("button", name="Cost").click()
    wait_until(lambda: page.locator(".session-table tbody tr").first.inner_text().startswith(TITLE))
    page.get_by_label("Search all sessions").fill("north-post")
    inspected.until("document.querySelectorAll('.session-table tbody tr').length < 4")
    page.get_by_role("link", name=TITLE, exact=True).click()
    page.locator(ROWS).first.wait_for()
