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

from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from foveal.core.compaction.kept_messages import is_harness_step
from foveal.core.compaction.plan import (
    MIN_SUMMARY_UNITS,
    NoPlan,
    Plan,
    RangeTerms,
    Saving,
    has_finished_turn,
    is_removable,
    kept_steps,
    plan_range,
    plan_record,
    safe_cut,
    saved_units,
)
from foveal.core.log.ranges import intersect_ranges
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.mask import (
    MIN_HIDDEN_UNITS,
    hide_result,
    maskable_results,
    placeholder_units,
    shorten_arguments,
    shorten_text,
)
from foveal.core.policies.ladder.priorities import low_results, lowest_steps_first
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Slot, Step
from foveal.core.view.view import View

# ── Which old turns to summarise ─────────────────────────────────────────────────────────────────────────
# This rung returns a `Plan`. The caller has the summary written and records it.

PREPARE_AT_MESSAGE_SHARE: Final = 0.8
"""At this share of the allowed number of messages, a summary of the oldest is prepared."""
MIN_FREED_SHARE: Final = 0.2
"""Share of the messages that a cut to the newest messages removes at least: a smaller one would be followed by the
next at once."""
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


def plan_oldest(view: View, budget: Budget, moment: Moment, policy: Policy, *, reason: str) -> Plan | None:
    """Return what to summarise so that the newest `keep_messages` messages stay, and one summary of all others.

    None when the policy does not allow it, or when it removes less than `MIN_FREED_SHARE` of the messages."""
    if not policy.compact or policy.mode != "auto" or moment.compacted:
        return None
    terms = summary_terms(policy)
    removed = steps_before_newest(view, budget, policy)
    if not removed:
        return None
    removed += [step for step in view.summaries if not step.is_pinned]
    room = int(min(policy.summary_tokens, budget.hard * policy.summary_share))
    planned = plan_record(view, terms, removed=removed, savings=(), room=room, reason=reason)
    if planned is None or planned.before - planned.room < view.units * MIN_FREED_SHARE:
        return None
    if covers_reverted_summary(view, planned) and view.units <= budget.hard:
        return None
    return replace(planned, ask=not moment.paused)


def steps_before_newest(view: View, budget: Budget, policy: Policy) -> list[Step]:
    """Return the steps in front of the newest `keep_messages` messages that may go, oldest first, without
    summaries. The step in which these messages begin stays whole."""
    kept = {id(step) for step in kept_steps(view, budget, summary_terms(policy))}
    end, messages = len(view.steps), 0
    while end > 0 and (messages < policy.keep_messages or end == len(view.steps)):
        end -= 1
        messages += view.steps[end].message_count if view.steps[end].kind in ("user", "model") else 0
    before = view.steps[: safe_cut(view, end, kept)]
    return [step for step in before if step.kind != "summary" and is_removable(step, kept)]


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


# ── The cut of `economy` ─────────────────────────────────────────────────────────────────────────────────

MIN_LONG_UNITS: Final = 250
"""Arguments of a call and texts above this size are long: mostly contents of files."""
MAX_UNITS_PER_CHAR: Final = 4
"""Most units of one character: one for each of its bytes. Shorter arguments need not be counted."""
MAX_NEWEST_SHARE: Final = 0.15
"""Share of the room that the newest results may take together; the very newest may take `clip_share`."""
SLACK_SHARE: Final = 0.2
"""Share of the room by which a request may exceed its goal before steps go: losing the whole cached prefix costs
more than reading this much."""
HIDDEN_SHARE: Final = 0.15
"""Share of all that is hidden that its record may take, if its room allows more: a long record of little would cost
what the cut saves."""


class _HiddenResults:
    """Old results behind their placeholders, each of which is written when it is asked for."""

    def __init__(self, view: View, policy: Policy, slots: Sequence[Slot], kept: set[int]) -> None:
        self._view = view
        self._policy = policy
        places = {id(step): place for place, step in enumerate(view.steps)}
        self._slots = [(places[id(slot.step)], slot) for slot in slots]
        newest_first = sorted(self._slots, key=lambda found: -found[0])
        hidden = (place for place, slot in newest_first if hide_result(view, slot, policy) is not None)
        # A loop of calls may need the thinking that it began with, so what stays unchanged begins at a safe place.
        end = safe_cut(view, next(hidden, -1) + 1, kept)
        self._slots = [found for found in self._slots if found[0] < end]
        self._ids = {id(slot) for _, slot in self._slots}
        results = (slot.result for _, slot in self._slots)
        self.max_saved: int = sum(result.units(view.meter) for result in results if result is not None)
        """More units than all placeholders save."""

    def savings(self, gone: Set[int] = frozenset()) -> Iterator[Saving]:
        """Yield what hides the results of all steps but those with the `id()`s in `gone`, oldest first."""
        for place, slot in self._slots:
            if (
                id(slot.step) not in gone
                and (made := hide_result(self._view, slot, self._policy)) is not None
            ):
                yield Saving(place, *made)

    def saved_in(self, step: Step) -> int:
        """Return the units that the placeholders of one step save."""
        made = (hide_result(self._view, slot, self._policy) for slot in step.slots if id(slot) in self._ids)
        return sum(saving[1] for saving in made if saving is not None)

    @cached_property
    def saved(self) -> int:
        """The units that all placeholders save."""
        return saved_units(self.savings())


def plan_cut(
    view: View, budget: Budget, policy: Policy, *, goal: float, said: int, reason: str
) -> Plan | None:
    """Return what to hide so that all messages take `goal` units, or as little as possible; None when there is
    nothing to gain. With the goal `inf`, calls, texts and steps stay. `said` are the units of all that was said so
    far."""
    terms = summary_terms(policy)
    kept = {id(step) for step in kept_steps(view, budget, terms)}
    results = _HiddenResults(view, policy, _old_results(view, budget, policy), kept)
    recorded = sum(map(view.units_of, view.summaries))
    before = said - view.units + recorded

    def room_with(hidden: int) -> int:
        """Return the room of the record if so much is hidden beside the results."""
        least, most = (record_room(budget, policy, hidden=hidden + saved) for saved in (0, results.max_saved))
        return least if least == most else record_room(budget, policy, hidden=hidden + results.saved)

    def is_above(units: int) -> bool:
        """Return whether a request of so many units is too large once results are hidden."""
        enough = goal + SLACK_SHARE * budget.hard
        least = units - results.max_saved + record_room(budget, policy, hidden=before)
        return least > enough or units - results.saved + room_with(before) > enough

    savings: list[Saving] = []
    removed: list[Step] = []
    hidden = before
    if is_above(view.units - recorded):
        newest = _newest_index(view, policy)
        savings += _long_arguments(view, newest)
        # A record of nothing but shortened texts would stand for no message.
        if is_above(view.units - recorded - saved_units(savings)) or not (results.saved or view.summaries):
            savings += _long_texts(view, newest, kept)
            most = goal + recorded - record_room(budget, policy, hidden=before + view.units)
            end = safe_cut(view, newest, kept)
            removed = _oldest(view, policy, kept, results, savings, most=most, end=end)
            hidden += saved_units(savings) + sum(map(view.units_of, removed))
    room = room_with(hidden)
    gone = {id(step) for step in removed}
    savings = [saving for saving in savings if id(view.steps[saving.place]) not in gone]
    savings = [*results.savings(gone), *savings]
    removed += [step for step in view.summaries if not step.is_protected]
    return plan_record(view, terms, removed=removed, savings=savings, room=room, reason=reason)


def record_room(budget: Budget, policy: Policy, *, hidden: int) -> int:
    """Return the units that a record may take, if so many are hidden."""
    share = max(MIN_SUMMARY_UNITS, HIDDEN_SHARE * hidden)
    return int(min(policy.summary_tokens, budget.hard * policy.summary_share, share))


def estimate_rewritten(view: View, budget: Budget, policy: Policy, *, said: int) -> tuple[int, int]:
    """Return about how many units a provider has to read anew after a cut of results, and how many of thinking are
    lost, without writing the placeholders: most turns only need to know that a cut would cost too much."""
    oldest, saved = None, 0
    for slot in _old_results(view, budget, policy):
        assert slot.result is not None
        oldest = oldest or slot.step
        units = slot.result.units(view.meter)
        saved += max(0, units - placeholder_units(units, policy)) if units > MIN_HIDDEN_UNITS else 0
    if oldest is None:
        return view.units, 0
    lost, place = view.thinking.units_after(oldest.seq, view.meter)
    before = 0
    for step in view.steps:
        if step.seq >= place:
            break
        before += view.units_of(step)
    recorded = sum(map(view.units_of, view.summaries))
    room = record_room(budget, policy, hidden=said - view.units + recorded + saved)
    return max(0, view.units - saved - recorded - lost + room - before), lost


def _old_results(view: View, budget: Budget, policy: Policy) -> list[Slot]:
    """Return the results to hide, oldest first: all but the newest, which take at most their share of the room.
    Those of low priority are hidden however new they are."""
    first_kept = view.result_count - policy.keep_last
    spare = budget.hard * MAX_NEWEST_SHARE
    old: list[Slot] = []
    maskable = maskable_results(view, policy, keep_last=0)
    low = set(map(id, low_results(view, maskable, policy)))
    for slot in reversed(maskable):
        assert slot.result is not None
        if slot.ordinal >= first_kept and id(slot) not in low:
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


def _long_arguments(view: View, end: int) -> Iterator[Saving]:
    """Yield what shortens the arguments of calls in the steps before `end`."""
    for index, step in enumerate(view.steps[:end]):
        if step.is_protected or step.has_open_call:
            continue
        for slot in step.slots:
            is_short = len(slot.call.arguments) * MAX_UNITS_PER_CHAR <= MIN_LONG_UNITS
            if is_short or not slot.has_whole_arguments:
                continue
            if slot.argument_units(view.meter) > MIN_LONG_UNITS:
                made = shorten_arguments(view, slot, MIN_LONG_UNITS)
                if made is not None:
                    yield Saving(index, *made)


def _long_texts(view: View, end: int, kept: set[int]) -> Iterator[Saving]:
    """Yield what shortens texts beside calls, and texts of the harness in the user role, in the steps before `end`.

    An answer without calls goes whole or not at all: in a chat, answers are all there is to summarise."""
    for index, step in enumerate(view.steps[:end]):
        is_text = bool(step.slots) or (step.kind == "user" and is_harness_step(step))
        if is_text and is_removable(step, kept) and not step.has_open_call:
            for mask, units in shorten_text(view, step, MIN_LONG_UNITS):
                yield Saving(index, mask, units)


def _oldest(
    view: View,
    policy: Policy,
    kept: set[int],
    results: _HiddenResults,
    savings: Sequence[Saving],
    *,
    most: float,
    end: int,
) -> list[Step]:
    """Return the steps before `end` that must go if the others take at most `most` units, once results are hidden
    and `savings` are made: those of low priority, then the oldest."""
    saved: dict[int, int] = {}
    for saving in savings:
        saved[saving.place] = saved.get(saving.place, 0) + saving.saved
    units = 0
    removable: list[tuple[int, Step]] = []
    for place, step in enumerate(view.steps):
        if place < end and step.kind != "summary" and is_removable(step, kept):
            removable.append((place, step))
        else:
            units += view.units_of(step) - saved.get(place, 0) - results.saved_in(step)
    places = {id(step): place for place, step in removable}
    ordered = lowest_steps_first(view, (step for _, step in removable), policy)
    removable = [(places[id(step)], step) for step in ordered]
    # The newest first: once there is no room for one, the results of older steps need no placeholder.
    while removable and units <= most:
        place, step = removable[-1]
        units += view.units_of(step) - saved.get(place, 0) - results.saved_in(step)
        if units <= most:
            removable.pop()
    return [step for _, step in removable]
