"""Branches of a session: lanes of the log that fold when they end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foveal.core.log.events import Call, ModelSaid, ToolReturned, UserSaid
from foveal.sessions.session import Session
from foveal.stores import open_store
from support.effort import some_cases
from support.inspected_pages import ROWS, InspectedPage
from support.inspected_server import InspectedServer
from support.page_layout import LOOKS, check_looks
from support.waiting import wait_until

TITLE = "Why is CI red?"


async def record(path: Path) -> None:
    async with open_store(path) as store:
        session = await Session.open(store, "branches", model="gpt-4.1", clock=lambda: 1_773_133_200.0)

        async def look(number: int) -> None:
            call = Call(id=f"c{number}", name="read_file", arguments=f'{{"path": "src/part_{number}.py"}}')
            await session.append(ModelSaid(content=(call,)))
            text = f"def part_{number}() -> int: ..."
            await session.append(ToolReturned(call_id=call.id, name=call.name, content=text))

        await session.append(UserSaid(content=TITLE))  # e1
        await session.rename(TITLE)
        async with session.branch("Find the failing test.") as outer:  # e2
            await look(1)
            async with session.branch("Read the log of the build.") as inner:  # e5
                await look(2)
                inner.result("The disk was full.")
            await look(3)
            outer.result("test_dates.py fails: the bound in parse() is wrong")
        await session.append(ModelSaid(content="The bound in parse() is wrong."))  # e14
        await session.begin_branch("Repair it.")  # e15
        await look(4)
        await session.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("branches") / "sessions.db"
    with ThreadPoolExecutor(1) as pool:  # the thread of the browser has an event loop already
        pool.submit(lambda: asyncio.run(record(path))).result()
    with InspectedServer(path) as server:
        yield server


def listed(inspected: InspectedPage) -> list[str]:
    """The rows of the log from top to bottom: events, and records where they stand in the request."""
    script = """rows => rows.filter(row => row.checkVisibility())
        .map(row => [row.getBoundingClientRect().top, row])
        .sort((a, b) => a[0] - b[0])
        .map(([, row]) => [".handle", ".level-name"].map(part => row.querySelector(part).textContent))
        .map(([handle, level]) => handle || level)"""
    return list(inspected.page.locator(ROWS).evaluate_all(script))


def test_a_branch_folds_when_it_ends_and_unfolds_by_click_and_key(
    opener: Any, server: InspectedServer
) -> None:
    inspected: InspectedPage = opener(server, TITLE)
    page = inspected.page
    folded = ["e0", "e1", "e2", "Summary e13", "e14", "e15", "e16", "e17"]
    assert listed(inspected) == folded
    page.get_by_role("button", name="Show 11 rows of branch e2").click()
    inner = page.get_by_role("button", name="Show 4 rows of branch e5")
    inner.wait_for()
    wait_until(lambda: listed(inspected)[2:8] == ["e2", "e3", "e4", "e5", "e10", "Summary e13"])
    inner.click()
    page.get_by_role("button", name="Hide 4 rows of branch e5").wait_for()
    wait_until(lambda: listed(inspected)[:11] == [f"e{seq}" for seq in range(11)])
    inspected.row("e7").click()
    page.locator(ROWS + ".active").get_by_role("button", name="e7", exact=True).wait_for()
    page.keyboard.press("b")
    inner.wait_for()
    inspected.until("document.querySelector('.log-row.active .handle')?.textContent === 'e5'")
    page.keyboard.press("k")
    page.keyboard.press("b")
    page.get_by_role("button", name="Show 11 rows of branch e2").wait_for()
    wait_until(lambda: listed(inspected) == folded)
    page.evaluate("location.hash = 'e17&message=e7'")  # a link to a message that the folds hide
    page.locator(ROWS + ".active").get_by_role("button", name="e7", exact=True).wait_for()


def test_lanes_fit_and_can_be_read(opener: Any, server: InspectedServer) -> None:
    page = opener(server, TITLE, size=(360, 900)).page
    page.get_by_role("button", name="Show 11 rows of branch e2").click()
    page.get_by_role("button", name="Show 4 rows of branch e5").click()
    page.get_by_role("button", name="Hide 4 rows of branch e5").wait_for()
    check_looks(page, some_cases(LOOKS, every=3))
