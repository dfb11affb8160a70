"""A model's markdown, drawn for a terminal. Nothing in it can command the terminal or hide: each piece of text goes
through `foveal.core.wire.safe_print`, before it is read as markdown and again after entities were resolved.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.theme import Theme

from foveal.core.wire.safe_print import visible

if TYPE_CHECKING:
    pass

WIDEST: Final = 100
"""Columns in which prose is still easy to read."""
THEME: Final = Theme(
    {
        "markdown.code": "cyan",
        "markdown.block_quote": "dim",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.link_url": "blue underline",
        "markdown.hr": "dim",
        **dict.fromkeys((f"markdown.h{level}" for level in range(1, 7)), "bold"),
    }
)


class _Heading(Heading):
    """A heading at the left, without a box around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold")
        yield self.text


class _Calm(Markdown):
    """Markdown without loud headings, and with every word of it: what looks like HTML is text."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self.parsed = parser.parse(text)


class MarkdownPainter:
    """Markdown to text with colours, as far as the terminal has them and its owner wants them."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        deep = os.environ.get("COLORTERM", "") in ("truecolor", "24bit")
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor" if deep else "256",
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            theme=THEME,
        )

    def draw(self, text: str, *, width: int) -> str:
        """Markdown as lines, each with its newline; "" when there is nothing to see."""
        if not text.strip():
            return ""
        options = self._console.options.update(width=max(20, min(width - 1, WIDEST)))
        lines = self._console.render_lines(_Calm(visible(text)), options, pad=False)
        return "".join(line + "\n" for line in _spaced([self._line(line) for line in lines]))

    def _line(self, segments: list[Segment]) -> str:
        return "".join(map(self._segment, _trimmed(segments)))

    def _segment(self, segment: Segment) -> str:
        if segment.control:
            return ""
        text = visible(segment.text).replace("\n", "")
        style = segment.style or Style.null()
        if not self._colours:
            return text
        return style.without_color.render(text) if style.link else style.render(text)


def _trimmed(segments: list[Segment]) -> list[Segment]:
    """Without the spaces that fill a line up."""
    while segments:
        *rest, last = segments
        if last.text.rstrip():
            return [*rest, Segment(last.text.rstrip(), last.style, last.control)]
        segments = rest
    return []


def _spaced(lines: list[str]) -> Iterator[str]:
    """At most one empty line in a row, and none at the beginning or the end."""
    empty = started = False
    for line in lines:
        if line:
            if empty and started:
                yield ""
            yield line
            empty, started = False, True
        else:
            empty = True


# ── splitting ─────────────────────────────────────────────────────────────────────────────────────
# Markdown as it comes: what is finished can be drawn for good, the rest is still growing.
#
# A block ends at a blank line, if what follows begins at the margin and belongs to nothing before it; inside a fence
# of code nothing ends.

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM: Final = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class MarkdownBlocks:
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


# ── growing ───────────────────────────────────────────────────────────────────────────────────────
# An answer as it grows: blocks that are finished, and a picture of the one that is not.

FRAME: Final = 0.08
"""Seconds between two pictures."""
LONGEST: Final = 20_000
"""Characters of an unfinished block that are drawn: its end."""


class StreamingMarkdown:
    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._blocks = MarkdownBlocks()
        self._painter: MarkdownPainter | None = None
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
            # slow to load, and not needed before

            self._painter = MarkdownPainter(colours=self._colours)
        return self._painter.draw(text, width=width)
