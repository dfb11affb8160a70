"""Priorities: which messages a reduction hides first, and which last.

1. A priority is that of the message itself (`Prioritised`), else of the call's message, else of the tool
   (`Policy.tool_priorities`), else `normal`.
2. What is `low` goes first: its results are hidden in the first cut, also among the newest results, and its steps
   are the first of those that go.
3. What is `high` goes after everything that is not, but before user messages and summaries. It stays as it is while
   it takes at most `MAX_HIGH_SHARE` of the room, the newest first: a request full of it would have to be cut at
   every call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foveal.core.log.events import Priority
from foveal.core.models.budget import Budget
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Slot, Step
from foveal.core.view.view import View

MAX_HIGH_SHARE: Final = 0.5
"""Share of the room that messages of high priority may take together."""


def has_priorities(view: View, policy: Policy) -> bool:
    """Return whether any message has a priority of its own, or any tool."""
    return bool(view.priorities or policy.tool_priorities)


def slot_priority(view: View, slot: Slot, policy: Policy) -> Priority:
    """Return the priority of a call's result."""
    result = None if slot.result is None else view.priorities.get(slot.result.seq)
    marked = result or view.priorities.get(slot.step.utterance.seq)
    return policy.tool_priorities.get(slot.call.name, "normal") if marked is None else marked[0]


def tool_priority(view: View, seq: int, policy: Policy) -> Priority:
    """Return the priority that a shown result has because of its tool or of its call's message."""
    found = view.find(seq) if has_priorities(view, policy) else None
    slot = None if found is None else next((one for one in found[0].slots if one.result is found[1]), None)
    return "normal" if slot is None else slot_priority(view, slot, policy)


def step_priority(view: View, step: Step, policy: Policy) -> Priority:
    """Return the priority of a whole step: `high` if anything in it is, `low` only if all results are."""
    marked = view.priorities.get(step.utterance.seq)
    found = {slot_priority(view, slot, policy) for slot in step.slots}
    if marked is not None and not found:
        return marked[0]
    if "high" in found:
        return "high"
    return "low" if found == {"low"} else "normal"


def low_results(view: View, slots: Iterable[Slot], policy: Policy) -> list[Slot]:
    """Return those of the results that have low priority."""
    if not has_priorities(view, policy):
        return []
    return [slot for slot in slots if slot_priority(view, slot, policy) == "low"]


def lowest_first(view: View, slots: Iterable[Slot], policy: Policy) -> list[Slot]:
    """Return results in the order in which they go: those of low priority first."""
    slots = list(slots)
    low = set(map(id, low_results(view, slots, policy)))
    return sorted(slots, key=lambda slot: id(slot) not in low) if low else slots


def lowest_steps_first(view: View, steps: Iterable[Step], policy: Policy) -> list[Step]:
    """Return steps in the order in which they go: those of low priority first."""
    steps = list(steps)
    if not has_priorities(view, policy):
        return steps
    return sorted(steps, key=lambda step: step_priority(view, step, policy) != "low")


def high_steps(view: View, budget: Budget, policy: Policy) -> list[Step]:
    """Return the steps that only go when nothing else can."""
    if not has_priorities(view, policy):
        return []
    room = budget.hard * MAX_HIGH_SHARE
    held: list[Step] = []
    for step in reversed(view.steps):
        if step.kind in ("user", "model") and step_priority(view, step, policy) == "high":
            room -= view.units_of(step)
            if room < 0:
                break
            held.append(step)
    return held
