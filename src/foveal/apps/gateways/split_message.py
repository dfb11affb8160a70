"""Splits a long text into pieces that a chat app accepts.

1. No piece is larger than the limit, and only blank lines between pieces are lost.
2. A code fence stays whole if it fits into one piece. If it does not, it is closed at the end of a piece and opened
   again in the next, so that each piece is valid Markdown by itself. An unclosed fence is closed.
3. Otherwise the text is cut between paragraphs, else between lines, else between words, else between characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Size = Callable[[str], int]

_FENCE: Final = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
_JOINING: Final = frozenset("\u200d\ufe0e\ufe0f\u20e3")
"""Characters that belong to the previous character: joiners, variants, keycaps."""
_MAX_CLUSTER_CHARS: Final = 32
"""How far a cut moves back to keep an emoji whole."""


class TextBlock(NamedTuple):
    """Lines that belong together: a paragraph, or a code fence."""

    lines: list[str]
    closing: str = ""
    """The line that closes the fence; "" for a paragraph."""


def utf16(text: str) -> int:
    """Return the size of a text in UTF-16 units, as Telegram counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(text: str, limit: int, *, size: Size = len) -> list[str]:
    """Return the text in pieces, none of them blank.

    The size of a text must be the sum of the sizes of its parts.
    """
    pieces: list[str] = []
    current = ""
    for block in _blocks(text):
        whole = "\n".join(block.lines)
        if size(current) + size(whole) + 2 <= limit:
            current = f"{current}\n{whole}" if current else whole
            continue
        pieces.append(current)
        if size(whole) <= limit:
            current = whole
        else:
            *full, current = _cut_fence(block, limit, size) if block.closing else _cut(whole, limit, size)
            pieces += full
    return [piece.strip("\n") for piece in (*pieces, current) if piece.strip()]


def _blocks(text: str) -> Iterator[TextBlock]:
    """Yield the blocks of a text; a paragraph includes the blank lines after it."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if fence:
            lines.append(line)
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                yield TextBlock(lines, line)
                lines, fence = [], ""
        elif found:
            if lines:
                yield TextBlock(lines)
            lines, fence = [line], found[1]
        else:
            if line.strip() and lines and not lines[-1].strip():
                yield TextBlock(lines)
                lines = []
            lines.append(line)
    if fence:
        closing = lines[0][: len(lines[0]) - len(lines[0].lstrip())] + fence
        yield TextBlock([*lines, closing], closing)
    elif lines:
        yield TextBlock(lines)


def _cut_fence(block: TextBlock, limit: int, size: Size) -> list[str]:
    """Split a fence that is too large into several."""
    opening, *body, _ = block.lines
    room = limit - size(opening) - size(block.closing) - 2
    if room < limit // 2:  # the opening line is too long to be repeated
        return _cut("\n".join(block.lines), limit, size)
    return [f"{opening}\n{part}\n{block.closing}" for part in _cut("\n".join(body), room, size)]


def _cut(text: str, limit: int, size: Size) -> list[str]:
    """Split a text between lines where possible."""
    pieces, used = [""], 0
    for line in text.split("\n"):
        for number, part in enumerate(_parts(line, limit, size)):
            amount = size(part)
            if number or used + amount + 1 > limit:
                pieces.append(part)
                used = amount
            else:
                pieces[-1] += f"\n{part}" if pieces[-1] else part
                used += amount + 1
    return pieces


def _parts(line: str, limit: int, size: Size) -> Iterator[str]:
    """Split a line into parts that fit, between words where possible."""
    start = 0
    while (end := _fitting_end(line, start, limit, size)) < len(line):
        space = line.rfind(" ", (start + end) // 2, end)
        end = space + 1 if space > 0 else _character_boundary(line, start, end)
        yield line[start:end]
        start = end
    yield line[start:]


def _fitting_end(line: str, start: int, limit: int, size: Size) -> int:
    """Return the end of the part from `start` that fits; at least one character, so that the loop ends."""
    end = min(len(line), start + limit)
    while (over := size(line[start:end]) - limit) > 0 and end > start + 1:
        end -= max(1, over // 2)  # a character has a size of one or two
    return max(start + 1, end)


def _character_boundary(line: str, start: int, end: int) -> int:
    """Return the last position up to `end` that splits no accented character and no emoji."""
    for position in range(end, max(start, end - _MAX_CLUSTER_CHARS), -1):
        if not _continues(line[position : position + 1]) and line[position - 1] != "\u200d":
            return position
    return end


def _continues(character: str) -> bool:
    return bool(character) and (
        character in _JOINING
        or unicodedata.combining(character) > 0
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )
