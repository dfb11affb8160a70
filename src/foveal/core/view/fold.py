"""Which events of a log count, and the view that they fold to.

Folding n events takes O(n), advancing by one takes O(1). A rewind or a revert changes what counts, so after one the
whole log is folded again; so it is when a range is shown whole for one turn, and when that turn ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foveal.core.log.events import (
    REDUCTIONS,
    AnyFact,
    Compacted,
    Dropped,
    Event,
    Expanded,
    Instructed,
    Masked,
    ModelSaid,
    Reverted,
    Rewound,
    ToolReturned,
    UserSaid,
)
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.view import View, hidden_by


def effective(log: Sequence[Event]) -> list[Event]:
    """The events that still count: without what was rewound, what was reverted, and what was brought back only
    until the user spoke again."""
    kept: list[Event] = []
    spoken = False
    reverted: set[int] = set()
    rewound: Rewound | None = None  # the rewind whose stretch we are in, walking back
    outlived: set[int] = (
        set()
    )  # reductions that outlived a rewind, until we know what the user said last before it
    for event in reversed(log):
        fact = event.fact
        if rewound is not None and event.seq <= rewound.to:
            rewound = None
        if rewound is not None and not _survives(fact, rewound):
            continue
        if event.seq in reverted:
            continue
        if isinstance(fact, Rewound):
            rewound = fact
        elif isinstance(fact, Reverted):
            reverted.add(fact.target)
        elif not (isinstance(fact, Expanded) and spoken):
            if isinstance(fact, UserSaid):
                spoken = True
                if outlived:
                    kept = [e for e in kept if not (e.seq in outlived and _hides(e.fact, event.seq))]
                    outlived.clear()
            elif rewound is not None and isinstance(fact, Dropped | Compacted):
                outlived.add(event.seq)
            kept.append(event)
    kept.reverse()
    return kept


def _hides(fact: AnyFact, seq: int) -> bool:
    """After going back, what the user said last is older than it was when a reduction was made; it is shown."""
    return isinstance(fact, Dropped | Compacted) and any(low <= seq <= high for low, high in hidden_by(fact))


def _survives(fact: AnyFact, rewound: Rewound) -> bool:
    """Whether a fact still counts after a rewind to before it."""
    if isinstance(fact, UserSaid | ModelSaid | ToolReturned | Rewound | Expanded):
        return False
    if isinstance(fact, Instructed) and not fact.aside and fact.replaces is None:
        return False
    if isinstance(fact, Compacted) and fact.last > rewound.to:
        return False  # it tells of what no longer counts
    if isinstance(fact, Dropped | Compacted):
        return rewound.keep_reductions and not rewound.show_dropped
    if isinstance(fact, (*REDUCTIONS, Reverted)):
        return rewound.keep_reductions
    return rewound.keep_state or rewound.keep_reductions


def fold(log: Sequence[Event], meter: MessageTokens) -> View:
    """The view of a whole log."""
    view = View(meter)
    counting = effective(log)
    view.expanded = tuple(event for event in counting if isinstance(event.fact, Expanded))
    for event in counting:
        view.advance(event)
    if len(counting) < len(log):
        gone = {event.seq for event in counting}
        view.spared = _spared(log, gone)
        view.undone = tuple(_undone(log, gone))
    return view


def _spared(log: Sequence[Event], counting: set[int]) -> set[int]:
    """What masks that no longer count had hidden."""
    gone = (e.fact for e in log if isinstance(e.fact, Masked) and e.seq not in counting)
    return {mask.target for fact in gone for mask in fact.masks}


def _undone(log: Sequence[Event], counting: set[int]) -> Iterator[tuple[int, int]]:
    """The ranges of summaries that somebody took back."""
    taken = {event.fact.target for event in log if isinstance(event.fact, Reverted)}
    for event in log:
        if event.seq in taken and event.seq not in counting and isinstance(event.fact, Compacted):
            yield event.fact.first, event.fact.last


def advance(view: View, event: Event, log: Sequence[Event]) -> View:
    """The view after `event`, the newest of `log`: moved on, or folded anew if the past changed."""
    if refolds(event.fact, view):
        return fold(log, view.meter)
    view.advance(event)
    return view


def refolds(fact: AnyFact, view: View) -> bool:
    """A fact that changes which earlier ones count."""
    return isinstance(fact, Reverted | Rewound | Expanded) or (
        isinstance(fact, UserSaid) and bool(view.expanded)
    )
