"""What a view shows inside and beside the range of a plan: names, and earlier summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Compacted, Event, ModelSaid, ToolReturned
from foveal.core.view.steps import ShownMessage
from foveal.core.view.view import View


def names_outside(view: View, plan: Plan) -> set[str]:
    """Return all names that are shown outside of a plan's range."""
    return set[str]().union(*(shown.names() for shown in _messages_outside(view, plan)))


def likely_names_outside(view: View, plan: Plan, index: LedgerIndex) -> set[str]:
    """Return the names outside of a plan's range that a ledger need not repeat.

    Of results and calls, these are the names that the index has read anyway: not all of them, but for no extra
    work."""
    names: set[str] = set()
    for shown in _messages_outside(view, plan):
        if shown.overlays is None and isinstance(shown.fact, ToolReturned | ModelSaid):
            names.update(index.words_of(Event(shown.seq, shown.fact)).split_names())
        else:
            names.update(shown.names())
    return names


def _messages_outside(view: View, plan: Plan) -> Iterator[ShownMessage]:
    keep = frozenset(plan.keep)
    for step in view.steps:
        if not plan.first <= step.seq <= plan.last or step.seq in keep:
            yield from step.shown_messages()


def newest_hidden(view: View) -> int:
    """Return the seq up to which the newest drop or summary has hidden messages; -1 if there is none."""
    covered = view.covered_ranges[-1].ranges if view.covered_ranges else ()
    return covered[-1][1] if covered else -1


def summaries_in(view: View, log: Sequence[Event], plan: Plan) -> tuple[Compacted, ...]:
    """Return the shown summaries that a plan's range covers, oldest first."""
    inside = {
        step.utterance.seq
        for step in view.summaries
        if all(plan.first <= low and high <= plan.last for low, high in step.covers)
    }
    found: list[Compacted] = []
    for event in reversed(log):
        if len(found) == len(inside):
            break
        if event.seq in inside and isinstance(event.fact, Compacted):
            found.append(event.fact)
    return tuple(reversed(found))
