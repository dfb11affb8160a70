"""Actions on a session, and a page that follows sessions while other processes write them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from foveal.sessions.session import Session
from foveal.stores import open_store
from foveal.web.listener import bind
from support.coding_agent import AGENT_MODEL, AGENT_WINDOW
from support.inspected_pages import ROWS, InspectedPage
from support.inspected_server import InspectedServer, write_session
from support.inspected_sessions import SMALL_SETTINGS, write_store, writer_process

TITLE = "Orders are shipped twice"
Serve = Callable[..., InspectedServer]


@pytest.fixture
def copied(shop_file: Path, tmp_path: Path, serve: Serve) -> InspectedServer:
    """The inspector with a copy of the sessions."""
    path = tmp_path / "copy.db"
    copyfile(shop_file, path)
    return serve(path, window=AGENT_WINDOW)


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A store with the session of an agent that goes on."""
    path = tmp_path / "running.db"
    asyncio.run(write_store(path, "running", turns=4))
    return path


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A store with a session that has no request yet."""
    path = tmp_path / "begun.db"
    write_session(path, "new", (), title="New", begin=(), **SMALL_SETTINGS)
    return path


def kinds(server: InspectedServer, title: str = TITLE) -> list[str]:
    """The kinds of all events of a session."""
    timeline = server.client().get("/inspect/api/timeline", params={"id": server.keys()[title]}).json()
    return [row["kind"] for row in timeline["rows"]]


def show_message(inspected: InspectedPage, key: str) -> None:
    """Show a message in the panel, at the newest event."""
    inspected.page.evaluate("key => { location.hash = `message=${key}`; }", key)
    inspected.until("document.querySelector('#panels').textContent.includes(argument)", key)


def test_each_action_appends_an_event_and_undo_takes_it_back(opener: Any, copied: InspectedServer) -> None:
    """Of single messages, then of the session."""
    inspected = opener(copied, TITLE)
    pin_drop_and_expand(inspected, copied)
    before = kinds(copied)
    panel = inspected.panel("Reductions")
    panel.get_by_label("Focus (optional)").fill("the customer")
    inspected.act(panel, "Compact now")
    card = panel.get_by_role("region", name="Reduction at the current point")
    card.get_by_text(f"e{len(before)}", exact=True).first.wait_for()
    inspected.act(card, "Undo")
    assert kinds(copied) == [*before, "compacted", "reverted"]


def pin_drop_and_expand(inspected: InspectedPage, copied: InspectedServer) -> None:
    client = copied.client()
    timeline = client.get("/inspect/api/timeline", params={"id": copied.keys()[TITLE]}).json()
    summary = next(card for card in timeline["reductions"] if card["kind"] == "compacted")
    last_result = max(row["seq"] for row in timeline["rows"] if row["kind"] == "tool_returned")
    before = [row["kind"] for row in timeline["rows"]]
    show_message(inspected, f"e{last_result}")
    panel = inspected.open_panel("Message")
    inspected.act(panel, "Pin")
    panel.get_by_role("button", name="Unpin").wait_for()
    inspected.act(panel, "Unpin")
    panel.get_by_role("button", name="Pin", exact=True).wait_for()
    inspected.act(panel, "Drop")
    inspected.page.locator(".message-level", has_text="Dropped").wait_for()
    inspected.act(panel, "Undo")
    inspected.page.locator(".message-level", has_text="Full").wait_for()
    show_message(inspected, summary["keys"][0])
    inspected.page.locator(".message-level", has_text="Summarised").wait_for()
    inspected.act(panel, "Expand")
    inspected.page.locator(".message-level", has_text="Full").wait_for()
    done = ["pinned", "reverted", "dropped", "reverted", "expanded"]
    assert kinds(copied) == before + done


def test_a_message_is_replaced_or_gets_a_priority_and_a_refusal_says_why(
    opener: Any, copied: InspectedServer, tmp_path: Path
) -> None:
    inspected = opener(copied, TITLE, "#message=e4")
    refuse(inspected, copied, tmp_path)
    replace_by_a_later_one(inspected, copied)
    prioritise(inspected, copied)


def replace_by_a_later_one(inspected: InspectedPage, copied: InspectedServer) -> None:
    """Until it holds again."""
    before = kinds(copied)
    old, *_, new = (seq for seq, kind in enumerate(before) if kind == "user_said")
    show_message(inspected, f"e{old}")
    panel = inspected.open_panel("Message")
    panel.get_by_role("button", name="Replaced by…").click()
    dialog = inspected.page.locator("dialog[open]")
    field = dialog.get_by_label("The later message")
    assert field.input_value() == f"e{new}", "the newest comes first"
    field.select_option(f"e{new}")
    inspected.confirm("Replaced by…")
    inspected.page.locator(".message-level", has_text=f"replaced by e{new}").wait_for()
    panel.get_by_role("button", name="As shown at this point").click()
    panel.get_by_label("Text of the message").get_by_text(f"[foveal: replaced by e{new}]").wait_for()
    inspected.act(panel, "Holds again")
    panel.get_by_role("button", name="Holds again").wait_for(state="detached")
    assert kinds(copied) == [*before, "superseded", "reverted"]


def prioritise(inspected: InspectedPage, copied: InspectedServer) -> None:
    """Until the priority is taken back."""
    before = kinds(copied)
    last_result = max(seq for seq, kind in enumerate(before) if kind == "tool_returned")
    show_message(inspected, f"e{last_result}")
    panel = inspected.open_panel("Message")
    panel.get_by_role("button", name="Mark…").click()
    inspected.page.locator("dialog[open]").get_by_label("Priority").select_option("high")
    inspected.confirm("Mark…")
    panel.get_by_text(f"e{last_result} has high priority").wait_for()
    assert inspected.page.locator(".log-row", has_text="⇅").count() == 1
    inspected.act(panel, "Unmark")
    panel.get_by_role("button", name="Unmark").wait_for(state="detached")
    assert kinds(copied) == [*before, "prioritised", "reverted"]


def refuse(inspected: InspectedPage, copied: InspectedServer, tmp_path: Path) -> None:
    """Cancel an action, and press its button while the store is elsewhere."""
    panel = inspected.open_panel("Message")
    panel.get_by_role("button", name="Expand").click()
    dialog = inspected.page.locator("dialog[open]")
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert "expanded" not in kinds(copied)
    (tmp_path / "copy.db").rename(tmp_path / "elsewhere.db")
    panel.get_by_role("button", name="Expand").click()
    inspected.confirm("Expand")
    panel.locator(".action-answer .panel-problem").wait_for()
    (tmp_path / "elsewhere.db").rename(tmp_path / "copy.db")
    inspected.forgive("status of 404", "status of 409", "status of 503", "net::ERR_")


def test_the_overview_and_a_page_follow_a_session_that_another_process_writes(
    opener: Any, serve: Serve, running: Path
) -> None:
    inspected = opener(serve(running, window=SMALL_SETTINGS["window"]))
    page = inspected.page
    row = page.locator(".session-table tbody tr", has_text="look at file_0.py")
    page.locator(".live-line[data-status=live]").wait_for()
    assert row.locator("td[data-label=Requests]").inner_text() == "8"
    with writer_process(running, "running") as append:
        append()
        row.locator("td[data-label=Requests]", has_text="10").wait_for()
        row.get_by_role("link").first.click()
        page.locator(ROWS).first.wait_for()
        page.locator(".live-line[data-status=live]").wait_for()
        first = inspected.point()
        last = append()
        inspected.until_where(f"event {last} of {last}")
        assert last > first
        page.get_by_role("button", name="Previous step").click()
        inspected.until_where(f"event {last - 1} of {last}")
        newest = append()
        page.get_by_role("button", name=f"Follow ({newest - last + 1} events behind)").click()
        inspected.until_where(f"event {newest} of {newest}")
        page.locator("button.live-button").click()
        page.locator(".live-line[data-status=paused]").wait_for()
        newest = append()
        page.locator("button.live-button", has_text="Resume").click()
        inspected.until_where(f"event {newest} of {newest}")
    page.locator(".happened .lead", has_text=f"{newest + 1} events and ").wait_for()


def test_the_first_screen_has_more_parts_once_a_request_was_answered(
    opener: Any, serve: Serve, begun: Path
) -> None:
    page = opener(serve(begun, window=SMALL_SETTINGS["window"]), "New").page
    page.locator(".happened .lead", has_text="No request was answered yet.").wait_for()
    page.locator(".happened h3:visible").first.wait_for(state="detached")  # when its statements are read
    with writer_process(begun, "new") as append:
        append()
    page.get_by_role("heading", name="Cost").wait_for()
    page.locator(".happened h3:visible", has_text="surprise").wait_for()


def test_the_page_resumes_after_the_server_was_restarted(opener: Any, serve: Serve, running: Path) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with InspectedServer(running, port=port) as server:
        inspected = opener(server, "look at file_0.py")
        page = inspected.page
        page.locator(".live-line[data-status=live]").wait_for()
    page.locator(".live-line[data-status=reconnecting]").wait_for()
    notice = page.locator(".server-notice")
    assert "has not answered since" in notice.inner_text()
    assert "start it with `foveal inspect`" in notice.inner_text()
    with writer_process(running, "running") as append:
        last = append()
    # A restart ends all logins; the page goes on once the browser has logged in again.
    address = serve(running, port=port).server.url()
    notice.get_by_text("open the address that it has printed").wait_for()
    page.context.new_page().goto(address)
    inspected.until_where(f"event {last} of {last}")
    page.locator(".live-line[data-status=live]").wait_for()
    assert notice.is_hidden()
    inspected.forgive("net::ERR_", "status of 401")


def test_related_sessions_are_lanes_and_events_of_another_program_are_those_of_the_page(
    copied: InspectedServer, tmp_path: Path, opener: Any
) -> None:
    """An action of the library appears on the page, and is the same event as one of the page."""
    inspected = opener(copied, TITLE, size=(1280, 1000))
    lanes = inspected.page.locator(".lanes-box[open]")
    lanes.get_by_text("Price lists for the new region").first.wait_for()
    assert lanes.get_by_text("another fix").count() >= 1
    inspected.page.locator(".live-line[data-status=live]").wait_for()
    before = len(kinds(copied))

    async def pin() -> None:
        async with open_store(tmp_path / "copy.db") as store:
            session = await Session.open(store, "shop", model=AGENT_MODEL, window=AGENT_WINDOW)
            await session.pin("Never push to main.")
            await session.close()

    from concurrent.futures import ThreadPoolExecutor  # the thread of the browser has an event loop already

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(pin())).result()
    inspected.until_where(f"event {before} of {before}")
    inspected.page.locator(".log-body .log-row.point", has_text="Never push to main.").wait_for()
