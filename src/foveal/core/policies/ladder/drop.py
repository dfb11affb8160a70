"""The last rungs: what goes when a request would not fit otherwise.

`force_fit` returns one reduction after another, in this order:

1. The results of the newest step are clipped to one common limit.
2. The oldest steps that may go are replaced: by a record without a model (a ledger) where the policy summarises,
   else by the notice of a drop. When no raw step is left, summaries are merged.
3. Expansions end. All results are clipped as far as needed, but not below a tenth of the room.
4. The only summary is written again at half its size.
5. All results are clipped further, then the arguments of answered calls.
6. If the latest user message leaves too little, the others become part of the record, and the first is clipped.
7. Whole steps are dropped: open calls, summaries, and at the very end user messages, the first of them last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.core.compaction.kept_messages import (
    GAP_UNITS,
    MARKER_UNITS,
    MAX_TASK_SHARE,
    MIN_CLIPPED_USER_UNITS,
    common_size,
    earlier_user_steps,
    kept_user_steps,
    max_user_units,
    own_user_steps,
    room_beside_first,
    sentences_of,
    share_room,
    stated_by,
    text_units,
    user_room,
)
from foveal.core.compaction.ledger.allocation import word_end
from foveal.core.compaction.ledger.pasted_text import is_tool_report
from foveal.core.compaction.plan import MAX_KEPT_OPEN_STEPS, Plan, plan_forced
from foveal.core.compaction.standing.statements import Sentence, find_sentences
from foveal.core.log.events import Clipped, Dropped, Masked, Reverted, Text, handle
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.cut import plan_compaction, summary_terms
from foveal.core.policies.ladder.mask import MIN_MASKED_UNITS, MIN_SAVED_UNITS, mask_largest_arguments
from foveal.core.policies.ladder.priorities import lowest_steps_first
from foveal.core.policies.moment import Decision, Moment
from foveal.core.policies.presets import Policy
from foveal.core.reduction.important_lines import Span
from foveal.core.reduction.truncation import MAX_MIDDLE_SHARE, Limits, clip, clip_to_spans
from foveal.core.view.steps import ShownMessage, Step
from foveal.core.view.view import View

# ── Clipping to the room ─────────────────────────────────────────────────────────────────────────────────
# 1. The results of the newest step share one limit (`clip_newest_results`).
# 2. User messages beyond their share of the room are clipped to their two ends, or to the sentences that still
#    hold (`clip_user_messages`).
# 3. When nothing else is left, the largest results of all steps are clipped (`squeeze_results`).

_MAX_TRIED_TEXTS: Final = 3
_MARKER_UNITS: Final = 16
"""Units by which a clip is cut below its size, so that its marker fits too."""
_LEAD_CHARS: Final = 80
"""Characters at the beginning of a message that stay when it is cut to the sentences that hold."""
_MAX_GROWTH_FOR_SENTENCES: Final = 4
_MAX_NEWEST_SHARE: Final = 0.75
"""Share of the room that the results of the newest step may take under any policy."""
_CLIPPED_USER_SHARE: Final = 0.8
"""User messages above their share are clipped to this part of it, so that the next one does not clip them again."""


class _TextPart(NamedTuple):
    """A text that is not masked: a result or a message, or a part of one."""

    seq: int
    place: int
    text: str
    units: int


def clip_newest_results(
    view: View, budget: Budget, policy: Policy, *, target: float
) -> tuple[Clipped, ...] | None:
    """Clip the results of the newest step to one size, if together they exceed their limit.

    The limit is their share of the room (`clip_share`), or whatever the rest leaves of `target` units, if that is
    more. None when the request fits."""
    if not view.steps or view.units <= budget.hard:
        return None
    parts = sorted(_result_parts(view.steps[-1:], view), key=lambda part: -part.units)
    units = sum(part.units for part in parts)
    excess = units - max(_newest_share(budget, policy), target - (view.units - units))
    if excess < MIN_SAVED_UNITS:
        return None
    size = common_size([part.units for part in parts], excess)
    return _clip_all(view, parts, _limits(policy), size)


def newest_excess(view: View, budget: Budget, policy: Policy) -> float:
    """Return by how much the results of the newest step exceed their share of the room: the part of an excess that
    older steps do not have to make up for."""
    units = sum(part.units for part in _result_parts(view.steps[-1:], view))
    return max(0.0, units - _newest_share(budget, policy))


def _newest_share(budget: Budget, policy: Policy) -> float:
    return budget.hard * min(policy.clip_share, _MAX_NEWEST_SHARE)


def clip_user_messages(view: View, budget: Budget, policy: Policy) -> tuple[Clipped, ...] | None:
    """Clip user messages, if all but the latest exceed their share of the room together: long ones to one size, and
    if that is not enough, to the sentences that still hold. The first one, the task, is clipped only if it takes
    more than `MAX_TASK_SHARE` of the room."""
    room = user_room(budget, policy)
    users = own_user_steps(view) if room else []
    if sum(map(view.units_of, users)) <= room:
        return None
    task = _message_parts(users[0].utterance, view)
    clips = [_clip_user_part(view, part, int(budget.hard * MAX_TASK_SHARE)) for part in task]
    clips += _clip_to_shares(view, users[1:], room_beside_first(view, users, room))
    return tuple(clipped for clipped in clips if clipped is not None) or None


def _clip_to_shares(view: View, users: Sequence[Step], room: int) -> Iterator[Clipped | None]:
    """Clip user messages to what they may take; long ones that state something are larger while there is room."""
    for_sentences = room // 4
    room = int(room * _CLIPPED_USER_SHARE)
    longest = max_user_units(view, users, room)
    sizes = share_room(view, users, room)
    for step in users:
        texts = list(_message_parts(step.utterance, view))
        is_report = bool(texts) and is_tool_report(texts[0].text)
        for part in texts if id(step) in sizes else ():
            if sizes[id(step)] < min(longest, text_units(view, step)):
                yield _clip_to_sentences(view, part, _sentences(view, step, part))
                continue
            more = 0
            if part.units > longest and not is_report:
                most = min(for_sentences, (_MAX_GROWTH_FOR_SENTENCES - 1) * longest)
                more = max(0, min(_units_with_sentences(view, part) - longest, most))
            for_sentences -= more
            yield _clip_user_part(view, part, longest + more)


def _units_with_sentences(view: View, part: _TextPart) -> int:
    """Return the units of a clip that shows all sentences of a text that still hold."""
    count = view.meter.counter.count
    units = sum(count(part.text[one.start : one.end]) + GAP_UNITS for one in _sentences_in(view, part))
    return int(units / MAX_MIDDLE_SHARE) + 3 * _MARKER_UNITS  # the marker itself takes up to two of them


def _clip_user_part(view: View, part: _TextPart, size: int) -> Clipped | None:
    """Clip a text of the user to its two ends and the sentences between them that still hold."""
    if not _is_worth_clipping(part, size):
        return None
    keep = tuple((one.start, one.end) for one in _sentences_in(view, part))
    return _clip_part(view, part, Limits(strategy="both"), size, keep=keep)


def _sentences(view: View, step: Step, part: _TextPart) -> Sequence[Sentence]:
    return stated_by(view, step) if part.place == -1 else find_sentences(part.text)


def _sentences_in(view: View, part: _TextPart) -> Sequence[Sentence]:
    """Return the sentences of a text that still hold."""
    return sentences_of(view, part.seq, part.text) if part.place == -1 else find_sentences(part.text)


def _lead(text: str) -> Span:
    """Return the beginning of a message: it may say whose words follow."""
    end = text.find("\n", 0, _LEAD_CHARS)
    return 0, end if end > 0 else word_end(text, min(len(text), _LEAD_CHARS))


def _clip_to_sentences(view: View, part: _TextPart, sentences: Sequence[Sentence]) -> Clipped | None:
    """Clip a text of the user to the sentences that still hold."""
    spans = [_lead(part.text), *((one.start, one.end) for one in sentences)]
    cut = clip_to_spans(part.text, spans, handle=handle(part.seq), counter=view.meter.counter)
    if cut.kept_tokens + MARKER_UNITS + GAP_UNITS * len(spans) > part.units:
        return None
    return cut.to_fact(part.seq, part.place, rule="squeeze")


def squeeze_results(
    view: View, policy: Policy, *, excess: float, min_units: int = 0
) -> Clipped | Masked | None:
    """Clip the largest result that is left, to a size at which clipping all larger ones saves `excess` units.

    When no result can be cut further, mask the largest arguments of an answered call. With `min_units`, no result
    is cut below that size, and no arguments are masked."""
    parts = list(_result_parts(view.steps, view))
    excess = max(excess, 2 * MIN_SAVED_UNITS)  # a smaller saving is not worth a clip
    clipped = _clip_largest(view, parts, _limits(policy), excess=excess, min_units=min_units)
    return clipped or (None if min_units else mask_largest_arguments(view))


def squeeze_users(view: View, *, excess: float) -> Clipped | None:
    """Clip the longest user message but the latest, to save `excess` units, for when nothing else is left."""
    parts = [part for step in earlier_user_steps(view) for part in _message_parts(step.utterance, view)]
    parts.sort(key=lambda part: -part.units)
    size = max(MIN_CLIPPED_USER_UNITS, common_size([part.units for part in parts], excess))
    return next(filter(None, (_clip_user_part(view, part, size) for part in parts[:_MAX_TRIED_TEXTS])), None)


def _clip_all(
    view: View, parts: Iterable[_TextPart], limits: Limits, size: int
) -> tuple[Clipped, ...] | None:
    clips = (_clip_part(view, part, limits, size) for part in parts)
    return tuple(clipped for clipped in clips if clipped is not None) or None


def _clip_largest(
    view: View, parts: Iterable[_TextPart], limits: Limits, *, excess: float, min_units: int = 0
) -> Clipped | None:
    ordered = sorted(parts, key=lambda part: -part.units)
    size = max(min_units, common_size([part.units for part in ordered], excess))
    for part in ordered[:_MAX_TRIED_TEXTS]:
        clipped = _clip_part(view, part, limits, size)
        if clipped is not None:
            return clipped
    return None


def _limits(policy: Policy) -> Limits:
    return policy.clip or Limits(strategy="smart")


def _result_parts(steps: Iterable[Step], view: View) -> Iterator[_TextPart]:
    for step in steps:
        if not step.is_protected:
            for slot in step.slots:
                if slot.result is not None:
                    yield from _message_parts(slot.result, view)


def _message_parts(shown: ShownMessage, view: View) -> Iterator[_TextPart]:
    if shown.is_masked:
        return
    content = shown.fact.content
    if isinstance(content, str):
        yield _TextPart(shown.seq, -1, content, shown.replaceable_units(view.meter))
        return
    for place, part in enumerate(content):
        if isinstance(part, Text):
            yield _TextPart(shown.seq, place, part.text, shown.part_units(view.meter, place))


def _is_worth_clipping(text: _TextPart, size: int) -> bool:
    return text.units > max(MIN_MASKED_UNITS, size + MIN_SAVED_UNITS)


def _clip_part(
    view: View, text: _TextPart, limits: Limits, size: int, *, keep: Sequence[Span] = ()
) -> Clipped | None:
    if not _is_worth_clipping(text, size):
        return None
    tokens = max(0, size - _MARKER_UNITS)
    smaller = Limits(strategy=limits.strategy, tokens=tokens, head_share=limits.head_share)
    cut = clip(text.text, smaller, handle=handle(text.seq), counter=view.meter.counter, keep=keep)
    if cut is None or cut.kept_tokens + MIN_SAVED_UNITS > text.units:
        return None
    return cut.to_fact(text.seq, text.place, rule="squeeze")


# ── Dropping, and the order of the rungs ─────────────────────────────────────────────────────────────────

DROPPED_NOTICE_UNITS: Final = 64
"""Units that the notice for dropped steps takes at most."""
_MIN_RESULT_SHARE: Final = 0.1
"""Share of the room below which results are clipped only when summaries cannot become smaller."""


def irreducible_units(view: View) -> int:
    """Return the units of the messages that no reduction makes smaller: rules, and the latest user message."""
    latest = view.latest_user
    if latest is None or any(seq == latest.seq for seq, _ in view.media):
        return view.permanent_units
    return view.permanent_units + view.units_of(latest)


def droppable_steps(view: View, budget: Budget, policy: Policy) -> Iterator[Step]:
    """Yield the raw steps that may be dropped: those of low priority, then the others, oldest first.

    The newest steps with an unanswered call stay; calls in older ones count as abandoned."""
    kept = {id(view.latest_user), id(view.steps[-1]) if view.steps else 0}
    waiting = (step for step in reversed(view.steps) if step.has_open_call)
    kept.update(id(step) for step in islice(waiting, MAX_KEPT_OPEN_STEPS))
    kept.update(map(id, kept_user_steps(view, budget, policy)))
    if policy.keep_task:
        kept.add(id(view.first_user))
    for step in lowest_steps_first(view, view.steps, policy):
        if step.kind in ("user", "model") and not step.is_protected and id(step) not in kept:
            yield step


def last_resort_steps(view: View) -> Iterator[Step]:
    """Yield everything that may be dropped when there is no other way: open calls, summaries, user messages and,
    last of all, the first of these."""
    kept = {id(view.latest_user), id(view.steps[-1]) if view.steps else 0}
    first = view.first_user
    ranks = (
        (step for step in view.steps if step.kind == "model"),
        (step for step in view.steps if step.kind == "summary"),
        (step for step in view.steps if step.kind == "user" and step is not first),
        (step for step in view.steps if step is first),
    )
    for step in chain.from_iterable(ranks):
        if not step.is_protected and id(step) not in kept:
            yield step


def drop_steps(
    view: View, steps: Iterator[Step], policy: Policy, *, excess: float, reason: str
) -> Dropped | None:
    """Drop steps in their order until `excess` units are saved, or all of them are gone."""
    dropped: set[int] = set()
    for step in steps:
        if excess <= 0:
            break
        dropped.add(step.seq)
        excess -= view.units_of(step)
    return _drop_by_policy(view, dropped, policy, reason)


def name_late_results(view: View, policy: Policy) -> Dropped | None:
    """Have the notice name results that came after their step was hidden, so that every event is accounted for."""
    ranges = tuple((seq, seq) for seq in view.unnamed_results)
    return Dropped(ranges=ranges, reason="late", rule=policy.name, names_ranges=True) if ranges else None


def limit_messages(view: View, budget: Budget, moment: Moment, policy: Policy) -> Dropped | Plan | None:
    """When there are more messages in view than allowed, summarise the oldest steps without a model, or drop them,
    down to three quarters of that number. Does nothing in mode `off`."""
    messages = len(view.seqs)
    if not budget.max_messages or messages <= budget.max_messages or policy.mode != "auto":
        return None
    planned = plan_compaction(view, budget, moment, policy, reason="messages")
    if planned is not None:
        return replace(planned, ask=False)
    dropped: set[int] = set()
    for step in chain(droppable_steps(view, budget, policy), last_resort_steps(view)):
        if messages <= budget.max_messages * 3 // 4:
            break
        if step.seq not in dropped:
            dropped.add(step.seq)
            messages -= 1 + len(step.slots)
    return _drop_by_policy(view, dropped, policy, "messages")


def _drop_by_policy(view: View, seqs: set[int], policy: Policy, reason: str) -> Dropped | None:
    if not seqs:
        return None
    names_users = bool(policy.retain_user_share)
    return hide_steps(view, seqs, reason=reason, rule=policy.name, names_users=names_users)


def hide_steps(view: View, seqs: set[int], *, reason: str, rule: str, names_users: bool = True) -> Dropped:
    """Return the drop of the steps with these seqs; its notice names their ranges."""
    users = (step.seq for step in view.steps if step.kind == "user" and step.seq in seqs)
    return Dropped(
        ranges=tuple(_ranges(view, seqs)),
        reason=reason,
        rule=rule,
        names_ranges=True,
        users=tuple(users) if names_users else (),
    )


def _ranges(view: View, seqs: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the chosen steps as ranges of seq, results included; a summary with everything that it stands for."""
    run: tuple[int, int] | None = None
    for step, after in zip_longest(view.steps, view.steps[1:]):
        if step.seq in seqs and not step.covers:
            # A late result lies behind later steps; a range must not reach over these.
            own = [shown.seq for shown in step.shown_messages() if after is None or shown.seq < after.seq]
            run = (run[0] if run else step.seq, max(own, default=step.seq))
            continue
        if run:
            yield run
            run = None
        if step.seq in seqs:
            yield from step.covers
    if run:
        yield run


def force_fit(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float, reason: str = "budget"
) -> Decision:
    """Return the next reduction for messages above the hard limit, when no gentler rung is left.

    None when they fit, or when nothing that remains may be touched. A cut goes down to `target` units."""
    if view.units <= budget.hard:
        return None
    excess = view.units + DROPPED_NOTICE_UNITS - target
    needed = view.units - budget.hard
    least = int(budget.hard * _MIN_RESULT_SHARE)
    return (
        clip_newest_results(view, budget, policy, target=target)
        or _record_forced(view, budget, moment, policy, target=target)
        or drop_steps(view, droppable_steps(view, budget, policy), policy, excess=excess, reason=reason)
        or _end_expansion(view, moment)
        or squeeze_results(view, policy, excess=needed, min_units=least)
        or _record_forced(view, budget, moment, policy, target=target, shrink=True)
        or squeeze_results(view, policy, excess=needed)
        or (None if moment.holds else _last_rungs(view, budget, moment, policy, target=target, reason=reason))
    )


def _last_rungs(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float, reason: str
) -> Decision:
    """Reduce user messages beyond their share, or drop what is left."""
    excess = view.units - budget.hard + DROPPED_NOTICE_UNITS
    reduced = None
    if _exceed_share(view, budget, policy):
        reduced = _reduce_users(view, budget, moment, policy, target=target)
    return reduced or drop_steps(view, last_resort_steps(view), policy, excess=excess, reason=reason)


def _end_expansion(view: View, moment: Moment) -> Reverted | None:
    """Have the oldest expanded range reduced again: results of the running turn need the room."""
    if moment.keeps_expansions or not view.expansions:
        return None
    return Reverted(target=view.expansions[0].seq)


def _exceed_share(view: View, budget: Budget, policy: Policy) -> bool:
    """Return whether all user messages, the latest included, exceed their share: only then may any of them go."""
    users = (step for step in view.steps if step.kind == "user")
    return sum(text_units(view, step) for step in users) > user_room(budget, policy)


def _reduce_users(view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float) -> Decision:
    """Record all user messages but the first and the latest without a model, or clip the first further."""
    without_share = replace(policy, retain_user_share=0.0, keep_task=True)
    planned = _record_forced(view, budget, moment, without_share, target=target)
    return planned or squeeze_users(view, excess=view.units - budget.hard)


def _record_forced(
    view: View, budget: Budget, moment: Moment, policy: Policy, *, target: float, shrink: bool = False
) -> Plan | None:
    if not policy.compact or policy.mode == "off" or moment.record_failed:
        return None
    return plan_forced(view, budget, summary_terms(policy), target=target, shrink=shrink)
