"""Calibration of local counts by the usage that a provider reports.

A provider counts with its own vocabulary and adds templates, and often a system prompt or tool schemas that the
caller does not see: reported ≈ overhead + ratio × units. A `Calibration` holds what is learned about both. It
is a value (a msgspec struct that can be stored with the session): `observe` returns a new one.

The prediction starts from the newest report: tokens reported then + ratio × (units now − units then). Hidden
parts cancel out, and only the change since then is estimated. The overhead is the prediction at zero units.

1. Until the first report, tokens = ratio × units, and the upper bound is wide.
2. A first report that an overhead explains sets the overhead; one that is too small for the ratio lowers the
   ratio. Later reports move the ratio by the tokens per *change* in units, weighted by its size.
3. The first such change may move the ratio freely (a hot start), each later one by at most 10 %. The ratio
   stays within 0.5–2.
4. Reports that are not a number, not positive, absurdly large, or for no units at all are ignored.
5. A report of more than twice or less than half of the prediction is ignored: it may belong to a subagent, be a
   cumulative figure, or precede a compaction. After three in a row something hidden has changed: the anchor
   moves there and the ratio is kept.

Pass `observe` the units of the reported request, whatever was reduced since.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
_TEMPLATE_TOKENS: Final = 48
"""Tokens for templates and rounding that the upper bound always includes."""


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
    error: float = 0.0
    """Mean of the recent absolute errors, in tokens."""
    strikes: int = 0
    """Consecutive ignored reports."""

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
        doubt = 2 * self.spread if change >= 0 else min(2 * self.spread, self._slope(units) / 2)
        return self.tokens(units) + math.ceil(doubt * abs(change) + 3 * self.error) + _TEMPLATE_TOKENS

    def units(self, tokens: int) -> int:
        """Return the most units whose expected tokens are within `tokens`; 0 when the overhead alone exceeds
        them."""
        return _largest_within(self.tokens, tokens)

    def safe_units(self, tokens: int) -> int:
        """Return the most units whose upper bound is within `tokens`, or 0."""
        return _largest_within(self.upper, tokens)

    def observe(self, units: int, reported: float, *, model: str = "") -> Calibration:
        """Return the calibration after a report: a request of `units` was reported as `reported` prompt
        tokens."""
        if not _is_credible(units, reported) or (model and self.model and model != self.model):
            return self
        tokens = int(reported)
        if not self.seen:
            ratio = min(self.ratio, max(MIN_RATIO, tokens / units))
            return self._move_anchor(units, tokens, ratio=ratio)
        if self._is_foreign(units, tokens):
            if self.strikes + 1 < _REPORTS_TO_MOVE_ANCHOR:
                return msgspec.structs.replace(self, strikes=self.strikes + 1)
            return self._move_anchor(units, tokens)
        return self._learn(units, tokens)

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

    def _learn(self, units: int, tokens: int) -> Calibration:
        """Update ratio, spread and recent error from this change in units, then move the anchor."""
        change = units - self.at_units
        off = abs(tokens - self.tokens(units))
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


def _is_credible(units: int, reported: float) -> bool:
    return units > 0 and math.isfinite(reported) and 1 <= reported <= _MAX_PROMPT_TOKENS


def _largest_within(size: Callable[[int], int], limit: int) -> int:
    """Return the largest number whose `size`, which is monotonic, is within the limit."""
    if size(1) > limit:
        return 0
    low, high = 1, 2
    while size(high) <= limit:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if size(middle) <= limit:
            low = middle
        else:
            high = middle
    return low
