"""Policies: `(view, budget, moment) -> Reduction | None`, pure.

A preset is a set of values for one of the policies (`foveal.core.policies.presets`).
"""

from __future__ import annotations

from typing import assert_never

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Dropped
from foveal.core.models.budget import Budget
from foveal.core.policies import economy, ladder, simple
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import PRESETS, Policy, policy
from foveal.core.reduction import repeated_lines
from foveal.core.view.view import View

__all__ = ["PRESETS", "Moment", "Policy", "decide", "foresee", "policy"]


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return the next reduction that this policy wants, the plan of a summary to be written, or None.

    1. A reference to lines that are no longer shown is repaired before anything else, whatever hid them. So is a
       result that nothing names because it came after its step was hidden.
    2. The policy `off` reduces nothing.
    3. After a refusal by the provider the whole ladder is used, otherwise what the policy chooses.
    4. The limits on messages and on images hold under every policy but `off`: bytes can be too many while tokens
       are few.
    5. Before any step is hidden, user messages beyond their share of the room are clipped.
    """
    repaired = repeated_lines.repair_dangling(view, saving=policy.refer)
    if repaired is not None or policy.ladder == "off":
        return repaired
    named = ladder.name_late_results(view, policy)
    if named is not None:
        return named
    if moment.refused and view.units > budget.hard:
        chosen = ladder.decide_after_overflow(view, budget, moment, policy)
    else:
        chosen = _choose(view, budget, moment, policy)
    chosen = (
        chosen
        or ladder.limit_messages(view, budget, moment, policy)
        or (ladder.mask_media(view, budget) if view.media else None)
    )
    if isinstance(chosen, Plan | Dropped):
        return ladder.clip_user_messages(view, budget, policy) or chosen
    return chosen


def foresee(view: View, budget: Budget, moment: Moment, policy: Policy) -> Plan | None:
    """Return the plan of a summary that will be needed soon: written now, no request has to wait for it."""
    reason = ladder.foresee_compaction(view, budget, policy)
    if policy.ladder == "economy" and reason == "tokens":
        planned = economy.foresee_cut(view, budget, moment, policy)
    else:
        planned = ladder.plan_upcoming(view, budget, policy, reason=reason) if reason else None
    return None if planned is None or ladder.covers_reverted_summary(view, planned) else planned


def _choose(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    match policy.ladder:
        case "economy":
            return economy.decide_economy(view, budget, moment, policy)
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
