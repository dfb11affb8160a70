"""`rolling`: the first and the last results stay visible, the others are masked as they leave the edge; above
the cap the oldest steps are dropped. What many products do, and a reference to compare with."""

from __future__ import annotations

from math import inf

from foveal.budget import Budget
from foveal.events import Reduction
from foveal.policies import rungs
from foveal.policies.moment import Moment
from foveal.policies.settings import Policy
from foveal.view import View


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    if policy.mask and policy.keep_first + policy.keep_last:
        slots = rungs.maskable(view, policy)
        if len(slots) >= policy.mask_every:
            masked = rungs.mask(view, slots, policy, excess=inf, reason="edge")
            if masked is not None:
                return masked
    return rungs.must_fit(view, budget, policy, target=budget.hard * policy.target)
