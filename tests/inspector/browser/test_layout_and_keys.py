"""The pages at all widths, in both themes, and with the keyboard alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from support.inspected_server import InspectedServer
from support.page_layout import CONTRASTS, check_layout, check_looks
from support.waiting import wait_until

TITLE = "Orders are shipped twice"
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
PHONE = 640
Looks = tuple[tuple[int, str], ...]
"""Widths and themes."""
NOT_CUT = "name => [...document.querySelectorAll(name)].every((box) => box.scrollWidth <= box.clientWidth)"


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param(((360, "light"), (1280, "dark")), id="360-light-1280-dark"),
        *(
            pytest.param(((width, theme),), id=f"{width}-{theme}", marks=pytest.mark.soak)
            for width, theme in product((360, 1280, 2560), ("light", "dark"))
        ),
    ],
)
def test_pages_fit_and_can_be_read(opener: Any, shop: InspectedServer, looks: Looks) -> None:
    """`make soak` also opens the page anew for each look."""
    width, theme = looks[0]
    inspected = opener(shop, TITLE, "#e93", size=(width, 900), color_scheme=theme)
    page = inspected.page
    for look in looks:
        check_looks(page, [look])
        for number, name in enumerate(PANELS, 1):
            page.keyboard.press(str(number))
            inspected.open_panel(name)
            check_layout(page)
            assert page.evaluate(CONTRASTS) == [], name
        assert look[0] < PHONE or page.evaluate(NOT_CUT, ".panel-tabs")
    page.goto(f"{shop.address}/inspect/")
    page.locator(".overview .session-table tbody tr").first.wait_for()
    for width, theme in looks:
        for shown in {width, min(width, 800)}:
            check_looks(page, [(shown, theme)])
            assert page.evaluate(NOT_CUT, ".session-scroll"), shown


def test_the_theme_can_be_chosen_and_stays(opener: Any, shop: InspectedServer) -> None:
    page = opener(shop, color_scheme="light").page

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    light = background()
    themes = set()
    for theme in ("light", "dark", "system"):
        page.keyboard.press("t")
        page.get_by_role("button", name=f"Colours: {theme}").wait_for()
        themes.add(background())
        if background() != light:
            page.reload()
            page.locator(".overview .session-table tbody tr").first.wait_for()
            assert background() != light
    assert len(themes) == 2


def test_the_whole_page_works_with_the_keyboard_alone(opener: Any, shop: InspectedServer) -> None:
    inspected = opener(shop, TITLE)
    page = inspected.page
    last = inspected.point()
    page.keyboard.press("ArrowLeft")
    inspected.until_where(f"event {last - 1} of")
    page.keyboard.press("Shift+ArrowLeft")
    inspected.until("location.hash.startsWith('#r')")
    page.keyboard.press("Home")
    inspected.until_where("event 0 of")
    page.keyboard.press(" ")
    wait_until(lambda: inspected.point() >= 2)
    page.keyboard.press(" ")
    page.keyboard.press("End")
    inspected.until_where(f"event {last} of")
    page.keyboard.press("k")
    page.keyboard.press("k")
    page.keyboard.press("ArrowDown")
    inspected.until("document.querySelectorAll('[role=row][aria-selected=true]').length === 1")
    page.keyboard.press("Enter")
    inspected.open_panel("Message").locator(".message-text pre, .message-text .empty-state").first.wait_for()
    page.keyboard.press("f")
    page.keyboard.type("carrier")
    inspected.until("location.hash.includes('text=carrier')")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Keys").wait_for(state="hidden")
    for number, name in enumerate(PANELS, 1):
        page.keyboard.press(str(number))
        inspected.open_panel(name)
    page.keyboard.press("Escape")


def test_every_control_is_reached_by_tab_with_a_visible_focus_and_a_name(
    opener: Any, shop: InspectedServer
) -> None:
    inspected = opener(shop, TITLE, "#e93&panel=reductions")
    page = inspected.page
    inspected.open_panel("Reductions")
    state = """
    () => {
      const element = document.activeElement;
      const style = getComputedStyle(element);
      const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
      return [element.tagName, element.outerHTML.slice(0, 120), isMarked || style.boxShadow !== "none"];
    }
    """
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        tag, html, is_marked = page.evaluate(state)
        if tag == "BODY":
            break
        assert is_marked, html
        seen.append(html)
    assert len(seen) > 20
    unnamed = [
        line
        for line in page.locator("body").aria_snapshot().splitlines()
        if line.strip() in ("- button", "- link")
    ]
    assert unnamed == []
