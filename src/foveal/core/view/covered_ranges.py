"""Ranges of events that drops and compactions take out of the view."""

from __future__ import annotations

from foveal.core.log.events import Compacted, Dropped
from foveal.core.log.ranges import Ranges, without
from foveal.core.view.steps import Level


class CoveredRange:
    """Ranges of seq that a drop or a compaction has hidden."""

    __slots__ = ("level", "owner", "ranges", "rule")

    def __init__(self, level: Level, owner: int, ranges: Ranges, rule: str) -> None:
        self.level: Level = level
        self.owner = owner
        """The seq of the event that hid them."""
        self.ranges = ranges
        self.rule = rule


def hidden_ranges(fact: Dropped | Compacted) -> Ranges:
    """Return the ranges of seq that a reduction takes out of the view."""
    if isinstance(fact, Dropped):
        return fact.ranges
    return without(((fact.first, fact.last),), tuple((seq, seq) for seq in fact.keep))


def dropped_notice(messages: int) -> str:
    """Return the text that replaces dropped steps."""
    return f"[foveal: {messages:,} older messages are not shown here; they are kept in the log]"
