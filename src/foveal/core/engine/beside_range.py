"""What a view shows inside and beside the range of a plan: names, and earlier summaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Clipped, Compacted, Event, ModelSaid, ToolReturned, UserSaid
from foveal.core.view.steps import ShownMessage
from foveal.core.view.view import View

MESSAGES_READ_AHEAD: Final = 2
"""Messages whose names are read in one turn."""
MAX_MESSAGES_WAITING: Final = 400
"""Messages that wait for that, at most: the newest."""


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


class NamesAhead:
    """Reads the names of messages before a ledger asks for them, a few in each turn.

    These are the messages whose names `likely_names_outside` does not find in the index: those of the user, and
    clipped ones. A message caches its names, so reading them early changes nothing but the time of a cut."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque(maxlen=MAX_MESSAGES_WAITING)

    def note(self, event: Event) -> None:
        """Note that an event adds such a message, or changes one."""
        fact = event.fact
        if isinstance(fact, UserSaid):
            self._waiting.append(event.seq)
        elif isinstance(fact, Clipped):
            self._waiting.append(fact.target)

    def read_some(self, view: View) -> None:
        """Read the names of a few messages that are still shown, the newest first."""
        for _ in range(min(MESSAGES_READ_AHEAD, len(self._waiting))):
            found = view.find(self._waiting.pop())
            if found is not None and (found[1].overlays or isinstance(found[1].fact, UserSaid)):
                found[1].names()


def _messages_outside(view: View, plan: Plan) -> Iterator[ShownMessage]:
    """Yield the messages that a plan leaves as they are."""
    keep, masked = frozenset(plan.keep), {mask.target for mask in plan.masks}
    for step in view.steps:
        if not plan.first <= step.seq <= plan.last or step.seq in keep:
            for shown in step.shown_messages():
                is_inside = plan.first <= shown.seq <= plan.last
                if shown.seq not in masked and (shown.seq in keep or not is_inside):
                    yield shown


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
