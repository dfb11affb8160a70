"""After a provider has refused a request as too large: the whole ladder, whatever the policy would do by itself.

mask → compact → drop, each only when the one before was not enough. What was learned from the refusal is in the
budget by now; lowering what is asked for as an answer comes before all of this and needs no reduction.
"""

from __future__ import annotations

from msgspec.structs import replace

from foveal.budget import Budget
from foveal.compaction.plan import Plan
from foveal.events import Reduction
from foveal.policies import rungs
from foveal.policies.moment import Moment
from foveal.policies.settings import Policy
from foveal.view import View

LASTING = 0.8
"""Share of the room down to which it goes: the limit is only just known, so a little more than needed."""


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    goal = budget.hard * LASTING
    gentle = replace(policy, keep_last=max(3, policy.keep_last))
    masked = rungs.mask(
        view, rungs.maskable(view, gentle), policy, excess=view.units - goal, reason="overflow"
    )
    if masked is not None:
        return masked
    willing = replace(policy, compact=True)
    return rungs.compact(view, budget, moment, willing) or rungs.must_fit(view, budget, policy, target=goal)
