"""Media limits: masks the oldest images, audio and files above their budget."""

from __future__ import annotations

from foveal.core.log.events import Mask, Masked, handle
from foveal.core.models.budget import Budget
from foveal.core.view.view import View


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
            text = (
                f"[foveal: {part.mime or 'media'} of {part.size:,} bytes is not shown; whole: {handle(seq)}]"
            )
            masks.append(Mask(target=seq, text=text, part=place))
            count, size = count - 1, size - part.size
    return Masked(masks=tuple(masks), reason="media", rule="media budget") if masks else None


def exceeds_media_limits(view: View, budget: Budget) -> bool:
    media = view.media
    if not media:
        return False
    return len(media) > budget.max_images or sum(m.size for m in media.values()) > budget.max_media_bytes
