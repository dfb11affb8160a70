"""Renders terminal output as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

STYLED = re.compile(r"\x1b\[(\d+)m(.*)\x1b\[0m")
COLOURS = {"": "#c9d1d9", "1": "#ffffff", "2": "#8b949e", "31": "#ff7b72", "32": "#56d364", "33": "#e3b341"}
NBSP = "&#160;"
WIDE, HIGH, LEFT, TOP = 8, 18, 20, 50


def terminal(rows: Sequence[str]) -> str:
    """Draw coloured lines in a window. Bars are rectangles, because fonts render bar characters differently."""
    body = [svg for place, row in enumerate(rows) for svg in _row(row, TOP + HIGH * (place + 1) - 5)]
    title = "Foveal keeps a recorded conversation inside a window of 8,000 tokens"
    return _window(body, title, columns=100, rows=len(rows))


def capture(rows: Sequence[Sequence[Run]], title: str, *, columns: int) -> str:
    """Draw the screen of a terminal in a window."""
    body: list[str] = []
    for place, runs in enumerate(rows):
        column, y = 0, TOP + HIGH * (place + 1) - 5
        for run in runs:
            body += _text(run.text, column, y, "1" if run.is_bold else "", run.colour)
            column += len(run.text)
    return _window(body, title, columns=columns, rows=len(rows))


class Run(NamedTuple):
    """Characters of one line that have the same colour."""

    text: str
    colour: str
    """A colour such as `#c9d1d9`."""
    is_bold: bool = False


def _window(body: Sequence[str], title: str, *, columns: int, rows: int) -> str:
    width, height = 2 * LEFT + columns * WIDE, TOP + HIGH * rows + 16
    dots = [
        f'<circle cx="{24 + 20 * place}" cy="24" r="6" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-size="13" font-family="{font}" xml:space="preserve">'
    )
    back = f'<rect width="{width}" height="{height}" rx="10" fill="#0d1117"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", back, *dots, *body, "</svg>\n"])


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


def _text(text: str, column: int, y: int, style: str, colour: str = "") -> Iterator[str]:
    words = text.strip(" ")
    if words:
        x = LEFT + WIDE * (column + len(text) - len(text.lstrip(" ")))
        bold = ' font-weight="bold"' if style == "1" else ""
        safe = escape(words).replace(" ", NBSP)
        size = f'textLength="{WIDE * len(words)}" lengthAdjust="spacingAndGlyphs"'
        yield f'<text x="{x}" y="{y}" fill="{colour or COLOURS[style]}" {size}{bold}>{safe}</text>'
