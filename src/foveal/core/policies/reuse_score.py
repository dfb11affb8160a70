"""What is likely to be needed again: which texts a cut takes first, and which lines of them it leaves.

Three things were found to tell, in recorded conversations of coding agents, what a call will quote from an old
result; none of them knows a tool, a language or a project:

- a line that some call has already written is ten to thirty times as likely to be written again as any other, and
  such lines are few: a mask keeps them;
- what a result is about. One whose call names something with an address (a path, a file, a URL) is worth as much as
  that thing: half of it is gone when nobody has named the thing for ten results, most of it after forty. One whose
  call names nothing of the kind (a listing, the output of a test) is worth a twentieth from the beginning;
- the arguments of old calls are worth almost nothing beside the results: what they quote stands there.

How old a text is tells little beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from foveal.core.log.events import calls_of, text_of
from foveal.core.policies import ladder
from foveal.core.policies.presets import Policy
from foveal.core.reduction import placeholder, repeated_lines
from foveal.core.view.steps import Slot, Step, WrittenCall
from foveal.core.view.view import View

ADDRESS: Final = 300
"""What a call is about stands in the first characters of its arguments; a whole file may follow."""
LINE: Final = 20
"""A line of fewer characters is nothing that one comes back for."""
SPENT: Final = 1_000
"""As good as untouched for so many results: arguments, and results that are about nothing one could name."""
BUCKET: Final = 10
"""Texts that were touched within so many results of each other go in their order."""
SMALL: Final = 2 * ladder.LEAST_SAVING
"""Units below which a mask is not worth a look."""


class MaskCandidate(NamedTuple):
    """A text that may be masked."""

    slot: Slot
    part: int
    """-1 for the result, else the place of the call among the parts of its utterance."""
    units: int
    idle: int
    """How many results ago somebody touched what it is about."""


def items(view: View, policy: Policy) -> list[MaskCandidate]:
    """What may be masked, the least likely to be needed first."""
    free = {id(slot) for slot in ladder.maskable(view, policy)}
    found = [item for item in _newest_first(view, policy, free) if item.units > SMALL]
    found.reverse()
    found.sort(key=lambda item: -min(item.idle, SPENT) // BUCKET)
    return found


def _newest_first(view: View, policy: Policy, free: set[int]) -> Iterator[MaskCandidate]:
    touched: dict[str, int] = {}
    ordinal, edge = view.results, view.results - policy.keep_last
    for step in reversed(view.steps):
        if not step.slots:
            continue
        written = wrote(step)
        old = ladder.settled(view, step)
        for slot, about in zip(reversed(step.slots), reversed(written.about), strict=True):
            ordinal = slot.ordinal if slot.ordinal >= 0 else ordinal
            if id(slot) in free and slot.result is not None:
                last = max((touched.get(thing, ordinal) for thing in about), default=-SPENT)
                yield MaskCandidate(slot, -1, slot.result.units(view.meter), view.results - last)
            if old and policy.mask_arguments and ordinal < edge and ladder.whole(step, slot.place, slot.call):
                units = view.meter.replaceable(step.seq, slot.place, step.said.fact.content)
                if units >= policy.mask_arguments:
                    yield MaskCandidate(slot, slot.place, units, SPENT + view.results - ordinal)
        for thing in written.mentioned:
            touched.setdefault(thing, ordinal)


def wrote(step: Step) -> WrittenCall:
    """What the calls of a step are about, what it mentions, and which lines its calls write."""
    if step.wrote is None:
        content = step.said.fact.content
        texts = [placeholder.leaves(call.arguments) for _, call in calls_of(content)]
        about = tuple(frozenset(_things(" ".join(text[:ADDRESS] for text in of_call))) for of_call in texts)
        said = [text_of(content), *(text for of_call in texts for text in of_call)]
        lines = (placeholder.bare(line) for text in said[1:] for line in text.split("\n"))
        step.wrote = WrittenCall(
            about,
            frozenset(thing for text in said for thing in _things(text)),
            frozenset(line for line in lines if len(line) >= LINE),
        )
    return step.wrote


def _things(text: str) -> Iterator[str]:
    """The last parts of names that have an address: paths, files, URLs."""
    for name in placeholder.names(text):
        last = name.rpartition("/")[2]
        if last and ("/" in name or "." in last[1:-1]) and not last.replace(".", "").isdigit():
            yield last


def quoted(view: View, gone: set[int]) -> set[str]:
    """Lines that calls in view have written and that no result shows, once those of `gone` are masked."""
    lines = set[str]().union(*(wrote(step).lines for step in view.steps if step.slots))
    for step in view.steps:
        for slot in step.slots:
            if slot.result is not None and id(slot.result) not in gone:
                lines -= repeated_lines.known(slot.result)
    return lines
