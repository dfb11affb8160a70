"""Calibration of local counts by the usage that a provider reports.

A provider counts with its own vocabulary and adds templates, and often a system prompt or tool schemas that the
caller does not see: reported ≈ overhead + ratio × units. A `Calibration` holds what is learned about both. It
is a value (a msgspec struct that can be stored with the session): `observe` returns a new one.

The prediction starts from the newest report: tokens reported then + ratio × (units now − units then). Hidden
parts cancel out, and only the change since then is estimated. The overhead is the prediction at zero units.

A reduction removes some parts and keeps others, and the ratio depends on the text. Each report therefore also
measures the events that were new in its request: a `MeasuredSpan` holds their tokens per unit. After a reduction,
`anchored` predicts the request from the spans of what is left.

1. Until the first report, tokens = ratio × units, and the upper bound is wide. Later it stays as wide for new text
   of more units than were measured: a short first turn says little about a long text of another kind.
2. A first report that an overhead explains sets the overhead; one that is too small for the ratio lowers the
   ratio. Later reports move the ratio by the tokens per *change* in units, weighted by its size.
3. The first such change may move the ratio freely (a hot start), each later one by at most 10 %. The ratio
   stays within 0.5–2.
4. Reports that are not a number, not positive, absurdly large, or for no units at all are ignored.
5. A report of more than twice or less than half of the prediction is ignored: it may belong to a subagent, be a
   cumulative figure, or precede a compaction. After three in a row something hidden has changed: the anchor
   moves there and the ratio is kept.
6. The difference between a report and its prediction is attributed to the events that were new in the request, up
   to `_MAX_SPAN_RATIO` tokens per unit: earlier events were measured before. The rest counts as tokens beyond the
   spans.

7. Requests of several runs may be under way at once. A report of a request that was made before the previous report
   was known moves the anchor and the ratio, and measures no events: both predictions had the same error, and it
   would be corrected twice, then in the other direction, and so on, more each time.

Pass `observe` the units of the reported request, whatever was reduced since.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from foveal.errors import BadSetting

MIN_RATIO: Final = 0.5
MAX_RATIO: Final = 2.0

_MAX_RATIO_STEP: Final = 0.10
"""Largest relative change of the ratio after the hot start."""
_PRIOR_WEIGHT: Final = 500.0
"""Units of change with the same weight as the prior ratio."""
_MAX_WEIGHT: Final = 20_000.0
"""Upper bound of the weight of the past, so that the ratio follows a drift."""
_MIN_CHANGE_UNITS: Final = 32
"""Smaller changes in units are dominated by templates and do not move the ratio."""
_NEWEST_ERROR_WEIGHT: Final = 0.2
"""Weight of the newest error in the mean of recent errors."""
_MAX_PROMPT_TOKENS: Final = 100_000_000
_MIN_FOREIGN_DIFFERENCE_TOKENS: Final = 4096
"""Differences below this many tokens are never ignored as foreign reports."""
_REPORTS_TO_MOVE_ANCHOR: Final = 3
"""Foreign reports in a row, of which the last one becomes the anchor."""
_TEMPLATE_TOKENS: Final = 320
"""Tokens that the upper bound always includes: single requests are reported with up to 300 tokens more than
the ones before and after them, because a provider adds a template to some of them."""
_UNMEASURED_SPREADS: Final = 3
"""First spreads per unit in the upper bound of new text that exceeds what was measured."""
_MAX_SPAN_RATIO: Final = 3.0
"""Most tokens per unit of a span: a template that is added to one small request is not part of its events."""
_SPANS_PER_CONVERSATION: Final = 64
"""A span holds at least this part of the conversation at its time, so their number grows with the logarithm of
the length."""
NEVER_MEASURED: Final = sys.maxsize
"""A seq after all spans, for text that no report measured by itself."""
_MAX_CACHED_UNITS: Final = 1_024
"""Results of the search for the most units within a limit that are kept."""


class MeasuredSpan(msgspec.Struct, frozen=True, array_like=True):
    """Events whose tokens were measured together: those before `until` and not in an earlier span."""

    until: int
    """The seq after the last of them."""
    units: int
    ratio: float
    """Tokens per unit."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a model's own counting. Start with the ratio of its family where it is known."""

    ratio: float = 1.0
    """Tokens per unit."""
    model: str = ""
    """The model; reports of another model are ignored."""
    at_units: int = 0
    """The anchor: units of the newest reported request."""
    at_tokens: int = 0
    """The anchor: the prompt tokens reported for that request."""
    seen: int = 0
    """Reports accepted in this conversation."""
    weight: float = _PRIOR_WEIGHT
    """Units of change on which the ratio is based."""
    spread: float = 0.15
    """Mean error of the ratio, per unit of change."""
    first_spread: float = 0.0
    """The spread before the first report, 0 if the model's own vocabulary counts."""
    error: float = 0.0
    """Mean of the recent absolute errors, in tokens."""
    strikes: int = 0
    """Consecutive ignored reports."""
    at_unreduced: int = 0
    """The anchor: units of that request if nothing had been reduced."""
    spans: tuple[MeasuredSpan, ...] = ()
    """The measured events, oldest first; empty when no report said which events its request had."""
    beyond_spans: float = 0.0
    """Tokens of the anchor's request that no span explains."""
    reported_seq: int = 0
    """The seq of the newest report that measured events."""
    reductions: tuple[int, ...] = ()
    """Seqs of the events since the anchor's request that changed how earlier events are shown."""

    def __post_init__(self) -> None:
        if not MIN_RATIO <= self.ratio <= MAX_RATIO:
            raise BadSetting("ratio", self.ratio, f"a number from {MIN_RATIO} to {MAX_RATIO}")

    @property
    def measured(self) -> bool:
        """Whether a report of this conversation was accepted."""
        return self.seen > 0

    @property
    def overhead(self) -> int:
        """Tokens that the provider counts at zero units: hidden prompts, tool schemas, templates."""
        return self.tokens(0)

    def tokens(self, units: int) -> int:
        """Return the prompt tokens expected for a request of `units`."""
        return max(0, round(self.at_tokens + self._slope(units) * (units - self.at_units)))

    def upper(self, units: int) -> int:
        """Return a bound that reported tokens rarely exceed; triggers use it."""
        change = units - self.at_units
        per_unit = 2 * self.spread if change >= 0 else min(2 * self.spread, self._slope(units) / 2)
        unmeasured = change - (self.weight - _PRIOR_WEIGHT)
        doubt = max(per_unit * abs(change), _UNMEASURED_SPREADS * self.first_spread * unmeasured)
        return self.tokens(units) + math.ceil(doubt + 3 * self.error) + _TEMPLATE_TOKENS

    def units(self, tokens: int) -> int:
        """Return the most units whose expected tokens are within `tokens`; 0 when the overhead alone exceeds
        them."""
        return _largest_within(self, tokens, is_safe=False)

    def safe_units(self, tokens: int) -> int:
        """Return the most units whose upper bound is within `tokens`, or 0."""
        return _largest_within(self, tokens, is_safe=True)

    # ── Requests after a reduction ───────────────────────────────────────────────────────────────────

    @property
    def needs_anchoring(self) -> bool:
        """Whether something that the anchor's request showed was reduced since: then `anchored` predicts the next
        request better."""
        return bool(self.spans and self.reductions) and self.reductions[-1] >= self.spans[-1].until

    def reduced(self, seq: int) -> Calibration:
        """Return the calibration after event `seq` changed how earlier events are shown."""
        until = self.spans[-1].until if self.spans else seq
        since = tuple(earlier for earlier in self.reductions if earlier >= until)
        return msgspec.structs.replace(self, reductions=(*since, seq))

    def reverted(self, target: int, seq: int) -> Calibration:
        """Return the calibration after event `seq` undid `target`. If the anchor's request was made before both,
        its tokens are exact again."""
        if target not in self.reductions or (self.spans and target < self.spans[-1].until):
            return self.reduced(seq)
        rest = tuple(earlier for earlier in self.reductions if earlier != target)
        return msgspec.structs.replace(self, reductions=rest)

    def anchored(self, units: int, shown: Iterable[tuple[int, int]]) -> Calibration:
        """Return the calibration with the anchor at a request of `units`. `shown` are the seq and the units of its
        messages; what it has beside them counts as the oldest span."""
        if not self.spans:
            return self
        total, rest = self.beyond_spans, units
        first, last, ratio = 0, -1, 0.0
        ends = [span.until for span in self.spans]
        for seq, size in shown:
            if not first <= seq < last:  # consecutive messages are mostly of one span
                first, last, ratio = self._span_of(seq, ends)
            total += size * ratio
            rest -= size
        tokens = round(total + rest * self.spans[0].ratio)
        return msgspec.structs.replace(self, at_units=units, at_tokens=max(1, tokens))

    def _span_of(self, seq: int, ends: Sequence[int]) -> tuple[int, int, float]:
        """Return the first seq, the seq after the last, and the ratio of the span with an event. `ends` are those
        of all spans."""
        place = bisect_right(ends, seq)
        first = self.spans[place - 1].until if place else 0
        if place == len(self.spans):
            return first, seq + 1, self.ratio
        return first, self.spans[place].until, self.spans[place].ratio

    # ── Reports ──────────────────────────────────────────────────────────────────────────────────────

    def observe(
        self,
        units: int,
        reported: float,
        *,
        model: str = "",
        until: int = 0,
        unreduced: int = 0,
        predicted: int = 0,
        seq: int = 0,
    ) -> Calibration:
        """Return the calibration after a report: a request of `units` was reported as `reported` prompt tokens.

        With `until`, the request had no event from that seq on, `unreduced` units without reductions, and was
        `predicted` to take that many tokens. `seq` is that of the report's own event."""
        if not _is_credible(units, reported) or (model and self.model and model != self.model):
            return self
        tokens = int(reported)
        if not self.seen:
            ratio = min(self.ratio, max(MIN_RATIO, tokens / units))
            first = msgspec.structs.replace(self, ratio=ratio, reported_seq=seq)
            return first._measure(tokens, units, until, unreduced, 0)._move_anchor(units, tokens)
        is_late = 0 < until <= self.reported_seq
        predicted = self.tokens(units) if is_late or not predicted else predicted
        is_foreign = self._is_foreign(units, tokens)
        if is_foreign and self.strikes + 1 < _REPORTS_TO_MOVE_ANCHOR:
            return msgspec.structs.replace(self, strikes=self.strikes + 1)
        measured = self
        if not is_late:
            measured = self._measure(tokens, units, until, unreduced, predicted)
            measured = msgspec.structs.replace(measured, reported_seq=seq)
        return (
            measured._move_anchor(units, tokens) if is_foreign else measured._learn(units, tokens, predicted)
        )

    def _measure(self, tokens: int, units: int, until: int, unreduced: int, predicted: int) -> Calibration:
        """Add the span of the events that were new in a request."""
        if not until:
            return msgspec.structs.replace(self, spans=(), beyond_spans=0.0)
        if not self.spans:
            beyond = tokens - self.ratio * units
            first = (MeasuredSpan(until, units, self.ratio),)
            return msgspec.structs.replace(self, spans=first, beyond_spans=beyond, at_unreduced=unreduced)
        beyond, ratio = float(tokens - predicted), self.ratio
        growth = unreduced - self.at_unreduced
        if growth >= _MIN_CHANGE_UNITS and until > self.spans[-1].until:
            ratio = min(_MAX_SPAN_RATIO, max(0.0, self.ratio + beyond / growth))
            beyond -= (ratio - self.ratio) * growth
        return msgspec.structs.replace(
            self,
            spans=_extended(self.spans, MeasuredSpan(until, max(0, growth), ratio), unreduced),
            beyond_spans=self.beyond_spans + beyond,
            at_unreduced=unreduced,
        )

    def _slope(self, units: int) -> float:
        """Return the ratio; below the anchor it is limited so that the overhead is not negative."""
        if units >= self.at_units:
            return self.ratio
        return min(self.ratio, self.at_tokens / self.at_units)

    def _is_foreign(self, units: int, tokens: int) -> bool:
        expected = self.tokens(units)
        return (
            abs(tokens - expected) > _MIN_FOREIGN_DIFFERENCE_TOKENS
            and not expected / 2 <= tokens <= expected * 2
        )

    def _learn(self, units: int, tokens: int, predicted: int) -> Calibration:
        """Update ratio, spread and recent error from this change in units, then move the anchor."""
        change = units - self.at_units
        off = abs(tokens - predicted)
        error = self.error + max(_NEWEST_ERROR_WEIGHT, 1 / self.seen) * (off - self.error)
        if abs(change) < _MIN_CHANGE_UNITS:
            return self._move_anchor(units, tokens, error=error)
        sample = min(MAX_RATIO, max(MIN_RATIO, (tokens - self.at_tokens) / change))
        share = abs(change) / (abs(change) + self.weight)
        step = share * (sample - self.ratio)
        if self.weight > _PRIOR_WEIGHT:
            step = min(_MAX_RATIO_STEP * self.ratio, max(-_MAX_RATIO_STEP * self.ratio, step))
        return self._move_anchor(
            units,
            tokens,
            ratio=min(MAX_RATIO, max(MIN_RATIO, self.ratio + step)),
            error=error,
            spread=self.spread + share * (min(1.0, abs(sample - self.ratio)) - self.spread),
            weight=min(_MAX_WEIGHT, self.weight + abs(change)),
        )

    def _move_anchor(self, units: int, tokens: int, **learned: float) -> Calibration:
        return msgspec.structs.replace(
            self, at_units=units, at_tokens=tokens, seen=self.seen + 1, strikes=0, **learned
        )


def _extended(spans: tuple[MeasuredSpan, ...], new: MeasuredSpan, unreduced: int) -> tuple[MeasuredSpan, ...]:
    """Return the spans with a new one, joined with the last if that is small."""
    last = spans[-1]
    if new.until <= last.until:
        return spans
    if len(spans) == 1 or last.units * _SPANS_PER_CONVERSATION >= unreduced:
        return (*spans, new)
    units = last.units + new.units
    ratio = (last.units * last.ratio + new.units * new.ratio) / units if units else new.ratio
    return (*spans[:-1], MeasuredSpan(new.until, units, ratio))


def _is_credible(units: int, reported: float) -> bool:
    return units > 0 and math.isfinite(reported) and 1 <= reported <= _MAX_PROMPT_TOKENS


@lru_cache(maxsize=_MAX_CACHED_UNITS)
def _largest_within(calibration: Calibration, limit: int, *, is_safe: bool) -> int:
    """Return the most units whose size, which is monotonic, is within the limit; 0 if there are none. The size is
    the upper bound if `is_safe`, otherwise the expected tokens. A budget needs both, and each request several
    budgets, between which the calibration rarely changes.

    Both sizes are linear on either side of the anchor, so a guess along the line is off by a few units."""
    size = calibration.upper if is_safe else calibration.tokens
    anchor, at_anchor = calibration.at_units, size(calibration.at_units)
    other = anchor + 2 * limit + 2 if at_anchor <= limit else 0
    slope = (size(other) - at_anchor) / (other - anchor) if other != anchor else 0.0
    guess = anchor + (limit - at_anchor) / slope if slope > 0 else 0.0
    return _nearest_within(size, limit, max(1, int(guess)))


def _nearest_within(size: Callable[[int], int], limit: int, guess: int) -> int:
    """Return the largest number whose `size` is within the limit, or 0; it takes few steps if the guess is near."""
    low, high, step = guess, guess + 1, 1
    while low > 0 and size(low) > limit:
        low, high, step = max(0, low - step), low, step * 2
    while size(high) <= limit:
        low, high, step = high, high + step, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        if size(middle) <= limit:
            low = middle
        else:
            high = middle
    return low
