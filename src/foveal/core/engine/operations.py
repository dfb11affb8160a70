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
    CompactionFailed,
    Event,
    Expanded,
    Pinned,
    Reverted,
    handle,
    parse_handle,
)
from foveal.core.reduction.undo import check_undo, expansion, no_room
from foveal.core.view.fold import effective_events
from foveal.core.view.view import View
from foveal.errors import BadSetting, ContextOverflow, NotCompacted, UnknownHandle


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
    check_undo(target, effective)
    return Reverted(target=target.seq)


def expand_facts(engine: Engine, log: Sequence[Event], seq: int) -> list[Expanded]:
    """Return the facts, at least one, that show a reduction's range or the step of an event in full until the
    user's next message. `log` is the whole log. Raises `ContextOverflow` when there is no room for it."""
    facts = expansion(effective_events(log), seq)
    if not facts:
        raise UnknownHandle(f"{handle(seq)} hides nothing, so there is nothing to expand")
    try:
        engine.check_fits(log, facts)
    except ContextOverflow as problem:
        raise no_room(problem, handle(seq)) from None
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
