"""Policies: `(view, budget, moment) -> Reduction | None`, pure.

A preset is a set of values for one of the policies (`foveal.core.policies.presets`). A policy of the application's
own is a class (`own_policy`) that sees the view through `policy_view`.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Dropped, Masked, Reverted
from foveal.core.models.budget import Budget
from foveal.core.policies import economy, ladder, simple
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.own_policy import decide_own
from foveal.core.policies.presets import PRESETS, Policy, policy
from foveal.core.reduction import repeated_lines
from foveal.core.view.view import View

__all__ = ["PRESETS", "Moment", "Policy", "decide", "foresee", "policy"]

AGREED: Final = "agreed"
"""End of the rule of a reduction that the user has agreed to."""
_MIN_REDUCIBLE_SHARE: Final = 0.125
"""Share of the room that a reduction with consent leaves to what it reduces."""
NO_CONSENT: Final = "no consent"
"""End of the rule of a reduction without which the request would not have fitted, in mode `confirm`."""


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return the next reduction that this policy wants, the plan of a summary to be written, or None.

    1. A reference to lines that are no longer shown is repaired before anything else, whatever hid them. So is a
       result that nothing names because it came after its step was hidden.
    2. The policy `off` reduces nothing.
    3. In mode `confirm`, nothing else is reduced while the request fits, unless the user has agreed.
    """
    repaired = repeated_lines.repair_dangling(view, saving=policy.refer)
    if repaired is not None or policy.ladder == "off":
        return repaired
    named = ladder.name_late_results(view, policy)
    if named is not None:
        return named
    chosen = _decide_in_mode(view, budget, moment, policy)
    if moment.keep or ladder.has_priorities(view, policy):
        return _decide_by_priority(chosen, view, budget, moment, policy)
    return chosen


def _decide_by_priority(
    chosen: Decision, view: View, budget: Budget, moment: Moment, policy: Policy
) -> Decision:
    """Return what the policy does if it leaves alone what is to be kept and what has high priority. `chosen` is
    what it does without that, which is done if nothing else helps.

    1. If results of low priority are a fifth of a request that is due for a cut, and it fits without them, only
       they go. Else they go with the cut, or after it.
    2. If the request fits, what is held back stays. If not, messages of high priority are released before user
       messages and summaries, and what is to be kept at the very end."""
    is_due = view.units > budget.act
    if policy.mask and isinstance(chosen, Plan | Dropped | Masked) and is_due:
        low, saved = ladder.mask_low_results(view, policy)
        if saved >= view.units * ladder.MIN_FREED_SHARE and view.units - saved <= budget.act:
            return low
    if chosen is None:
        goes_after = moment.cutting and (policy.is_own or policy.ladder in ("summary", "plain"))
        return ladder.mask_low_results(view, policy)[0] if goes_after else None
    is_forced = (
        view.units > budget.hard
        or ladder.exceeds_media_limits(view, budget)
        or 0 < budget.max_messages < len(view.seqs)
    )
    kept = [found[0] for seq in sorted(moment.keep) if (found := view.find(seq)) is not None]
    holding = replace(moment, holds=True)
    for held in ([*kept, *ladder.high_steps(view, budget, policy)], kept):
        if not held:
            continue
        with view.holding(held):
            gentler = _decide_in_mode(view, budget, holding, policy)
        if gentler is not None or not is_forced:
            return gentler
    return chosen


def _decide_in_mode(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    if policy.mode != "confirm":
        return _decide_alone(view, budget, moment, policy)
    # The number of messages is a matter of memory, about which the user was not asked.
    budget = replace(budget, max_messages=0)
    if moment.agreed:
        return _decide_with_consent(view, budget, moment, policy)
    return _decide_without_consent(view, budget, moment, policy)


def _decide_alone(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return what the policy does by itself.

    1. After a refusal by the provider the whole ladder is used, otherwise what the policy chooses.
    2. The limits on messages and on images hold under every policy but `off`: bytes can be too many while tokens
       are few.
    3. Before any step is hidden, user messages beyond their share of the room are clipped.
    """
    if moment.refused and view.units > budget.hard:
        chosen = simple.decide_after_overflow(view, budget, moment, policy)
    else:
        chosen = decide_own(view, budget, moment, policy)
    chosen = (
        chosen
        or ladder.limit_messages(view, budget, moment, policy)
        or (ladder.mask_media(view, budget) if view.media else None)
    )
    if isinstance(chosen, Plan | Dropped):
        return ladder.clip_user_messages(view, budget, policy) or chosen
    return chosen


def _decide_with_consent(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return what mode `auto` would do now. Where it would wait for the limit, the threshold counts as the limit:
    the user has agreed to a reduction now, but not to the loss of everything beside a long message."""
    auto = replace(policy, mode="auto")
    chosen = _decide_alone(view, budget, moment, auto)
    if chosen is None and view.units > budget.act:
        least = ladder.irreducible_units(view) + int(budget.hard * _MIN_REDUCIBLE_SHARE)
        limit = min(budget.hard, max(budget.act, least))
        chosen = _decide_alone(view, replace(budget, hard=limit), moment, auto)
    return _with_rule(chosen, AGREED)


def _decide_without_consent(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return None while the request fits; beyond that, what mode `auto` does at the limit without a model."""
    if view.units > budget.hard:
        chosen = _decide_alone(view, budget, moment, replace(policy, mode="auto"))
    else:
        chosen = ladder.mask_media(view, budget) if view.media else None
    if isinstance(chosen, Plan):
        chosen = replace(chosen, ask=False)
    return _with_rule(chosen, NO_CONSENT)


def _with_rule(chosen: Decision, end: str) -> Decision:
    """Return a reduction whose rule, which `why` reports, ends with whether the user has agreed."""
    if chosen is None or isinstance(chosen, Reverted):
        return chosen
    if isinstance(chosen, tuple):
        return tuple(replace(clipped, rule=f"{clipped.rule}: {end}") for clipped in chosen)
    return replace(chosen, rule=f"{chosen.rule}: {end}")


def foresee(view: View, budget: Budget, moment: Moment, policy: Policy) -> Plan | None:
    """Return the plan of a summary that will be needed soon: written now, no request has to wait for it."""
    if policy.is_own or policy.ladder == "plain":  # both say themselves when they summarise
        return None
    with view.holding(ladder.high_steps(view, budget, policy)):
        return _foresee(view, budget, moment, policy)


def _foresee(view: View, budget: Budget, moment: Moment, policy: Policy) -> Plan | None:
    reason = ladder.foresee_compaction(view, budget, policy)
    if policy.ladder == "economy" and reason == "tokens":
        planned = economy.foresee_cut(view, budget, moment, policy)
    else:
        planned = ladder.plan_upcoming(view, budget, policy, reason=reason) if reason else None
    if planned is None or ladder.covers_reverted_summary(view, planned):
        return None
    return None if ladder.saves_too_little(view, planned) else planned
