"""A page of the inspector in a real browser, with its parts as a user names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from support.chromium import WAIT_MS, WatchedPage
from support.inspected_server import InspectedServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROWS = ".log-body .log-row"


class InspectedPage:
    """The overview, or the page of one session. All methods belong into the browser's thread."""

    def __init__(self, watched: WatchedPage, server: InspectedServer) -> None:
        self.watched = watched
        self.server = server
        self.page: Page = watched.page
        self.host = server.address.removeprefix("http://")

    def open(self, title: str = "", fragment: str = "") -> None:
        """Log in, and open a session by its title, or the overview."""
        key = self.server.keys()[title] if title else ""
        self.page.goto(self.server.server.url(session=key) + fragment)
        first = ROWS if title else ".overview .session-table tbody tr"
        self.page.locator(first).first.wait_for()

    def until(self, expression: str, argument: object = None) -> None:
        """Wait until an expression of JavaScript is true; `argument` is its variable. The page itself looks again
        and again. Playwright's own function evaluates a text in it, which its Content-Security-Policy forbids."""
        waiting = f"""async argument => {{
          const end = performance.now() + {WAIT_MS};
          while (!({expression}) && performance.now() < end) await new Promise((next) => setTimeout(next, 10));
          return Boolean({expression});
        }}"""
        assert self.page.evaluate(waiting, argument), f"this never became true: {expression}"

    def until_where(self, text: str) -> None:
        """Wait until the scrubber says something."""
        self.page.locator(".scrubber-where", has_text=text).wait_for()

    def panel(self, name: str) -> Locator:
        """Open a panel by the name of its tab, and return it."""
        self.page.get_by_role("tab", name=name).click()
        return self.open_panel(name)

    def open_panel(self, name: str) -> Locator:
        """The panel with this name, once it is open."""
        found = self.page.get_by_role("tabpanel", name=name)
        found.wait_for()
        return found

    def row(self, key: str) -> Locator:
        """The row of an event in the log view; it must be scrolled to."""
        handle = self.page.get_by_role("button", name=key, exact=True)
        return self.page.locator(ROWS).filter(has=handle).first

    def where(self) -> str:
        """What the scrubber says about the current point."""
        return self.page.locator(".scrubber-where").inner_text()

    def point(self) -> int:
        """The event whose view is shown."""
        found = re.search(r"event ([\d,]+)", self.where())
        return int(found[1].replace(",", "")) if found else -1

    def go_to(self, seq: int) -> None:
        """Show the view after an event, as the address `#e412` does."""
        self.page.evaluate("place => { location.hash = place; }", f"e{seq}")
        self.until_where(f"event {seq:,} of")

    def confirm(self, name: str) -> None:
        """Press the button of the open dialog that performs an action."""
        self.page.locator("dialog[open]").get_by_role("button", name=name).click()

    def act(self, area: Locator, name: str) -> None:
        """Press the first button of an action, confirm it, and wait until the page says what happened. The live
        stream may show the new event sooner, and the answer draws the buttons again."""
        status = self.page.locator("#status")
        before = status.inner_text()
        area.get_by_role("button", name=name, exact=True).first.click()
        self.confirm(name)
        wait_until(lambda: _is_answer(status.inner_text(), before=before))

    def forgive(self, *parts: str) -> None:
        """Forget what the browser prints about requests that are meant to fail."""
        complaints = self.watched.complaints
        complaints[:] = [text for text in complaints if not any(part in text for part in parts)]


def _is_answer(text: str, *, before: str) -> bool:
    """Return whether the status line answers an action; the live stream says only how many events are new."""
    return text not in ("", before) and not re.fullmatch(r"[\d,]+ new events?\.", text)
