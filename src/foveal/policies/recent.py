"""`recent`: the newest that fit. Simple, and dear: once the window is full the prefix moves at every call."""

from __future__ import annotations

from foveal.budget import Budget
from foveal.events import Reduction
from foveal.policies import rungs
from foveal.policies.moment import Moment
from foveal.policies.settings import Policy
from foveal.view import View


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    return rungs.must_fit(view, budget, policy, target=budget.hard * policy.target)
