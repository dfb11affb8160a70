"""How often somebody may ask: a bucket with a minute's requests for each name, refilled evenly. Pure: the caller
says what time it is."""

from __future__ import annotations

from typing import Final

MOST: Final = 10_000
"""Names that are remembered; the fullest buckets are forgotten first, since they tell nothing."""


class Rate:
    """`per_minute` requests for every name; 0 is no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._size = float(per_minute)
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, name: str, *, now: float) -> float:
        """Take one request; 0 when it was there, otherwise the seconds until it would be."""
        if not self._per_second:
            return 0.0
        left, since = self._buckets.get(name, (self._size, now))
        left = min(self._size, left + max(0.0, now - since) * self._per_second)
        if left < 1.0:
            self._buckets[name] = left, now
            return (1.0 - left) / self._per_second
        self._buckets[name] = left - 1.0, now
        if len(self._buckets) > MOST:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Keep the half of the names that have used most."""
        ranked = sorted(
            self._buckets.items(), key=lambda one: one[1][0] + (now - one[1][1]) * self._per_second
        )
        self._buckets = dict(ranked[: MOST // 2])
