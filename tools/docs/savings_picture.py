"""Draws the picture of the start page: the bill with Foveal beside sending everything.

`python tools/docs/savings_picture.py` draws it again. The figures are those of `economy` in the table of
docs/which-policy.md; a test compares the picture with them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parents[2] / "docs"
PICTURE: Final = DOCS / "savings.svg"
LABELS: Final = {
    "≤ 1": "fits into the window",
    "1–3": "takes 1 to 3 windows",
    "3–8": "takes 3 to 8 windows",
}
"""For each group of the table, what the whole conversation does."""
WIDTH: Final = 720
ROW_HIGH: Final = 84
LEFT, TOP, BAR_WIDE, BAR_HIGH = 210, 64, 440, 22
EVERYTHING, FOVEAL, TEXT, FAINT = "#8b949e", "#2f81f7", "#1f2328", "#59636e"


class Saving(NamedTuple):
    """What a group of conversations costs, and what its requests say less."""

    label: str
    bill: float
    """In percent of sending everything."""
    surprise: str


def savings() -> list[Saving]:
    """Return the figures of `economy` by how large the conversation is."""
    table = (DOCS / "which-policy.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([^|]+?) \| `economy` \| ([\d.]+) % \| [\d.]+ % \| ([\d.]+) \|", table, re.MULTILINE
    )
    return [Saving(LABELS[group], float(bill), surprise) for group, bill, surprise in rows if group in LABELS]


def picture() -> str:
    """Return the picture as SVG."""
    body = [
        _text(
            20, 30, "What a conversation costs, in percent of sending everything with a prompt cache", size=15
        )
    ]
    for place, saving in enumerate(savings()):
        y = TOP + place * ROW_HIGH
        body += [
            _text(20, y + 16, saving.label),
            _text(20, y + 38, f"surprise {saving.surprise} bits per byte", size=12, colour=FAINT),
            *_bar(y, 100.0, EVERYTHING, "everything"),
            *_bar(y + BAR_HIGH + 4, saving.bill, FOVEAL, "Foveal"),
        ]
    height = TOP + ROW_HIGH * len(LABELS)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-size="14" font-family="system-ui, sans-serif">'
    )
    title = "<title>The bill with Foveal beside sending everything</title>"
    back = f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#f6f8fa"/>'
    return "\n".join([head, title, back, *body, "</svg>\n"])


def _bar(y: int, percent: float, colour: str, name: str) -> list[str]:
    wide = round(BAR_WIDE * percent / 100)
    value = f"{percent:.1f} %" if percent < 100 else "100 %"
    return [
        f'<rect x="{LEFT}" y="{y}" width="{wide}" height="{BAR_HIGH}" rx="3" fill="{colour}"/>',
        _text(LEFT + 8, y + 16, name, size=12, colour="#ffffff"),
        _text(LEFT + wide + 8, y + 16, value),
    ]


def _text(x: int, y: int, text: str, *, size: int = 14, colour: str = TEXT) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}">{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
