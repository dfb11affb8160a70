"""Bringing back what a reduction has taken out of view: for one turn, or for good."""

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
from foveal.core.view.view import hidden_by
from foveal.errors import ContextOverflow, UnknownHandle


def expansion(log: Sequence[Event], seq: int) -> list[Expanded]:
    """What to record so that a reduction's range, or the step of an event, is shown whole until the user speaks.
    `log` are the events that count."""
    event = next((event for event in log if event.seq == seq), None)
    fact = event.fact if event is not None else None
    match fact:
        case Compacted() | Dropped():
            return [Expanded(first=first, last=last) for first, last in hidden_by(fact)]
        case Masked():
            return [_step(log, target) for target in dict.fromkeys(mask.target for mask in fact.masks)]
        case Clipped():
            return [_step(log, fact.target)]
        case UserSaid() | ModelSaid() | ToolReturned():
            return [_step(log, seq)]
        case _:
            raise UnknownHandle(
                f"{handle(seq)} is no message, and no reduction that still counts: there is nothing to expand"
            )


def _step(log: Sequence[Event], seq: int) -> Expanded:
    """The step that an event belongs to: a result stands with its call."""
    wanted = next((e.fact.call_id for e in log if e.seq == seq and isinstance(e.fact, ToolReturned)), None)
    if wanted is None:
        return Expanded(first=seq, last=seq)
    asking = (
        e for e in reversed(log) if e.seq < seq and isinstance(e.fact, ModelSaid) and _asks(e.fact, wanted)
    )
    start = next((event.seq for event in asking), seq)
    return Expanded(first=start, last=start)


def _asks(fact: ModelSaid, call_id: str) -> bool:
    return any(call.id == call_id for _, call in calls_of(fact.content))


def no_room(problem: ContextOverflow, name: str | int) -> ContextOverflow:
    """The error for a range that cannot be shown whole."""
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


def check_undo(event: Event, counting: Sequence[Event]) -> None:
    """Raises `UnknownHandle` when there is nothing to take back."""
    if not isinstance(event.fact, (*REDUCTIONS, Pinned)):
        raise UnknownHandle(f"{event.handle} is not a reduction or a pin, so there is nothing to undo")
    if all(other.seq != event.seq for other in counting):
        raise UnknownHandle(f"{event.handle} was taken back before, so there is nothing to undo")
