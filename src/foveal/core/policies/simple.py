"""`rolling`: the first and the last results stay visible, the others are masked as they leave the edge; above
the cap the oldest steps are dropped. What many products do, and a reference to compare with."""

from __future__ import annotations

from math import inf

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Reduction
from foveal.core.models.budget import Budget
from foveal.core.policies import ladder
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.view import View

# ── off ───────────────────────────────────────────────────────────────────────────────────────────
# `off`: nothing is reduced. What does not fit is an error with its numbers.


def decide_off(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    return None


# ── recent ────────────────────────────────────────────────────────────────────────────────────────
# `recent`: the newest that fit. Simple, and dear: once the window is full the prefix moves at every call.


def decide_recent(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    return ladder.must_fit(view, budget, policy, target=budget.hard * policy.target)


# ── rolling ───────────────────────────────────────────────────────────────────────────────────────


def decide_rolling(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | None:
    if policy.mask and policy.keep_first + policy.keep_last:
        slots = ladder.maskable(view, policy)
        if len(slots) >= policy.mask_every:
            masked = ladder.mask(view, slots, policy, excess=inf, reason="edge")
            if masked is not None:
                return masked
    return ladder.must_fit(view, budget, policy, target=budget.hard * policy.target)


# ── summary ───────────────────────────────────────────────────────────────────────────────────────
# `summary`: old turns become a summary when the room fills up, or after so many turns. The presets `handoff`,
# `sliding-summary`, `recent-summary` and `confirm` differ in when, and in what stays verbatim.
#
# At the hard limit nobody waits for consent: old results are masked and the oldest steps dropped, so that the session
# lives on, and the log says so. Only with `mode = "off"` is it an error, which names the choices.


def decide_summary(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    planned = ladder.compact(view, budget, moment, policy)
    if planned is not None or policy.mode == "off":
        return planned
    if view.units <= budget.hard:
        return None
    reason = "hard limit, no consent" if policy.mode == "confirm" else "hard limit"
    goal = budget.hard * policy.target
    masked = ladder.mask(view, ladder.maskable(view, policy), policy, excess=view.units - goal, reason=reason)
    return masked or ladder.must_fit(view, budget, policy, target=goal, reason=reason)


# ── recovery ──────────────────────────────────────────────────────────────────────────────────────
# After a provider has refused a request as too large: the whole ladder, whatever the policy would do by itself.
#
# mask → compact → drop, each only when the one before was not enough. What was learned from the refusal is in the
# budget by now; lowering what is asked for as an answer comes before all of this and needs no reduction.

LASTING = 0.8
"""Share of the room down to which it goes: the limit is only just known, so a little more than needed."""


def decide_after_overflow(
    view: View, budget: Budget, moment: Moment, policy: Policy
) -> Reduction | Plan | None:
    goal = budget.hard * LASTING
    gentle = replace(policy, keep_last=max(3, policy.keep_last))
    masked = ladder.mask(
        view, ladder.maskable(view, gentle), policy, excess=view.units - goal, reason="overflow"
    )
    if masked is not None:
        return masked
    willing = replace(policy, compact=True)
    return ladder.compact(view, budget, moment, willing) or ladder.must_fit(view, budget, policy, target=goal)
