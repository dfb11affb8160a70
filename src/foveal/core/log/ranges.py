"""Stretches of a log, by the seqs of their ends."""

from __future__ import annotations

from typing import TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Both ends are included."""


def common(one: Ranges, other: Ranges) -> Ranges:
    """What two sets of ranges share."""
    both = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((low, high) for low, high in both if low <= high)


def without(one: Ranges, other: Ranges) -> Ranges:
    """What is left of a set of ranges after another is taken out of it."""
    for low, high in other:
        pieces = ((part, span) for span in one for part in ((span[0], low - 1), (high + 1, span[1])))
        one = tuple(
            dict.fromkeys((max(a, lo), min(b, hi)) for (a, b), (lo, hi) in pieces if max(a, lo) <= min(b, hi))
        )
    return one
