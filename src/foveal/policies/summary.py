"""`summary`: old turns become a summary when the room fills up, or after so many turns. The presets `handoff`,
`sliding-summary`, `recent-summary` and `confirm` differ in when, and in what stays verbatim.

At the hard limit nobody waits for consent: old results are masked and the oldest steps dropped, so that the session
lives on, and the log says so. Only with `mode = "off"` is it an error, which names the choices.
"""

from __future__ import annotations

from foveal.budget import Budget
from foveal.compaction.plan import Plan
from foveal.events import Reduction
from foveal.policies import rungs
from foveal.policies.moment import Moment
from foveal.policies.settings import Policy
from foveal.view import View


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    planned = rungs.compact(view, budget, moment, policy)
    if planned is not None or policy.mode == "off":
        return planned
    if view.units <= budget.hard:
        return None
    reason = "hard limit, no consent" if policy.mode == "confirm" else "hard limit"
    goal = budget.hard * policy.target
    masked = rungs.mask(view, rungs.maskable(view, policy), policy, excess=view.units - goal, reason=reason)
    return masked or rungs.must_fit(view, budget, policy, target=goal, reason=reason)
