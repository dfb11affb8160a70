"""Cut points: where to cut a text to a size in tokens, bytes and lines.

The functions look at no more of the text than the size allows, so that cutting 100 MB takes no longer than cutting
100 kB. Cuts are at line ends when one is near, and not inside what a reader sees as one character.
"""

from __future__ import annotations

import unicodedata
from math import inf
from typing import Final, NamedTuple

from foveal.core.tokens.counter import Counter

MAX_COUNTED_CHARS: Final = 200_000
"""Characters up to which an exact counter counts the whole text; an estimating counter counts up to a tenth."""
_SAMPLES: Final = 32
_SAMPLE_CHARS: Final = 512
_MAX_BOUNDARY_DISTANCE: Final = 32
_MIN_DELETION_CHARS: Final = 2_048
"""Characters from which newlines are counted by deleting them."""
_DELETION_CHARS: Final = 32_768
"""Characters at a time, so that the copies stay in the processor's cache."""


class TextSize(NamedTuple):
    """A size in each unit. As a limit, `inf` means no limit; such a unit is not measured (0)."""

    tokens: float
    bytes: float
    lines: float

    def minus(self, other: TextSize) -> TextSize:
        return TextSize(self.tokens - other.tokens, self.bytes - other.bytes, self.lines - other.lines)

    def times(self, share: float) -> TextSize:
        return TextSize(*[unit if unit == inf else int(unit * share) for unit in self])

    def within(self, room: TextSize) -> bool:
        return self.tokens <= room.tokens and self.bytes <= room.bytes and self.lines <= room.lines


# ── Sizes ────────────────────────────────────────────────────────────────────────────────────────────────


def total_tokens(text: str, counter: Counter) -> tuple[int, bool]:
    """Return the tokens of a text, and whether they are exact; for a long text, extrapolated from 32 samples."""
    if len(text) <= (MAX_COUNTED_CHARS if counter.exact else MAX_COUNTED_CHARS // 10):
        return counter.count(text), counter.exact
    width, count = _SAMPLE_CHARS, _SAMPLES
    step = (len(text) - width) // (count - 1)
    tokens = sum(counter.count_all([text[at : at + width] for at in range(0, count * step, step)]))
    return round(tokens * len(text) / (count * width)), False


def utf8_size(text: str, room: TextSize) -> int:
    """Return the UTF-8 bytes of a text, 0 when bytes are not limited; lone surrogates take three bytes."""
    if room.bytes == inf or text.isascii():
        return 0 if room.bytes == inf else len(text)
    step = 1 << 20
    return sum(len(text[at : at + step].encode("utf-8", "surrogatepass")) for at in range(0, len(text), step))


def line_count(text: str) -> int:
    """Return the lines of a text."""
    return newline_count(text, 0, len(text)) + (text[-1:] not in ("", "\n"))


def newline_count(text: str, start: int, end: int) -> int:
    """Return the newlines between two positions."""
    if end - start < _MIN_DELETION_CHARS or not text.isascii():
        return text.count("\n", start, end)
    # `str.count` compares one character at a time, `bytes.replace` finds newlines with memchr: twice as fast.
    rest = 0
    for at in range(start, end, _DELETION_CHARS):
        rest += len(text[at : min(at + _DELETION_CHARS, end)].encode().replace(b"\n", b""))
    return end - start - rest


def measure(text: str, room: TextSize, counter: Counter) -> TextSize:
    """Return the size of a short text in the units that are limited."""
    tokens = counter.count(text) if room.tokens < inf else 0
    lines = line_count(text) if room.lines < inf else 0
    return TextSize(tokens, utf8_size(text, room), lines)


def measure_alone(text: str, room: TextSize, counter: Counter) -> TextSize:
    """Return the size of one part, with `inf` in a unit where it alone is too large (and not measured further)."""
    alone = [
        room._replace(**{unit: inf for unit in room._fields if unit != measured}) for measured in room._fields
    ]
    sizes = [measure(text, r, counter) if fitting_end(text, r, counter) == len(text) else None for r in alone]
    return TextSize(*(inf if size is None else size[i] for i, size in enumerate(sizes)))


# ── Cuts ─────────────────────────────────────────────────────────────────────────────────────────────────


def fitting_end(text: str, room: TextSize, counter: Counter) -> int:
    """Return the end of the longest beginning that fits; looks at no more of the text than fits."""
    ends = [len(text)]
    if room.lines < inf:
        ends.append(_after_lines(text, int(room.lines)))
    if room.bytes < inf:
        ends.append(_after_bytes(text, int(room.bytes)))
    if room.tokens < inf:
        ends.append(counter.head(text, int(room.tokens)))
    return min(ends)


def fitting_start(text: str, room: TextSize, counter: Counter) -> int:
    """Return the start of the longest end that fits."""
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


def head_end(text: str, room: TextSize, counter: Counter) -> int:
    """Return the end of the head: at a line end if one is in its last tenth."""
    end = fitting_end(text, room, counter)
    newline = text.rfind("\n", end - end // 10 - 1, end) if 0 < end < len(text) else -1
    return newline + 1 if newline >= 0 else character_boundary(text, end, -1)


def tail_start(text: str, room: TextSize, counter: Counter) -> int:
    """Return the start of the tail: after a line end if one is in its first tenth."""
    start, last = fitting_start(text, room, counter), len(text) - 1
    if start == 0 or text[start - 1] == "\n":
        return start
    newline = text.find("\n", start, min(last, start + (len(text) - start) // 10))
    return newline + 1 if newline >= 0 else character_boundary(text, start, 1)


def character_boundary(text: str, at: int, step: int) -> int:
    """Return the nearest position in the direction of `step` that splits no visible character, if one is within
    32."""
    if not 0 < at < len(text) or text[at - 1] == "\n":  # most cuts
        return min(max(at, 0), len(text))
    for near in range(at, at + _MAX_BOUNDARY_DISTANCE * step, step):
        if not 0 < near < len(text) or not _is_joined(text[near - 1], text[near]):
            return min(max(near, 0), len(text))
    return at


def _is_joined(left: str, right: str) -> bool:
    """Return whether two neighbours belong to one visible character, by the cheap rules of Unicode, not all."""
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
