"""Policies: `(view, budget, moment) -> Reduction | None`, pure. A preset is a set of values for one ladder."""

from __future__ import annotations

from typing import assert_never

from foveal import seen
from foveal.budget import Budget
from foveal.compaction.plan import Plan
from foveal.events import Reduction
from foveal.policies import economy, off, recent, recovery, rolling, rungs, summary
from foveal.policies.moment import Moment
from foveal.policies.settings import PRESETS, Policy, policy
from foveal.view import View

__all__ = ["PRESETS", "Moment", "Policy", "decide", "policy"]


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    """The next reduction that this policy wants, the plan of a summary that somebody must write, or None.
    The budget for images holds under every policy but `off`: bytes can be too many while tokens are few.
    A reference to something that is no longer shown is put right before anything else, whoever hid it."""
    restored = seen.again(view, saving=policy.refer)
    if restored is not None:
        return restored
    if policy.ladder == "off":
        return off.decide(view, budget, moment, policy)
    if moment.refused and view.units > budget.hard:
        chosen = recovery.decide(view, budget, moment, policy)
    else:
        chosen = _decided(view, budget, moment, policy)
    return (
        chosen
        or rungs.thin(view, budget, moment, policy)
        or (rungs.shed(view, budget) if view.media else None)
    )


def _decided(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    match policy.ladder:
        case "economy":
            return economy.decide(view, budget, moment, policy)
        case "summary":
            return summary.decide(view, budget, moment, policy)
        case "rolling":
            return rolling.decide(view, budget, moment, policy)
        case "recent":
            return recent.decide(view, budget, moment, policy)
        case "off":
            return None
        case _:
            assert_never(policy.ladder)
