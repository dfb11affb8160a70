"""`economy`, the default policy: few reductions, made when they cost the least.

Four fifths of a bill is reading the cached beginning of the conversation again, so what counts is the average
size of a request. But changing an early message makes the provider read everything behind it again at the full
price.

1. What can be saved when a result arrives breaks no cache: lines that are shown above already become a reference
   (`refer`).
2. What is unlikely to be reused (`foveal.core.policies.reuse_score`: old arguments, results about nothing that
   has a name) is masked before it must be, as soon as that pays: when the calls that have read it in vain, times
   `patience`, cost what the rewrite costs. The number of calls to come is unknown; waiting that long is never
   much more expensive than knowing it. The cut begins where most is gained, so an early part that was cut before
   stays in the cache. It is paid from what was saved before, so a conversation that fits never costs more than
   sending all of it.
3. When the prefix is lost anyway (the cache has expired; the model, the tools or the system text changed), the
   same is masked at no cost.
4. When the room is full, one deep cut makes space for a long time: down to `target`, the least likely to be reused
   first. When that does not get far enough to last, the oldest turns are summarised, or dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.core.compaction.plan import Plan
from foveal.core.log.events import Mask, Masked, Reduction, text_of
from foveal.core.models.budget import Budget
from foveal.core.policies import ladder, reuse_score
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.policies.reuse_score import MaskCandidate
from foveal.core.view.text_facts import find_names, strip_line_number
from foveal.core.view.view import View

MIN_EARLY_CUT_SHARE: Final = 0.03
"""A cut that is not forced must remove at least this share of the messages."""


def decide_economy(view: View, budget: Budget, moment: Moment, policy: Policy) -> Reduction | Plan | None:
    """Return the next reduction, the plan of a summary, or None."""
    goal = budget.hard * policy.target
    lasting = (goal + budget.hard) / 2
    if view.units > budget.act or (moment.cutting and view.units > lasting):
        return _cut(view, budget, moment, policy, goal=goal, lasting=lasting)
    if moment.cutting or not policy.mask or view.units <= budget.hard * policy.early:
        return None
    _read_newest(view)
    reason, candidates = _early_cut(view, moment, policy)
    return _mask(view, candidates, policy, reason=reason) if reason else None


def _read_newest(view: View) -> None:
    """Fill the caches of the newest messages, so that a cut, which needs all names and lines, does not have to read
    the whole view at once."""
    for shown in (shown for step in view.steps[-2:] for shown in step.shown_messages()):
        shown.name_counts()
        shown.verbatim_lines()


def _cut(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, goal: float, lasting: float
) -> Reduction | Plan | None:
    """Make room down to `goal` units by masks; where these leave more than `lasting`, summarise or drop."""
    if policy.mask:
        candidates = reuse_score.mask_candidates(view, policy)
        masked = _mask(view, _enough(candidates, policy, excess=view.units - goal), policy, reason="budget")
        if masked is not None:
            return masked
    if view.units > lasting:
        planned = ladder.plan_compaction(view, budget, moment, policy, reason="tokens")
        if planned is not None:
            return planned
        if (
            moment.compacted and view.units <= budget.hard
        ):  # a summary was made, or will be ready for a later call
            return None
        excess = view.units - lasting
        dropped = ladder.drop_steps(view, policy, excess=excess, reason="budget", keep_task=policy.keep_task)
        if dropped is not None:
            return dropped
    return ladder.force_fit(view, budget, policy, target=lasting)


def _enough(candidates: Sequence[MaskCandidate], policy: Policy, *, excess: float) -> list[MaskCandidate]:
    """Return the first candidates that together save `excess` units."""
    chosen: list[MaskCandidate] = []
    for candidate in candidates:
        if excess <= 0:
            break
        chosen.append(candidate)
        excess -= candidate.units * (1 - policy.skeleton_share)
    return chosen


def _early_cut(view: View, moment: Moment, policy: Policy) -> tuple[str, list[MaskCandidate]]:
    """Return why and what to mask although nothing forces it; "" when it would not pay."""
    candidates = reuse_score.mask_candidates(view, policy)
    unused = [candidate for candidate in candidates if candidate.idle >= reuse_score.UNUSED_RESULTS]
    edge = view.result_count - policy.keep_last
    by_step: dict[int, list[MaskCandidate]] = {}
    for candidate in unused:
        by_step.setdefault(candidate.slot.step.seq, []).append(candidate)
    behind = removed = read_in_vain = best = 0.0
    first = -1
    # From the newest step back, each step is a possible beginning of the cut: everything unused from it on goes.
    for step in reversed(view.steps if unused else ()):
        behind += view.units_of(step)
        for candidate in by_step.get(step.seq, ()):
            saved = candidate.units * (1 - policy.skeleton_share)
            removed += saved
            read_in_vain += saved * min(max(0, edge - candidate.slot.ordinal), moment.calls)
        if step.seq not in by_step or removed < MIN_EARLY_CUT_SHARE * view.units:
            continue
        price = (moment.write - moment.read) * (behind - removed)
        net = policy.patience * moment.read * read_in_vain - price
        if (net > best and price <= moment.saved) or moment.free_break:
            first, best = step.seq, net
    if first < 0:
        return "", []
    reason = "price" if not moment.free_break else "cold-cache" if moment.cold else "broken-prefix"
    return reason, [candidate for candidate in unused if candidate.slot.step.seq >= first]


def _mask(view: View, candidates: Sequence[MaskCandidate], policy: Policy, *, reason: str) -> Masked | None:
    """Mask these, keeping lines that were quoted before, and names that occur nowhere else."""
    hidden = {id(item.slot.result if item.part == -1 else item.slot.step.utterance) for item in candidates}
    has_skeletons = bool(policy.skeleton_share and candidates)
    elsewhere = view.names_shown(hidden=hidden) if has_skeletons else set()
    quoted = reuse_score.quoted_lines(view, hidden) if has_skeletons else set()
    masks: list[Mask] = []
    for candidate in candidates:
        mask = _mask_candidate(view, candidate, policy, elsewhere, quoted)
        if mask is not None:
            masks.append(mask)
            elsewhere.update(find_names(mask.text))
    return Masked(masks=tuple(masks), reason=reason, rule=policy.name) if masks else None


def _mask_candidate(
    view: View, candidate: MaskCandidate, policy: Policy, elsewhere: set[str], quoted: set[str]
) -> Mask | None:
    """Return the mask of one candidate. The lines that it keeps leave `quoted`, so that no other mask repeats
    them."""
    slot = candidate.slot
    if candidate.part >= 0 or slot.result is None:
        return ladder.mask_arguments(view, slot, policy, elsewhere)
    lines = text_of(slot.result.fact.content).split("\n") if quoted else []
    kept = {bare: line.rstrip() for line in lines if (bare := strip_line_number(line)) in quoted}
    made = ladder.mask_result(view, slot, policy, elsewhere, tuple(kept.values()))
    if made is None:
        return None
    quoted -= kept.keys()
    return made[0]
