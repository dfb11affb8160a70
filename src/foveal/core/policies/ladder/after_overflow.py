"""The whole ladder, after a provider has refused a request as too large.

It applies whatever the policy would do by itself: mask → clip the newest → compact → drop, each only when the
previous rung is not enough. The budget already contains what was learned from the refusal. Asking for a shorter
answer comes before all of this and needs no reduction.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.compact import plan_compaction
from foveal.core.policies.ladder.drop import force_fit
from foveal.core.policies.ladder.mask import mask_results, maskable_results
from foveal.core.policies.ladder.squeeze import clip_newest_results, newest_excess
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.view import View

AFTER_OVERFLOW_SHARE: Final = 0.8
"""Share of the room to reduce to: the limit is only just known, so a little more than needed."""
_MIN_KEPT_RESULTS: Final = 3


def decide_after_overflow(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return the next reduction of a request that a provider has refused."""
    goal = budget.hard * AFTER_OVERFLOW_SHARE
    careful = replace(policy, keep_last=max(_MIN_KEPT_RESULTS, policy.keep_last))
    results = maskable_results(view, careful)
    excess = view.units - goal - newest_excess(view, budget, policy)
    masked = mask_results(view, results, policy, excess=excess, reason="overflow")
    if masked is not None:
        return masked
    compacting = replace(policy, compact=True)
    return (
        clip_newest_results(view, budget, policy, target=goal)
        or plan_compaction(view, budget, moment, compacting)
        or force_fit(view, budget, moment, policy, target=goal)
    )
