"""`economy`, the default: few reductions, made when they cost the least, of what is least likely to be needed.

Four fifths of a bill is reading the cached beginning of the conversation again, so what counts is how large
requests are on average; but changing an early message makes the provider read everything behind it again at the
full price.

- What can be saved when a result arrives breaks no cache: lines that stand above already become a reference
  (`refer`).
- What nobody comes back to (`foveal.core.policies.reuse_score`: old arguments, results about nothing that has a name) is
  masked before it must be, as soon as it pays: when the calls that have read it in vain, times `patience`, cost
  what the rewrite costs. Nobody knows how many calls are to come; waiting for as long as that is never much dearer
  than having known. The cut begins where most is gained, so an early part that was cut before stays in the cache;
  and it is paid from what has been saved before, so that a conversation that fits never costs more than sending all
  of it.
- When the prefix is lost anyway (the cache has gone cold; the model, the tools or the system text changed), the
  same is masked for nothing.
- When the room is full, one deep cut makes space for a long while: down to `target`, the least likely first. When
  that does not get far enough to last, the oldest turns are summarised, or dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Mask, Masked, Reduction, text_of
from foveal.core.models.budget import Budget
from foveal.core.policies import ladder, reuse_score
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.policies.reuse_score import MaskCandidate
from foveal.core.reduction import placeholder, repeated_lines
from foveal.core.view.view import View

WORTH = 0.03
"""A cut that nobody needs must remove at least this share of the messages."""


def decide(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    goal = budget.hard * policy.target
    lasting = (goal + budget.hard) / 2
    if view.units > budget.act or (moment.cutting and view.units > lasting):
        return _cut(view, budget, moment, policy, goal=goal, lasting=lasting)
    if moment.cutting or not policy.mask or view.units <= budget.hard * policy.early:
        return None
    _prepare(view)
    reason, spent = _paying(view, moment, policy)
    return _mask(view, spent, policy, reason=reason) if reason else None


def _prepare(view: View) -> None:
    """Read what is new now, so that a cut, which needs all names and lines, does not have to do it at once."""
    for shown in (shown for step in view.steps[-2:] for shown in step.shown()):
        ladder.names_of(shown)
        repeated_lines.known(shown)


def _cut(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, goal: float, lasting: float
) -> Reduction | Plan | None:
    if policy.mask:
        enough = _enough(reuse_score.items(view, policy), policy, excess=view.units - goal)
        masked = _mask(view, enough, policy, reason="budget")
        if masked is not None:
            return masked
    if view.units > lasting:
        planned = ladder.compact(view, budget, moment, policy, reason="tokens")
        if planned is not None:
            return planned
        if moment.compacted and view.units <= budget.hard:  # one was made, or will be ready for a later call
            return None
        excess = view.units - lasting
        dropped = ladder.drop(view, policy, excess=excess, reason="budget", keep_task=policy.keep_task)
        if dropped is not None:
            return dropped
    return ladder.must_fit(view, budget, policy, target=lasting)


def _enough(items: Sequence[MaskCandidate], policy: Policy, *, excess: float) -> list[MaskCandidate]:
    """The first of these that save so many units together."""
    chosen: list[MaskCandidate] = []
    for item in items:
        if excess <= 0:
            break
        chosen.append(item)
        excess -= item.units * (1 - policy.skeleton_share)
    return chosen


def _paying(view: View, moment: Moment, policy: Policy) -> tuple[str, list[MaskCandidate]]:
    """What to mask although nothing forces it, and why; "" when it would not pay."""
    spent = [item for item in reuse_score.items(view, policy) if item.idle >= reuse_score.SPENT]
    edge = view.results - policy.keep_last
    by_step: dict[int, list[MaskCandidate]] = {}
    for item in spent:
        by_step.setdefault(item.slot.step.seq, []).append(item)
    behind = removed = vain = best = 0.0
    first = -1
    for step in reversed(view.steps if spent else ()):
        behind += view.units_of(step)
        for item in by_step.get(step.seq, ()):
            saved = item.units * (1 - policy.skeleton_share)
            removed += saved
            vain += saved * min(max(0, edge - item.slot.ordinal), moment.calls)
        if step.seq not in by_step or removed < WORTH * view.units:
            continue
        price = (moment.write - moment.read) * (behind - removed)
        net = policy.patience * moment.read * vain - price
        if (net > best and price <= moment.saved) or moment.free_break:
            first, best = step.seq, net
    if first < 0:
        return "", []
    reason = "price" if not moment.free_break else "cold-cache" if moment.cold else "broken-prefix"
    return reason, [item for item in spent if item.slot.step.seq >= first]


def _mask(view: View, items: Sequence[MaskCandidate], policy: Policy, *, reason: str) -> Masked | None:
    """Mask these, keeping lines that were quoted before, and names that stand nowhere else."""
    gone = {id(item.slot.result if item.part == -1 else item.slot.step.said) for item in items}
    elsewhere = ladder.names_beside(view, gone) if policy.skeleton_share and items else set()
    quoted = reuse_score.quoted(view, gone) if policy.skeleton_share and items else set()
    masks: list[Mask] = []
    for item in items:
        made = _masked(view, item, policy, elsewhere, quoted)
        if made is not None:
            masks.append(made)
            elsewhere.update(placeholder.names(made.text))
    return Masked(masks=tuple(masks), reason=reason, rule=policy.name) if masks else None


def _masked(
    view: View, item: MaskCandidate, policy: Policy, elsewhere: set[str], quoted: set[str]
) -> Mask | None:
    slot = item.slot
    if item.part >= 0 or slot.result is None:
        return ladder.mask_call(view, slot, policy, elsewhere)
    lines = text_of(slot.result.fact.content).split("\n") if quoted else []
    kept = {bare: line.rstrip() for line in lines if (bare := placeholder.bare(line)) in quoted}
    made = ladder.mask_result(view, slot, policy, elsewhere, tuple(kept.values()))
    if made is None:
        return None
    quoted -= kept.keys()
    return made[0]
