"""`economy`, the default: few, large reductions, made when they cost the least.

Changing an early message makes the provider read everything behind it again at the full price. So nothing is
touched until the room is full; then one deep cut makes space for a long while. It comes earlier only

- when the prefix is lost anyway (the cache has gone cold; the model, the tools or the system text changed), or
- when, by the model's own prices, the calls to be expected repay the rewrite. How many calls to expect is
  guessed from how many there were: a conversation that has lasted is likely to last.
"""

from __future__ import annotations

from foveal.budget import Budget
from foveal.compaction.plan import Plan
from foveal.events import Reduction
from foveal.policies import rungs
from foveal.policies.moment import Moment
from foveal.policies.settings import Policy
from foveal.steps import Slot
from foveal.view import View

WORTH = 0.1
"""A cut that nobody needs must remove at least this share of the messages."""


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    goal = budget.hard * policy.target
    if view.units > budget.act or (moment.cutting and view.units > goal):
        return _cut(view, budget, moment, policy, goal)
    if moment.cutting or view.units <= budget.hard * policy.early:
        return None
    slots = rungs.maskable(view, policy) if policy.mask else []
    reason = _reason(view, moment, policy, slots)
    return rungs.mask(view, slots, policy, excess=view.units - goal, reason=reason) if reason else None


def _cut(view: View, budget: Budget, moment: Moment, policy: Policy, goal: float) -> Reduction | Plan | None:
    """Mask down to the goal; when that does not get far enough to last, summarise the oldest turns, or drop
    them."""
    excess = view.units - goal
    if policy.mask:
        reduction = rungs.mask(view, rungs.maskable(view, policy), policy, excess=excess, reason="budget")
        if reduction is None and policy.mask_arguments:
            reduction = rungs.mask_arguments(view, policy, excess=excess, reason="budget")
        if reduction is not None:
            return reduction
    lasting = (goal + budget.hard) / 2
    if view.units > lasting:
        planned = rungs.compact(view, budget, moment, policy, reason="tokens")
        if planned is not None:
            return planned
        if (
            moment.compacted and view.units <= budget.hard
        ):  # a summary was made, or will be ready for a later call
            return None
        dropped = rungs.drop(
            view, policy, excess=view.units - lasting, reason="budget", keep_task=policy.keep_task
        )
        if dropped is not None:
            return dropped
    return rungs.must_fit(view, budget, policy, target=lasting)


def _reason(view: View, moment: Moment, policy: Policy, slots: list[Slot]) -> str:
    """Why to cut now although nothing forces it; "" when it would not pay."""
    if not slots:
        return ""
    first = slots[0].step
    removed = sum(slot.result.units(view.meter) for slot in slots if slot.result is not None)
    removed = int(removed * (1 - policy.skeleton_share))
    if removed < WORTH * view.units:
        return ""
    if moment.free_break:
        return "cold-cache" if moment.cold else "broken-prefix"
    behind = sum(view.units_of(step) for step in reversed(view.steps) if step.seq >= first.seq) - removed
    return "price" if moment.calls_to_repay(removed, behind) <= policy.patience * moment.calls else ""
