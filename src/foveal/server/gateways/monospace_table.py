"""Draws a table in monospaced text, for chat apps without tables.

1. Columns are aligned. A table that is too wide has its cells wrapped; a table with too many columns becomes a list
   of records, with the column's name before each value.
2. The header is separate from the rows, so that each part of a long table can repeat it.
3. Widths are those of a terminal: characters of East Asia and emoji take two columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

_SEPARATOR: Final = " | "
_MIN_COLUMN_CHARS: Final = 6
"""A column is not made narrower than this."""


class MonospaceTable(NamedTuple):
    """The lines of a table."""

    header: tuple[str, ...]
    """Lines above the rows; none in a list of records."""
    rows: tuple[tuple[str, ...], ...]
    """The lines of each row."""


def draw_table(
    rows: Sequence[Sequence[str]], *, max_width: int, right: frozenset[int] = frozenset()
) -> MonospaceTable:
    """Return a table; the first row is the header, `right` are the columns that are aligned to the right."""
    widths = _column_widths(rows, max_width=max_width)
    if not widths:
        return _records(rows, max_width=max_width)
    drawn = [_row(row, widths, right) for row in rows]
    rule = "-+-".join("-" * width for width in widths)
    return MonospaceTable((*drawn[0], rule), tuple(drawn[1:]))


def _column_widths(rows: Sequence[Sequence[str]], *, max_width: int) -> list[int]:
    """Return the widths with which a table fits; none if it has too many columns."""
    widths = [min(max_width, max(1, *map(display_width, column))) for column in zip(*rows, strict=True)]
    room = max_width - len(_SEPARATOR) * (len(widths) - 1)
    if room < len(widths):
        return []
    while sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= _MIN_COLUMN_CHARS:
            return []
        widths[widest] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> tuple[str, ...]:
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    columns = [
        [_pad(line, width, to_right=number in right) for line in [*lines, *[""] * (height - len(lines))]]
        for number, (lines, width) in enumerate(zip(wrapped, widths, strict=True))
    ]
    return tuple(_SEPARATOR.join(line).rstrip() for line in zip(*columns, strict=True))


def _records(rows: Sequence[Sequence[str]], *, max_width: int) -> MonospaceTable:
    names, *records = rows
    drawn = [
        tuple(
            line
            for name, cell in zip(names, record, strict=True)
            for line in _wrap(f"{name}: {cell}".strip(": "), max_width)
        )
        for record in records or [names]
    ]
    rule = "-" * max_width
    return MonospaceTable(
        (), tuple((*([rule] if number else []), *lines) for number, lines in enumerate(drawn))
    )


def _pad(text: str, width: int, *, to_right: bool) -> str:
    blanks = " " * (width - display_width(text))
    return blanks + text if to_right else text + blanks


def _wrap(text: str, width: int) -> list[str]:
    """Return the text in lines of at most this width; at least one line."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if display_width(joined) <= width:
            lines[-1] = joined
            continue
        *full, last = _chunks(word, width)
        lines += [*full, last] if lines[-1] else []
        if lines == [""]:
            lines = [*full, last]
    return lines


def _chunks(word: str, width: int) -> list[str]:
    """Return a word in pieces of at most this width, or of one character."""
    pieces = [""]
    for character in word:
        if pieces[-1] and display_width(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def display_width(text: str) -> int:
    """Return how many columns a text takes."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("F", "W") else 1
