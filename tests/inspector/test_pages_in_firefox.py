"""The inspector's pages in Firefox: what the tests in Chromium show there must work in another engine too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.coding_agent import AGENT_WINDOW, record_shop
from support.firefox import FirefoxPage, firefox_page
from support.inspected_server import InspectedServer

TITLE = "Orders are shipped twice"
NO_SIDEWAYS_SCROLL = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
OPEN_NOTE = "document.querySelector('.happened .term-note:popover-open')?.textContent ?? ''"


@pytest.mark.soak
def test_the_pages_work_in_firefox(tmp_path: Path) -> None:
    path, profile = tmp_path / "sessions.db", tmp_path / "profile"
    profile.mkdir()
    asyncio.run(record_shop(path))
    with InspectedServer(path, window=AGENT_WINDOW) as server:
        asyncio.run(_walk(server, profile, tmp_path / "session.html"))


async def _walk(server: InspectedServer, profile: Path, exported: Path) -> None:
    async with firefox_page(profile) as page:
        await page.goto(server.server.url())
        await page.until("document.querySelectorAll('.session-table tbody tr').length === 4")
        await page.size(360, 740)
        assert await page.evaluate(NO_SIDEWAYS_SCROLL)
        table = "document.querySelector('.session-scroll')"
        assert await page.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")
        await _first_screen(page, server)
        await _panels(page)
        key = server.keys()[TITLE]
        data = await asyncio.to_thread(server.client().get, "/inspect/api/export", params={"id": key})
        exported.write_bytes(data.content)
        await page.goto(exported.as_uri())
        await page.until("document.querySelector('.happened-lines a') && document.querySelector('.log-row')")
        assert page.complaints == []


async def _first_screen(page: FirefoxPage, server: InspectedServer) -> None:
    await page.goto(server.server.url(session=server.keys()[TITLE]))
    await page.until("document.querySelector('.happened section[aria-label=Cost] a')")
    assert await page.evaluate(NO_SIDEWAYS_SCROLL)
    await page.size(1280, 900)
    await page.evaluate("document.querySelector('.happened .term').click()")
    await page.until(f"({OPEN_NOTE}).includes('An estimate')")
    await page.evaluate("document.querySelector('.happened a[href*=reductions]').click()")
    await page.until("document.querySelector('#tab-reductions').ariaSelected === 'true'")


async def _panels(page: FirefoxPage) -> None:
    for number in range(9):
        tab = f"document.querySelectorAll('[role=tab]')[{number}]"
        await page.evaluate(f"{tab}.click()")
        await page.until(f"{tab}.ariaSelected === 'true'")
    await page.evaluate("document.querySelector('[aria-label=\"Keys and words\"]').click()")
    await page.until("document.querySelector('dialog.help[open] dl')")
    await page.evaluate("document.querySelector('dialog.help .button').click()")
    await page.until("!document.querySelector('dialog[open]')")
