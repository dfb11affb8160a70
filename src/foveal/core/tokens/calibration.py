"""How many tokens the provider will report for a request that we count as so many units.

A provider counts with its own vocabulary, adds its own templates and often a system prompt or tool
schemas that the caller never showed us: reported ≈ overhead + ratio × units. A `Calibration` is what was
learned about both. It is a value: `observe` returns a new one, nothing else changes anything, and it can
be stored beside the session (it is a msgspec struct).

The prediction is anchored at the newest report: tokens reported then + ratio × (units now − units then).
So whatever is hidden cancels out, and only the part that changed since is estimated. The overhead is what
that line shows at zero units.

1. Until the first report, tokens = ratio × units, and the upper bound is wide.
2. The first report that is explained by an overhead sets the overhead; one that is too small for the ratio
   lowers the ratio. Later reports move the ratio by what each *change* in units cost, weighted by its size.
3. The first such change may move the ratio freely (a hot start); every later one by 10 % at most, and the
   ratio stays within 0.5–2.
4. Reports that are not a number, not positive, absurdly large, or for no units at all are ignored.
5. A report more than twice or less than half of what was expected is taken for somebody else's (a subagent,
   a cumulative figure, a count from before a compaction) and ignored, unless three come in a row: then
   something hidden has really changed, and the anchor moves there while the ratio is kept.

Units given to `observe` must be those of the request that is reported on, whatever was reduced since.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from foveal.errors import BadSetting

LOWEST: Final = 0.5
HIGHEST: Final = 2.0

_STEP: Final = 0.10
"""After the hot start, the ratio moves by this share of itself at most."""
_PRIOR_WEIGHT: Final = 500.0
"""Units of change that weigh as much as the prior ratio."""
_MOST_WEIGHT: Final = 20_000.0
"""The past never weighs more than this many units, so a drift is followed."""
_LEAST_CHANGE: Final = 32
"""A smaller change in units says more about templates than about the ratio."""
_RECENT: Final = 0.2
"""Weight of the newest error in the mean of recent errors."""
_LARGEST_REPORT: Final = 100_000_000
_SURPRISE: Final = 4096
"""A difference below this many tokens is never taken for somebody else's report."""
_STRIKES: Final = 3
_FLOOR: Final = 48
"""Tokens of templates and rounding that the upper bound always allows for."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a model's own counting; start with a family's ratio where one is known."""

    ratio: float = 1.0
    """Tokens per unit."""
    model: str = ""
    """Whose counting this is; reports of another model are ignored."""
    at_units: int = 0
    """The anchor: units of the newest request that was reported on …"""
    at_tokens: int = 0
    """… and the prompt tokens that were reported for it."""
    seen: int = 0
    """Reports believed in this conversation."""
    weight: float = _PRIOR_WEIGHT
    """Units of change that the ratio rests on."""
    spread: float = 0.15
    """Mean error of the ratio, per unit of change."""
    error: float = 0.0
    """Mean of the recent absolute errors, in tokens."""
    strikes: int = 0
    """Reports disbelieved in a row."""

    def __post_init__(self) -> None:
        if not LOWEST <= self.ratio <= HIGHEST:
            raise BadSetting("ratio", self.ratio, f"a number from {LOWEST} to {HIGHEST}")

    @property
    def measured(self) -> bool:
        """True once a report of this conversation has been believed."""
        return self.seen > 0

    @property
    def overhead(self) -> int:
        """Tokens the provider counts before the first unit: hidden prompts, tool schemas, templates."""
        return self.tokens(0)

    def tokens(self, units: int) -> int:
        """The prompt tokens to expect for a request of so many units."""
        return max(0, round(self.at_tokens + self._slope(units) * (units - self.at_units)))

    def upper(self, units: int) -> int:
        """A bound that the reported tokens should rarely exceed: for triggers."""
        change = units - self.at_units
        doubt = 2 * self.spread if change >= 0 else min(2 * self.spread, self._slope(units) / 2)
        return self.tokens(units) + math.ceil(doubt * abs(change) + 3 * self.error) + _FLOOR

    def units(self, tokens: int) -> int:
        """The most units whose expected tokens stay within `tokens`; 0 when even the overhead does not."""
        return _most(self.tokens, tokens)

    def safe_units(self, tokens: int) -> int:
        """The most units whose upper bound stays within `tokens`; 0 when there are none."""
        return _most(self.upper, tokens)

    def observe(self, units: int, reported: float, *, model: str = "") -> Calibration:
        """Learn from one report: the request had `units`, the provider counted `reported` prompt tokens."""
        if not _credible(units, reported) or (model and self.model and model != self.model):
            return self
        tokens = int(reported)
        if not self.seen:
            ratio = min(self.ratio, max(LOWEST, tokens / units))
            return self._anchored(units, tokens, ratio=ratio)
        if self._surprising(units, tokens):
            if self.strikes + 1 < _STRIKES:
                return msgspec.structs.replace(self, strikes=self.strikes + 1)
            return self._anchored(units, tokens)
        return self._learned(units, tokens)

    def restart(self, *, model: str | None = None) -> Calibration:
        """For a new conversation, another agent, or another model.

        The same model keeps ratio and overhead as what to expect, but forgets the anchor; another model
        keeps nothing, for nothing is known of its counting.
        """
        if model is not None and model != self.model:
            return Calibration(model=model)
        return Calibration(
            ratio=self.ratio,
            model=self.model,
            at_tokens=self.overhead,
            weight=max(_PRIOR_WEIGHT, self.weight / 2),
            spread=self.spread,
            error=self.error,
        )

    def _slope(self, units: int) -> float:
        """The ratio; below the anchor never so steep that the overhead would be negative."""
        if units >= self.at_units:
            return self.ratio
        return min(self.ratio, self.at_tokens / self.at_units)

    def _surprising(self, units: int, tokens: int) -> bool:
        expected = self.tokens(units)
        return abs(tokens - expected) > _SURPRISE and not expected / 2 <= tokens <= expected * 2

    def _learned(self, units: int, tokens: int) -> Calibration:
        """Move ratio, spread and recent error by what this change in units cost, then anchor here."""
        change = units - self.at_units
        off = abs(tokens - self.tokens(units))
        error = self.error + max(_RECENT, 1 / self.seen) * (off - self.error)
        if abs(change) < _LEAST_CHANGE:
            return self._anchored(units, tokens, error=error)
        sample = min(HIGHEST, max(LOWEST, (tokens - self.at_tokens) / change))
        share = abs(change) / (abs(change) + self.weight)
        step = share * (sample - self.ratio)
        if self.weight > _PRIOR_WEIGHT:
            step = min(_STEP * self.ratio, max(-_STEP * self.ratio, step))
        return self._anchored(
            units,
            tokens,
            ratio=min(HIGHEST, max(LOWEST, self.ratio + step)),
            error=error,
            spread=self.spread + share * (min(1.0, abs(sample - self.ratio)) - self.spread),
            weight=min(_MOST_WEIGHT, self.weight + abs(change)),
        )

    def _anchored(self, units: int, tokens: int, **learned: float) -> Calibration:
        return msgspec.structs.replace(
            self, at_units=units, at_tokens=tokens, seen=self.seen + 1, strikes=0, **learned
        )


def _credible(units: int, reported: float) -> bool:
    return units > 0 and math.isfinite(reported) and 1 <= reported <= _LARGEST_REPORT


def _most(size: Callable[[int], int], limit: int) -> int:
    """The largest number whose size stays within the limit; `size` never falls."""
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
