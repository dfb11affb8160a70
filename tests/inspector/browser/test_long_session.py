"""A long session: its rows and levels are shown before sizes and earlier views are known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log.events import Event, ModelSaid, UserSaid
from foveal.inspector import api, open_logs
from foveal.stores import open_store
from support.inspected_pages import ROWS, InspectedPage
from support.inspected_server import InspectedServer, write_session
from support.waiting import wait_until

TITLE = "A long talk"
MIN_OUTLINE_EVENTS = 500
"""How many events a session has whose outline is sent first. The product's number takes four times as long."""
PAIRS = MIN_OUTLINE_EVENTS // 2


@pytest.fixture(scope="module", autouse=True)
def shorter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (api, open_logs):
            patch.setattr(module, "MIN_OUTLINE_EVENTS", MIN_OUTLINE_EVENTS)
        yield


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "sessions.db"
    write_session(path, "long", [UserSaid(content="Begin.")], title=TITLE)
    asyncio.run(lengthen(path))
    return path


async def lengthen(path: Path) -> None:
    """Append the other events at once: a session would store each of them alone."""
    async with open_store(path) as store:
        first = (await store.read("long"))[-1].seq + 1
        events = [
            Event(first + number, ModelSaid(content=f"Answer {number}."), 1_700_000_000.0 + number)
            for number in range(2 * PAIRS)
        ]
        await store.append("long", events)


def test_a_long_session_shows_its_levels_before_its_sizes(
    chromium: Any, serve: Any, long_store: Path
) -> None:
    server: InspectedServer = serve(long_store)
    with chromium.page() as watched:
        inspected, page = InspectedPage(watched, server), watched.page
        held: list[Any] = []
        page.route("**/api/timeline?*first=0*", lambda route: held.append(route))
        inspected.open(TITLE)
        page.locator(f"{ROWS} .level-name", has_text="Full").first.wait_for()
        last = page.locator(ROWS).last
        assert last.locator(".size").all_inner_texts() == ["", ""]
        assert page.locator(".event-slider").is_disabled()
        page.get_by_text("Loading the history of the session").wait_for()
        page.keyboard.press("ArrowLeft")
        page.locator("#status", has_text="still loading").wait_for()
        held[0].continue_()
        inspected.until_where(f"event {2 * PAIRS + 2:,} of")
        assert page.locator(".event-slider").is_enabled()
        wait_until(lambda: all(last.locator(".size").all_inner_texts()))
        page.get_by_text(f"{2 * PAIRS + 3:,} events and").wait_for()
        inspected.go_to(5)
        page.get_by_text("not yet said").first.wait_for()
        page.unroute_all()
        inspected.open(TITLE, "#e7")  # the page waits for the view of that point
        inspected.until_where("event 7 of")
        watched.check(inspected.host)


def test_the_api_answers_with_an_outline_once_and_then_with_the_timeline(
    serve: Any, long_store: Path
) -> None:
    server: InspectedServer = serve(long_store)
    client, key = server.client(), server.keys()[TITLE]
    asked = {"id": key, "outline": "true"}
    outline = client.get("/inspect/api/timeline", params=asked).json()
    whole = client.get("/inspect/api/timeline", params={"id": key}).json()
    assert outline["outline"] is True
    assert [row["preview"] for row in outline["rows"]] == [row["preview"] for row in whole["rows"]]
    assert client.get("/inspect/api/timeline", params=asked).json() == whole
