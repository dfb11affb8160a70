"""The view of a memory: the text that requests show, within a budget.

1. The text is a pure function of the entries and of the budget.
2. If not all entries fit, rules and corrections come first, then what was used most and last. What is left out is
   counted in the last line.
3. The lines stand in the order in which the entries came, so that a later one is behind an earlier one, and a new
   entry changes only the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.core.tokens.counter import Counter
from foveal.memory.fold import MemoryEntry

MAX_SKIPPED_ENTRIES: Final = 50
"""Entries in a row that do not fit after which no further one is tried."""
_HEADING: Final = (
    "# Memory of {title}\n"
    "What the user said in earlier conversations and wants to be known. A later line counts more than an earlier"
    " one; what the user says now counts more than all of them."
)


def memory_text(entries: Sequence[MemoryEntry], *, title: str, budget: int, counter: Counter) -> str:
    """Return the text of the entries that count; "" if there are none."""
    counting = [entry for entry in entries if entry.counts]
    if not counting:
        return ""
    heading = _HEADING.format(title=title)
    room = budget - counter.count(heading) - counter.count(_left_out(len(counting)))
    chosen = _choose(counting, room, counter)
    lines = [heading, *(_line(entry) for entry in counting if entry.seq in chosen)]
    if len(chosen) < len(counting):
        lines.append(_left_out(len(counting) - len(chosen)))
    return "\n".join(lines)


def _choose(entries: Sequence[MemoryEntry], room: int, counter: Counter) -> set[int]:
    """Return the numbers of the entries that fit, the most important first."""
    chosen: set[int] = set()
    skipped = 0
    for entry in sorted(entries, key=_importance, reverse=True):
        cost = counter.count(_line(entry)) + 1
        if cost <= room:
            chosen.add(entry.seq)
            room -= cost
            skipped = 0
        else:
            skipped += 1
            if skipped == MAX_SKIPPED_ENTRIES:
                break
    return chosen


def _importance(entry: MemoryEntry) -> tuple[bool, int, int]:
    return entry.kind == "rule" or entry.corrects, entry.uses, max(entry.seq, entry.used)


def _line(entry: MemoryEntry) -> str:
    return f"- [{entry.id}] {entry.text}"


def _left_out(count: int) -> str:
    return f"({count:,} more {'entry' if count == 1 else 'entries'}: recall_search finds them)"
