"""Policies: `(view, budget, moment) -> Reduction | None`, pure. A preset is a set of values for one ladder."""

from __future__ import annotations

from typing import assert_never

from foveal.budget import Budget
from foveal.events import Reduction
from foveal.policies import economy, off, recent, rolling, rungs
from foveal.policies.moment import Moment
from foveal.policies.settings import PRESETS, Policy, policy
from foveal.view import View

__all__ = ["PRESETS", "Moment", "Policy", "decide", "policy"]


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    """The next reduction that this policy wants, or None. The budget for images holds under every policy but
    `off`: bytes can be too many while tokens are few."""
    match policy.ladder:
        case "off":
            return off.decide(view, budget, moment, policy)
        case "economy":
            chosen = economy.decide(view, budget, moment, policy)
        case "rolling":
            chosen = rolling.decide(view, budget, moment, policy)
        case "recent":
            chosen = recent.decide(view, budget, moment, policy)
        case _:
            assert_never(policy.ladder)
    return chosen or rungs.thin(view, budget, policy) or (rungs.shed(view, budget) if view.media else None)
