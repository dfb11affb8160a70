"""Choice of the range of the log that a summary replaces.

The choice is pure and is made before a model is asked:

1. A cut lies between two steps, so a call and its results are on the same side. A loop of calls that began with the
   model's thinking is not cut before a step without thinking of its own: a provider would refuse what is left. With
   a model that binds thinking, none from before the cut is left, and any cut is legal. The summary takes the place
   of the last summarised step, so steps before the cut that stay (an open call) come after it and count as what is
   left.
2. The latest request, the newest open calls, instructions and pinned steps are never summarised. A single request
   with one long loop of calls can still be compacted: the steps behind the request are summarised.
3. A range is summarised only if it is large enough: it must take more units than the last summary and than
   `MIN_RANGE_UNITS`.
4. When what must stay is larger than the room, `NoPlan` says how large it is; a retry would change nothing.
5. Summaries stay side by side, each as it was written, until there are too many or they take too much of the room;
   then all of them become one.
6. User messages stay as they are within their share of the room (`kept_messages`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from foveal.core.compaction.kept_messages import kept_user_steps
from foveal.core.compaction.ledger.range_facts import LedgerIndex
from foveal.core.log.events import Dropped, Event, Mask, UserSaid
from foveal.core.log.ranges import is_within, seqs_outside
from foveal.core.models.budget import Budget
from foveal.core.view.steps import Step
from foveal.core.view.view import View

MIN_RANGE_UNITS: Final = 120
"""Units a range must exceed to be worth a summary: the frame of a summary alone takes a third of that."""
_seq = attrgetter("seq")
MAX_KEPT_OPEN_STEPS: Final = 3
"""Steps with an unanswered call that are kept, newest first; older calls count as abandoned."""
MAX_REMAINING_SHARE: Final = 0.8
"""A compaction should leave the request at or below this share of its trigger, or the next follows at once."""
MAX_SUMMARIES_SHARE: Final = 0.35
"""Summaries that together take more than this share of what is left beside user messages and rules are merged."""
MIN_SUMMARY_UNITS: Final = 150
MIN_SUMMARY_SHARE: Final = 0.08
"""The room that a summary gets however little is left, and the share of all room: the rules of the user are in it,
and new results can be clipped."""
MIN_FORCED_RANGE_UNITS: Final = 60
"""Units a range must exceed for a record of it to be smaller, when something must go."""


class RangeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy chooses ranges. Shares are of the room for messages."""

    rule: str
    tail: float = 0.25
    """Share of the room that the newest steps keep verbatim."""
    keep_messages: int = 0
    """Messages that stay verbatim at least, if they take no more than half of the room."""
    keep_task: bool = True
    """Whether the first request of the user stays."""
    retain_user_share: float = 0.0
    """Share of the room up to which all user messages stay."""
    retain_user_tokens: int = 0
    """The same in tokens; the smaller limit applies."""
    every_turns: int = 0
    """New turns after which a summary is due; 0 means that only tokens trigger one."""
    overlap_turns: int = 0
    """Turns covered by the previous summary that are read again."""
    summary_tokens: int = 3_000
    summary_share: float = 0.15
    """What a summary may take: the smaller of the two limits."""
    max_summaries: int = 3
    """Summaries that stay side by side; with this many, the next compaction merges them."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One range of the log for a summary to replace.

    Examples:
        ```python
        from foveal.policies import Plan

        def is_worth_a_model(plan: Plan) -> bool:
            return plan.before > 20_000
        ```
    """

    first: int
    """The seq of the first event."""
    last: int
    """The seq of the last event, included."""
    keep: tuple[int, ...] = ()
    """Seqs of events in the range that stay as they are."""
    masks: tuple[Mask, ...] = ()
    """Placeholders for results, arguments and texts of steps in the range that stay."""
    shortened: tuple[int, ...] = ()
    """Seqs of `keep` whose messages are shown with a part missing: what they miss is quoted like the rest."""
    turns: int
    """User requests in the range, those that stay included."""
    events: int
    """Events in the range."""
    before: int
    """Units that the range takes now, as shown."""
    room: int
    """Units that the summary may take."""
    rewritten: int = 0
    """Units of the messages from the first change on, once it is made: what a provider has to read anew."""
    lost_thinking: int = 0
    """Units of the thinking that requests leave out afterwards, because it is bound to what changes."""
    total: int
    """Units of all messages before the compaction."""
    reason: str
    """The trigger: `tokens`, `turns`, `messages`, `hand`, `overflow`, `model`, `merge`, `room` or
    `price`."""
    rule: str
    """The rule that decided it."""
    overlap: int = 0
    """Turns before the range to read again."""
    overlap_ranges: tuple[tuple[int, int], ...] = ()
    """Ranges of the last summary, in which `resolve_plan` finds those turns."""
    ask: bool = True
    """Whether a model may be asked."""
    focus: str = ""
    """What the user wants the summary to keep above all."""


class NoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why no range can be summarised."""

    floor: int
    """Units that compaction cannot remove."""
    room: int
    """Units that the messages may take."""
    newest: int = 0
    """Units of the newest step, which stays until another message follows it."""

    def explain(self, ratio: float) -> str:
        """Return the reason as a sentence; `ratio` is tokens per unit."""
        if self.floor <= self.room:
            return "nothing that may be summarised is worth a summary"
        advice = "shorten instructions, undo pins, or raise `window`"
        if self.newest * 2 > self.floor:
            advice = (
                f"the newest message alone takes {round(self.newest * ratio):,} and can be summarised once "
                "another one follows it; or raise `window`"
            )
        return (
            f"what must stay takes {round(self.floor * ratio):,} tokens, and there is room for "
            f"{round(self.room * ratio):,}: {advice}"
        )


class Saving(NamedTuple):
    """A mask, the place of the step that it changes, and the units that it saves."""

    place: int
    mask: Mask
    saved: int


def saved_units(savings: Iterable[Saving]) -> int:
    return sum(saving.saved for saving in savings)


def plan_range(
    view: View, budget: Budget, terms: RangeTerms, *, reason: str, focus: str = ""
) -> Plan | NoPlan:
    """Return the range to summarise now, or why there is none."""
    # A compaction that the user asks for records no clips, so messages count with their whole length.
    choice = _RangeChoice(view, budget, terms, clips_long=reason != "hand")
    begin = choice.first_index()
    floor = view.units - sum(
        view.units_of(step) for step in view.steps[:-1] if is_removable(step, choice.kept)
    )
    if floor > budget.hard:
        newest = sum(view.units_of(step) for step in view.steps[-1:] if step.kind == "model")
        return NoPlan(floor=floor, room=budget.hard, newest=newest)
    must_exceed = max([MIN_RANGE_UNITS, *(view.units_of(step) for step in view.summaries[-1:])])
    best: Plan | None = None
    for end in choice.cut_candidates(reason):
        candidate = choice.plan(begin, end, reason)
        if candidate is None or candidate.before <= must_exceed:
            continue
        best = replace(candidate, focus=focus)
        remaining = view.units - candidate.before + candidate.room
        if reason == "turns" or remaining <= budget.act * MAX_REMAINING_SHARE:
            break
    return NoPlan(floor=floor, room=budget.hard) if best is None else best


def plan_forced(
    view: View, budget: Budget, terms: RangeTerms, *, target: float, shrink: bool = False
) -> Plan | None:
    """Return a range to replace by a record without a model, because the request would not fit otherwise.

    The range is what was said since the last summary, as much of it as brings the request to `target` units. If
    there is nothing of it, all summaries are merged. With `shrink`, the only summary is written again at half its
    size. None when there is nothing to gain.
    """
    choice = _RangeChoice(view, budget, terms)
    for begin in dict.fromkeys((choice.first_index(), 0)):
        best: Plan | None = None
        for end in choice.cut_candidates("room"):
            removed = [step for step in view.steps[begin:end] if is_removable(step, choice.kept)]
            if len(removed) == 1 and removed[0].kind == "summary" and not shrink:
                continue
            found = choice.plan(begin, end, "room")
            if found is None or found.before <= (2 * MIN_SUMMARY_UNITS if shrink else MIN_FORCED_RANGE_UNITS):
                continue
            best = replace(found, ask=False)
            if view.units - found.before + found.room <= target:
                break
        if best is not None:
            return best
    return None


def plan_record(
    view: View,
    terms: RangeTerms,
    *,
    removed: Sequence[Step],
    savings: Sequence[Saving],
    room: int,
    reason: str,
) -> Plan | None:
    """Return the plan of a record for steps that go, earlier summaries among them, and for what `savings` hide in
    steps that stay. None when there is nothing to gain."""
    if not savings and all(step.kind == "summary" for step in removed):
        return None
    gone = {id(step) for step in removed}
    masks = tuple(saving.mask for saving in savings)
    targets = {mask.target for mask in masks}
    changed = [
        index
        for index, step in enumerate(view.steps)
        if id(step) in gone or any(shown.seq in targets for shown in step.shown_messages())
    ]
    before = saved_units(savings) + sum(map(view.units_of, removed))
    if not changed or before <= MIN_FORCED_RANGE_UNITS:
        return None
    end = changed[-1] + 1
    after = view.steps[end].seq if end < len(view.steps) else None
    seqs = [seq for index in changed for seq in _step_seqs(view.steps[index], after)]
    first, last = min(seqs), max(seqs)
    keep = {
        seq
        for step in view.steps[:end]
        if step.kind in ("user", "model") and id(step) not in gone
        for seq in kept_seqs(step, removed)
        if first <= seq <= last and (seq == step.seq or seq not in targets)
    }
    results = [
        slot.result for index in changed for slot in view.steps[index].slots if slot.result is not None
    ]
    # Lost thinking is missing in its own messages: with the first of them, the prefix changes.
    lost, place = view.thinking.units_after(view.steps[changed[0]].seq, view.meter)
    unchanged = view.steps[: min(changed[0], bisect_left(view.steps, place, key=_seq))]
    return Plan(
        first=first,
        last=last,
        keep=tuple(sorted(keep)),
        masks=masks,
        shortened=tuple(sorted(seq for seq in keep if seq in targets or _is_shortened(view, seq))),
        turns=sum(step.kind == "user" and first <= step.seq <= last for step in view.steps),
        events=sum(step.message_count for step in removed) + sum(result.seq in targets for result in results),
        before=before,
        room=max(1, min(room, before // 2)),
        rewritten=max(0, view.units - before - lost + room - sum(map(view.units_of, unchanged))),
        lost_thinking=lost,
        total=view.units,
        reason=reason,
        rule=terms.rule,
    )


def _is_shortened(view: View, seq: int) -> bool:
    found = view.find(seq)
    return found is not None and found[1].is_masked


def resolve_plan(plan: Plan, events: Sequence[Event], index: LedgerIndex | None = None) -> Plan:
    """Return the plan with its overlap and its counts taken from the log.

    `events` are the effective events, from any place at or before the range. The `index` has what earlier ledgers
    have read."""
    span = [seq for pair in plan.overlap_ranges for seq in pair]
    # The requests of these turns may have stayed in view, so they are looked up between the ends of the ranges.
    overlapped = (
        [
            event.seq
            for event in events_within(events, min(span), max(span))
            if isinstance(event.fact, UserSaid)
        ]
        if plan.overlap and span
        else []
    )
    again = overlapped[-plan.overlap :] if plan.overlap else []
    first = min([plan.first, *again[:1]])
    within = events_within(events, first, plan.last)
    turns = _count_requests(within) if index is None else len(index.range_facts(within).requests)
    keep = plan.keep[bisect_left(plan.keep, first) :]
    kept = sum(has_event(within, seq) for seq in keep)
    return replace(plan, first=first, keep=keep, turns=turns, events=len(within) - kept)


def read_range(
    plan: Plan, events: Sequence[Event], index: LedgerIndex | None = None, *, has_drops: bool = True
) -> tuple[Plan, Sequence[Event], Sequence[Event]]:
    """Return a resolved plan, the events of its range, and those after it.

    `events` and `index` are as for `resolve_plan`. Steps that the user dropped are left out: a summary must not
    bring them back. Where no event is a drop, `has_drops=False` saves the search for them."""
    events = without_requested_drops(events) if has_drops else events
    plan = resolve_plan(plan, events, index)
    return (
        plan,
        events_within(events, plan.first, plan.last),
        events[bisect_right(events, plan.last, key=_seq) :],
    )


def has_requested_drops(events: Sequence[Event]) -> bool:
    """Return whether one of these effective events is a drop that the user requested."""
    return any(_requested_ranges(events))


def without_requested_drops(events: Sequence[Event]) -> Sequence[Event]:
    """Return effective events without the steps that later ones of them drop at the user's request."""
    ranges = tuple(_requested_ranges(events))
    if not ranges:
        return events
    kept = set(seqs_outside((event.seq for event in events), _joined(ranges)))
    return [event for event in events if event.seq in kept]


def _requested_ranges(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    for event in events:
        if isinstance(event.fact, Dropped) and event.fact.reason == "hand":
            yield from event.fact.ranges


def _joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of several drops as a set of ranges that do not overlap."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return tuple(joined)


def events_within(events: Sequence[Event], first: int, last: int) -> Sequence[Event]:
    """Return the events from seq `first` to `last`, both included; the events are in the order of the log."""
    return events[bisect_left(events, first, key=_seq) : bisect_right(events, last, key=_seq)]


def _count_requests(events: Sequence[Event]) -> int:
    return sum(isinstance(event.fact, UserSaid) for event in events)


def has_event(events: Sequence[Event], seq: int) -> bool:
    """Return whether an event is among these, which are in the order of the log."""
    place = bisect_left(events, seq, key=_seq)
    return place < len(events) and events[place].seq == seq


def range_fingerprint(view: View, plan: Plan) -> tuple[object, ...]:
    """Return the state of a plan's range in a view: equal as long as a summary of it would still be true."""
    keep = frozenset(plan.keep)  # hundreds of seqs in a long range, and each step is looked up in them
    inside = (step for step in view.steps if plan.first <= step.seq <= plan.last and step.seq not in keep)
    superseded = (pair for pair in view.superseded.items() if plan.first <= pair[0] <= plan.last)
    return (
        *((step.seq, step.utterance.seq, step.pin_seq, step.covers, len(step.slots)) for step in inside),
        *superseded,
    )


def has_finished_turn(view: View) -> bool:
    """Return whether the latest turn is finished: the newest message of the conversation is an answer without
    calls."""
    newest = next((step for step in reversed(view.steps) if step.kind in ("user", "model")), None)
    return newest is not None and newest.kind == "model" and not newest.slots


# ── What stays ───────────────────────────────────────────────────────────────────────────────────────────


def kept_steps(view: View, budget: Budget, terms: RangeTerms, *, clips_long: bool = True) -> Iterator[Step]:
    """Yield the steps that no summary may replace."""
    latest = view.latest_user
    if latest is not None:
        yield latest
    if terms.keep_task and view.first_user is not None:
        yield view.first_user
    yield from islice((step for step in reversed(view.steps) if step.has_open_call), MAX_KEPT_OPEN_STEPS)
    yield from kept_user_steps(view, budget, terms, clips_long=clips_long)


def is_removable(step: Step, kept: Set[int]) -> bool:
    return step.kind in ("user", "model", "summary") and not step.is_protected and id(step) not in kept


# ── Where to cut ─────────────────────────────────────────────────────────────────────────────────────────


class _RangeChoice:
    """The steps of a view that a summary may replace, and where their range may begin and end."""

    def __init__(self, view: View, budget: Budget, terms: RangeTerms, *, clips_long: bool = True) -> None:
        self.view = view
        self.budget = budget
        self.terms = terms
        self.kept: set[int] = {id(step) for step in kept_steps(view, budget, terms, clips_long=clips_long)}
        """The `id()`s of the steps that stay."""

    def first_index(self) -> int:
        """Return the index of the first step that may go: after the last summary, or 0 to merge all summaries."""
        view = self.view
        summaries = [index for index, step in enumerate(view.steps) if step.kind == "summary"]
        if not summaries:
            return 0
        before = view.steps[: summaries[-1]]
        if any(step.kind == "model" and is_removable(step, self.kept) for step in before):
            return 0  # it is the record of a cut, and stands behind the trace
        units = sum(view.units_of(view.steps[index]) for index in summaries)
        is_full = len(summaries) > 1 and units > MAX_SUMMARIES_SHARE * self._free_units()
        return 0 if is_full or len(summaries) >= self.terms.max_summaries else summaries[-1] + 1

    def _free_units(self) -> int:
        """Return the room beside rules, instructions and the user messages that stay."""
        staying = (step for step in self.view.steps if id(step) in self.kept and step.kind == "user")
        return self.budget.hard - self.view.permanent_units - sum(map(self.view.units_of, staying))

    def cut_candidates(self, reason: str) -> Iterator[int]:
        """Yield safe indexes to cut at, the one that keeps most first."""
        view, terms, steps = self.view, self.terms, self.view.steps
        if not steps:
            return
        latest = view.latest_user
        if reason == "turns" and latest is not None:
            # A finished turn goes whole; of a running one nothing does. The latest request itself stays either way.
            yield safe_cut(view, len(steps) if has_finished_turn(view) else steps.index(latest), self.kept)
            return
        whole = view.units if reason in ("hand", "messages") else self.budget.hard
        seen: set[int] = set()
        for share in (terms.tail, terms.tail / 2, terms.tail / 4, 0.0):
            min_messages = terms.keep_messages if share else 0
            end = safe_cut(view, self._tail_index(whole * share, min_messages), self.kept)
            if end not in seen:
                seen.add(end)
                yield end

    def _tail_index(self, room: float, min_messages: int) -> int:
        """Return the index of the first of the newest steps that fit into the room; at least the last step fits."""
        view = self.view
        index = len(view.steps)
        units = messages = 0
        for step in reversed(view.steps):
            units += view.units_of(step)
            messages += 1 + len(step.slots)
            is_full = units > room and (messages > min_messages or units > self.budget.hard / 2)
            if index < len(view.steps) and is_full:
                break
            index -= 1
        return index

    def plan(self, begin: int, end: int, reason: str) -> Plan | None:
        """Return the plan of a range of steps; None when none of them may go."""
        view, terms = self.view, self.terms
        removed = [step for step in view.steps[begin:end] if is_removable(step, self.kept)]
        if not removed:
            return None
        after = view.steps[end].seq if end < len(view.steps) else None
        seqs = [seq for step in removed for seq in _step_seqs(step, after)]
        first, last = min(seqs), max(seqs)
        removed_ids = {id(step) for step in removed}
        merged = sum(step.kind == "summary" for step in removed)
        keep = {
            seq
            for step in view.steps
            if id(step) not in removed_ids and step.kind in ("user", "model")
            for seq in kept_seqs(step, removed)
            if seq <= last
        }
        summaries = view.summaries
        overlap_ranges = summaries[-1].covers if summaries and terms.overlap_turns and not merged else ()
        lowest = min([first, *(low for low, _ in overlap_ranges)])
        before = sum(map(view.units_of, removed))
        # A record that is forced gives way: it takes what is left.
        least = MIN_SUMMARY_UNITS if reason == "room" else _least_room(self.budget)
        return Plan(
            first=first,
            last=last,
            keep=tuple(seq for seq in sorted(keep) if seq >= lowest),
            turns=sum(step.kind == "user" and first <= step.seq <= last for step in view.steps),
            events=sum(step.message_count for step in removed),
            before=before,
            room=max(1, min(self._summary_room(least), before // 2)),
            total=view.units,
            reason="merge" if merged and merged == len(removed) and reason == "tokens" else reason,
            rule=terms.rule,
            overlap=terms.overlap_turns,
            overlap_ranges=overlap_ranges,
        )

    def _summary_room(self, least: int) -> int:
        """Return the units that a summary may take."""
        share = min(self.terms.summary_tokens, int(self.budget.hard * self.terms.summary_share))
        return min(share, max(least, self._free_units() // 2))


def safe_cut(view: View, cut: int, kept: Set[int]) -> int:
    """Return the nearest index at or before `cut` where a cut leaves a history that every provider accepts."""
    steps = view.steps
    while not view.thinking.is_bound:
        first_left = cut
        # Steps right before the cut that stay anyway follow the summary, so they are what is left of a loop.
        while first_left > 0 and not is_removable(steps[first_left - 1], kept):
            first_left -= 1
        thinking = thinking_before(steps, first_left)
        if thinking is None:
            break
        cut = thinking
    return cut


def thinking_before(steps: Sequence[Step], index: int) -> int | None:
    """Return the index of the thinking that a loop of calls going on at `index` needs, None if it needs none."""
    if index >= len(steps) or not _in_loop(steps[index]) or steps[index].has_thinking:
        return None
    for before in range(index - 1, -1, -1):
        if not _in_loop(steps[before]):
            return None
        if steps[before].has_thinking:
            return before
    return None


def _in_loop(step: Step) -> bool:
    return step.kind == "model" and bool(step.slots)


def _least_room(budget: Budget) -> int:
    return max(MIN_SUMMARY_UNITS, int(budget.hard * MIN_SUMMARY_SHARE))


def kept_seqs(step: Step, removed: Sequence[Step]) -> Iterator[int]:
    """Yield the seqs of a step that stays, without results that a record stands for: those behind placeholders, and
    those that one of the removed summaries covers."""
    yield step.utterance.seq
    for slot in step.slots:
        result = slot.result
        if result is None or result.is_masked:
            continue
        if not any(is_within(result.seq, other.covers) for other in removed if other.kind == "summary"):
            yield result.seq


def _step_seqs(step: Step, after: int | None) -> list[int]:
    """Return the seqs of a step's events, or the ends of a summary's ranges.

    Late results, with a seq of `after` or more, are left out: they lie behind the cut."""
    if step.covers:
        return [seq for span in step.covers for seq in span]
    if not step.slots:
        return [step.seq]
    return [shown.seq for shown in step.shown_messages() if after is None or shown.seq < after]
