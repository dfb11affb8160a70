"""Masking: old results, old call arguments and media become placeholders.

A placeholder keeps a skeleton of the text (see `foveal.core.reduction.placeholder`) and the handle of the original.
Of images, audio and files, the oldest above their budget are masked, and those that a provider refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from math import inf
from typing import Final

from foveal.core.log.events import Mask, Masked, Media, Text, handle, parts, text_of
from foveal.core.models.budget import Budget
from foveal.core.policies.ladder.priorities import low_results, lowest_first
from foveal.core.policies.presets import Policy
from foveal.core.reduction.placeholder import (
    arguments_placeholder,
    call_subject,
    placeholder,
    short_placeholder,
    shortened,
    shortened_arguments,
    skeleton,
)
from foveal.core.reduction.repeated_lines import CHARS_PER_UNIT
from foveal.core.view.steps import Slot, Step
from foveal.core.view.view import View

MIN_SAVED_UNITS: Final = 24
"""A mask or a clip that saves fewer units than this is not worth a changed prefix."""
MIN_MASKED_UNITS: Final = 2 * MIN_SAVED_UNITS
"""Texts up to this many units are not masked: their placeholder would be about as long."""
MIN_HIDDEN_UNITS: Final = 96
"""Results up to this many units stay when a cut hides others: small ones are often a state, a sum or a verdict."""
MIN_DIGEST_CHARS: Final = 60
"""Characters that a placeholder says about a hidden result at least: its first value."""
_FRAME_UNITS: Final = 16
"""Units of the first line of a short placeholder, and of the message, about."""


# ── What may be masked ───────────────────────────────────────────────────────────────────────────────────


def maskable_results(view: View, policy: Policy, *, keep_last: int | None = None) -> list[Slot]:
    """Return the results that may be masked, oldest first; the newest `keep_last`, by default those of the policy,
    may not. Those of low priority may wherever they are, but not in the newest step."""
    newest = view.result_count - (policy.keep_last if keep_last is None else keep_last)
    current = view.steps[-1] if view.steps else None
    hideable = [
        slot
        for slot in view.unmasked_results.values()
        if slot.step is not current
        and not slot.step.is_protected
        and slot.call.name not in policy.exempt_tools
        and slot.result is not None
        and slot.result.seq not in view.reverted_masks
    ]
    low = set(map(id, low_results(view, hideable, policy)))
    candidates = [slot for slot in hideable if policy.keep_first <= slot.ordinal < newest or id(slot) in low]
    if not candidates:
        return []
    failures = _unresolved_failures(view)
    return [slot for slot in candidates if id(slot) in low or _result_seq(slot) not in failures]


def _result_seq(slot: Slot) -> int:
    return -1 if slot.result is None else slot.result.seq


def _unresolved_failures(view: View) -> set[int]:
    """Return the failed results of tools that have not succeeded since: the agent still works on them."""
    found: set[int] = set()
    succeeded: set[str] = set()
    for step in reversed(view.steps):
        for slot in reversed(step.slots):
            result = slot.result
            if result is None or slot.call.name in succeeded:
                continue
            if result.has_failed():
                found.add(result.seq)
            else:
                succeeded.add(slot.call.name)
    return found


# ── Masks ────────────────────────────────────────────────────────────────────────────────────────────────


def mask_results(
    view: View, slots: Iterable[Slot], policy: Policy, *, excess: float, reason: str
) -> Masked | None:
    """Mask results, those of low priority first and then the oldest, until `excess` units are saved; None when
    nothing can be saved."""
    return _masked(view, slots, policy, excess=excess, reason=reason)[0]


def mask_low_results(view: View, policy: Policy) -> tuple[Masked | None, int]:
    """Mask all results of low priority but those of the newest step; return also the units that this saves."""
    low = low_results(view, maskable_results(view, policy), policy)
    return _masked(view, low, policy, excess=inf, reason="priority")


def _masked(
    view: View, slots: Iterable[Slot], policy: Policy, *, excess: float, reason: str
) -> tuple[Masked | None, int]:
    chosen = lowest_first(view, slots, policy)
    saved = 0
    hidden = {id(slot.result) for slot in chosen}
    elsewhere = _names_shown(view, hidden) if policy.skeleton_share else set()
    masks: list[Mask] = []
    for slot in chosen:
        if saved >= excess:
            break
        made = _masked_result(view, slot, policy, elsewhere)
        if made is not None:
            masks.append(made[0])
            saved += made[1]
    return (Masked(masks=tuple(masks), reason=reason, rule=policy.name) if masks else None), saved


def _names_shown(view: View, hidden: Set[int]) -> set[str]:
    """Return the names that stay visible when the messages with these `id()`s are hidden."""
    messages = (shown for step in view.steps for shown in step.shown_messages())
    return set[str]().union(*(shown.names() for shown in messages if id(shown) not in hidden))


def _masked_result(view: View, slot: Slot, policy: Policy, elsewhere: Set[str]) -> tuple[Mask, int] | None:
    """Return the mask of one result and the units that it saves; None when they are too few.

    `elsewhere` are the names that stay visible without the result.
    """
    result = slot.result
    assert result is not None
    units = result.replaceable_units(view.meter)
    if units <= MIN_MASKED_UNITS:
        return None

    def write() -> str:
        text = text_of(result.fact.content)
        counts = None if result.overlays else result.name_counts()
        return placeholder(
            text,
            what=f"result of {slot.call.name} {call_subject(slot.call)}".rstrip(),
            handle=result.text_handle,
            tokens=result.whole_units(view.meter),
            skeleton=skeleton(text, _skeleton_chars(units, policy), elsewhere=elsewhere, counts=counts),
        )

    made = result.replacement(write, view.meter, min_saving=MIN_SAVED_UNITS)
    return None if made is None else (Mask(target=result.seq, text=made[0]), made[1])


def hide_result(view: View, slot: Slot, policy: Policy) -> tuple[Mask, int] | None:
    """Return the short placeholder of a result whose call stays, and the units that it saves; None when they are
    too few."""
    result = slot.result
    assert result is not None
    units = result.replaceable_units(view.meter)
    if units <= MIN_HIDDEN_UNITS:
        return None
    room = _digest_chars(units, policy)

    def write() -> str:
        return short_placeholder(
            text_of(result.fact.content), handle=result.text_handle, tokens=units, room=room
        )

    # Where a planned cut is not made, the next plan asks for the same placeholders.
    made = result.replacement(write, view.meter, min_saving=MIN_SAVED_UNITS, key=(units, room))
    return None if made is None else (Mask(target=result.seq, text=made[0]), made[1])


def placeholder_units(units: int, policy: Policy) -> int:
    """Return about how many units the short placeholder of a result of `units` takes."""
    return _FRAME_UNITS + _digest_chars(units, policy) // CHARS_PER_UNIT


def shorten_arguments(view: View, slot: Slot, max_units: int) -> tuple[Mask, int] | None:
    """Return the mask that shortens the arguments of a call, and the units that it saves; None when they are too
    few."""
    seq, units = slot.step.seq, slot.argument_units(view.meter)
    text = shortened_arguments(slot.call, handle=handle(seq), chars=max_units * CHARS_PER_UNIT)
    saved = units - view.meter.counter.count(text)
    return (Mask(target=seq, text=text, part=slot.place), saved) if saved >= MIN_SAVED_UNITS else None


def shorten_text(view: View, step: Step, max_units: int) -> Iterator[tuple[Mask, int]]:
    """Yield the masks that shorten the long texts of a message, each with the units that it saves."""
    utterance = step.utterance
    content = utterance.fact.content
    for place, part in enumerate(parts(content)):
        if not isinstance(part, Text):
            continue
        at = -1 if isinstance(content, str) else place
        if len(part.text) < max_units * 3 or (utterance.overlays and at in utterance.overlays):
            continue
        text = shortened(part.text, max_units * CHARS_PER_UNIT, handle(step.seq))
        saved = view.meter.counter.count(part.text) - view.meter.counter.count(text)
        if saved >= MIN_SAVED_UNITS:
            yield Mask(target=step.seq, text=text, part=at), saved


def mask_largest_arguments(view: View) -> Masked | None:
    """Mask the arguments of the answered call where that saves most, without a skeleton; for when nothing else is
    left."""
    best: tuple[Mask, int] | None = None
    for step in view.steps:
        if step.has_open_call or step.is_protected:
            continue
        for slot in step.slots:
            made = _masked_arguments(view, slot) if slot.has_whole_arguments else None
            if made is not None and (best is None or made[1] > best[1]):
                best = made
    return Masked(masks=(best[0],), reason="budget", rule="squeeze") if best else None


def _masked_arguments(view: View, slot: Slot) -> tuple[Mask, int] | None:
    seq, units = slot.step.seq, slot.argument_units(view.meter)
    text = arguments_placeholder(slot.call, handle=handle(seq), tokens=units)
    saved = units - view.meter.counter.count(text)
    return (Mask(target=seq, text=text, part=slot.place), saved) if saved >= MIN_SAVED_UNITS else None


def _digest_chars(units: int, policy: Policy) -> int:
    """Return the characters that a placeholder says about a hidden result of `units`."""
    return max(MIN_DIGEST_CHARS, _skeleton_chars(units, policy)) if policy.skeleton_share else 0


def _skeleton_chars(units: int, policy: Policy) -> int:
    """Return the characters that the skeleton of a text of `units` may take."""
    return int(min(units * policy.skeleton_share, policy.skeleton_tokens) * CHARS_PER_UNIT)


# ── Media limits ───────────────────────────────────────────────────────────────────────────────────────

REFUSED_MEDIA: Final = "refused"
"""Reason of a mask whose media a provider did not accept."""


def mask_media(view: View, budget: Budget) -> Masked | None:
    """Mask the oldest images until their count and bytes are within their own budget."""
    count, size = len(view.media), sum(part.size for part in view.media.values())
    latest = view.latest_user
    masks: list[Mask] = []
    for (seq, place), part in view.media.items():
        if count <= budget.max_images and size <= budget.max_media_bytes:
            break
        found = view.find(seq)
        if found is not None and found[0] is not latest and not found[0].is_protected:
            masks.append(_mask(seq, place, part))
            count, size = count - 1, size - part.size
    return Masked(masks=tuple(masks), reason="media", rule="media budget") if masks else None


def mask_refused_media(view: View) -> Masked | None:
    """Mask the media that no answer of the model follows; if there are none, all media.

    The latest message is not excepted: with it, every request would be refused.
    """
    answered = next((step.seq for step in reversed(view.steps) if step.kind == "model"), -1)
    found = {key: part for key, part in view.media.items() if _may_hide(view, key[0])}
    new = {key: part for key, part in found.items() if key[0] > answered}
    why = ": the provider refused it"
    masks = tuple(_mask(seq, place, part, why=why) for (seq, place), part in (new or found).items())
    return Masked(masks=masks, reason=REFUSED_MEDIA, rule="refused media") if masks else None


def _may_hide(view: View, seq: int) -> bool:
    found = view.find(seq)
    return found is not None and not found[0].is_protected


def _mask(seq: int, place: int, part: Media, *, why: str = "") -> Mask:
    text = f"[foveal: {part.mime or 'media'} of {part.size:,} bytes is not shown{why}; whole: {handle(seq)}]"
    return Mask(target=seq, text=text, part=place)


def exceeds_media_limits(view: View, budget: Budget) -> bool:
    media = view.media
    if not media:
        return False
    return len(media) > budget.max_images or sum(m.size for m in media.values()) > budget.max_media_bytes
