"""Renders terminal output as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

STYLED = re.compile(r"\x1b\[(\d+)m(.*)\x1b\[0m")
COLOURS = {"": "#c9d1d9", "1": "#ffffff", "2": "#8b949e", "31": "#ff7b72", "32": "#56d364", "33": "#e3b341"}
NBSP = "&#160;"
WIDE, HIGH, LEFT, TOP = 8, 18, 20, 50


def terminal(rows: Sequence[str]) -> str:
    """Draw coloured lines in a window. Bars are rectangles, because fonts render bar characters differently."""
    width, height = 2 * LEFT + 100 * WIDE, TOP + HIGH * len(rows) + 16
    body = [svg for place, row in enumerate(rows) for svg in _row(row, TOP + HIGH * (place + 1) - 5)]
    dots = [
        f'<circle cx="{24 + 20 * place}" cy="24" r="6" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-size="13" font-family="{font}" xml:space="preserve">'
    )
    title = "<title>Foveal keeps a recorded conversation inside a window of 8,000 tokens</title>"
    back = f'<rect width="{width}" height="{height}" rx="10" fill="#0d1117"/>'
    return "\n".join([head, title, back, *dots, *body, "</svg>\n"])


def _row(row: str, y: int) -> Iterator[str]:
    found = STYLED.fullmatch(row)
    style, text = (found[1], found[2]) if found else ("", row)
    before, left, rest = text.partition("▕")
    yield from _text(before, 0, y, style)
    if left:
        bar, _, after = rest.partition("▏")
        start = len(before) + 1
        full, x = bar.count("█"), LEFT + WIDE * start
        yield f'<rect x="{x}" y="{y - 11}" width="{len(bar) * WIDE}" height="13" rx="2" fill="#21262d"/>'
        colour = COLOURS[style]
        yield f'<rect x="{x}" y="{y - 11}" width="{full * WIDE}" height="13" rx="2" fill="{colour}"/>'
        yield from _text(after, start + len(bar) + 1, y, style)


def _text(text: str, column: int, y: int, style: str) -> Iterator[str]:
    words = text.strip(" ")
    if words:
        x = LEFT + WIDE * (column + len(text) - len(text.lstrip(" ")))
        bold = ' font-weight="bold"' if style == "1" else ""
        safe = escape(words).replace(" ", NBSP)
        size = f'textLength="{WIDE * len(words)}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text x="{x}" y="{y}" fill="{COLOURS[style]}" {size}{bold}>{safe}</text>'
