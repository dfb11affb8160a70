"""Likelihood of reuse: which texts to mask first, and which lines to keep.

In recorded conversations of coding agents, three signs predict what a call will quote from an old result. None of
them depends on a tool, a language or a project:

- A line that a call has already written is ten to thirty times as likely to be written again as any other, and such
  lines are few: a mask keeps them.
- What a result is about. A result whose call names something with an address (a path, a file, a URL) is worth as
  much as that thing: half of it is gone when no call has named the thing for ten results, most of it after forty.
  A result whose call names nothing of the kind (a listing, the output of a test) is worth a twentieth from the
  beginning.
- The arguments of old calls are worth almost nothing beside the results: the results contain what they quote.

The age of a text says little beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final, NamedTuple

from foveal.core.policies import ladder
from foveal.core.policies.presets import Policy
from foveal.core.view.steps import Slot
from foveal.core.view.view import View

UNUSED_RESULTS: Final = 1_000
"""The idle value of texts that count as never used again: arguments, and results about nothing with an address."""
RESULTS_PER_BUCKET: Final = 10
"""Candidates whose idle values are within so many results of each other keep the order of the log."""


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
    """Return the lines that calls in view have written and that no result shows once those of `hidden`, by `id()`,
    are masked."""
    lines = set[str]().union(*(step.call_facts().lines for step in view.steps if step.slots))
    for step in view.steps:
        for slot in step.slots:
            if slot.result is not None and id(slot.result) not in hidden:
                lines -= slot.result.verbatim_lines()
    return lines
