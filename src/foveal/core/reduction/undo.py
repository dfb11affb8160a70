"""Undo of reductions: show hidden events again for one turn, or permanently."""

from __future__ import annotations

from collections.abc import Sequence

from foveal.core.log.events import (
    REDUCTIONS,
    Clipped,
    Compacted,
    Dropped,
    Event,
    Expanded,
    Masked,
    ModelSaid,
    Pinned,
    ToolReturned,
    UserSaid,
    calls_of,
    handle,
)
from foveal.core.view.covered_ranges import hidden_ranges
from foveal.errors import ContextOverflow, UnknownHandle


def expansion(log: Sequence[Event], seq: int) -> list[Expanded]:
    """Return what to record so that the range of a reduction, or the step of an event, is shown whole until the
    next user message. `log` holds the effective events."""
    event = next((event for event in log if event.seq == seq), None)
    fact = event.fact if event is not None else None
    match fact:
        case Compacted() | Dropped():
            return [Expanded(first=first, last=last) for first, last in hidden_ranges(fact)]
        case Masked():
            return [_expand_step(log, target) for target in dict.fromkeys(mask.target for mask in fact.masks)]
        case Clipped():
            return [_expand_step(log, fact.target)]
        case UserSaid() | ModelSaid() | ToolReturned():
            return [_expand_step(log, seq)]
        case _:
            raise UnknownHandle(
                f"{handle(seq)} is neither a message nor an effective reduction: there is nothing to expand"
            )


def _expand_step(log: Sequence[Event], seq: int) -> Expanded:
    """Return the expansion of the step that an event belongs to: a result belongs to the step of its call."""
    wanted = next((e.fact.call_id for e in log if e.seq == seq and isinstance(e.fact, ToolReturned)), None)
    if wanted is None:
        return Expanded(first=seq, last=seq)
    callers = (
        e for e in reversed(log) if e.seq < seq and isinstance(e.fact, ModelSaid) and _calls(e.fact, wanted)
    )
    start = next((event.seq for event in callers), seq)
    return Expanded(first=start, last=start)


def _calls(fact: ModelSaid, call_id: str) -> bool:
    return any(call.id == call_id for _, call in calls_of(fact.content))


def no_room(problem: ContextOverflow, name: str | int) -> ContextOverflow:
    """Return the error for a range that does not fit when it is shown whole."""
    return ContextOverflow(
        f"{name} cannot be shown whole: that would take {problem.needed:,} tokens and {problem.available:,} are "
        "available; expand a single event of it, or read it piece by piece with the recall tools",
        needed=problem.needed,
        available=problem.available,
        window=problem.window,
        reserve=problem.reserve,
        margin=problem.margin,
        floor=problem.floor,
    )


def check_undo(event: Event, effective: Sequence[Event]) -> None:
    """Raise `UnknownHandle` unless the event is a reduction or a pin that is still effective."""
    if not isinstance(event.fact, (*REDUCTIONS, Pinned)):
        raise UnknownHandle(f"{event.handle} is not a reduction or a pin, so there is nothing to undo")
    if all(other.seq != event.seq for other in effective):
        raise UnknownHandle(f"{event.handle} was undone before, so there is nothing to undo")
