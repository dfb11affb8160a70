"""Streamed Markdown: finished blocks for printing, and a preview of the unfinished one."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from foveal.agent.terminal.output.styled_text import Theme

if TYPE_CHECKING:
    from foveal.agent.terminal.output.markdown import MarkdownPainter

FRAME_INTERVAL_S: Final = 0.08
"""Minimum time between two previews."""
MAX_PREVIEW_CHARS: Final = 20_000
"""A preview draws only the end of a longer block."""
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST_ITEM: Final = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class StreamingMarkdown:
    """Draws an answer while it arrives."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._blocks = MarkdownBlocks()
        self._painter: MarkdownPainter | None = None
        self._drawn_at = 0.0

    def feed(self, text: str, *, width: int) -> list[str]:
        """Add text and return the blocks that it finishes, drawn."""
        return [drawn for block in self._blocks.feed(text) if (drawn := self.draw(block, width=width))]

    def end(self, *, width: int) -> str:
        """Return the rest, drawn; the next text begins another answer."""
        return self.draw(self._blocks.end(), width=width)

    def preview(self, *, width: int) -> str | None:
        """Return the unfinished block, drawn; None when the last preview is too recent."""
        if time.monotonic() - self._drawn_at < FRAME_INTERVAL_S:
            return None
        drawn = self.draw(self._blocks.rest[-MAX_PREVIEW_CHARS:], width=width)
        self._drawn_at = time.monotonic()
        return drawn

    def draw(self, text: str, *, width: int) -> str:
        """Return a finished text, drawn."""
        if not text.strip():
            return ""
        if self._painter is None:
            # rich is slow to import, and the prompt must not wait for it.
            from foveal.agent.terminal.output.markdown import MarkdownPainter

            self._painter = MarkdownPainter(self._theme)
        return self._painter.draw(text, width=width)


class MarkdownBlocks:
    """Splits streamed Markdown into blocks.

    A block ends at a blank line if the next line begins at the margin and does not continue the block (as the next
    item of a list does). A fence of code is never split.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        """Complete lines of the unfinished block."""
        self._tail = ""
        """The incomplete line."""
        self._fence = ""

    @property
    def rest(self) -> str:
        return "".join(self._lines) + self._tail

    def feed(self, text: str) -> list[str]:
        """Add text and return the blocks that it finishes."""
        done: list[str] = []
        pieces = (self._tail + text).split("\n")
        self._tail = pieces.pop()
        for line in pieces:
            if self._begins_block(line):
                done.append("".join(self._lines))
                self._lines = []
            self._add(line)
        return done

    def end(self) -> str:
        """Return the rest and start again."""
        rest, self._lines, self._tail, self._fence = self.rest, [], "", ""
        return rest

    def _add(self, line: str) -> None:
        self._lines.append(line + "\n")
        found = _FENCE.match(line)
        if self._fence:
            closing = found and found[1].startswith(self._fence) and not line.strip().strip(self._fence[0])
            self._fence = "" if closing else self._fence
        elif found:
            self._fence = found[1]

    def _begins_block(self, line: str) -> bool:
        if self._fence or not self._lines or self._lines[-1].strip() or not line.strip():
            return False
        if line[0] in " \t":
            return False
        return not (_LIST_ITEM.match(line) and _LIST_ITEM.match(next(filter(str.strip, self._lines), "")))
