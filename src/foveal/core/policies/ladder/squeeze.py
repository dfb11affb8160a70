"""Clipping to the room: texts that stay but are too large for what is left.

1. The results of the newest step share one limit (`clip_newest_results`).
2. User messages beyond their share of the room are clipped to their two ends, or to the sentences that still hold
   (`clip_user_messages`).
3. When nothing else is left, the largest results of all steps are clipped (`squeeze_results`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from foveal.core.compaction.kept_messages import (
    GAP_UNITS,
    MARKER_UNITS,
    MAX_TASK_SHARE,
    MIN_CLIPPED_USER_UNITS,
    common_size,
    earlier_user_steps,
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
from foveal.core.compaction.standing.statements import Sentence, find_sentences
from foveal.core.log.events import Clipped, Masked, Text, handle
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.mask import MIN_MASKED_UNITS, MIN_SAVED_UNITS, mask_largest_arguments
from foveal.core.policies.presets import Policy
from foveal.core.reduction.important_lines import Span
from foveal.core.reduction.truncation import MAX_MIDDLE_SHARE, Limits, clip, clip_to_spans
from foveal.core.view.steps import ShownMessage, Step
from foveal.core.view.view import View

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
        if not step.is_pinned:
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
