"""A counter for the parts of one text that counts most characters once.

`counter_for_parts` wraps a counter while one text is cut. The wrapper counts the text in blocks between *seams*, at
which the tokens of both sides add up (`foveal.core.tokens.counter.nearest_seam`). Later cuts and spans count only
the characters between the nearest known seam and their own position.

1. `count`, `head`, `tail` and `span` return what the wrapped counter returns for the same characters.
2. Only an exact counter that cuts at tokens, and a text that is well above the limit and short enough to be counted
   whole, are counted in blocks. All others go through to the wrapped counter; a span is still counted once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from foveal.core.tokens.counter import MIN_SEAM_TOKENS, Counter, Exact, adds_up, nearest_seam

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
