"""The last rungs: what goes when a request would not fit otherwise.

`force_fit` returns one reduction after another, in this order:

1. The results of the newest step are clipped to one common limit.
2. The oldest steps that may go are replaced: by a record without a model (a ledger) where the policy summarises,
   else by the notice of a drop. When no raw step is left, summaries are merged.
3. Expansions end. All results are clipped as far as needed, but not below a tenth of the room.
4. The only summary is written again at half its size.
5. All results are clipped further, then the arguments of answered calls.
6. If the latest user message leaves too little, the others become part of the record, and the first is clipped.
7. Whole steps are dropped: open calls, summaries, and at the very end user messages, the first of them last.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.kept_messages import kept_user_steps, text_units, user_room
from foveal.core.compaction.plan import MAX_KEPT_OPEN_STEPS, Plan, plan_forced
from foveal.core.log.events import Dropped, Reverted
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.cut import plan_compaction, summary_terms
from foveal.core.policies.ladder.squeeze import clip_newest_results, squeeze_results, squeeze_users
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Step
from foveal.core.view.view import View

DROPPED_NOTICE_UNITS: Final = 64
"""Units that the notice for dropped steps takes at most."""
_MIN_RESULT_SHARE: Final = 0.1
"""Share of the room below which results are clipped only when summaries cannot become smaller."""


def irreducible_units(view: View) -> int:
    """Return the units of the messages that no reduction makes smaller: rules, and the latest user message."""
    latest = view.latest_user
    if latest is None or any(seq == latest.seq for seq, _ in view.media):
        return view.permanent_units
    return view.permanent_units + view.units_of(latest)


def droppable_steps(view: View, budget: Budget, policy: Policy) -> Iterator[Step]:
    """Yield the raw steps that may be dropped, oldest first.

    The newest steps with an unanswered call stay; calls in older ones count as abandoned."""
    kept = {id(view.latest_user), id(view.steps[-1]) if view.steps else 0}
    waiting = (step for step in reversed(view.steps) if step.has_open_call)
    kept.update(id(step) for step in islice(waiting, MAX_KEPT_OPEN_STEPS))
    kept.update(map(id, kept_user_steps(view, budget, policy)))
    if policy.keep_task:
        kept.add(id(view.first_user))
    for step in view.steps:
        if step.kind in ("user", "model") and not step.is_pinned and id(step) not in kept:
            yield step


def last_resort_steps(view: View) -> Iterator[Step]:
    """Yield everything that may be dropped when there is no other way: open calls, summaries, user messages and,
    last of all, the first of these."""
    kept = {id(view.latest_user), id(view.steps[-1]) if view.steps else 0}
    first = view.first_user
    ranks = (
        (step for step in view.steps if step.kind == "model"),
        (step for step in view.steps if step.kind == "summary"),
        (step for step in view.steps if step.kind == "user" and step is not first),
        (step for step in view.steps if step is first),
    )
    for step in chain.from_iterable(ranks):
        if not step.is_pinned and id(step) not in kept:
            yield step


def drop_steps(
    view: View, steps: Iterator[Step], policy: Policy, *, excess: float, reason: str
) -> Dropped | None:
    """Drop steps in their order until `excess` units are saved, or all of them are gone."""
    dropped: set[int] = set()
    for step in steps:
        if excess <= 0:
            break
        dropped.add(step.seq)
        excess -= view.units_of(step)
    return _drop_by_policy(view, dropped, policy, reason)


def name_late_results(view: View, policy: Policy) -> Dropped | None:
    """Have the notice name results that came after their step was hidden, so that every event is accounted for."""
    ranges = tuple((seq, seq) for seq in view.unnamed_results)
    return Dropped(ranges=ranges, reason="late", rule=policy.name, names_ranges=True) if ranges else None


def limit_messages(view: View, budget: Budget, moment: Moment, policy: Policy) -> Dropped | Plan | None:
    """When there are more messages in view than allowed, summarise the oldest steps without a model, or drop them,
    down to three quarters of that number. Does nothing in mode `off`."""
    messages = len(view.seqs)
    if not budget.max_messages or messages <= budget.max_messages or policy.mode != "auto":
        return None
    planned = plan_compaction(view, budget, moment, policy, reason="messages")
    if planned is not None:
        return replace(planned, ask=False)
    dropped: set[int] = set()
    for step in chain(droppable_steps(view, budget, policy), last_resort_steps(view)):
        if messages <= budget.max_messages * 3 // 4:
            break
        if step.seq not in dropped:
            dropped.add(step.seq)
            messages -= 1 + len(step.slots)
    return _drop_by_policy(view, dropped, policy, "messages")


def _drop_by_policy(view: View, seqs: set[int], policy: Policy, reason: str) -> Dropped | None:
    if not seqs:
        return None
    names_users = bool(policy.retain_user_share)
    return hide_steps(view, seqs, reason=reason, rule=policy.name, names_users=names_users)


def hide_steps(view: View, seqs: set[int], *, reason: str, rule: str, names_users: bool = True) -> Dropped:
    """Return the drop of the steps with these seqs; its notice names their ranges."""
    users = (step.seq for step in view.steps if step.kind == "user" and step.seq in seqs)
    return Dropped(
        ranges=tuple(_ranges(view, seqs)),
        reason=reason,
        rule=rule,
        names_ranges=True,
        users=tuple(users) if names_users else (),
    )


def _ranges(view: View, seqs: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the chosen steps as ranges of seq, results included; a summary with everything that it stands for."""
    run: tuple[int, int] | None = None
    for step, after in zip_longest(view.steps, view.steps[1:]):
        if step.seq in seqs and not step.covers:
            # A late result lies behind later steps; a range must not reach over these.
            own = [shown.seq for shown in step.shown_messages() if after is None or shown.seq < after.seq]
            run = (run[0] if run else step.seq, max(own, default=step.seq))
            continue
        if run:
            yield run
            run = None
        if step.seq in seqs:
            yield from step.covers
    if run:
        yield run


def force_fit(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float, reason: str = "budget"
) -> Decision:
    """Return the next reduction for messages above the hard limit, when no gentler rung is left.

    None when they fit, or when nothing that remains may be touched. A cut goes down to `target` units."""
    if view.units <= budget.hard:
        return None
    excess = view.units + DROPPED_NOTICE_UNITS - target
    needed = view.units - budget.hard
    least = int(budget.hard * _MIN_RESULT_SHARE)
    return (
        clip_newest_results(view, budget, policy, target=target)
        or _record_forced(view, budget, moment, policy, target=target)
        or drop_steps(view, droppable_steps(view, budget, policy), policy, excess=excess, reason=reason)
        or _end_expansion(view, moment)
        or squeeze_results(view, policy, excess=needed, min_units=least)
        or _record_forced(view, budget, moment, policy, target=target, shrink=True)
        or squeeze_results(view, policy, excess=needed)
        or (
            _reduce_users(view, budget, moment, policy, target=target)
            if _exceed_share(view, budget, policy)
            else None
        )
        or drop_steps(
            view, last_resort_steps(view), policy, excess=needed + DROPPED_NOTICE_UNITS, reason=reason
        )
    )


def _end_expansion(view: View, moment: Moment) -> Reverted | None:
    """Have the oldest expanded range reduced again: results of the running turn need the room."""
    if moment.keeps_expansions or not view.expansions:
        return None
    return Reverted(target=view.expansions[0].seq)


def _exceed_share(view: View, budget: Budget, policy: Policy) -> bool:
    """Return whether all user messages, the latest included, exceed their share: only then may any of them go."""
    users = (step for step in view.steps if step.kind == "user")
    return sum(text_units(view, step) for step in users) > user_room(budget, policy)


def _reduce_users(view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float) -> Decision:
    """Record all user messages but the first and the latest without a model, or clip the first further."""
    without_share = replace(policy, retain_user_share=0.0, keep_task=True)
    planned = _record_forced(view, budget, moment, without_share, target=target)
    return planned or squeeze_users(view, excess=view.units - budget.hard)


def _record_forced(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float, shrink: bool = False
) -> Plan | None:
    if not policy.compact or policy.mode == "off" or moment.record_failed:
        return None
    return plan_forced(view, budget, summary_terms(policy), target=target, shrink=shrink)
