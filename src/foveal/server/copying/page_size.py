"""Number of events or rows that are copied at once, so that memory is bounded."""

from __future__ import annotations

from typing import Final

PAGE_BYTES: Final = 4 << 20
"""Bytes of a page that the copy aims at."""
FIRST_PAGE_ITEMS: Final = 16
MAX_PAGE_ITEMS: Final = 512


class PageSize:
    """The number of items of the next page; it follows the size of the items before."""

    def __init__(self) -> None:
        self.items = FIRST_PAGE_ITEMS

    def adapt(self, items: int, size_bytes: int) -> None:
        """Set the next page's number of items after a page of `items` that had `size_bytes`."""
        fitting = items * PAGE_BYTES // max(size_bytes, 1)
        # At most double: the next items may be larger than those before.
        self.items = max(1, min(fitting, self.items * 2, MAX_PAGE_ITEMS))
