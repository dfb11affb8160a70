"""Squeezing: clips results that must stay but are too large, such as one above the window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from foveal.core.log.events import Clipped, Masked, Text, handle
from foveal.core.policies.ladder.mask import MIN_MASKED_UNITS, MIN_SAVED_UNITS, mask_largest_arguments
from foveal.core.policies.presets import Policy
from foveal.core.reduction.truncation import Limits, clip
from foveal.core.view.steps import ShownMessage
from foveal.core.view.view import View

_MAX_TRIED_TEXTS: Final = 3
_MARKER_UNITS: Final = 16
"""Units by which a clip is cut below its size, so that its marker fits too."""


class _ResultPart(NamedTuple):
    """A text of a result that is not masked."""

    seq: int
    place: int
    text: str
    units: int


def squeeze_results(view: View, policy: Policy, *, excess: float) -> Clipped | Masked | None:
    """Clip the largest result that is left, to a size at which clipping all larger ones saves `excess` units.

    When no result can be cut further, mask the largest arguments of an answered call.
    """
    texts = sorted(_result_parts(view), key=lambda text: -text.units)
    size = _common_size([text.units for text in texts], excess)
    for text in texts[:_MAX_TRIED_TEXTS]:
        clipped = _clip_part(view, text, policy, size)
        if clipped is not None:
            return clipped
    return mask_largest_arguments(view)


def _result_parts(view: View) -> Iterator[_ResultPart]:
    for step in view.steps:
        if step.is_pinned:
            continue
        for slot in step.slots:
            shown = slot.result
            if shown is None or shown.is_masked:
                continue
            content = shown.fact.content
            if isinstance(content, str):
                yield _ResultPart(shown.seq, -1, content, shown.units(view.meter))
                continue
            for place, part in enumerate(content):
                if isinstance(part, Text):
                    yield _ResultPart(shown.seq, place, part.text, _part_units(view, shown, place))


def _part_units(view: View, shown: ShownMessage, place: int) -> int:
    """Return the units of one part as it is shown."""
    overlay = shown.overlays.get(place) if shown.overlays else None
    if overlay is not None:
        return view.meter.text(overlay.owner, shown.seq, place, overlay.text)
    return view.meter.replaceable_units(shown.seq, place, shown.fact.content)


def _common_size(sizes: list[int], excess: float) -> int:
    """Return the size to which all larger ones must be cut to save `excess` together; `sizes` descend."""
    saved = 0.0
    for count, (size, smaller) in enumerate(zip_longest(sizes, sizes[1:], fillvalue=0), 1):
        step = (size - smaller) * count
        if saved + step >= excess:
            return max(0, int(size - (excess - saved) / count))
        saved += step
    return 0


def _clip_part(view: View, text: _ResultPart, policy: Policy, size: int) -> Clipped | None:
    if text.units <= MIN_MASKED_UNITS:
        return None
    limits = policy.clip or Limits(strategy="both")
    tokens = max(0, size - _MARKER_UNITS)
    smaller = Limits(strategy=limits.strategy, tokens=tokens, head_share=limits.head_share)
    cut = clip(text.text, smaller, handle=handle(text.seq), counter=view.meter.counter)
    if cut is None or cut.kept_tokens + MIN_SAVED_UNITS > text.units:
        return None
    return cut.to_fact(text.seq, text.place, rule="squeeze")
