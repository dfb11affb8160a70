"""Draws Markdown for a terminal, with rich.

No text of the model can control the terminal or hide: each piece goes through `foveal.core.wire.safe_print` before
it is parsed as Markdown, and again after entities were resolved.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import ClassVar, Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.theme import Theme

from foveal.core.wire.safe_print import visible

MAX_PROSE_COLUMNS: Final = 100
"""Wider terminals are not filled: longer lines are hard to read."""
MARKDOWN_THEME: Final = Theme(
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


class _LeftHeading(Heading):
    """A heading on the left, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold")
        yield self.text


class _PlainMarkdown(Markdown):
    """Markdown with plain headings, in which HTML is text."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self.parsed = parser.parse(text)


class MarkdownPainter:
    """Converts Markdown to text with ANSI colours."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        truecolor = os.environ.get("COLORTERM", "") in ("truecolor", "24bit")
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor" if truecolor else "256",
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            theme=MARKDOWN_THEME,
        )

    def draw(self, text: str, *, width: int) -> str:
        """Return Markdown as lines, each with its newline; "" if nothing is visible."""
        if not text.strip():
            return ""
        options = self._console.options.update(width=max(20, min(width - 1, MAX_PROSE_COLUMNS)))
        lines = self._console.render_lines(_PlainMarkdown(visible(text)), options, pad=False)
        return "".join(line + "\n" for line in _collapse_blank_lines([self._line(line) for line in lines]))

    def _line(self, segments: list[Segment]) -> str:
        return "".join(map(self._segment, _strip_padding(segments)))

    def _segment(self, segment: Segment) -> str:
        if segment.control:
            return ""
        text = visible(segment.text).replace("\n", "")
        style = segment.style or Style.null()
        if not self._colours:
            return text
        return style.without_color.render(text) if style.link else style.render(text)


def _strip_padding(segments: list[Segment]) -> list[Segment]:
    """Remove the spaces that pad a line."""
    while segments:
        *rest, last = segments
        if last.text.rstrip():
            return [*rest, Segment(last.text.rstrip(), last.style, last.control)]
        segments = rest
    return []


def _collapse_blank_lines(lines: list[str]) -> Iterator[str]:
    """Keep at most one empty line in a row, and none at the beginning or the end."""
    empty = started = False
    for line in lines:
        if line:
            if empty and started:
                yield ""
            yield line
            empty, started = False, True
        else:
            empty = True
