"""`economy`, the default policy: few cuts, made when they cost little; the agent's trace stays.

Four fifths of a bill is reading the cached beginning of the conversation again, so what counts is the average
size of a request. But changing an early message makes the provider read everything behind it again at the full
price.

1. A new result is shown whole. Lines of it that are shown above already become a reference (`refer`): what is saved
   before a result was ever sent breaks no cache.
2. A cut hides old results; calls, texts and the user's messages stay as long as the room allows (`ladder.cut`).
3. A cut is made before it must be if it is cheap: when it costs at most `MAX_CUT_COST_SHARE` of what the
   conversation has cost so far. Thinking that is bound to what the cut changes is lost, and counts with the price
   of writing it again. A conversation that ends right after it has then lost little, and one that goes on saves
   with every call. It also needs something to gain: the request is larger than `early_tokens` and than three
   fifths of all that was said, and the cut removes a third of it. It hides nothing but results, and each of them
   leaves a line of what it held, or half of the request stays. `early = false` turns these cuts off.
4. With `every_turns`, a summary is made after that many turns, as by the summarising policies.
5. Above `act`, a cut is made at any price. When the request does not fit, new results that exceed `clip_share` of
   the room, and what the rest leaves of `target`, are clipped to the larger of both first.

Which old results will be needed again is hard to foresee. On recorded conversations their age alone chose as well
as their age, size, subject and overlap with newer results together. The files that calls name most often are quoted
in the record, however old their texts are.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan
from foveal.core.models.budget import Budget
from foveal.core.policies import ladder
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.view import View

MAX_CUT_COST_SHARE: Final = 0.1
"""Share of the cost so far that a cut may cost if nothing forces it."""
MIN_LEFT_SHARE: Final = 0.5
"""Share of a request that such a cut leaves, unless every hidden result leaves a line of what it held."""
MIN_SHOWN_SHARE: Final = 0.6
"""Share of all that was said above which a request is worth a cut if nothing forces it."""
MIN_CUT_SHARE: Final = 1 / 3
"""Share of the messages that a cut must remove, unless the request would not fit."""
SUMMARY_OUTPUT_TOKENS: Final = 1_000
"""Tokens that a model usually writes for a summary."""
FULL_SHARE: Final = 0.95
"""Share of `act` from which a cut is worthwhile whatever was said before."""
FREE_SHARE: Final = 0.85
"""The same if the provider has nothing cached: a cut now costs nothing, and the next one would."""


def decide_economy(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return the next reduction, the plan of a summary, or None."""
    if view.units > budget.hard:
        return _forced_cut(view, budget, moment, policy)
    is_due = view.units > budget.act
    if policy.every_turns and not is_due and not moment.cutting:
        summary = ladder.plan_compaction(view, budget, moment, policy)  # after a number of turns
        if summary is not None:
            return summary
    if not (is_due or policy.early) or moment.cutting:
        return None
    if not (is_due or view.units + budget.fixed > _worthwhile(budget, moment, policy)):
        return None
    if not is_due:
        rewritten, lost = ladder.estimate_rewritten(view, budget, policy, said=moment.said)
        if not is_cheap(rewritten, lost, moment):
            return None
    is_full = view.units + budget.fixed > _full(budget, moment)
    reason = "tokens" if is_full else "price"
    planned = _plan(view, budget, moment, policy, reason=reason, only_results=not is_due)
    if planned is None or planned.before - planned.room < view.units * MIN_CUT_SHARE:
        return None
    if not (
        is_due or (is_cheap(planned.rewritten, planned.lost_thinking, moment) and is_harmless(view, planned))
    ):
        return None
    return None if ladder.covers_reverted_summary(view, planned) else planned


def is_cheap(rewritten: int, lost_thinking: int, moment: Moment) -> bool:
    """Return whether a cut costs little of what the conversation has cost, if the provider reads this much anew and
    the model loses this much of its thinking, which it has to write again."""
    cost = 0.0 if moment.free_break else (moment.write - moment.read) * rewritten
    cost += moment.output * lost_thinking
    return cost <= MAX_CUT_COST_SHARE * moment.spent


def is_harmless(view: View, planned: Plan) -> bool:
    """Return whether the work can be carried on with what stays: half of the request, or a line of each result."""
    if view.units - planned.before + planned.room >= view.units * MIN_LEFT_SHARE:
        return True
    return all("\n" in mask.text for mask in planned.masks)


def foresee_cut(view: View, budget: Budget, moment: Moment, policy: Policy) -> Plan | None:
    """Return the plan of a summary that a model can write in advance; None if none will be needed soon."""
    if view.units <= budget.warn:
        return None
    planned = _plan(view, budget, moment, policy, reason="tokens")
    return planned if planned is not None and planned.ask else None


def _full(budget: Budget, moment: Moment) -> float:
    """Return the units of a request above which the window is what limits it."""
    return (FREE_SHARE if moment.free_break else FULL_SHARE) * (budget.act + budget.fixed)


def _worthwhile(budget: Budget, moment: Moment, policy: Policy) -> float:
    """Return the units of a request from which a cut is worthwhile."""
    said = moment.said + budget.fixed
    return min(_full(budget, moment), max(policy.early_tokens, MIN_SHOWN_SHARE * said))


def _plan(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, reason: str, only_results: bool = False
) -> Plan | None:
    """Return what to hide, only results or also steps; None if the policy does not allow it, or if there is nothing
    to gain."""
    if not policy.compact or policy.mode != "auto" or moment.compacted:
        return None
    goal = inf if only_results else budget.hard * policy.target
    planned = ladder.plan_cut(view, budget, policy, goal=goal, said=moment.said, reason=reason)
    if planned is None:
        return None
    # A cut for its price is written without a model: a model's summary would cost more than the cut saves.
    ask = reason != "price" and not moment.paused and _pays_for_summary(view, budget, moment, policy, planned)
    return replace(planned, ask=ask)


def _pays_for_summary(view: View, budget: Budget, moment: Moment, policy: Policy, planned: Plan) -> bool:
    """Return whether a model's summary costs little of what the cut removes, read once."""
    if not policy.summary_cost_share:
        return True
    cost = moment.read * (view.units + budget.fixed) + moment.output * SUMMARY_OUTPUT_TOKENS
    return cost <= policy.summary_cost_share * moment.write * (planned.before - planned.room)


def _forced_cut(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return the next reduction of a request that does not fit."""
    goal = budget.hard * policy.target
    if policy.mode == "auto":
        # Older steps make room for new results, but not for more than their share.
        clipped = ladder.clip_newest_results(view, budget, policy, target=goal)
        if clipped is not None:
            return clipped
    reason = "overflow" if moment.refused else "model" if moment.model_switched else "tokens"
    planned = _plan(view, budget, moment, policy, reason=reason)
    if planned is not None:
        return planned
    results = ladder.maskable_results(view, policy) if policy.mask and not moment.compacted else []
    units = sum(slot.result.units(view.meter) for slot in results if slot.result is not None)
    masked = None
    # Masks of little would have to be followed by more at the next call: then whole steps go.
    if units >= view.units * MIN_CUT_SHARE:
        excess = view.units - goal - ladder.newest_excess(view, budget, policy)
        masked = ladder.mask_results(view, results, policy, excess=excess, reason="budget")
    return masked or ladder.force_fit(view, budget, moment, policy, target=(goal + budget.hard) / 2)
