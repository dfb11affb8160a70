"""The rungs of the ladder, each a pure function from a view to the next reduction, or None.

    mask   old results and old arguments become placeholders with a skeleton
    compact   old turns become a summary: this rung only says which, whoever calls writes it
    drop   the oldest whole steps go, a notice stays
    squeeze   what must stay but is too large is clipped: a single fresh result can be larger than the window
    shed   images above their own budget become placeholders

What no rung touches: instructions, pinned steps, the latest user message, and the newest step's calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice, zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.plan import NoPlan, Plan, RangeTerms, due, plan
from foveal.core.log.events import (
    Call,
    Clipped,
    Dropped,
    Mask,
    Masked,
    Reduction,
    Text,
    ToolReturned,
    calls_of,
    handle,
    text_of,
)
from foveal.core.log.ranges import common
from foveal.core.models.budget import Budget
from foveal.core.policies.moment import Moment
from foveal.core.policies.presets import Policy
from foveal.core.reduction import placeholder
from foveal.core.reduction import truncation as clipping
from foveal.core.reduction.truncation import Limits
from foveal.core.view.steps import Shown, Slot, Step
from foveal.core.view.view import View

LEAST_SAVING = 24
"""A mask that saves fewer units than this is not worth a changed prefix."""
OPEN = 3
"""So many of the newest steps with an unanswered call are kept as long as anything else can go; older ones, and
those before the newest message when nothing else is left, were given up long ago."""
MANY = 0.8
"""At this share of the messages that may be in view, a summary of the oldest is prepared."""
NOTICE = 24
"""Units that the notice for dropped steps takes."""
CHARACTERS = 4
"""Characters to a unit, roughly, when room for a skeleton is given out."""


# ── what may be touched ──────────────────────────────────────────────────────────────────────────────────


def open_errors(view: View) -> set[int]:
    """Failed results of tools that have not succeeded since: the agent is still at them."""
    found: set[int] = set()
    healed: set[str] = set()
    for step in reversed(view.steps):
        for slot in reversed(step.slots):
            result = slot.result
            if result is None or slot.call.name in healed:
                continue
            if _failed(result):
                found.add(result.seq)
            else:
                healed.add(slot.call.name)
    return found


def _failed(result: Shown) -> bool:
    if result.failed is None:
        fact = result.fact
        told = isinstance(fact, ToolReturned) and (fact.error or placeholder.failed(text_of(fact.content)))
        result.failed = told
    return result.failed


def maskable(view: View, policy: Policy) -> list[Slot]:
    """Results that may be masked, oldest first."""
    newest = view.results - policy.keep_last
    current = view.steps[-1] if view.steps else None
    candidates = [
        slot
        for slot in view.live.values()
        if policy.keep_first <= slot.ordinal < newest
        and slot.step is not current
        and not slot.step.pinned
        and slot.call.name not in policy.exempt_tools
    ]
    if not candidates:
        return []
    protected = open_errors(view) | view.spared
    return [slot for slot in candidates if slot.result is not None and slot.result.seq not in protected]


def droppable(view: View, *, keep_task: bool, keep_open: bool = True) -> Iterator[Step]:
    """Steps that may go, oldest first, and then summaries."""
    kept = {id(view.latest_user), id(view.steps[-1]) if view.steps else 0}
    if keep_open:
        kept.update(id(step) for step in islice((s for s in reversed(view.steps) if s.open), OPEN))
    if keep_task:
        kept.add(id(view.first_user))
    for kinds in (("user", "model"), ("summary",)):  # what is already short, and stands for much, goes last
        for step in view.steps:
            if step.kind in kinds and not step.pinned and id(step) not in kept:
                yield step


# ── mask ─────────────────────────────────────────────────────────────────────────────────────────────────


def mask(view: View, slots: Iterable[Slot], policy: Policy, *, excess: float, reason: str) -> Masked | None:
    """Mask results, oldest first, until `excess` units are saved; None when nothing is to be saved."""
    chosen = list(slots)
    elsewhere = names_beside(view, {id(slot.result) for slot in chosen}) if policy.skeleton_share else set()
    masks: list[Mask] = []
    for slot in chosen:
        if excess <= 0:
            break
        made = mask_result(view, slot, policy, elsewhere)
        if made is not None:
            masks.append(made[0])
            excess -= made[1]
    return Masked(masks=tuple(masks), reason=reason, rule=policy.name) if masks else None


def mask_result(
    view: View, slot: Slot, policy: Policy, elsewhere: Set[str], lines: Sequence[str] = ()
) -> tuple[Mask, int] | None:
    """The mask of one result, with the lines that it keeps, and what it saves; None when that is too little."""
    result = slot.result
    assert result is not None
    units = result.units(view.meter)
    if units <= LEAST_SAVING * 2 or result.incompressible:
        return None
    text = placeholder.placeholder(
        text_of(result.fact.content),
        what=f"result of {slot.call.name} {placeholder.subject(slot.call)}".rstrip(),
        handle=handle(result.seq),
        tokens=view.meter.message(result.seq, result.fact),
        room=_room(units, policy),
        elsewhere=elsewhere,
        lines=lines,
        counts=None if result.overlays else names_of(result),
    )
    saved = units - view.meter.counter.count(text)
    result.incompressible = saved < LEAST_SAVING
    return None if result.incompressible else (Mask(target=result.seq, text=text), saved)


def _room(units: int, policy: Policy) -> int:
    """Characters that a skeleton may take."""
    return int(min(units * policy.skeleton_share, policy.skeleton_tokens) * CHARACTERS)


def mask_call(view: View, slot: Slot, policy: Policy, elsewhere: Set[str]) -> Mask | None:
    """The mask of the arguments of one call; None when it saves too little."""
    step, place = slot.step, slot.place
    units = view.meter.replaceable(step.seq, place, step.said.fact.content)
    room = _room(units, policy)
    text = placeholder.arguments(
        slot.call, handle=handle(step.seq), tokens=units, room=room, elsewhere=elsewhere
    )
    saved = units - view.meter.counter.count(text)
    return Mask(target=step.seq, text=text, part=place) if saved >= LEAST_SAVING else None


def whole(step: Step, place: int, call: Call) -> bool:
    """The arguments are shown as the model wrote them, and others could stand in their place."""
    return call.replaceable and not (step.said.overlays and place in step.said.overlays)


def settled(view: View, step: Step) -> bool:
    """All calls of the step are answered, and it is not the newest."""
    return not step.open and not step.pinned and step is not view.steps[-1]


def names_beside(view: View, masked: set[int]) -> set[str]:
    """The names that stay visible when these results are masked."""
    return set().union(
        *(names_of(shown) for step in view.steps for shown in step.shown() if id(shown) not in masked)
    )


def names_of(shown: Shown) -> dict[str, int]:
    """The names in a message as it is shown, and how often it has them."""
    if shown.names is None:
        content = shown.as_shown().content
        texts = [text_of(content), *(call.arguments for _, call in calls_of(content))]
        shown.names = placeholder.counted(texts)
    return shown.names


# ── compact ──────────────────────────────────────────────────────────────────────────────────────────────


def terms(policy: Policy) -> RangeTerms:
    """What a policy says about summaries."""
    given = {field: getattr(policy, field) for field in RangeTerms.__struct_fields__ if field != "rule"}
    return RangeTerms(rule=policy.name, **given)


def compact(view: View, budget: Budget, moment: Moment, policy: Policy, *, reason: str = "") -> Plan | None:
    """Summarise what calls for it, or for the given reason; None when nothing does, when nobody may, or when it is
    not worth it."""
    if not policy.compact or policy.mode != "auto" or moment.compacted:
        return None
    if moment.paused and view.units <= budget.hard:
        return None
    wanted = terms(policy)
    reason = reason or due(view, budget, wanted)
    if not reason:
        return None
    if reason == "tokens" and (moment.refused or moment.switched):
        reason = "overflow" if moment.refused else "model"
    made = plan(view, budget, wanted, reason=reason)
    if isinstance(made, NoPlan) or (taken_back(view, made) and view.units <= budget.hard):
        return None
    return replace(made, ask=not moment.paused)


def taken_back(view: View, made: Plan) -> bool:
    """Somebody took back a summary of some of this: another is made only when there is no other way."""
    return bool(common(((made.first, made.last),), view.undone))


def foreseen(view: View, budget: Budget, policy: Policy) -> str:
    """Why a summary will be needed soon: the warning is passed and masks alone will not do, or the messages are
    many; "" when none will be."""
    if not policy.compact or policy.mode != "auto":
        return ""
    if budget.max_messages and len(view.seqs) > budget.max_messages * MANY:
        return "messages"
    if view.units <= budget.warn:
        return ""
    if policy.ladder != "economy":
        return "tokens"
    results = (slot.result for slot in maskable(view, policy))
    saved = sum(shown.units(view.meter) for shown in results if shown is not None)
    saved += sum(_long_arguments(view, policy))
    left = view.units - saved * (1 - policy.skeleton_share)
    return "tokens" if left > budget.hard * (policy.target + 1) / 2 else ""


def _long_arguments(view: View, policy: Policy) -> Iterator[int]:
    for slot in (slot for step in view.steps if settled(view, step) for slot in step.slots):
        if policy.mask_arguments and whole(slot.step, slot.place, slot.call):
            units = view.meter.replaceable(slot.step.seq, slot.place, slot.step.said.fact.content)
            if units >= policy.mask_arguments:
                yield units


# ── drop ─────────────────────────────────────────────────────────────────────────────────────────────────


def drop(
    view: View, policy: Policy, *, excess: float, reason: str, keep_task: bool, keep_open: bool = True
) -> Dropped | None:
    """Drop the oldest steps until `excess` units are saved, or all that may go are gone."""
    going: set[int] = set()
    for step in droppable(view, keep_task=keep_task, keep_open=keep_open):
        if excess <= 0:
            break
        going.add(step.seq)
        excess -= view.units_of(step)
    if not going:
        return None
    return Dropped(ranges=tuple(_runs(view, going)), reason=reason, rule=policy.name)


def _runs(view: View, going: set[int]) -> Iterator[tuple[int, int]]:
    """The chosen steps as ranges of seq, results included; a summary goes with all that it stands for."""
    run: tuple[int, int] | None = None
    for step, after in zip_longest(view.steps, view.steps[1:]):
        if step.seq in going and not step.covers:
            seqs = [shown.seq for shown in step.shown() if after is None or shown.seq < after.seq]
            run = (run[0] if run else step.seq, max(seqs, default=step.seq))
            continue
        if run:
            yield run
            run = None
        if step.seq in going:
            yield from step.covers
    if run:
        yield run


def thin(view: View, budget: Budget, moment: Moment, policy: Policy) -> Dropped | Plan | None:
    """When there are more messages in view than may be, summarise the oldest steps from the log alone, or drop
    them, down to three quarters of that. Nobody who wants to be asked is overruled for it."""
    messages = len(view.seqs)
    if not budget.max_messages or messages <= budget.max_messages or policy.mode != "auto":
        return None
    planned = compact(view, budget, moment, policy, reason="messages")
    if planned is not None:
        return replace(planned, ask=False)
    going: set[int] = set()
    for step in droppable(view, keep_task=policy.keep_task):
        if messages <= budget.max_messages * 3 // 4:
            break
        going.add(step.seq)
        messages -= 1 + len(step.slots)
    return Dropped(ranges=tuple(_runs(view, going)), reason="messages", rule=policy.name) if going else None


def must_fit(
    view: View, budget: Budget, policy: Policy, *, target: float, reason: str = "budget"
) -> Reduction | None:
    """What to do when the messages are above the hard limit and nothing gentler is left: None when they fit,
    or when nothing that remains may be touched."""
    if view.units <= budget.hard:
        return None
    going = sum(view.units_of(step) for step in droppable(view, keep_task=policy.keep_task))
    staying = view.units - going
    if staying > budget.hard * 0.75:  # dropping the rest would not do: first make what must stay smaller
        reduction = squeeze(view, policy, excess=staying - budget.hard * 0.5)
        if reduction is not None:
            return reduction
    excess = view.units + NOTICE - target
    return (
        drop(view, policy, excess=excess, reason=reason, keep_task=policy.keep_task)
        or squeeze(view, policy, excess=view.units - budget.hard)
        or drop(view, policy, excess=excess, reason=reason, keep_task=policy.keep_task, keep_open=False)
        or drop(view, policy, excess=excess, reason=reason, keep_task=False, keep_open=False)
    )


# ── squeeze ──────────────────────────────────────────────────────────────────────────────────────────────


def squeeze(view: View, policy: Policy, *, excess: float) -> Clipped | Masked | None:
    """Clip the largest result that is left, down to a level at which all large ones together would save what must
    be saved; when no result can be cut further, mask the largest arguments of an answered call."""
    texts = sorted(_squeezable(view), key=lambda text: -text.units)
    level = _level([text.units for text in texts], excess)
    for text in texts[:3]:
        clip = _squeezed(view, text, policy, level)
        if clip is not None:
            return clip
    return _squeezed_arguments(view)


class _ResultPart(NamedTuple):
    """A text of a result that is not masked."""

    seq: int
    place: int
    text: str
    units: int


def _squeezable(view: View) -> Iterator[_ResultPart]:
    for step in view.steps:
        if step.pinned:
            continue
        for slot in step.slots:
            shown = slot.result
            if shown is None or shown.masked:
                continue
            content = shown.fact.content
            if isinstance(content, str):
                yield _ResultPart(shown.seq, -1, content, shown.units(view.meter))
                continue
            for place, part in enumerate(content):
                if isinstance(part, Text):
                    yield _ResultPart(shown.seq, place, part.text, _units(view, shown, place))


def _units(view: View, shown: Shown, place: int) -> int:
    """Units of one part as it is shown."""
    overlay = shown.overlays.get(place) if shown.overlays else None
    if overlay is not None:
        return view.meter.text(overlay.owner, shown.seq, place, overlay.text)
    return view.meter.replaceable(shown.seq, place, shown.fact.content)


def _level(sizes: list[int], excess: float) -> int:
    """How high the largest may be so that cutting all above it down to it saves `excess`; sizes descend."""
    saved = 0.0
    for count, (size, smaller) in enumerate(zip_longest(sizes, sizes[1:], fillvalue=0), 1):
        step = (size - smaller) * count
        if saved + step >= excess:
            return max(0, int(size - (excess - saved) / count))
        saved += step
    return 0


def _squeezed(view: View, text: _ResultPart, policy: Policy, level: int) -> Clipped | None:
    if text.units <= LEAST_SAVING * 2:
        return None
    limits = policy.clip or Limits(strategy="both")
    smaller = Limits(strategy=limits.strategy, tokens=max(0, level - 16), head_share=limits.head_share)
    cut = clipping.clip(text.text, smaller, handle=handle(text.seq), counter=view.meter.counter)
    if cut is None or cut.kept_tokens + LEAST_SAVING > text.units:
        return None
    return clipped(text.seq, text.place, cut, rule="squeeze")


def clipped(seq: int, part: int, cut: clipping.Clip, *, rule: str) -> Clipped:
    """A clip as a fact about one part of the result `seq`."""
    return Clipped(
        target=seq,
        pieces=cut.pieces,
        part=part,
        kept_tokens=cut.kept_tokens,
        total_tokens=cut.total_tokens,
        kept_lines=cut.kept_lines,
        total_lines=cut.total_lines,
        strategy=cut.strategy,
        rule=rule,
    )


def _squeezed_arguments(view: View) -> Masked | None:
    best: tuple[int, Mask] | None = None
    for step in view.steps:
        if step.open or step.pinned:
            continue
        for place, call in calls_of(step.said.fact.content):
            if not whole(step, place, call):
                continue
            units = view.meter.replaceable(step.seq, place, step.said.fact.content)
            text = placeholder.arguments(call, handle=handle(step.seq), tokens=units, room=0)
            saved = units - view.meter.counter.count(text)
            if saved >= LEAST_SAVING and (best is None or saved > best[0]):
                best = saved, Mask(target=step.seq, text=text, part=place)
    return Masked(masks=(best[1],), reason="budget", rule="squeeze") if best else None


# ── shed ─────────────────────────────────────────────────────────────────────────────────────────────────


def shed(view: View, budget: Budget) -> Masked | None:
    """Replace the oldest images until count and bytes are within their own budget."""
    count, size = len(view.media), sum(part.size for part in view.media.values())
    latest = view.latest_user
    masks: list[Mask] = []
    for (seq, place), part in view.media.items():
        if count <= budget.max_images and size <= budget.max_media_bytes:
            break
        found = view.find(seq)
        if found is not None and found[0] is not latest and not found[0].pinned:
            text = (
                f"[foveal: {part.mime or 'media'} of {part.size:,} bytes is not shown; whole: {handle(seq)}]"
            )
            masks.append(Mask(target=seq, text=text, part=place))
            count, size = count - 1, size - part.size
    return Masked(masks=tuple(masks), reason="media", rule="media budget") if masks else None
