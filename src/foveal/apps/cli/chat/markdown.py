"""A model's markdown, drawn for a terminal. Nothing in it can command the terminal or hide: each piece of text goes
through `foveal.visible`, before it is read as markdown and again after entities were resolved.
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

from foveal.visible import visible

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


class Painter:
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
