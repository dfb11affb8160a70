"""What is shown, as data: rows of spans with named styles. Whoever shows them decides about colours.

Whatever leaves this module is safe to print: every span goes through `foveal.core.wire.safe_print`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from foveal.core.wire.safe_print import visible

Style = Literal["", "bold", "dim", "good", "fair", "bad", "accent", "blue", "magenta"]
SGR: Final[dict[str, str]] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "fair": "33",
    "bad": "31",
    "accent": "36",
    "blue": "34",
    "magenta": "35",
}
STATES: Final[dict[str, Style]] = {"ok": "good", "warn": "fair", "act": "bad", "over": "bad"}
"""The colour of each state of a report."""
TAB: Final = 4


class Span(NamedTuple):
    text: str
    style: Style = ""


Row = tuple[Span, ...]
"""One line."""


def row(*parts: str | Span) -> Row:
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts)


def dim(text: str) -> Span:
    return Span(text, "dim")


def bold(text: str) -> Span:
    return Span(text, "bold")


def text_rows(text: str, *, style: Style = "", indent: str = "") -> list[Row]:
    """A text of several lines."""
    return [row(Span(indent + line, style)) for line in text.split("\n")]


def change_rows(text: str) -> list[Row]:
    """What would change, with the lines of a diff in their colours."""
    marks: dict[str, Style] = {"+": "good", "-": "bad", "@": "accent"}
    return [row(Span("    " + line, marks.get(line[:1], ""))) for line in text.rstrip("\n").split("\n")]


# ── width ────────────────────────────────────────────────────────────────────────────────────────────────


def cells(text: str) -> int:
    """Columns that a text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The beginning of a text, in so many columns."""
    text = flat(text)
    if cells(text) <= width:
        return text
    room, kept = max(0, width - 1), []
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def fitted(parts: Row, width: int) -> Row:
    """A row in so many columns."""
    made: list[Span] = []
    for span in parts:
        text = flat(span.text)
        if (size := cells(text)) > width:
            made.append(Span(cut(text, width), span.style))
            break
        made.append(Span(text, span.style))
        width -= size
    return tuple(made)


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of so many columns; a word that is longer is broken."""
    lines = [""]
    for word in flat(text).split(" "):
        if lines[-1] and cells(lines[-1]) + 1 + cells(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        while cells(lines[-1]) > width:
            head = cut(lines[-1], width + 1).removesuffix("…")[:width] or lines[-1][:1]
            lines[-1:] = [head, lines[-1][len(head) :]]
    return lines


def flat(text: str) -> str:
    """A text that is safe to print and stays on its line."""
    return visible(text).replace("\n", "␊").expandtabs(TAB)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def plain(rows: Iterable[Row]) -> str:
    """Rows as text, each with its newline."""
    return "".join("".join(flat(span.text) for span in parts).rstrip() + "\n" for parts in rows)


def painted(rows: Iterable[Row], *, width: int = 0, colours: bool = True) -> str:
    """Rows as text for a terminal; cut to the width, if there is one."""
    if not colours:
        return plain(fitted(parts, width) if width else parts for parts in rows)
    cut_to = (fitted(parts, width) if width else parts for parts in rows)
    return "".join("".join(map(_painted, parts)) + "\n" for parts in cut_to)


def _painted(span: Span) -> str:
    text = flat(span.text)
    return f"\x1b[{SGR[span.style]}m{text}\x1b[0m" if span.style and text else text


def columns(table: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines of a table whose columns stand under each other; those in `right` are aligned to the right."""
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(_cell(cell, widths[i], i in right) for i, cell in enumerate(line)).rstrip()
        for line in table
    ]


def _cell(text: str, width: int, at_the_right: bool) -> str:  # noqa: FBT001
    space = " " * (width - cells(text))
    return space + text if at_the_right else text + space
