"""A cut of `economy`: old results are hidden, the agent's trace stays.

What a model continues from is mostly its own trace: which calls it made, how, and with what thoughts. The trace is
small, because results are most of a request. So a cut goes down this list, each time only as far as it must:

1. All results before the newest are hidden at once, each behind a placeholder with its handle and what it holds in
   a line or two. The cached prefix is lost from the first of them on anyway.
2. If the request is still far above its goal, long arguments of old calls are shortened in their own keys.
3. If that is not enough, long old texts beside calls and of the harness are shortened, and the oldest whole steps
   go, down to the goal: without the first messages nothing of the cached prefix is left, so this is done seldom and
   then makes room for long.

A record of what the trace does not show stands behind the steps that lost something. All of it is one `Plan` and
becomes one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from foveal.core.compaction.kept_messages import is_harness_step
from foveal.core.compaction.plan import (
    MIN_SUMMARY_UNITS,
    Plan,
    is_removable,
    kept_steps,
    plan_record,
    safe_cut,
)
from foveal.core.log.events import Mask
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.compact import summary_terms
from foveal.core.policies.ladder.mask import (
    MIN_HIDDEN_UNITS,
    hide_result,
    maskable_results,
    placeholder_units,
    shorten_arguments,
    shorten_text,
)
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Slot, Step
from foveal.core.view.view import View

MIN_LONG_UNITS: Final = 250
"""Arguments of a call and texts above this size are long: mostly contents of files."""
MAX_NEWEST_SHARE: Final = 0.15
"""Share of the room that the newest results may take together; the very newest may take `clip_share`."""
SLACK_SHARE: Final = 0.2
"""Share of the room by which a request may exceed its goal before steps go: losing the whole cached prefix costs
more than reading this much."""
HIDDEN_SHARE: Final = 0.15
"""Share of all that is hidden that its record may take, if its room allows more: a long record of little would cost
what the cut saves."""


class _Saving(NamedTuple):
    """A mask, the place of the step that it changes, and the units that it saves."""

    place: int
    mask: Mask
    saved: int


def plan_cut(
    view: View,
    budget: Budget,
    policy: Policy,
    *,
    goal: float,
    said: int,
    reason: str,
    only_results: bool = False,
) -> Plan | None:
    """Return what to hide so that all messages take `goal` units, or as little as possible; None when there is
    nothing to gain. With `only_results`, calls, texts and steps stay whatever the goal is. `said` are the units of
    all that was said so far."""
    terms = summary_terms(policy)
    kept = {id(step) for step in kept_steps(view, budget, terms)}
    places = {id(step): place for place, step in enumerate(view.steps)}
    savings = [
        _Saving(places[id(slot.step)], *made)
        for slot in _old_results(view, budget, policy)
        if (made := hide_result(view, slot, policy)) is not None
    ]
    # A loop of calls may need the thinking that it began with, so what stays unchanged begins at a safe place.
    end = safe_cut(view.steps, max((saving.place for saving in savings), default=-1) + 1, kept)
    savings = [saving for saving in savings if saving.place < end]
    recorded = sum(map(view.units_of, view.summaries))
    before = said - view.units + recorded
    room = _record_room(budget, policy, hidden=before + _units_of(savings))
    enough = goal + SLACK_SHARE * budget.hard
    hides_results = bool(savings)
    removed: list[Step] = []
    if not only_results and view.units - recorded - _units_of(savings) + room > enough:
        newest = _newest_index(view, policy)
        savings += _long_arguments(view, newest)
        left = view.units - recorded - _units_of(savings)
        # A record of nothing but shortened texts would stand for no message.
        if left + room > enough or not (hides_results or view.summaries):
            savings += _long_texts(view, newest, kept)
            room = _record_room(budget, policy, hidden=before + view.units)
            excess = view.units - recorded - _units_of(savings) + room - goal
            removed = _oldest(view, kept, savings, excess=excess, end=safe_cut(view.steps, newest, kept))
            hidden = before + _units_of(savings) + sum(map(view.units_of, removed))
            room = _record_room(budget, policy, hidden=hidden)
    gone = {id(step) for step in removed}
    savings = [saving for saving in savings if id(view.steps[saving.place]) not in gone]
    removed += [step for step in view.summaries if not step.is_pinned]
    return plan_record(
        view,
        terms,
        removed=removed,
        masks=[saving.mask for saving in savings],
        saved=_units_of(savings),
        room=room,
        reason=reason,
    )


def _record_room(budget: Budget, policy: Policy, *, hidden: int) -> int:
    """Return the units that a record may take, if so many are hidden."""
    share = max(MIN_SUMMARY_UNITS, HIDDEN_SHARE * hidden)
    return int(min(policy.summary_tokens, budget.hard * policy.summary_share, share))


def estimate_rewritten(view: View, budget: Budget, policy: Policy, *, said: int) -> int:
    """Return about how many units a provider has to read anew after a cut of results, without writing the
    placeholders: most turns only need to know that a cut would cost too much."""
    oldest, saved = None, 0
    for slot in _old_results(view, budget, policy):
        assert slot.result is not None
        oldest = oldest or slot.step
        units = slot.result.units(view.meter)
        saved += max(0, units - placeholder_units(units, policy)) if units > MIN_HIDDEN_UNITS else 0
    if oldest is None:
        return view.units
    before = 0
    for step in view.steps:
        if step is oldest:
            break
        before += view.units_of(step)
    recorded = sum(map(view.units_of, view.summaries))
    room = _record_room(budget, policy, hidden=said - view.units + recorded + saved)
    return view.units - saved - recorded + room - before


def _units_of(savings: Sequence[_Saving]) -> int:
    return sum(saving.saved for saving in savings)


def _old_results(view: View, budget: Budget, policy: Policy) -> list[Slot]:
    """Return the results to hide, oldest first: all but the newest, which take at most their share of the room."""
    first_kept = view.result_count - policy.keep_last
    spare = budget.hard * MAX_NEWEST_SHARE
    old: list[Slot] = []
    for slot in reversed(maskable_results(view, policy, keep_last=0)):
        assert slot.result is not None
        if slot.ordinal >= first_kept:
            units = slot.result.units(view.meter)
            spare -= units
            is_newest = slot.ordinal == view.result_count - 1
            if spare >= 0 or (is_newest and units <= budget.hard * policy.clip_share):
                continue
        old.append(slot)
    return old[::-1]


def _newest_index(view: View, policy: Policy) -> int:
    """Return the index of the first of the newest steps, which stay as they are."""
    results = 0
    for index in range(len(view.steps) - 1, -1, -1):
        results += sum(slot.ordinal >= 0 for slot in view.steps[index].slots)
        if results >= policy.keep_last:
            return index
    return max(0, len(view.steps) - 1)


def _long_arguments(view: View, end: int) -> Iterator[_Saving]:
    """Yield what shortens the arguments of calls in the steps before `end`."""
    for index, step in enumerate(view.steps[:end]):
        if step.is_pinned or step.has_open_call:
            continue
        for slot in step.slots:
            if slot.has_whole_arguments and slot.argument_units(view.meter) > MIN_LONG_UNITS:
                made = shorten_arguments(view, slot, MIN_LONG_UNITS)
                if made is not None:
                    yield _Saving(index, *made)


def _long_texts(view: View, end: int, kept: set[int]) -> Iterator[_Saving]:
    """Yield what shortens texts beside calls, and texts of the harness in the user role, in the steps before `end`.

    An answer without calls goes whole or not at all: in a chat, answers are all there is to summarise."""
    for index, step in enumerate(view.steps[:end]):
        is_text = bool(step.slots) or (step.kind == "user" and is_harness_step(step))
        if is_text and is_removable(step, kept) and not step.has_open_call:
            for mask, units in shorten_text(view, step, MIN_LONG_UNITS):
                yield _Saving(index, mask, units)


def _oldest(view: View, kept: set[int], savings: Sequence[_Saving], *, excess: float, end: int) -> list[Step]:
    """Return the oldest steps before `end` that bring the request to its goal, once `savings` are made."""
    saved: dict[int, int] = {}
    for saving in savings:
        saved[saving.place] = saved.get(saving.place, 0) + saving.saved
    removed: list[Step] = []
    for index, step in enumerate(view.steps[:end]):
        if excess <= 0:
            break
        if step.kind != "summary" and is_removable(step, kept):
            removed.append(step)
            excess -= view.units_of(step) - saved.get(index, 0)
    return removed
