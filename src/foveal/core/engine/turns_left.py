"""How many turns fit before the policy reduces something, or asks the user.

1. A policy reduces above `act`; `every_turns` makes a summary, or asks for one, after a number of turns.
2. The projection assumes turns of one size. What a policy reduces earlier because it is cheap just then, a
   change of tools or model, and limits on images cannot be foreseen.
"""

from __future__ import annotations

from foveal.core.models.budget import Budget
from foveal.core.policies import Policy
from foveal.core.policies.ladder.compact import turns_since_summary
from foveal.core.view.view import View


def turns_until_reduction(view: View, budget: Budget, policy: Policy, *, turn: int) -> int:
    """Return how many turns of this many units fit before the one in which the policy must reduce or ask."""
    left = max(0, budget.act - view.units) // max(1, turn)
    if policy.mode != "off" and policy.every_turns:
        return min(left, max(0, policy.every_turns - turns_since_summary(view)))
    return left
