"""axe-core finds nothing on any page of the inspector, in either theme."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from support.chromium import Chromium
from support.effort import rest_in_soak
from support.inspected_pages import InspectedPage
from support.inspected_server import InspectedServer

pytest.importorskip("axe_playwright_python", reason="pip install 'foveal[test]'")

TITLE = "Orders are shipped twice"
PANELS = 9
SOAK = bool(os.environ.get("FOVEAL_SOAK"))
RUN = """
async ([part, hasContrasts]) => {
  const rules = { "color-contrast": { enabled: hasContrasts } };
  const found = await axe.run(part || document, { resultTypes: ["violations"], rules });
  return found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)}`));
}
"""


def violations(page: Any, *, part: str = "", has_contrasts: bool = True) -> list[str]:
    """Return what axe-core finds on a page, or in a part of it. Contrasts take three quarters of its time, and the
    files about layouts and memories measure those of most pages: only `make soak` asks for these again."""
    if not page.evaluate("'axe' in window"):
        page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
    found: list[str] = page.evaluate(RUN, [part, has_contrasts])
    return found


@pytest.mark.parametrize("theme", rest_in_soak(["light", "dark"]))
def test_axe_finds_nothing_on_any_page(chromium: Chromium, shop: InspectedServer, theme: str) -> None:
    with chromium.page(color_scheme=theme) as watched:
        page, found = watched.page, dict[str, list[str]]()
        page.goto(f"{shop.address}/inspect/")
        found["login"] = violations(page)
        inspected = InspectedPage(watched, shop)
        inspected.open()
        found["overview"] = violations(page, has_contrasts=SOAK)
        page.goto(f"{shop.address}/inspect/memory")
        found["memory"] = violations(page, has_contrasts=SOAK)
        page.goto(f"{shop.address}/inspect/session?id=none")
        found["error"] = violations(page)
        inspected.open(TITLE, "#e93&panel=happened")
        for number in range(1, PANELS + 1):
            page.keyboard.press(str(number))
            page.locator(f".panel-tabs [aria-selected=true]:nth-child({number})").wait_for()
            is_whole = number == 1 or SOAK  # what is around the panels stays
            part = "" if is_whole else "#panels"
            found[f"panel {number}"] = violations(page, part=part, has_contrasts=SOAK)
        page.keyboard.press("?")
        page.locator("dialog.help").wait_for()
        found["help"] = violations(page, part="" if SOAK else "dialog.help")
        assert {name: list(set(lines)) for name, lines in found.items() if lines} == {}


@pytest.mark.soak
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_an_exported_file(
    chromium: Chromium, shop: InspectedServer, tmp_path: Path, theme: str
) -> None:
    """The same scripts draw it as the page of a session."""
    path, key = tmp_path / "session.html", shop.keys()[TITLE]
    path.write_bytes(shop.client().get("/inspect/api/export", params={"id": key}).content)
    with chromium.page(color_scheme=theme) as watched:
        page = watched.page
        page.goto(path.as_uri())
        page.locator(".happened-lines a").first.wait_for()
        assert violations(page) == []
