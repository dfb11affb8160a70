"""Ranges of events: intersection and difference."""

from __future__ import annotations

from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of seqs; both ends are included."""


def common(one: Ranges, other: Ranges) -> Ranges:
    """Return the intersection of two sets of ranges."""
    both = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in both if low <= high)


def without(one: Ranges, other: Ranges) -> Ranges:
    """Return the ranges of `one` without those of `other`."""
    for low, high in other:
        pieces = ((part, span) for span in one for part in ((span[0], low - 1), (high + 1, span[1])))
        one = tuple(
            dict.fromkeys((max(a, lo), min(b, hi)) for (a, b), (lo, hi) in pieces if max(a, lo) <= min(b, hi))
        )
    return one
