"""Splits formatted text into parts that a chat app accepts.

1. No part is larger than the limit, and only blanks between parts are lost.
2. Text is formatted before it is split, so a part never shows half of a markup. A mark that spans a cut ends with
   one part and continues in the next.
3. A block (a paragraph, a list item, a code block, a table) stays whole if it fits into one part. Otherwise it is
   cut between lines, else between words, else between characters. A heading stays with the block below it.
4. The same text has the same parts: after a restart, delivery continues with the first part that was not delivered.
"""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

_JOINING: Final = frozenset("\u200d\ufe0e\ufe0f\u20e3")
"""Characters that belong to the previous character: joiners, variants, keycaps."""
_MAX_CLUSTER_CHARS: Final = 32
"""How far a cut moves back to keep an emoji whole."""

Block = TypeVar("Block")


def utf16(text: str) -> int:
    """Return the size of a text in UTF-16 units, as Telegram counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class TextMark(NamedTuple):
    """The format of a range of characters."""

    kind: str
    """`bold`, `italic`, `strikethrough`, `code` or `link`."""
    start: int
    end: int
    value: str = ""
    """The address of a link; the delimiter of any other mark in the source."""


class MarkedText(NamedTuple):
    """A text and its marks, outer marks before the marks inside them."""

    text: str
    marks: tuple[TextMark, ...] = ()

    def slice(self, start: int, end: int) -> MarkedText:
        """Return a range of the text with the marks inside; a mark neither begins nor ends with a blank."""
        text = self.text[start:end]
        clipped = (_clip(mark, start, end) for mark in self.marks)
        marks = (_trim(mark, text) for mark in clipped if mark.start < mark.end)
        return MarkedText(text, tuple(mark for mark in marks if mark.start < mark.end))


def _clip(mark: TextMark, start: int, end: int) -> TextMark:
    return mark._replace(start=max(mark.start, start) - start, end=min(mark.end, end) - start)


def _trim(mark: TextMark, text: str) -> TextMark:
    inside = text[mark.start : mark.end]
    if not inside.strip():
        return mark._replace(end=mark.start)
    start = mark.start + len(inside) - len(inside.lstrip())
    return mark._replace(start=start, end=start + len(inside.strip()))


# ── Blocks into parts ────────────────────────────────────────────────────────────────────────────────────


class PartSize(NamedTuple):
    """What a block takes of a part, or what a part has room for."""

    units: int
    """UTF-16 units."""
    marks: int = 0
    """Marks that must not be lost."""
    gap: int = 0
    """UTF-16 units between the block and another block before it."""

    def plus(self, other: PartSize) -> PartSize:
        gap = other.gap if self.units else 0
        return PartSize(self.units + gap + other.units, self.marks + other.marks)

    def fits(self, room: PartSize) -> bool:
        return self.units <= room.units and self.marks <= room.marks


def pack(
    blocks: Iterable[Block],
    *,
    room: PartSize,
    size: Callable[[Block], PartSize],
    cut: Callable[[Block], Iterable[Block]],
    is_heading: Callable[[Block], bool],
) -> list[list[Block]]:
    """Return the blocks of each part; `cut` divides a block that is larger than a part."""
    parts: list[list[Block]] = [[]]
    used = PartSize(0)
    for block in blocks:
        pieces = [block] if size(block).fits(room) else cut(block)
        for piece in pieces:
            added = size(piece)
            if not used.plus(added).fits(room):
                carried = _last_headings(parts[-1], is_heading)
                used = _total(size(heading) for heading in carried)
                if not used.plus(added).fits(room):
                    carried, used = [], PartSize(0)
                del parts[-1][len(parts[-1]) - len(carried) :]
                parts.append(carried)
            parts[-1].append(piece)
            used = used.plus(added)
    return [part for part in parts if part]


def _last_headings(part: Sequence[Block], is_heading: Callable[[Block], bool]) -> list[Block]:
    """Return the headings at the end of a part, which move to the next part with the block below them."""
    end = len(part)
    while end > 0 and is_heading(part[end - 1]):
        end -= 1
    return list(part[end:])


def _total(sizes: Iterable[PartSize]) -> PartSize:
    total = PartSize(0)
    for size in sizes:
        total = total.plus(size)
    return total


# ── Cutting one block ────────────────────────────────────────────────────────────────────────────────────


def cut_text(
    whole: MarkedText,
    *,
    window: int,
    fits: Callable[[MarkedText], bool],
    is_monospace: bool = False,
    joined: frozenset[int] = frozenset(),
) -> Iterator[MarkedText]:
    """Yield a text in pieces for which `fits` is true; `window` bounds the characters of a piece.

    Monospaced text is cut between lines wherever possible. `joined` are the positions of line breaks that divide no
    rows of a table. A piece has at least one character, so that the loop ends.
    """
    waiting = deque(sorted(whole.marks, key=lambda mark: mark.start))
    begun: list[TextMark] = []
    blanks = "\n" if is_monospace else " \n"
    start = 0
    while start < len(whole.text):
        stop = min(len(whole.text), start + window + 1)
        while waiting and waiting[0].start < stop:
            begun.append(waiting.popleft())
        visible = MarkedText(whole.text[start:stop], tuple(_clip(mark, start, stop) for mark in begun))
        end = _fitting_end(visible, fits)
        if start + end < len(whole.text):
            breaks = [place for place in _line_breaks(visible.text, end) if start + place not in joined]
            end = _line_border(visible.text, breaks, end) if is_monospace else _border(visible.text, end)
        piece = visible.slice(0, end)
        if piece.text.strip():
            left = len(piece.text) - len(piece.text.lstrip(blanks))
            yield piece.slice(left, len(piece.text.rstrip(blanks)))
        start += end
        begun = [mark for mark in begun if mark.end > start]


def _fitting_end(text: MarkedText, fits: Callable[[MarkedText], bool]) -> int:
    """Return the length of the longest beginning that fits, at least one character."""
    low, high = 1, len(text.text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text.slice(0, middle)):
            low = middle
        else:
            high = middle - 1
    return low


def _line_breaks(text: str, end: int) -> list[int]:
    return [place for place in range(1, min(end + 1, len(text))) if text[place] == "\n"]


def _line_border(text: str, breaks: Sequence[int], end: int) -> int:
    """Return the best place for a cut in monospaced text: between rows, else between lines.

    A blank line in the last quarter is preferred: it divides what the code does.
    """
    blank = [place for place in breaks if place >= end * 3 // 4 and _is_before_blank(text, place)]
    found = blank[-1:] or breaks[-1:] or _line_breaks(text, end)[-1:]
    return found[0] if found else _border(text, end)


def _is_before_blank(text: str, place: int) -> bool:
    """Return whether the line after a line break is blank."""
    end = text.find("\n", place + 1)
    return end >= 0 and not text[place + 1 : end].strip()


def _border(text: str, end: int) -> int:
    """Return the best place for a cut in prose: a line or a word that ends in the second half, else any line."""
    line, space = text.rfind("\n", 1, end + 1), text.rfind(" ", 1, end + 1)
    if max(line, space) >= end // 2:
        return line if line >= end // 2 else min(space + 1, end)
    return line if line > 0 else _character_boundary(text, end)


def _character_boundary(text: str, end: int) -> int:
    """Return the last position up to `end` that splits no accented character and no emoji."""
    for position in range(end, max(0, end - _MAX_CLUSTER_CHARS), -1):
        if not _continues(text[position : position + 1]) and text[position - 1] != "\u200d":
            return position
    return end


def _continues(character: str) -> bool:
    return bool(character) and (
        character in _JOINING
        or unicodedata.combining(character) > 0
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )
