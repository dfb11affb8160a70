"""The policies `plain`, `recent`, `rolling` and `summary`, and what follows a refusal: each a few rungs.

Each function returns the next reduction, the plan of a summary, or None. The policy `off`, which reduces nothing,
needs no function: what does not fit is an error with its numbers.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec.structs import replace

from foveal.core.models.budget import Budget
from foveal.core.policies import ladder
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.view import View

AFTER_OVERFLOW_SHARE: Final = 0.8
"""Share of the room to reduce to: the limit is only just known, so a little more than needed."""
_MIN_KEPT_RESULTS: Final = 3


def decide_plain(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Above `act_tokens`, replace everything but the first user message, the latest one and the newest
    `keep_messages` messages by one summary.

    In mode `off`, a notice stands in its place, and the user's messages stay: a later one may correct an earlier
    one. A cut that would remove less than `ladder.MIN_FREED_SHARE` of the
    messages waits until the request does not fit.
    """
    if view.units <= budget.act:
        return None
    planned = ladder.plan_oldest(view, budget, moment, policy, reason="tokens")
    if planned is not None:
        return planned
    if policy.mode == "off" and not moment.cutting:
        old = [step for step in ladder.steps_before_newest(view, budget, policy) if step.kind != "user"]
        if sum(map(view.units_of, old)) >= view.units * ladder.MIN_FREED_SHARE:
            return ladder.drop_steps(view, iter(old), policy, excess=inf, reason="tokens")
        policy = replace(policy, keep_task=False)  # a correction of the task is not hidden before it
    return ladder.force_fit(view, budget, moment, policy, target=budget.hard * policy.target)


def decide_recent(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Show the newest steps that fit, and the latest user message.

    Simple but expensive: once the window is full, every few calls drop a step, and the prefix moves.
    """
    return ladder.force_fit(view, budget, moment, policy, target=budget.hard * policy.target)


def decide_rolling(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Show the first and the last results, mask the others as they leave that range, and drop the oldest steps
    above the cap.

    This is what many products do, and a reference to compare with.
    """
    if policy.mask and policy.keep_first + policy.keep_last:
        results = ladder.maskable_results(view, policy)
        if len(results) >= policy.mask_every:
            masked = ladder.mask_results(view, results, policy, excess=inf, reason="edge")
            if masked is not None:
                return masked
    return ladder.force_fit(view, budget, moment, policy, target=budget.hard * policy.target)


def decide_summary(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Summarise old turns when the room fills up, or after a number of turns.

    The presets `handoff`, `sliding-summary`, `recent-summary` and `confirm` differ in when they do so, and in
    what stays verbatim. Where no summary can be made, old results are masked and the oldest steps recorded without
    a model, so that the session can continue. Only with `mode = "off"` is it an error, which names the choices.
    """
    goal = budget.hard * policy.target
    if policy.mode == "auto":
        clipped = ladder.clip_newest_results(view, budget, policy, target=goal)
        if clipped is not None:
            return clipped
    planned = ladder.plan_compaction(view, budget, moment, policy)
    if planned is not None or policy.mode == "off" or view.units <= budget.hard:
        return planned
    reason = "hard limit"
    results = ladder.maskable_results(view, policy)
    masked = ladder.mask_results(view, results, policy, excess=view.units - goal, reason=reason)
    return masked or ladder.force_fit(view, budget, moment, policy, target=goal, reason=reason)


def decide_after_overflow(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return the next reduction of a request that a provider has refused as too large.

    It uses the whole ladder, whatever the policy would do by itself: mask → clip the newest → compact → drop, each
    only when the previous rung is not enough. The budget already contains what was learned from the refusal. Asking
    for a shorter answer comes before all of this and needs no reduction.
    """
    goal = budget.hard * AFTER_OVERFLOW_SHARE
    careful = replace(policy, keep_last=max(_MIN_KEPT_RESULTS, policy.keep_last))
    results = ladder.maskable_results(view, careful)
    excess = view.units - goal - ladder.newest_excess(view, budget, policy)
    masked = ladder.mask_results(view, results, policy, excess=excess, reason="overflow")
    if masked is not None:
        return masked
    compacting = replace(policy, compact=True)
    return (
        ladder.clip_newest_results(view, budget, policy, target=goal)
        or ladder.plan_compaction(view, budget, moment, compacting)
        or ladder.force_fit(view, budget, moment, policy, target=goal)
    )
