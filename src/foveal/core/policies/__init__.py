"""Policies: `(view, budget, moment) -> Reduction | None`, pure. A preset is a set of values for one ladder."""

from __future__ import annotations

from typing import assert_never

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Reduction
from foveal.core.models.budget import Budget
from foveal.core.policies import economy, ladder, simple
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import PRESETS, Policy, policy
from foveal.core.reduction import repeated_lines
from foveal.core.view.view import View

__all__ = ["PRESETS", "Moment", "Policy", "decide", "policy"]


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    """The next reduction that this policy wants, the plan of a summary that somebody must write, or None.
    The budget for images holds under every policy but `off`: bytes can be too many while tokens are few.
    A reference to something that is no longer shown is put right before anything else, whoever hid it."""
    restored = repeated_lines.again(view, saving=policy.refer)
    if restored is not None:
        return restored
    if policy.ladder == "off":
        return simple.decide_off(view, budget, moment, policy)
    if moment.refused and view.units > budget.hard:
        chosen = simple.decide_after_overflow(view, budget, moment, policy)
    else:
        chosen = _decided(view, budget, moment, policy)
    return (
        chosen
        or ladder.thin(view, budget, moment, policy)
        or (ladder.shed(view, budget) if view.media else None)
    )


def _decided(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    match policy.ladder:
        case "economy":
            return economy.decide(view, budget, moment, policy)
        case "summary":
            return simple.decide_summary(view, budget, moment, policy)
        case "rolling":
            return simple.decide_rolling(view, budget, moment, policy)
        case "recent":
            return simple.decide_recent(view, budget, moment, policy)
        case "off":
            return None
        case _:
            assert_never(policy.ladder)
