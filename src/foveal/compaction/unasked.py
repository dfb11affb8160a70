"""A summary that no model is asked for: the ledger, which always succeeds."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TypeAlias

from foveal.compaction.plan import Plan, settled
from foveal.events import Compacted, CompactionFailed, Event
from foveal.tokens import Counter

Outcome: TypeAlias = Compacted | CompactionFailed


def unasked(
    plan: Plan,
    events: Sequence[Event],
    *,
    counter: Counter,
    ratio: float,
    elsewhere: Set[str] = frozenset(),
) -> Outcome:
    """The outcome of a plan without a model; `events` are those that count, from its beginning or before."""
    from foveal.compaction.dialogue import dialogue  # most conversations never get here

    made = settled(plan, events)
    inside = [event for event in events if made.first <= event.seq <= made.last]
    after = [event for event in events if event.seq > made.last]
    try:
        next(
            dialogue(made, inside, writers=(), counter=counter, ratio=ratio, elsewhere=elsewhere, after=after)
        )
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    raise AssertionError("nobody was there to be asked")
