"""Number of events or rows that are copied at once, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

PAGE_BYTES: Final = 4 << 20
"""Bytes of a page that the copy aims at."""
MAX_PAGE_STORED_BYTES: Final = 512 << 10
"""Bytes of a page's events as they are stored, compressed; a larger event has a page of its own."""
FIRST_PAGE_ITEMS: Final = 4
MAX_PAGE_ITEMS: Final = 256


class PageSize:
    """The number of items of the next page; it follows the size of the items before."""

    def __init__(self) -> None:
        self.items: int = FIRST_PAGE_ITEMS

    def adapt(self, items: int, size_bytes: int) -> None:
        """Set the next page's number of items after a page of `items` that had `size_bytes`."""
        fitting = items * PAGE_BYTES // max(size_bytes, 1)
        # At most double: the next items may be larger than those before.
        self.items = max(1, min(fitting, self.items * 2, MAX_PAGE_ITEMS))


def fitting_items(stored_bytes: Sequence[int]) -> int:
    """Return how many of the next items are read at once, at least one, by the bytes that each takes in its store.

    `PageSize` knows only the items before: a large one after many small ones must not be read with many others."""
    return max(1, sum(total <= MAX_PAGE_STORED_BYTES for total in accumulate(stored_bytes)))
