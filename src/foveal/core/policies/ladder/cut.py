"""A cut of `economy`: old results are hidden, the agent's trace stays.

What a model continues from is mostly its own trace: which calls it made, how, and with what thoughts. The trace is
small, because results are most of a request. So a cut goes down this list, each time only as far as it must:

1. All results before the newest are hidden at once, each behind a placeholder with its handle and its first lines.
   The cached prefix is lost from the first of them on anyway.
2. If the request is still above its goal, long arguments of old calls and long old texts of the agent are shortened
   in their own form.
3. If that is not enough, the oldest whole steps go.

A record of what the trace does not show stands behind the steps that lost something. All of it is one `Plan` and
becomes one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan, kept_steps, is_removable, plan_record, safe_cut
from foveal.core.log.events import Call, Mask, ModelSaid, Text, handle, parts
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.compact import summary_terms
from foveal.core.policies.ladder.mask import MIN_SAVED_UNITS, hide_result, maskable_results, shorten_arguments, shorten_text
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Step
from foveal.core.view.view import View

MIN_LONG_UNITS: Final = 250
"""Arguments of a call, and texts of the agent, above this size are long: mostly contents of files."""
ENOUGH_SHARE: Final = 0.65
RECORD_SHARE: Final = 0.15
MAX_NEWEST_SHARE: Final = 0.15
"""Share of the room that the newest results may take beside the trace; of larger ones fewer stay."""


class _Saving(NamedTuple):
    """A mask, the index of the step that it changes, and the units that it saves."""

    index: int
    mask: Mask
    units: int


def plan_cut(
    view: View, budget: Budget, policy: Policy, *, goal: float, said: int, reason: str, only_results: bool = False
) -> Plan | None:
    """Return what to hide so that all messages take `goal` units, or as little as possible; None when there is
    nothing to gain. With `only_results`, calls, texts and steps stay whatever the goal is."""
    terms = summary_terms(policy)
    kept = {id(step) for step in kept_steps(view, budget, terms)}
    place = {id(step): index for index, step in enumerate(view.steps)}
    savings = [
        _Saving(place[id(slot.step)], *made)
        for slot in _old_results(view, budget, policy)
        if (made := hide_result(view, slot, policy)) is not None
    ]
    end = safe_cut(view.steps, max((saving.index for saving in savings), default=-1) + 1, kept)
    savings = [saving for saving in savings if saving.index < end]
    room = min(policy.summary_tokens, int(budget.hard * policy.summary_share))
    room = int(min(room, RECORD_SHARE * (said - view.units + sum(s.units for s in savings) + sum(map(view.units_of, view.summaries)))))
    left = view.units + room - sum(map(view.units_of, view.summaries)) - sum(s.units for s in savings)
    removed: list[Step] = []
    if left > budget.hard * ENOUGH_SHARE and not only_results:
        newest = _newest_index(view, policy)
        shortened = list(_shorten(view, policy, newest))
        savings += shortened
        left -= sum(saving.units for saving in shortened)
        if left > budget.hard * ENOUGH_SHARE:
            removed = _oldest(view, kept, savings, excess=left - goal, end=safe_cut(view.steps, newest, kept))
    gone = {id(step) for step in removed}
    savings = [saving for saving in savings if id(view.steps[saving.index]) not in gone]
    removed += [step for step in view.summaries if not step.is_pinned]
    return plan_record(
        view,
        budget,
        terms,
        removed=removed,
        masks=[saving.mask for saving in savings],
        saved=sum(saving.units for saving in savings),
        room=room,
        reason=reason,
    )


def _old_results(view: View, budget: Budget, policy: Policy):
    """Return the results to hide: all but the newest, which take at most their share of the room."""
    results = maskable_results(view, policy)
    spare = budget.hard * MAX_NEWEST_SHARE
    newest = [
        slot
        for slot in maskable_results(view, replace(policy, keep_last=1))
        if slot.ordinal >= view.result_count - policy.keep_last
    ]
    for slot in reversed(newest):
        spare -= slot.result.units(view.meter)
        if spare < 0:
            results.append(slot)
    return sorted(results, key=lambda slot: slot.ordinal)


def _newest_index(view: View, policy: Policy) -> int:
    """Return the index of the first of the newest steps, which stay as they are."""
    results = 0
    for index in range(len(view.steps) - 1, -1, -1):
        results += sum(slot.ordinal >= 0 for slot in view.steps[index].slots)
        if results >= policy.keep_last:
            return index
    return 0


def _shorten(view: View, policy: Policy, end: int) -> Iterator[_Saving]:
    """Yield what shortens long arguments and long texts of the agent in the steps before `end`."""
    for index, step in enumerate(view.steps[:end]):
        if step.kind != "model" or step.is_pinned or step.has_open_call:
            continue
        for slot in step.slots:
            if slot.has_whole_arguments and slot.argument_units(view.meter) > MIN_LONG_UNITS:
                made = shorten_arguments(view, slot, MIN_LONG_UNITS)
                if made is not None:
                    yield _Saving(index, *made)
        for mask, units in shorten_text(view, step, MIN_LONG_UNITS):
            yield _Saving(index, mask, units)


def _oldest(view: View, kept: set[int], savings: Sequence[_Saving], *, excess: float, end: int) -> list[Step]:
    """Return the oldest steps before `end` that bring the request to its goal, once `savings` are made."""
    saved: dict[int, int] = {}
    for saving in savings:
        saved[saving.index] = saved.get(saving.index, 0) + saving.units
    removed: list[Step] = []
    for index, step in enumerate(view.steps[:end]):
        if excess <= 0:
            break
        if step.kind != "summary" and is_removable(step, kept):
            removed.append(step)
            excess -= view.units_of(step) - saved.get(index, 0)
    return removed
