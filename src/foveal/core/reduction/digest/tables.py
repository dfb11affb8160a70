"""Digest of rows of cells: the header, the first and the last row, and their number."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, filterfalse, islice, takewhile
from typing import Final

from foveal.core.reduction.digest.pieces import (
    DIGIT,
    MAX_SAMPLE_LINES,
    TextLines,
    distinct,
    ends_first,
    packed,
)

RULE_LINE: Final = re.compile(r"\s*[-=+|:*_─━┼├┤ ]{3,}$")
"""A line that only separates others."""
_MAX_TITLE_LINES: Final = 2
"""Lines above a table that come before it."""
_WIDE_GAP: Final = re.compile(r"\s{2,}")


def table_digest(text: TextLines) -> Iterable[str] | None:
    """Return the header, the first and last row and the number of rows; then the lines around the table, and the
    other rows."""
    lines = filterfalse(RULE_LINE.match, text.lines)
    first = list(islice(lines, MAX_SAMPLE_LINES))
    if len(first) < 2:
        return None
    for split, share in ((_pipe_cells, 0.5), (_tab_cells, 0.5), (_wide_cells, 0.6), (_comma_cells, 0.8)):
        sample = list(map(split, first))
        widths = list(map(len, sample))
        width = max(set(widths), key=widths.count)
        if width < 2 or widths.count(width) < max(2 if width > 2 else 3, share * len(sample)):
            continue
        if not _is_listing([row for row in sample if len(row) == width]):
            return _rows_digest([*sample, *map(split, lines)], width, "" if text.is_whole else "+")
    return None


def _rows_digest(lines: Sequence[Sequence[str]], width: int, more: str) -> Iterator[str]:
    rows = [row for row in lines if len(row) == width]
    # A first row with a number is a row of values, and no header.
    has_header = not any(DIGIT.match(cell.lstrip(" -+$€£")) for cell in rows[0])
    body = rows[has_header:]
    others = (row for row in lines if len(row) != width)
    titles = islice(takewhile(lambda row: len(row) != width, lines), _MAX_TITLE_LINES)
    shown = chain(titles, rows[:has_header], islice(ends_first(body), 2))
    count = f"{len(body)}{more} {'row' if len(body) == 1 else 'rows'}"
    pieces = chain(map(" | ".join, shown), [count], map(" | ".join, chain(others, body[1:-1])))
    return packed(distinct(pieces), " / ")


def _is_listing(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether two columns are no table: numbered lines, or fields (`key: value`)."""
    return len(rows[0]) == 2 and (rows[0][0].strip().isdecimal() or all(row[0].endswith(":") for row in rows))


def _pipe_cells(line: str) -> list[str]:
    return line.strip().strip("|").split("|") if "|" in line else [line]


def _tab_cells(line: str) -> list[str]:
    return line.split("\t")


def _wide_cells(line: str) -> list[str]:
    return _WIDE_GAP.split(line.strip()) if "  " in line else [line]


def _comma_cells(line: str) -> list[str]:
    for mark in (";", ","):
        if line.count(mark) >= 2:
            # `csv` knows quotes, in which a comma separates nothing.
            return next(csv.reader([line.replace("\r", "")], delimiter=mark))
    return [line]
