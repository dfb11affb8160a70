"""Compaction as a rung of the ladder: which old turns to summarise.

This rung returns a `Plan`. The caller has the summary written and records it.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.plan import NoPlan, Plan, RangeTerms, has_finished_turn, plan_range
from foveal.core.log.ranges import intersect_ranges
from foveal.core.models.budget import Budget
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.view import View

PREPARE_AT_MESSAGE_SHARE: Final = 0.8
"""At this share of the allowed number of messages, a summary of the oldest is prepared."""
MIN_SAVED_SHARE: Final = 0.1
"""Share of the messages that a summary in advance must save. The first reduction also makes the request larger: an
agent offers the recall tools from then on."""


def summary_terms(policy: Policy) -> RangeTerms:
    """Return what a policy says about the ranges to summarise."""
    values = {field: getattr(policy, field) for field in RangeTerms.__struct_fields__ if field != "rule"}
    return RangeTerms(rule=policy.name, **values)


def plan_compaction(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, reason: str = ""
) -> Plan | None:
    """Return what to summarise, for the given reason or for what triggers a compaction now.

    None when nothing triggers one, when the policy does not allow one, or when it is not worth it.
    """
    if not policy.compact or policy.mode != "auto" or moment.compacted:
        return None
    if moment.paused and view.units <= budget.hard:
        return None
    terms = summary_terms(policy)
    reason = reason or find_trigger(view, budget, terms)
    if not reason:
        return None
    if reason == "tokens" and (moment.refused or moment.model_switched):
        reason = "overflow" if moment.refused else "model"
    made = plan_range(view, budget, terms, reason=reason)
    if isinstance(made, NoPlan) or (covers_reverted_summary(view, made) and view.units <= budget.hard):
        return None
    return replace(made, ask=not moment.paused)


def plan_upcoming(view: View, budget: Budget, policy: Policy, *, reason: str) -> Plan | None:
    """Return what to summarise in advance, for the given reason."""
    planned = plan_range(view, budget, summary_terms(policy), reason=reason)
    return planned if isinstance(planned, Plan) else None


def covers_reverted_summary(view: View, plan: Plan) -> bool:
    """Return whether a summary of some of this range was reverted: another is made only when there is no other
    way."""
    return bool(intersect_ranges(((plan.first, plan.last),), view.reverted_summaries))


def saves_too_little(view: View, plan: Plan) -> bool:
    """Return whether a summary in advance, for want of tokens, would hardly make the request smaller."""
    return plan.reason == "tokens" and plan.before - plan.room < view.units * MIN_SAVED_SHARE


def foresee_compaction(view: View, budget: Budget, policy: Policy) -> str:
    """Return why a summary will be needed soon; "" when none will.

    `messages`: there are many messages. `turns`: enough turns were finished since the last summary. `tokens`: the
    warning threshold is passed.
    """
    if not policy.compact or policy.mode != "auto":
        return ""
    if budget.max_messages and len(view.seqs) > budget.max_messages * PREPARE_AT_MESSAGE_SHARE:
        return "messages"
    if has_enough_turns(view, policy):
        return "turns"
    if view.units <= budget.warn:
        return ""
    return "tokens"


def find_trigger(view: View, budget: Budget, terms: RangeTerms) -> str:
    """Return what triggers a compaction now: `tokens`, `turns`, or "" for nothing."""
    if view.units > budget.act:
        return "tokens"
    return "turns" if has_enough_turns(view, terms) else ""


def has_enough_turns(view: View, terms: Policy | RangeTerms) -> bool:
    """Return whether a summary, or in mode `confirm` the question about one, is due after a number of turns."""
    return 0 < terms.every_turns <= turns_since_summary(view)


def turns_since_summary(view: View) -> int:
    """Return how many turns were finished since the last summary. A turn is finished by its answer, or else by the
    next request."""
    end = max((high for step in view.summaries for _, high in step.covers), default=-1)
    begun = sum(1 for step in view.steps if step.kind == "user" and step.seq > end)
    return begun if has_finished_turn(view) else max(0, begun - 1)
