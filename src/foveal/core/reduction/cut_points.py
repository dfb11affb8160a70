"""Where a text must be cut to stay within an amount of tokens, bytes and lines.

Looks at no more of the text than the amount holds, so that the beginning of 100 MB is found as fast as that of
100 kB. Cuts are at line ends when one is near, and not inside what a reader sees as one character.
"""

from __future__ import annotations

import unicodedata
from math import inf
from typing import Final, NamedTuple

from foveal.core.tokens.counter import Counter

COUNTED: Final = 200_000
"""Characters up to which an exact counter counts the whole text; an estimate with a tenth."""


class TextSize(NamedTuple):
    """An amount in each unit; as room, `inf` is a unit without limit (which then is not measured: 0)."""

    tokens: float
    bytes: float
    lines: float

    def minus(self, other: TextSize) -> TextSize:
        return TextSize(self.tokens - other.tokens, self.bytes - other.bytes, self.lines - other.lines)

    def times(self, share: float) -> TextSize:
        return TextSize(*(unit if unit == inf else int(unit * share) for unit in self))

    def within(self, room: TextSize) -> bool:
        return all(unit <= most for unit, most in zip(self, room, strict=True))


# ── how much ──


def total_tokens(text: str, counter: Counter) -> tuple[int, bool]:
    """All tokens of a text, and whether that is exact; of a long one, extrapolated from 32 samples."""
    if len(text) <= (COUNTED if counter.exact else COUNTED // 10):
        return counter.count(text), counter.exact
    width, step = 512, (len(text) - 512) // 31
    counted = sum(counter.count_all([text[at : at + width] for at in range(0, 32 * step, step)]))
    return round(counted * len(text) / (32 * width)), False


def utf8(text: str, room: TextSize) -> int:
    """UTF-8 bytes of a text, 0 when nobody asks; lone surrogates take three, as in `surrogatepass`."""
    if room.bytes == inf or text.isascii():
        return 0 if room.bytes == inf else len(text)
    step = 1 << 20
    return sum(len(text[at : at + step].encode("utf-8", "surrogatepass")) for at in range(0, len(text), step))


def measure(text: str, room: TextSize, counter: Counter) -> TextSize:
    """The size of a short text in the units that are limited."""
    tokens = counter.count(text) if room.tokens < inf else 0
    lines = text.count("\n") + (text[-1:] not in ("", "\n")) if room.lines < inf else 0
    return TextSize(tokens, utf8(text, room), lines)


def measure_alone(text: str, room: TextSize, counter: Counter) -> TextSize:
    """The size of one part, with `inf` in a unit where it alone is too large (it is not measured further)."""
    alone = [room._replace(**{unit: inf for unit in room._fields if unit != one}) for one in room._fields]
    sizes = [measure(text, r, counter) if reach(text, r, counter) == len(text) else None for r in alone]
    return TextSize(*(inf if size is None else size[i] for i, size in enumerate(sizes)))


# ── where ──


def reach(text: str, room: TextSize, counter: Counter) -> int:
    """Characters of the longest beginning within the room; looks at no more than the room holds."""
    ends = [len(text)]
    if room.lines < inf:
        ends.append(_after_lines(text, int(room.lines)))
    if room.bytes < inf:
        ends.append(_after_bytes(text, int(room.bytes)))
    if room.tokens < inf:
        ends.append(counter.head(text, int(room.tokens)))
    return min(ends)


def reach_back(text: str, room: TextSize, counter: Counter) -> int:
    """Where the longest end within the room starts."""
    starts = [0]
    if room.lines < inf:
        starts.append(_before_lines(text, int(room.lines)))
    if room.bytes < inf:
        starts.append(_before_bytes(text, int(room.bytes)))
    if room.tokens < inf:
        starts.append(len(text) - counter.tail(text, int(room.tokens)))
    return max(starts)


def _after_lines(text: str, lines: int) -> int:
    at = 0
    for _ in range(lines):
        at = text.find("\n", at) + 1
        if at == 0:
            return len(text)
    return at


def _before_lines(text: str, lines: int) -> int:
    at = len(text) - text.endswith("\n") if lines else len(text)
    for _ in range(lines):
        at = text.rfind("\n", 0, at)
        if at < 0:
            return 0
    return min(at + 1, len(text))


def _after_bytes(text: str, size: int) -> int:
    if text.isascii():
        return min(size, len(text))
    start = text[:size].encode("utf-8", "surrogatepass")
    while size < len(start) and start[size] & 0xC0 == 0x80:
        size -= 1
    return len(start[:size].decode("utf-8", "surrogatepass"))


def _before_bytes(text: str, size: int) -> int:
    if text.isascii():
        return max(0, len(text) - size)
    end = text[max(0, len(text) - size) :].encode("utf-8", "surrogatepass")
    at = max(0, len(end) - size)
    while at < len(end) and end[at] & 0xC0 == 0x80:
        at += 1
    return len(text) - len(end[at:].decode("utf-8", "surrogatepass"))


def head(text: str, room: TextSize, counter: Counter) -> int:
    """Where the head ends: at a line end if one is in its last tenth."""
    end = reach(text, room, counter)
    newline = text.rfind("\n", end - end // 10 - 1, end) if 0 < end < len(text) else -1
    return newline + 1 if newline >= 0 else apart(text, end, -1)


def tail(text: str, room: TextSize, counter: Counter) -> int:
    """Where the tail starts: after a line end if one is in its first tenth."""
    start, last = reach_back(text, room, counter), len(text) - 1
    if start == 0 or text[start - 1] == "\n":
        return start
    newline = text.find("\n", start, min(last, start + (len(text) - start) // 10))
    return newline + 1 if newline >= 0 else apart(text, start, 1)


def apart(text: str, at: int, step: int) -> int:
    """The nearest position in that direction that splits no character as a reader sees it, if within 32."""
    for near in range(at, at + 32 * step, step):
        if not 0 < near < len(text) or not _joined(text[near - 1], text[near]):
            return min(max(near, 0), len(text))
    return at


def _joined(left: str, right: str) -> bool:
    """Whether two neighbours belong to one visible character (the cheap rules, not all of Unicode's)."""
    if right < "\u0300" and left != "\u200d":
        return left == "\r" and right == "\n"
    return (
        left == "\u200d"
        or right in "\u200d\ufe0e\ufe0f"
        or "\U0001f3fb" <= right <= "\U0001f3ff"
        or "\U000e0020" <= right <= "\U000e007f"
        or ("\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff")
        or ("\U0001f1e6" <= left <= "\U0001f1ff" and "\U0001f1e6" <= right <= "\U0001f1ff")
        or unicodedata.category(right)[0] == "M"
    )
