"""Dropping: the oldest whole steps leave the view, and a notice replaces them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.plan import MAX_KEPT_OPEN_STEPS, Plan
from foveal.core.log.events import Dropped, Reduction
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.compact import plan_compaction
from foveal.core.policies.ladder.squeeze import squeeze_results
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Step
from foveal.core.view.view import View

DROPPED_NOTICE_UNITS: Final = 24
"""Units that the notice for dropped steps takes."""
_SQUEEZE_ABOVE_SHARE: Final = 0.75
"""When what must stay takes more than this share of the room, it is squeezed before anything is dropped …"""
_SQUEEZE_TO_SHARE: Final = 0.5
"""… down to this share."""


def droppable_steps(view: View, *, keep_task: bool, keep_open: bool = True) -> Iterator[Step]:
    """Yield the steps that may be dropped, oldest first, and then the summaries.

    `keep_task` keeps the first user message. `keep_open` keeps the newest steps with an unanswered call; calls in
    older ones count as abandoned.
    """
    kept = {id(view.latest_user), id(view.steps[-1]) if view.steps else 0}
    if keep_open:
        waiting = (step for step in reversed(view.steps) if step.has_open_call)
        kept.update(id(step) for step in islice(waiting, MAX_KEPT_OPEN_STEPS))
    if keep_task:
        kept.add(id(view.first_user))
    # Summaries go last: they are short, and each represents many messages.
    for kinds in (("user", "model"), ("summary",)):
        for step in view.steps:
            if step.kind in kinds and not step.is_pinned and id(step) not in kept:
                yield step


def drop_steps(
    view: View, policy: Policy, *, excess: float, reason: str, keep_task: bool, keep_open: bool = True
) -> Dropped | None:
    """Drop the oldest steps until `excess` units are saved, or all that may go are gone."""
    dropped: set[int] = set()
    for step in droppable_steps(view, keep_task=keep_task, keep_open=keep_open):
        if excess <= 0:
            break
        dropped.add(step.seq)
        excess -= view.units_of(step)
    return _drop_fact(view, dropped, policy, reason)


def limit_messages(view: View, budget: Budget, moment: Moment, policy: Policy) -> Dropped | Plan | None:
    """When there are more messages in view than allowed, summarise the oldest steps without a model, or drop them,
    down to three quarters of that number. Does nothing in the modes `confirm` and `off`."""
    messages = len(view.seqs)
    if not budget.max_messages or messages <= budget.max_messages or policy.mode != "auto":
        return None
    planned = plan_compaction(view, budget, moment, policy, reason="messages")
    if planned is not None:
        return replace(planned, ask=False)
    dropped: set[int] = set()
    for step in droppable_steps(view, keep_task=policy.keep_task):
        if messages <= budget.max_messages * 3 // 4:
            break
        dropped.add(step.seq)
        messages -= 1 + len(step.slots)
    return _drop_fact(view, dropped, policy, "messages")


def _drop_fact(view: View, seqs: set[int], policy: Policy, reason: str) -> Dropped | None:
    if not seqs:
        return None
    return Dropped(ranges=tuple(_ranges(view, seqs)), reason=reason, rule=policy.name)


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
    view: View, budget: Budget, policy: Policy, *, target: float, reason: str = "budget"
) -> Reduction | None:
    """Return the next reduction for messages above the hard limit, when no gentler rung is left.

    None when they fit, or when nothing that remains may be touched. Dropping goes down to `target` units.
    """
    if view.units <= budget.hard:
        return None
    keep_task = policy.keep_task
    staying = view.units - sum(map(view.units_of, droppable_steps(view, keep_task=keep_task)))
    if staying > budget.hard * _SQUEEZE_ABOVE_SHARE:  # dropping the rest would not be enough
        reduction = squeeze_results(view, policy, excess=staying - budget.hard * _SQUEEZE_TO_SHARE)
        if reduction is not None:
            return reduction
    excess = view.units + DROPPED_NOTICE_UNITS - target
    return (
        drop_steps(view, policy, excess=excess, reason=reason, keep_task=keep_task)
        or squeeze_results(view, policy, excess=view.units - budget.hard)
        or drop_steps(view, policy, excess=excess, reason=reason, keep_task=keep_task, keep_open=False)
        or drop_steps(view, policy, excess=excess, reason=reason, keep_task=False, keep_open=False)
    )
