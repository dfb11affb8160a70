"""What every page of the inspector keeps at every width and in both themes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

LOOKS: Final = ((360, "light"), (360, "dark"), (1280, "light"), (1280, "dark"))
"""Widths and themes; `make test` tries the first and the last."""

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


def check_looks(page: Any, looks: Iterable[tuple[int, str]]) -> None:
    """A page that was opened narrow fits and can be read at these widths and in these themes."""
    for width, theme in looks:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.evaluate("() => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)))")
        check_layout(page)
        assert page.evaluate(CONTRASTS) == [], (width, theme)
