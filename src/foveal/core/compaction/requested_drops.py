"""Steps that the user dropped: a summary must not bring them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foveal.core.log.events import Dropped, Event
from foveal.core.log.ranges import seqs_outside


def has_requested_drops(events: Sequence[Event]) -> bool:
    """Return whether one of these effective events is a drop that the user requested."""
    return any(_requested_ranges(events))


def without_requested_drops(events: Sequence[Event]) -> Sequence[Event]:
    """Return effective events without the steps that later ones of them drop at the user's request."""
    ranges = tuple(_requested_ranges(events))
    if not ranges:
        return events
    kept = set(seqs_outside((event.seq for event in events), _joined(ranges)))
    return [event for event in events if event.seq in kept]


def _requested_ranges(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    for event in events:
        if isinstance(event.fact, Dropped) and event.fact.reason == "hand":
            yield from event.fact.ranges


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of several drops as a set of ranges that do not overlap."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return tuple(joined)
