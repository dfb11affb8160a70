"""An answer as it grows: blocks that are finished, and a picture of the one that is not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from foveal.apps.cli.chat.splitting import Blocks

if TYPE_CHECKING:
    from foveal.apps.cli.chat.markdown import Painter

FRAME: Final = 0.08
"""Seconds between two pictures."""
LONGEST: Final = 20_000
"""Characters of an unfinished block that are drawn: its end."""


class Growing:
    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._blocks = Blocks()
        self._painter: Painter | None = None
        self._drawn = 0.0

    def feed(self, text: str, *, width: int) -> list[str]:
        """Take in more; the blocks that it finishes, drawn."""
        return [drawn for block in self._blocks.feed(text) if (drawn := self._draw(block, width))]

    def end(self, *, width: int) -> str:
        """What is left, drawn; the next piece begins another answer."""
        return self._draw(self._blocks.end(), width)

    def picture(self, *, width: int) -> str | None:
        """The unfinished block, drawn; None when it is too early for another picture."""
        if time.monotonic() - self._drawn < FRAME:
            return None
        drawn = self._draw(self._blocks.rest[-LONGEST:], width)
        self._drawn = time.monotonic()
        return drawn

    def _draw(self, text: str, width: int) -> str:
        if not text.strip():
            return ""
        if self._painter is None:
            from foveal.apps.cli.chat.markdown import Painter  # slow to load, and not needed before

            self._painter = Painter(colours=self._colours)
        return self._painter.draw(text, width=width)
