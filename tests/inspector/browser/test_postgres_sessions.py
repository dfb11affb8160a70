"""Sessions of a PostgreSQL store in the inspector: the same page and the same actions as with a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foveal.core.log.events import AnyFact, Compacted, ModelSaid, UserSaid
from support.inspected_server import TOKEN_HEADER, InspectedServer, page_token, write_session
from support.postgres_server import drop_database, fresh_database

TITLE = "Rounding"
FACTS: list[AnyFact] = [
    UserSaid(content="Fix the rounding of prices."),
    ModelSaid(content="I look at it."),
    UserSaid(content="And the tests."),
    ModelSaid(content="Done."),
    Compacted(first=2, last=5, summary="The rounding was fixed, and the tests too.", by="ledger"),
    UserSaid(content="Go on."),
]


@pytest.fixture
def database() -> Iterator[str]:
    url = fresh_database()
    place: Any = url
    write_session(place, "rounding", FACTS, title=TITLE)
    yield url
    drop_database(url)


def kinds(server: InspectedServer) -> list[str]:
    """The kinds of all events of the session."""
    timeline = server.client().get("/inspect/api/timeline", params={"id": server.keys()[TITLE]}).json()
    return [row["kind"] for row in timeline["rows"]]


def test_a_session_in_postgres_is_read_pinned_and_its_summary_undone(serve: Any, database: str) -> None:
    server: InspectedServer = serve(database)
    client, address = server.client(), f"/inspect/api/act?id={server.keys()[TITLE]}"
    token = {TOKEN_HEADER: page_token(client.get("/inspect/").text)}
    before = kinds(server)
    undone = client.post(
        address, json={"action": "undo", "event": f"e{before.index('compacted')}"}, headers=token
    )
    assert undone.status_code == 200, undone.text
    pinned = client.post(address, json={"action": "pin", "event": "e2"}, headers=token)
    assert pinned.status_code == 200, pinned.text
    assert kinds(server) == [*before, "reverted", "pinned"]


@pytest.mark.soak
def test_a_session_in_postgres_is_scrubbed_pinned_and_its_summary_undone(
    opener: Any, serve: Any, database: str
) -> None:
    server: InspectedServer = serve(database)
    inspected = opener(server, TITLE)
    inspected.until_where("event 7 of 7")
    inspected.page.keyboard.press("ArrowLeft")
    inspected.page.keyboard.press("ArrowLeft")
    inspected.until_where("event 5 of 7")
    inspected.page.keyboard.press("End")
    panel = inspected.panel("Reductions")
    inspected.act(panel, "Undo")
    inspected.until_where("event 8 of 8")
    inspected.page.evaluate("() => { location.hash = 'message=e2'; }")
    panel = inspected.open_panel("Message")
    inspected.page.locator(".message-level", has_text="Full").wait_for()
    inspected.act(panel, "Pin")
    panel.get_by_role("button", name="Unpin").wait_for()
    assert kinds(server)[-2:] == ["reverted", "pinned"]
