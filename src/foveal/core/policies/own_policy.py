"""Policies that decide by themselves: what they return is made, and checked, here.

1. The methods of a `PolicyView` make reductions that are legal.
2. `decide_own` refuses every other reduction that a law forbids, with the reason.
3. Where a policy returns nothing and the request does not fit, its settings decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from math import inf
from typing import Final, TypeVar, assert_never, cast

from msgspec.structs import replace

from foveal.core.compaction.plan import Plan, plan_record
from foveal.core.log.events import Clipped, Compacted, Dropped, Masked, Reverted, handle
from foveal.core.log.ranges import Ranges, is_within
from foveal.core.models.budget import Budget
from foveal.core.policies import economy, ladder, simple
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.policy_view import PolicySettings, PolicyView
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Slot, Step
from foveal.core.view.view import View
from foveal.errors import BadReduction

OWN_REASON: Final = "policy"
"""Reason of a reduction that a policy of the application's own made."""

DecisionT = TypeVar("DecisionT", bound=Decision)


class _LadderMoves:
    """Reductions of one view, made by the rungs of the ladder with the settings of a policy."""

    def __init__(self, view: View, budget: Budget, policy: Policy) -> None:
        self._view = view
        self._budget = budget
        self._policy = policy
        self._made: list[object] = []

    def maskable(self) -> Set[int]:
        """Return the `id()`s of the calls whose results may be hidden."""
        return {id(slot) for slot in ladder.maskable_results(self._view, self._policy)}

    def removable(self) -> Set[int]:
        """Return the `id()`s of the steps that may go."""
        return {id(step) for step in ladder.droppable_steps(self._view, self._budget, self._policy)}

    def hide(self, slots: Sequence[Slot]) -> Masked | None:
        """Return the reduction that hides results."""
        return self._note(ladder.mask_results(self._view, slots, self._policy, excess=inf, reason=OWN_REASON))

    def summarise(self, steps: Set[int], focus: str) -> Plan | None:
        """Return the plan to replace steps, and all summaries, by one summary."""
        removed = self._legal(steps)
        if not removed:
            return None
        view, policy = self._view, self._policy
        removed += [step for step in view.summaries if not step.is_pinned]
        room = ladder.record_room(self._budget, policy, hidden=sum(map(view.units_of, removed)))
        terms = ladder.summary_terms(policy)
        planned = plan_record(view, terms, removed=removed, savings=(), room=room, reason=OWN_REASON)
        return None if planned is None else self._note(replace(planned, focus=focus))

    def drop(self, steps: Set[int]) -> Dropped | None:
        """Return the reduction that drops steps; None if nothing forces it and too little would be left."""
        view, legal = self._view, self._legal(steps)
        if view.units <= self._budget.act and not leaves_half(view, sum(map(view.units_of, legal))):
            return None
        return self._note(ladder.drop_steps(view, iter(legal), self._policy, excess=inf, reason=OWN_REASON))

    def by_settings(self, policy: PolicySettings, budget: Budget, moment: Moment) -> Decision:
        """Return what the settings of a policy would do."""
        return self._note(_decide_by_ladder(self._view, budget, moment, cast(Policy, policy)))

    def has_made(self, decision: Decision) -> bool:
        """Return whether this object was made here, or a plan for what it hides."""
        return any(made is decision for made in self._made) or (
            isinstance(decision, Plan)
            and any(
                isinstance(made, Plan) and _hidden_by(made) == _hidden_by(decision) for made in self._made
            )
        )

    def _legal(self, chosen: Set[int]) -> list[Step]:
        """Return the chosen steps, oldest first, without those whose thinking later ones need."""
        gone = chosen - needed_thinking(self._view, chosen)
        return [step for step in self._view.steps if id(step) in gone]

    def _note(self, made: DecisionT) -> DecisionT:
        self._made.append(made)
        return made


def _decide_by_ladder(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    match policy.ladder:
        case "economy":
            return economy.decide_economy(view, budget, moment, policy)
        case "plain":
            return simple.decide_plain(view, budget, moment, policy)
        case "summary":
            return simple.decide_summary(view, budget, moment, policy)
        case "rolling":
            return simple.decide_rolling(view, budget, moment, policy)
        case "recent":
            return simple.decide_recent(view, budget, moment, policy)
        case "off":
            return None
        case _:
            assert_never(policy.ladder)


def needed_thinking(view: View, chosen: Set[int]) -> Set[int]:
    """Return which of these steps, by `id()`, began a loop of calls with thinking that a step needs which stays."""
    needed: set[int] = set()
    if view.thinking.is_bound:
        return needed
    thinking: Step | None = None
    for step in view.steps:
        if step.kind != "model" or not step.slots:
            thinking = None
        elif step.has_thinking:
            thinking = step
        elif thinking is not None and id(step) not in chosen and id(thinking) in chosen:
            needed.add(id(thinking))
    return needed


def leaves_half(view: View, gone: int) -> bool:
    """Return whether enough stays for a reduction that nothing forces."""
    return view.units - gone >= economy.MIN_LEFT_SHARE * view.units


# ── Checks ───────────────────────────────────────────────────────────────────────────────────────────


def decide_own(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
    """Return what the policy decides, once it is checked; where the request would not fit, what its settings would
    do."""
    moves = _LadderMoves(view, budget, policy)
    try:
        chosen = policy.decide(PolicyView(view, moves), budget, moment)
    except Exception as error:
        if policy.is_own:
            error.add_note(f"raised by `decide` of the policy {policy.name}")
        raise
    if not policy.is_own:
        return chosen
    if not moves.has_made(chosen):
        problem = _problem(view, moves, chosen) or _harm(view, budget, chosen)
        if problem:
            raise BadReduction(policy.name, problem)
    if isinstance(chosen, Plan):
        # A second summary for a request would be one of the first; the model is asked once.
        chosen = None if moment.compacted else replace(chosen, ask=chosen.ask and not moment.paused)
    if chosen is None and view.units > budget.hard:
        return moves.by_settings(policy, budget, moment)
    return chosen


def _problem(view: View, moves: _LadderMoves, chosen: object) -> str:
    """Return why a decision is not allowed, "" if it is."""
    match chosen:
        case None:
            return ""
        case Masked():
            return _mask_problem(view, moves, chosen)
        case Dropped():
            return _drop_problem(view, moves, chosen)
        case tuple():
            clips = [clipped for clipped in chosen if isinstance(clipped, Clipped)]
            if not clips or len(clips) < len(chosen):
                return "a tuple holds `Clipped` facts, at least one, and nothing else"
            return next(filter(None, (_clip_problem(view, clipped) for clipped in clips)), "")
        case Clipped():
            return _clip_problem(view, chosen)
        case Plan():
            return _plan_problem(view, moves, chosen)
        case Compacted():
            return "it is a finished summary: return `view.summarise(steps)`, which plans one"
        case Reverted():
            return "it takes a reduction back, which only the user may"
        case _:
            return f"it is a {type(chosen).__name__}: return what a method of the view returns, or None"


def _hidden_by(plan: Plan) -> tuple[object, ...]:
    return plan.first, plan.last, plan.keep, plan.masks


def _names(text: str, name: str) -> bool:
    """Return whether a text has this handle, and not only a longer one that begins with it."""
    return re.search(rf"\b{name}\b", text) is not None


def _mask_problem(view: View, moves: _LadderMoves, masked: Masked) -> str:
    if not masked.masks:
        return "it masks nothing: return None instead"
    maskable = moves.maskable()
    for mask in masked.masks:
        name = handle(mask.target)
        slot = view.unmasked_results.get(mask.target)
        if slot is None or slot.result is None:
            return f"it masks {name}, which is no tool result that is shown"
        if id(slot) not in maskable:
            return f"it masks {name}, which may not be hidden: check `can_hide`"
        if mask.part != -1:
            return f"it masks part {mask.part} of {name}: a placeholder replaces a whole result (part -1)"
        if not _names(mask.text, name):
            return f"the placeholder of {name} does not contain {name}, so nothing leads back to the text"
        before, after = slot.result.replaceable_units(view.meter), view.meter.counter.count(mask.text)
        if after >= before:
            return f"the placeholder of {name} takes {after:,} units, and the result {before:,}"
    return ""


def _drop_problem(view: View, moves: _LadderMoves, dropped: Dropped) -> str:
    gone = [step for step in view.steps if is_within(step.seq, dropped.ranges)]
    if not gone:
        return "it drops no step that is shown: return None instead"
    if not dropped.names_ranges:
        return "its notice names nothing (names_ranges=False), so nothing leads back to what it drops"
    return _gone_problem(view, moves, gone, dropped.ranges, verb="drops")


def _plan_problem(view: View, moves: _LadderMoves, plan: Plan) -> str:
    if plan.masks:
        return "its plan has placeholders of its own: return `view.hide(results)` for them"
    span, keep = ((plan.first, plan.last),), frozenset(plan.keep)
    inside = [step for step in view.steps if is_within(step.seq, span) and step.seq not in keep]
    gone = [step for step in inside if step.kind in ("user", "model")]
    if not gone:
        return "it summarises no step that is shown: return None instead"
    return _gone_problem(view, moves, gone, span, verb="summarises")


def _gone_problem(view: View, moves: _LadderMoves, gone: Sequence[Step], ranges: Ranges, *, verb: str) -> str:
    """Return why these steps may not go, "" if they may."""
    removable = moves.removable()
    for step in gone:
        if id(step) not in removable:
            why = "pinned" if step.is_pinned else f"a step that must stay ({step.kind})"
            return f"it {verb} {handle(step.seq)}, which is {why}: check `can_go`"
    needed = needed_thinking(view, {id(step) for step in gone})
    for step in gone:
        if id(step) in needed:
            return f"it {verb} {handle(step.seq)}, whose thinking a later call needs"
        outside = (one.seq for one in step.shown_messages() if not is_within(one.seq, ranges))
        if (left := next(outside, None)) is not None:
            return f"it {verb} {handle(step.seq)} without its result {handle(left)}"
    return ""


def _clip_problem(view: View, clipped: Clipped) -> str:
    name, found = handle(clipped.target), view.find(clipped.target)
    if found is None or found[1] is found[0].utterance:
        return f"it clips {name}, which is no tool result that is shown"
    step, message = found
    if step.is_pinned or message.is_masked:
        return f"it clips {name}, which is {'pinned' if step.is_pinned else 'masked'}"
    text = message.original_text(clipped.part)
    if text is None:
        return f"it clips part {clipped.part} of {name}, which is no text"
    spans = [piece for piece in clipped.pieces if not isinstance(piece, str)]
    if any(not 0 <= first <= last <= len(text) for first, last in spans):
        return f"it shows a span of {name} outside of its {len(text):,} characters"
    if not any(_names(piece, name) for piece in clipped.pieces if isinstance(piece, str)):
        return f"no marker in the clip of {name} contains {name}, so nothing leads back to the text"
    before, after = len(text), len(message.clipped_text(clipped))
    return "" if after < before else f"the clip of {name} has {after:,} characters, and the text {before:,}"


def _harm(view: View, budget: Budget, chosen: Decision) -> str:
    """Return what makes a reduction harmful that nothing forces, "" if nothing does."""
    gone = 0
    if view.units > budget.act:
        return ""
    if isinstance(chosen, Dropped):
        gone = sum(view.units_of(step) for step in view.steps if is_within(step.seq, chosen.ranges))
    elif isinstance(chosen, Masked):
        empty = (view.unmasked_results[mask.target] for mask in chosen.masks if "\n" not in mask.text.strip())
        gone = sum(slot.result.units(view.meter) for slot in empty if slot.result is not None)
    if leaves_half(view, gone):
        return ""
    return (
        f"it leaves {view.units - gone:,} of {view.units:,} units although the request fits, and no record of the "
        "rest: return `view.summarise(steps)`, or remove less than half"
    )
