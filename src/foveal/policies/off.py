"""`off`: nothing is reduced. What does not fit is an error with its numbers."""

from __future__ import annotations

from foveal.budget import Budget
from foveal.events import Reduction
from foveal.policies.moment import Moment
from foveal.policies.settings import Policy
from foveal.view import View


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    return None
