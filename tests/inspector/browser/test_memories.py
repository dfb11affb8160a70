"""The page of the memories in a browser: at all widths, in both themes, with its buttons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foveal import Memory, Session
from foveal.core.log.events import UserSaid
from foveal.stores import open_store
from support.effort import some_cases
from support.inspected_server import InspectedServer
from support.page_layout import LOOKS, check_looks
from support.waiting import wait_until


async def fill(path: Path) -> None:
    async with open_store(str(path)) as store:
        memory = Memory("user", store=store)
        session = await Session.open(store, "monday", model="gpt-5", memory=memory)
        await session.rename("Monday")
        await session.append(UserSaid(content="Remember that my name is Ada."))
        await session.append(UserSaid(content="Never push to main."))
        await session.append(UserSaid(content="Remember that my name is Grace."))
        await memory.propose(await session.events(), session="monday")
        await memory.remember("The key of the archive is " + "x" * 300)
        await session.close()


@pytest.fixture
def server(tmp_path: Path, serve: Callable[..., InspectedServer]) -> InspectedServer:
    asyncio.run(fill(tmp_path / "a.db"))
    return serve(tmp_path / "a.db")


def test_the_page_can_be_read_and_its_buttons_and_links_work(opener: Any, server: InspectedServer) -> None:
    inspected = opener(server, size=(360, 900))
    page = inspected.page
    page.get_by_role("link", name="Memory").click()
    page.get_by_text("Replaced and forgotten").click()
    page.get_by_role("button", name="Colours: system").wait_for()
    check_looks(page, some_cases(LOOKS, every=3))
    proposed = page.get_by_role("listitem").filter(has_text="Never push to main.")
    proposed.get_by_role("button", name="Yes, keep").click()
    kept = page.get_by_role("listitem").filter(has_text="Never push to main.")
    kept.get_by_role("button", name="Forget").click()
    page.get_by_text("Replaced and forgotten (2)").click()
    gone = page.get_by_role("listitem").filter(has_text="Never push to main.")
    gone.get_by_role("button", name="Undo").click()
    page.get_by_text("Replaced and forgotten (1)").wait_for()
    name = page.get_by_role("listitem").filter(has_text="Remember that my name is Grace.")
    name.get_by_role("link", name="session monday").click()
    wait_until(lambda: page.locator(".message-text", has_text="my name is Grace").count() > 0)
