"""Sets of seqs as ranges, with both ends included.

The ranges of a set do not overlap, in any order. Each function takes O((n + m) log m) for sets of n and m ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
_end = itemgetter(1)


def intersect_ranges(one: Ranges, other: Ranges) -> Ranges:
    """Return the intersection of two sets of ranges."""
    if _are_apart(one, other):
        return ()
    return tuple(
        (max(low, first), min(high, last))
        for low, high, met in _met_ranges(one, other)
        for first, last in met
    )


def subtract_ranges(one: Ranges, other: Ranges) -> Ranges:
    """Return the ranges of `one` without those of `other`."""
    if _are_apart(one, other):
        return one
    left: list[tuple[int, int]] = []
    for low, high, met in _met_ranges(one, other):
        for first, last in met:
            if low < first:
                left.append((low, first - 1))
            low = last + 1
        if low <= high:
            left.append((low, high))
    return tuple(left)


def seqs_outside(seqs: Iterable[int], ranges: Ranges) -> list[int]:
    """Return the seqs that no range contains."""
    return [low for low, _, met in _met_ranges(((seq, seq) for seq in seqs), ranges) if not met]


def is_within(seq: int, ranges: Ranges) -> bool:
    """Return whether one of the ranges contains a seq."""
    return any(first <= seq <= last for first, last in ranges)


def _are_apart(one: Ranges, other: Ranges) -> bool:
    """Return whether one set ends before the other begins: as most pairs of summaries do."""
    if not one or not other:
        return True
    return max(one, key=_end)[1] < min(other)[0] or max(other, key=_end)[1] < min(one)[0]


def _met_ranges(
    one: Iterable[tuple[int, int]], other: Ranges
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Yield each range of `one` with the ranges of `other` that it meets, in ascending order."""
    ordered = sorted(other)
    starts, ends = [first for first, _ in ordered], [last for _, last in ordered]
    for low, high in one:
        yield low, high, ordered[bisect_left(ends, low) : bisect_right(starts, high)]
