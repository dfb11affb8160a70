"""Dropped messages: which were dropped, and the notice that says so.

The notice names the range of each drop, so that every event that is not shown can be found. Neighbouring ranges are
joined when there are many: a joined range may include messages that are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from foveal.core.log.events import Dropped, handle

RangesWithCounts: TypeAlias = tuple[tuple[int, int, int], ...]
MAX_NAMED_RANGES: Final = 6
"""Ranges that the notice names at most."""
MAX_NAMED_USERS: Final = 40
"""User messages that the notice names one by one at most, the newest."""


class DroppedRange(NamedTuple):
    """Messages that were dropped together."""

    first: int
    last: int
    """Seqs, both ends included."""
    messages: int

    def __str__(self) -> str:
        span = handle(self.first) if self.first == self.last else f"{handle(self.first)}–{handle(self.last)}"
        return span if self.messages == 1 and self.first == self.last else f"{self.messages:,} of {span}"


class DroppedMessages:
    """The drops of a view so far."""

    __slots__ = ("_older_users", "_ranges", "names_ranges", "users")

    def __init__(
        self,
        ranges: RangesWithCounts = (),
        *,
        names_ranges: bool = False,
        users: tuple[int, ...] = (),
        older_users: RangesWithCounts = (),
    ) -> None:
        self._ranges = [DroppedRange(*values) for values in ranges]
        self.names_ranges: bool = names_ranges
        """Whether the notice names the ranges; drops of older logs do not ask for it."""
        self._older_users = [DroppedRange(*values) for values in older_users]
        self.users: tuple[int, ...] = ()
        """User messages that the notice names one by one."""
        self._add_users(users)

    @property
    def ranges(self) -> RangesWithCounts:
        """First and last seq of each range, and how many messages were dropped in it."""
        return tuple((r.first, r.last, r.messages) for r in self._ranges)

    @property
    def older_users(self) -> RangesWithCounts:
        """Ranges of the user messages that the notice only counts."""
        return tuple((r.first, r.last, r.messages) for r in self._older_users)

    @property
    def messages(self) -> int:
        return sum(r.messages for r in self._ranges)

    def add(self, fact: Dropped, messages: int) -> None:
        """Count messages as dropped."""
        self._add_users(fact.users)
        self.names_ranges = self.names_ranges or fact.names_ranges
        first, last = min(low for low, _ in fact.ranges), max(high for _, high in fact.ranges)
        self._ranges = _join_many(sorted([*self._ranges, DroppedRange(first, last, messages)]))

    def _add_users(self, users: Sequence[int]) -> None:
        """Name these user messages too. Of the oldest only ranges are kept, so that a long session stays small."""
        known = sorted({*self.users, *users})
        self.users = tuple(known[-MAX_NAMED_USERS:])
        older = [DroppedRange(seq, seq, 1) for seq in known[:-MAX_NAMED_USERS]]
        self._older_users = _join_many(sorted([*self._older_users, *older]))

    def cover(self, first: int, last: int) -> bool:
        """Take out what a summary of this range covers; return whether the notice changes."""
        if not self.names_ranges:
            return False
        left = [r for r in self._ranges if not (first <= r.first and r.last <= last)]
        if len(left) == len(self._ranges):
            return False
        self._ranges = left
        self.users = tuple(seq for seq in self.users if not first <= seq <= last)
        self._older_users = [r for r in self._older_users if not (first <= r.first and r.last <= last)]
        return True

    def notice(self) -> str:
        """Return the text that replaces the dropped messages."""
        if not self.names_ranges:
            return f"[foveal: {self.messages:,} older messages are not shown here; they are kept in the log]"
        listed = ", ".join(map(str, self._ranges))
        return (
            f"[foveal: {self.messages:,} older messages are not shown here: {listed}.{self._user_list()} "
            "They are kept; recall_read, where offered, reads them by handle.]"
        )

    def _user_list(self) -> str:
        listed = ", ".join(map(handle, self.users))
        if older := self._older_users:
            before = f"{listed} and " if listed else ""
            count = sum(r.messages for r in older)
            listed = f"{before}{count:,} more between {handle(older[0].first)} and {handle(older[-1].last)}"
        return f" Messages of the user among them: {listed}." if listed else ""


def _join_many(ranges: list[DroppedRange]) -> list[DroppedRange]:
    """Join ranges that overlap or touch, and then the oldest until few enough are left."""
    joined: list[DroppedRange] = []
    for item in ranges:
        if joined and item.first <= joined[-1].last + 1:
            joined.append(_join(joined.pop(), item))
        else:
            joined.append(item)
    while len(joined) > MAX_NAMED_RANGES:
        joined[:2] = [_join(joined[0], joined[1])]
    return joined


def _join(one: DroppedRange, other: DroppedRange) -> DroppedRange:
    return DroppedRange(one.first, max(one.last, other.last), one.messages + other.messages)
