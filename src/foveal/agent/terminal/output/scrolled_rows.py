"""Rows in a scrolled area: wrapped without loss, with the number of hidden lines.

1. Each row is wrapped at the last column and at no other place, so no character is left out, and each character
   that cannot be seen is shown by its code. A bar stands before each line, and a broken bar before the rest of a
   wrapped one: no text can pass for a line of its own, nor for the question below the area.
2. `window` returns the lines that fit, and above and below them how many do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foveal.agent.terminal.output.styled_text import (
    Row,
    Span,
    cell_width,
    cut_row,
    dim,
    fitting,
    row,
    single_line,
)
from foveal.core.wire.safe_print import visible

LINE_MARK: Final = "│ "
WRAPPED_MARK: Final = "┊ "
MIN_TEXT_COLUMNS: Final = 10
SCROLL_KEYS: Final = frozenset({"up", "down", "pageup", "pagedown", "home", "end"})


class ScrolledRows:
    """Rows of which a part is visible; `press` scrolls."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._lines: list[Row] = []
        self._width = 0
        self._top = 0
        self._height = 1
        """Lines that the last window showed."""

    def lines(self, width: int) -> list[Row]:
        """Return all lines, wrapped to `width` columns."""
        if width != self._width:
            self._width = width
            self._lines = [line for parts in self._rows for line in wrap_exactly(parts, width)]
        return self._lines

    def window(self, *, width: int, height: int) -> list[Row]:
        """Return at most `height` rows: lines, and a count of those above and below where there are more."""
        lines = self.lines(width)
        if len(lines) <= height:
            self._top, self._height = 0, max(1, len(lines))
            return lines
        self._height = max(1, height - 2)
        self._top = max(0, min(self._top, len(lines) - self._height))
        below = len(lines) - self._top - self._height
        shown = lines[self._top : self._top + self._height]
        above = cut_row(_hidden("↑", self._top, "above"), width)
        return [above, *shown, cut_row(_hidden("↓", below, "below"), width)]

    def press(self, key: str) -> bool:
        """Scroll with a key; return whether the key scrolls."""
        if key not in SCROLL_KEYS:
            return False
        page = max(1, self._height - 1)
        steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page, "home": -self._top}
        self._top = max(0, self._top + steps.get(key, len(self._lines)))
        return True


def _hidden(arrow: str, count: int, where: str) -> Row:
    """Return the row that counts hidden lines; an end that is visible is named as such."""
    if count == 0:
        return row(dim(f"  {'the beginning' if where == 'above' else 'the end'}"))
    return row(Span(f"  {arrow} {count:,} more line{'s' * (count != 1)} {where}", "fair"))


def wrap_exactly(parts: Row, width: int) -> Iterator[Row]:
    """Yield a row in lines of `width` columns, without leaving out a space."""
    room = max(MIN_TEXT_COLUMNS, width - len(LINE_MARK))
    line: list[Span] = []
    left, mark = room, LINE_MARK
    for span in parts:
        for piece, ends_line in _pieces(single_line(visible(span.text)), left, room):
            if ends_line:
                yield (dim(mark), *line)
                left, line, mark = room, [], WRAPPED_MARK
            if piece:
                line.append(Span(piece, span.style))
                left -= cell_width(piece)
    yield (dim(mark), *line)


def _pieces(text: str, left: int, room: int) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, each with whether a new line begins before it; `left` columns are free."""
    begins_line = False
    while text:
        end = _fitting(text, left)
        if end == 0 and left < room:  # not even one character fits: it begins the next line
            begins_line, left = True, room
            continue
        yield text[: max(1, end)], begins_line
        text, begins_line, left = text[max(1, end) :], True, room


def _fitting(text: str, columns: int) -> int:
    """Return how many characters of a text fit into this many columns."""
    head = text[: max(0, columns)]
    return len(head) if head.isascii() else fitting(text, 0, columns)
