"""Masks images, audio and files: the oldest above their budget, and those that a provider refuses."""

from __future__ import annotations

from typing import Final

from foveal.core.log.events import Mask, Masked, Media, handle
from foveal.core.models.budget import Budget
from foveal.core.view.view import View

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
        if found is not None and found[0] is not latest and not found[0].is_pinned:
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
    return found is not None and not found[0].is_pinned


def _mask(seq: int, place: int, part: Media, *, why: str = "") -> Mask:
    text = f"[foveal: {part.mime or 'media'} of {part.size:,} bytes is not shown{why}; whole: {handle(seq)}]"
    return Mask(target=seq, text=text, part=place)


def exceeds_media_limits(view: View, budget: Budget) -> bool:
    media = view.media
    if not media:
        return False
    return len(media) > budget.max_images or sum(m.size for m in media.values()) > budget.max_media_bytes
