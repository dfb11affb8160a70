"""Rate limit: a token bucket per name.

The state is in memory, so each process counts on its own.
"""

from __future__ import annotations

from typing import Final

MAX_RATE_BUCKETS: Final = 10_000
"""Above this number the fuller half of the buckets is removed, because a full bucket limits nothing."""


class RateLimiter:
    """A token bucket for each name: `per_minute` requests, refilled evenly; 0 means no limit. The caller passes the
    time."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._size = float(per_minute)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str, *, now: float) -> float:
        """Count one request; return 0 if it is allowed, otherwise the seconds until it would be."""
        if not self._per_second:
            return 0.0
        left, since = self._buckets.get(name, (self._size, now))
        left = min(self._size, left + max(0.0, now - since) * self._per_second)
        if left < 1.0:
            self._buckets[name] = left, now
            return (1.0 - left) / self._per_second
        self._buckets[name] = left - 1.0, now
        if len(self._buckets) > MAX_RATE_BUCKETS:
            self._shrink(now)
        return 0.0

    def _shrink(self, now: float) -> None:
        """Keep the emptier half of the buckets."""
        ranked = sorted(
            self._buckets.items(), key=lambda item: item[1][0] + (now - item[1][1]) * self._per_second
        )
        self._buckets = dict(ranked[: MAX_RATE_BUCKETS // 2])
