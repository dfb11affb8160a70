"""Pages of a copy, which bound its memory, and the counts of its progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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


class CopyProgress:
    """What was compared and copied so far; calls `report` after each page."""

    def __init__(self, report: Callable[[CopyProgress], None] = lambda progress: None) -> None:
        self._report = report
        self.place: str = ""
        """The tenant or the table that is being copied."""
        self.tenants = 0
        self.sessions = 0
        """Sessions that are complete in the target and equal to the source."""
        self.events: int = 0
        """Events that were compared."""
        self.new_events: int = 0
        """Those of them that this run has copied."""
        self.rows: Counter[str] = Counter()
        """Rows of the service that were compared, by table."""
        self.new_rows: int = 0

    def begin(self, place: str) -> None:
        self.place = place
        self._report(self)

    def count_events(self, compared: int, new: int) -> None:
        self.events += compared
        self.new_events += new
        self._report(self)

    def count_rows(self, table: str, compared: int, new: int) -> None:
        self.rows[table] += compared
        self.new_rows += new
        self._report(self)
