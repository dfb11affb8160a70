"""Counts of a copy, for its progress and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


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
