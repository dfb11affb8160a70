"""Cut points: where to cut a text to a size in tokens, bytes and lines.

The functions look at no more of the text than the size allows, so that cutting 100 MB takes no longer than cutting
100 kB. Cuts are at line ends when one is near, and not inside what a reader sees as one character.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from foveal.core.tokens.counter import MIN_SEAM_TOKENS, Counter, Exact, adds_up, nearest_seam

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


# ── Counting the parts of one text ───────────────────────────────────────────────────────────────────────
# `counter_for_parts` wraps a counter while one text is cut, so that most characters are counted once. The wrapper
# counts the text in blocks between *seams*, at which the tokens of both sides add up (`nearest_seam`). Later cuts
# and spans count only the characters between the nearest known seam and their own position.
#
# 1. `count`, `head`, `tail` and `span` return what the wrapped counter returns for the same characters.
# 2. Only an exact counter that cuts at tokens, and a text that is well above the limit and short enough to be
#    counted whole, are counted in blocks. All others go through to the wrapped counter; a span is counted once.

MAX_BLOCKED_CHARS: Final = 200_000
"""A longer text is not counted whole when it is clipped."""
_MIN_CHARS_PER_TOKEN: Final = 3
"""A text with fewer characters per token of its limit is probably within it, and one count is enough."""
_BLOCK_CHARS: Final = 2_500
_MAX_BLOCKS: Final = 16
_SHORT_SPAN_CHARS: Final = 256
"""A span up to this size is counted directly: seams save nothing."""
_NEAR_CHARS: Final = 96
"""About; how far before the likely place of a token the last seam is set, so that the place is after it."""
_MAX_CUT_CHARS: Final = 400
"""A cut between seams that are no further apart needs no further seam."""


class PartCounter:
    """A counter for a text and its parts that passes everything to the counter of all texts."""

    def __init__(self, text: str, counter: Counter) -> None:
        self.name: str = counter.name
        self.exact: bool = counter.exact
        self._text = text
        self._counter = counter
        self._spans: dict[tuple[int, int], int] = {}

    def count(self, text: str) -> int:
        return self._counter.count(text)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return self._counter.count_all(texts)

    def head(self, text: str, tokens: int) -> int:
        return self._counter.head(text, tokens)

    def tail(self, text: str, tokens: int) -> int:
        return self._counter.tail(text, tokens)

    def span(self, start: int, end: int) -> int:
        """Return the tokens of the characters from `start` to `end`."""
        known = self._spans.get((start, end))
        if known is None:
            known = self._spans[start, end] = self._count_span(start, end)
        return known

    def _count_span(self, start: int, end: int) -> int:
        return self._counter.count(self._text[start:end])


class SeamCounter(PartCounter):
    """A counter for a text and its parts that remembers the tokens up to some seams of the text."""

    def __init__(self, text: str, counter: Exact) -> None:
        super().__init__(text, counter)
        self._exact = counter
        self._measure = measure = counter.measure_for(text)
        self._seams = [0]
        """Positions of seams, ascending; the first is the start of the text, the last its end."""
        self._before = [0]
        """The tokens before each of them."""
        step = max(_BLOCK_CHARS, len(text) // _MAX_BLOCKS)
        last = tokens = 0
        for near in range(step, len(text) - step // 2, step):
            if (at := nearest_seam(text, near, 1, distance=step // 2)) > last:
                tokens += measure(text[last:at])
                self._seams.append(at)
                self._before.append(tokens)
                last = at
        self._seams.append(len(text))
        self._before.append(tokens + measure(text[last:]))

    def count(self, text: str) -> int:
        return self._before[-1] if text is self._text else self._counter.count(text)

    def head(self, text: str, tokens: int) -> int:
        if text is not self._text or tokens < MIN_SEAM_TOKENS:
            return self._counter.head(text, tokens)
        if tokens >= self._before[-1]:
            return len(text)
        end = self._place_of(tokens)
        if at_seam := nearest_seam(text, end, -1):
            return at_seam
        return end if self.span(0, end) <= tokens else self._counter.head(text, tokens)

    def tail(self, text: str, tokens: int) -> int:
        if text is not self._text or tokens < MIN_SEAM_TOKENS:
            return self._counter.tail(text, tokens)
        excess = self._before[-1] - tokens
        if excess <= 0:
            return len(text)
        start = self._place_of(excess)
        if start - self._seams[bisect_right(self._seams, start) - 1] > _MAX_CUT_CHARS:
            return self._counter.tail(
                text, tokens
            )  # without seams, the tokens depend on where counting starts
        at_seam = nearest_seam(text, start, 1)
        if at_seam and self._tokens_before(at_seam) >= excess:
            return len(text) - at_seam
        is_within = self.span(start, len(text)) <= tokens
        return len(text) - start if is_within else self._counter.tail(text, tokens)

    def _count_span(self, start: int, end: int) -> int:
        """Count by subtraction between the first and the last place where tokens add up, and both edges."""
        text, measure = self._text, self._measure
        if end - start <= _SHORT_SPAN_CHARS:
            return measure(text[start:end])
        first = start if adds_up(text, start) else nearest_seam(text, start, 1, distance=_SHORT_SPAN_CHARS)
        last = end if adds_up(text, end) else nearest_seam(text, end, -1, distance=_SHORT_SPAN_CHARS)
        if last <= first or start > first:
            return measure(text[start:end])
        inner = self._tokens_before(last) - self._tokens_before(first)
        if first > start:
            inner += measure(text[start:first])
        return inner + measure(text[last:end]) if last < end else inner

    def _tokens_before(self, at: int) -> int:
        """Return the tokens before a place where they add up, and remember them."""
        place = bisect_right(self._seams, at)
        low = self._seams[place - 1]
        if low == at:
            return self._before[place - 1]
        high = self._seams[place]
        if at - low <= high - at:
            tokens = self._before[place - 1] + self._measure(self._text[low:at])
        else:
            tokens = self._before[place] - self._measure(self._text[at:high])
        self._seams.insert(place, at)
        self._before.insert(place, tokens)
        return tokens

    def _place_of(self, tokens: int) -> int:
        """Return the end of the longest beginning of the text that has at most `tokens`, fewer than the text."""
        while True:
            place = bisect_right(self._before, tokens)
            low, high = self._seams[place - 1], self._seams[place]
            rest, between = tokens - self._before[place - 1], self._before[place] - self._before[place - 1]
            if high - low <= _MAX_CUT_CHARS:
                return low + len(self._exact.cut(self._text[low:high], rest)[0])
            likely = (high - low) * rest // between
            at = nearest_seam(self._text, low + likely - _NEAR_CHARS - likely // 32, 1, distance=_NEAR_CHARS)
            if low < at < high and likely > 2 * _NEAR_CHARS:
                self._tokens_before(at)
                continue
            end = min(high, low + likely + likely // 2 + _NEAR_CHARS)
            kept, counted = self._exact.cut(self._text[low:end], rest)
            if counted > rest + 1 or end == high:
                return low + len(kept)
            return low + len(self._exact.cut(self._text[low:high], rest)[0])


def counter_for_parts(text: str, counter: Counter, tokens: int | None) -> PartCounter:
    """Return a counter for cutting one text to a limit in tokens, which returns what `counter` returns."""
    is_over = tokens is not None and _MIN_CHARS_PER_TOKEN * tokens < len(text) <= MAX_BLOCKED_CHARS
    if is_over and type(counter) is Exact and counter.can_cut and len(text) > _BLOCK_CHARS:
        return SeamCounter(text, counter)
    return PartCounter(text, counter)
