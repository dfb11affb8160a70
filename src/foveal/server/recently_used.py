"""Values that stay open after their last use, up to a limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MAX_BUSY_CHECKS: Final = 8
"""Busy values that one `add` passes over: they count as used, so the next one looks at others."""


class RecentlyUsed(Generic[K, V]):
    """Keeps the most recently used values. One that is busy stays, whatever the limit.

    Values that left may still be used elsewhere: find them in a `WeakValueDictionary` before making them again."""

    def __init__(self, limit: int, *, is_busy: Callable[[V], bool] = lambda _: False) -> None:
        self._limit = limit
        self._is_busy = is_busy
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Return the value, which counts as used; None if it is not here."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def add(self, key: K, value: V) -> list[V]:
        """Add or use a value, and return the least recently used ones above the limit, which are no longer here."""
        self._values[key] = value
        self._values.move_to_end(key)
        return self._remove_oldest(len(self._values) - self._limit)

    def remove_oldest(self) -> list[V]:
        """Remove the least recently used value that is not busy, and return it in a list; none if all are busy."""
        return self._remove_oldest(1)

    def _remove_oldest(self, count: int) -> list[V]:
        removed: list[V] = []
        for _ in range(_MAX_BUSY_CHECKS):
            if len(removed) >= count or len(self._values) <= 1:
                break
            oldest, idle = self._values.popitem(last=False)
            if self._is_busy(idle):
                self._values[oldest] = idle
            else:
                removed.append(idle)
        return removed

    def discard(self, key: K) -> None:
        self._values.pop(key, None)

    def values(self) -> list[V]:
        return list(self._values.values())
