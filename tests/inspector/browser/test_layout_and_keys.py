"""The pages at all widths, in both themes, and with the keyboard alone."""

from __future__ import annotations

from typing import Any

import pytest

from support.inspected_server import InspectedServer
from support.waiting import wait_until

TITLE = "Orders are shipped twice"
PANELS = ("Message", "Reductions", "Requests", "Diff", "Composition", "Statements", "Search", "What if")
OVERLAPS = """
() => {
  const controls = [...document.querySelectorAll("button, input, select, summary, a, textarea")];
  const isHidden = (element) => !element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const boxes = [];
  for (const element of controls) {
    if (isHidden(element) || element.closest("[role=row], svg, .visually-hidden, dialog")) continue;
    const box = element.getBoundingClientRect();
    // What a scrolled area hides is not on top of anything.
    const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    if (box.width < 2 || box.height < 2 || !top || !(element.contains(top) || top.contains(element))) continue;
    boxes.push([element, box]);
  }
  const found = [];
  boxes.forEach(([a, first], index) => {
    for (const [b, second] of boxes.slice(index + 1)) {
      if (a.contains(b) || b.contains(a)) continue;
      const width = Math.min(first.right, second.right) - Math.max(first.left, second.left);
      const height = Math.min(first.bottom, second.bottom) - Math.max(first.top, second.top);
      if (width > 2 && height > 2) found.push(`${a.outerHTML.slice(0, 80)} over ${b.outerHTML.slice(0, 80)}`);
    }
  });
  return found;
}
"""
CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const backgroundOf = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opacityOf = (element) => {
    let opacity = 1;
    for (let each = element; each; each = each.parentElement) opacity *= Number(getComputedStyle(each).opacity);
    return opacity;
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("svg, :disabled, .visually-hidden, script, option, noscript")) continue;
    const behind = backgroundOf(element);
    const [r, g, b, a] = parse(getComputedStyle(element).color);
    const [x, y] = [light(over([r, g, b, a * opacityOf(element)], behind)), light(behind)];
    const contrast = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (contrast < 4.5) found.set(element.className || element.tagName, contrast.toFixed(2));
  }
  return [...found].map(([name, contrast]) => `${name}: ${contrast}`);
}
"""


def check_layout(page: Any) -> None:
    """No horizontal scrolling, and no control on top of another."""
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_pages_fit_and_can_be_read(opener: Any, shop: InspectedServer, width: int, theme: str) -> None:
    inspected = opener(shop, TITLE, "#e93", size=(width, 900), color_scheme=theme)
    page = inspected.page
    for number, name in enumerate(PANELS, 1):
        page.keyboard.press(str(number))
        inspected.open_panel(name)
        check_layout(page)
        assert page.evaluate(CONTRASTS) == [], name
    page.goto(f"{shop.address}/inspect/")
    page.locator(".overview .session-table tbody tr").first.wait_for()
    check_layout(page)
    assert page.evaluate(CONTRASTS) == []


def test_the_theme_can_be_chosen_and_stays(opener: Any, shop: InspectedServer) -> None:
    inspected = opener(shop, TITLE, color_scheme="light")
    page = inspected.page

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
            page.locator(".log-body .log-row").first.wait_for()
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
