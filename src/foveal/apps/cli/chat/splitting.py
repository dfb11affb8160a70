"""Markdown as it comes: what is finished can be drawn for good, the rest is still growing.

A block ends at a blank line, if what follows begins at the margin and belongs to nothing before it; inside a fence
of code nothing ends.
"""

from __future__ import annotations

import re
from typing import Final

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM: Final = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class Blocks:
    """The text of one answer, cut where it may be cut."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        """Whole lines of the block that is growing."""
        self._tail = ""
        """The line that is not yet whole."""
        self._fence = ""

    @property
    def rest(self) -> str:
        return "".join(self._lines) + self._tail

    def feed(self, text: str) -> list[str]:
        """Take in more; the blocks that it finishes."""
        done: list[str] = []
        pieces = (self._tail + text).split("\n")
        self._tail = pieces.pop()
        for line in pieces:
            if self._begins(line):
                done.append("".join(self._lines))
                self._lines = []
            self._take(line)
        return done

    def end(self) -> str:
        """The rest, and begin anew."""
        rest, self._lines, self._tail, self._fence = self.rest, [], "", ""
        return rest

    def _take(self, line: str) -> None:
        self._lines.append(line + "\n")
        found = _FENCE.match(line)
        if self._fence:
            closing = found and found[1].startswith(self._fence) and not line.strip().strip(self._fence[0])
            self._fence = "" if closing else self._fence
        elif found:
            self._fence = found[1]

    def _begins(self, line: str) -> bool:
        """Whether this line is the first of a new block."""
        if self._fence or not self._lines or self._lines[-1].strip() or not line.strip():
            return False
        if line[0] in " \t":
            return False
        return not (_ITEM.match(line) and _ITEM.match(next(filter(str.strip, self._lines), "")))
