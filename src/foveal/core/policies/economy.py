"""`economy`, the default policy: few reductions, made when they cost the least.

Four fifths of a bill is reading the cached beginning of the conversation again, so what counts is the average
size of a request. But changing an early message makes the provider read everything behind it again at the full
price.

1. What can be saved when a result arrives breaks no cache: lines that are shown above already become a
   reference (`refer`).
2. What is unlikely to be reused (old arguments, results about nothing that has a name) is masked before it
   must be, as soon as that pays: when the calls that have read it in vain, times `patience`, cost what the
   rewrite costs. The number of calls to come is unknown; waiting that long is never much more expensive than
   knowing it. The cut begins where most is gained, so an early part that was cut before stays in the cache. It
   is paid from what was saved before, so a conversation that fits never costs more than sending all of it.
3. When the prefix is lost anyway (the cache has expired; the model, the tools or the system text changed), the
   same is masked at no cost.
4. When the room is full, one deep cut makes space for a long time: down to `target`, the least likely to be
   reused first. When that does not get far enough to last, the oldest turns are summarised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from foveal.core.log.events import Mask, Masked, text_of
from foveal.core.models.budget import Budget
from foveal.core.policies import ladder
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Slot
from foveal.core.view.text_facts import find_names, strip_line_number
from foveal.core.view.view import View

# ── Likelihood of reuse ────────────────────────────────────────────────────────────────────────────────
# In recorded conversations of coding agents, three signs predict what a call will quote from an old result.
# None of them depends on a tool, a language or a project:
#
# - A line that a call has already written is ten to thirty times as likely to be written again as any other, and
#   such lines are few: a mask keeps them.
# - What a result is about. A result whose call names something with an address (a path, a file, a URL) is worth as
#   much as that thing: half of its value is gone when no call has named the thing for ten results, most of it after
#   forty. A result whose call names nothing of the kind (a listing, the output of a test) is worth a twentieth of
#   that from the beginning.
# - The arguments of old calls are worth almost nothing beside the results: the results contain what they quote.
#
# The age of a text says little beyond that.

UNUSED_RESULTS: Final = 1_000
"""The idle value of texts that count as never used again: arguments, and results about nothing with an
address."""
RESULTS_PER_BUCKET: Final = 10
"""Candidates whose idle values are within this many results of each other keep the order of the log."""


class MaskCandidate(NamedTuple):
    """A text that may be masked."""

    slot: Slot
    part: int
    """-1 for the result, else the place of the call among the parts of its utterance."""
    units: int
    idle: int
    """Results since a step last named what the text is about."""


def mask_candidates(view: View, policy: Policy) -> list[MaskCandidate]:
    """Return the texts that may be masked, the least likely to be reused first."""
    maskable = {id(slot) for slot in ladder.maskable_results(view, policy)}
    candidates = _newest_first(view, policy, maskable)
    found = [candidate for candidate in candidates if candidate.units > ladder.MIN_MASKED_UNITS]
    found.reverse()
    found.sort(key=lambda candidate: -min(candidate.idle, UNUSED_RESULTS) // RESULTS_PER_BUCKET)
    return found


def _newest_first(view: View, policy: Policy, maskable: Set[int]) -> Iterator[MaskCandidate]:
    named_at: dict[str, int] = {}
    ordinal, edge = view.result_count, view.result_count - policy.keep_last
    for step in reversed(view.steps):
        if not step.slots:
            continue
        facts = step.call_facts()
        maskable_arguments = policy.mask_arguments and ladder.has_maskable_arguments(view, step)
        for slot, about in zip(reversed(step.slots), reversed(facts.about), strict=True):
            ordinal = slot.ordinal if slot.ordinal >= 0 else ordinal
            if id(slot) in maskable and slot.result is not None:
                last = max((named_at.get(thing, ordinal) for thing in about), default=-UNUSED_RESULTS)
                yield MaskCandidate(slot, -1, slot.result.units(view.meter), view.result_count - last)
            if maskable_arguments and ordinal < edge and slot.has_whole_arguments:
                units = slot.argument_units(view.meter)
                if units >= policy.mask_arguments:
                    idle = UNUSED_RESULTS + view.result_count - ordinal
                    yield MaskCandidate(slot, slot.place, units, idle)
        for thing in facts.mentioned:
            named_at.setdefault(thing, ordinal)


def quoted_lines(view: View, hidden: Set[int]) -> set[str]:
    """Return the lines that calls in view have written and that no result shows once those of `hidden`, by
    `id()`, are masked."""
    lines = set[str]().union(*(step.call_facts().lines for step in view.steps if step.slots))
    for step in view.steps:
        for slot in step.slots:
            if slot.result is not None and id(slot.result) not in hidden:
                lines -= slot.result.verbatim_lines()
    return lines


# ── The policy ─────────────────────────────────────────────────────────────────────────────────────────

MIN_EARLY_CUT_SHARE: Final = 0.03
"""A cut that is not forced must remove at least this share of the messages."""


def decide_economy(view: View, budget: Budget, moment: Moment, policy: Policy) -> Decision:
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
    """Fill the caches of the newest messages, so that a cut, which needs all names and lines, does not have to
    read the whole view at once."""
    for shown in (shown for step in view.steps[-2:] for shown in step.shown_messages()):
        shown.name_counts()
        shown.verbatim_lines()


def _cut(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, goal: float, lasting: float
) -> Decision:
    """Make room down to `goal` units by masks; where these leave more than `lasting`, summarise."""
    if policy.mask:
        # What the newest results exceed their share by is clipped from them, not masked elsewhere.
        excess = view.units - goal - ladder.newest_excess(view, budget, policy)
        chosen = _enough(mask_candidates(view, policy), policy, excess=excess)
        masked = _mask(view, chosen, policy, reason="budget")
        if masked is not None:
            return masked
    clipped = ladder.clip_newest_results(view, budget, policy, target=lasting)
    if clipped is not None:
        return clipped
    planned = None
    if view.units > lasting:
        planned = ladder.plan_compaction(view, budget, moment, policy, reason="tokens")
    return planned or ladder.force_fit(view, budget, moment, policy, target=lasting)


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
    candidates = mask_candidates(view, policy)
    unused = [candidate for candidate in candidates if candidate.idle >= UNUSED_RESULTS]
    edge = view.result_count - policy.keep_last
    by_step: dict[int, list[MaskCandidate]] = {}
    for candidate in unused:
        by_step.setdefault(candidate.slot.step.seq, []).append(candidate)
    behind = removed = read_in_vain = best = 0.0
    first = -1
    # From the newest step back, each step is a possible start of the cut, which removes everything unused after it.
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
    quoted = quoted_lines(view, hidden) if has_skeletons else set()
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
