"""Images, sounds and files in view."""

from __future__ import annotations

from foveal.core.log.events import Media
from foveal.core.view.steps import ShownMessage


class ShownMedia(dict[tuple[int, int], Media]):
    """Media by seq and part, oldest first. Only the view changes it."""

    def add(self, shown: ShownMessage) -> None:
        """Add the media of a message."""
        content = shown.fact.content
        if not isinstance(content, str):
            for place, part in enumerate(content):
                if isinstance(part, Media):
                    self[shown.seq, place] = part

    def forget(self, shown: ShownMessage, part: int = -1) -> None:
        """Remove one part of a message, or all of them."""
        content = shown.fact.content
        if self and not isinstance(content, str):
            for place in range(len(content)) if part == -1 else (part,):
                self.pop((shown.seq, place), None)
