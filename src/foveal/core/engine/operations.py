"""Rules of `pin`, `undo`, `expand` and `compact`, shared by `Context` and `Session`.

Each function is pure: it returns what to record, or raises the error. `Context` and `Session` look up events by
their handles, record the facts, and return a handle.
"""

from __future__ import annotations

from collections.abc import Sequence

from foveal.core.compaction.plan import NoPlan, Plan
from foveal.core.engine.engine import Engine
from foveal.core.log.events import (
    REDUCTIONS,
    Clipped,
    Compacted,
    CompactionFailed,
    Dropped,
    Event,
    Expanded,
    Masked,
    ModelSaid,
    Pinned,
    Reverted,
    ToolReturned,
    UserSaid,
    calls_of,
    handle,
    parse_handle,
)
from foveal.core.view.fold import effective_events
from foveal.core.view.steps import hidden_ranges
from foveal.core.view.view import View
from foveal.errors import BadSetting, ContextOverflow, NotCompacted, UnknownHandle

# ── Helpers of undo and expand ─────────────────────────────────────────────────────────────────────────


def _expansion_facts(log: Sequence[Event], seq: int) -> list[Expanded]:
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
    call_id = next((e.fact.call_id for e in log if e.seq == seq and isinstance(e.fact, ToolReturned)), None)
    if call_id is None:
        return Expanded(first=seq, last=seq)
    callers = (
        e for e in reversed(log) if e.seq < seq and isinstance(e.fact, ModelSaid) and _calls(e.fact, call_id)
    )
    start = next((event.seq for event in callers), seq)
    return Expanded(first=start, last=start)


def _calls(fact: ModelSaid, call_id: str) -> bool:
    return any(call.id == call_id for _, call in calls_of(fact.content))


def _expansion_overflow(problem: ContextOverflow, name: str | int) -> ContextOverflow:
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


def _check_undo(event: Event, effective: Sequence[Event]) -> None:
    """Raise `UnknownHandle` unless the event is a reduction or a pin that is still effective."""
    if not isinstance(event.fact, (*REDUCTIONS, Pinned)):
        raise UnknownHandle(f"{event.handle} is not a reduction or a pin, so there is nothing to undo")
    if all(other.seq != event.seq for other in effective):
        raise UnknownHandle(f"{event.handle} was undone before, so there is nothing to undo")


# ── Operations ─────────────────────────────────────────────────────────────────────────────────────────


def seq_of(name: str | int, *, count: int) -> int:
    """Return the seq of a handle in a log of `count` events; raises `UnknownHandle`."""
    seq = parse_handle(name)
    if seq is None or seq >= count:
        raise unknown_handle(name, count=count)
    return seq


def unknown_handle(name: str | int, *, count: int) -> UnknownHandle:
    """Return the error for a handle that no event of a log of `count` events has."""
    return UnknownHandle(f"no event has the handle {name!r}; the log has e0 to e{count - 1}")


def pin_fact(view: View, text: str, target: int | None) -> Pinned:
    """Return the fact that keeps a rule, or the step of event `target` as it is now, in every request."""
    if not text and target is None:
        raise BadSetting("pin", text, "a text, or the handle of an event")
    if target is not None and view.find(target) is None:
        name = handle(target)
        raise UnknownHandle(f"{name} is not shown any more, so it cannot be pinned; see why({name!r})")
    return Pinned(text=text, target=target)


def undo_fact(log: Sequence[Event], target: Event | None) -> Reverted:
    """Return the fact that takes back a reduction or a pin, or without `target` the newest reduction. `log` is the
    whole log. Raises `UnknownHandle` when there is nothing to take back."""
    effective = effective_events(log)
    if target is None:
        target = next((event for event in reversed(effective) if isinstance(event.fact, REDUCTIONS)), None)
        if target is None:
            raise UnknownHandle("nothing has been reduced, so there is nothing to undo")
    _check_undo(target, effective)
    return Reverted(target=target.seq)


def expand_facts(engine: Engine, log: Sequence[Event], seq: int) -> list[Expanded]:
    """Return the facts, at least one, that show a reduction's range or the step of an event in full until the
    user's next message. `log` is the whole log. Raises `ContextOverflow` when there is no room for it."""
    facts = _expansion_facts(effective_events(log), seq)
    if not facts:
        raise UnknownHandle(f"{handle(seq)} hides nothing, so there is nothing to expand")
    try:
        engine.check_fits(log, facts)
    except ContextOverflow as problem:
        raise _expansion_overflow(problem, handle(seq)) from None
    return facts


def plan_manual_compaction(engine: Engine, focus: str) -> Plan:
    """Return the range to summarise now at the user's request; raises `NotCompacted` when there is none."""
    plan = engine.plan_summary(reason="hand", focus=focus)
    if isinstance(plan, NoPlan):
        ratio = engine.calibration.ratio
        raise NotCompacted(plan.explain(ratio), floor=round(plan.floor * ratio))
    return plan


def compaction_handle(outcome: Event) -> str:
    """Return the handle of the event that records a summary; raises `NotCompacted` when it records a failure."""
    if isinstance(outcome.fact, CompactionFailed):
        raise NotCompacted(outcome.fact.problem)
    return outcome.handle
