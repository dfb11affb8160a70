"""A long text in pieces that a chat app takes.

1. No piece is larger than the limit, and nothing but blank lines between pieces is lost.
2. A fence of code stays whole if it fits into one piece. If it does not, it is closed at the end of a piece and
   opened again in the next, so that every piece can be read by itself. A fence that was left open is closed.
3. Otherwise a cut is made between paragraphs, else between lines, else between words, else between characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Size = Callable[[str], int]

_FENCE: Final = re.compile(r"\s*(`{3,}(?=[^`]*$)|~{3,})")
_JOINED: Final = frozenset("\u200d\ufe0e\ufe0f\u20e3")
"""Characters that belong to the one before: joiners, variants, keycaps."""


class TextBlock(NamedTuple):
    """Lines that belong together: a paragraph, or a fence of code."""

    lines: list[str]
    closing: str = ""
    """What closes the fence; "" for a paragraph."""


def utf16(text: str) -> int:
    """The size of a text as Telegram counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(text: str, limit: int, *, size: Size = len) -> list[str]:
    """The text in pieces, none of them blank; the size of a text must be the sum of its parts' sizes."""
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
    """The blocks of a text; a paragraph has the blank lines that follow it."""
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
    """A fence that is too large, as several."""
    opening, *body, _ = block.lines
    room = limit - size(opening) - size(block.closing) - 2
    if room < limit // 2:  # a first line that is no name of a language
        return _cut("\n".join(block.lines), limit, size)
    return [f"{opening}\n{part}\n{block.closing}" for part in _cut("\n".join(body), room, size)]


def _cut(text: str, limit: int, size: Size) -> list[str]:
    """A text in pieces, at the ends of lines where there are any."""
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
    """A line in parts that fit, at the ends of words where there are any."""
    start = 0
    while (end := _fitting(line, start, limit, size)) < len(line):
        space = line.rfind(" ", (start + end) // 2, end)
        end = space + 1 if space > 0 else _between(line, start, end)
        yield line[start:end]
        start = end
    yield line[start:]


def _fitting(line: str, start: int, limit: int, size: Size) -> int:
    """How far it fits from a place on; by one character at least, so that there is an end."""
    end = min(len(line), start + limit)
    while (over := size(line[start:end]) - limit) > 0 and end > start + 1:
        end -= max(1, over // 2)  # a character's size is one or two
    return max(start + 1, end)


def _between(line: str, start: int, end: int) -> int:
    """The last place up to `end` that does not tear a character from its accents or an emoji apart."""
    for place in range(end, max(start, end - 32), -1):
        if not _continues(line[place : place + 1]) and line[place - 1] != "\u200d":
            return place
    return end


def _continues(character: str) -> bool:
    return bool(character) and (
        character in _JOINED
        or unicodedata.combining(character) > 0
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )
