"""Markdown in a terminal, drawn with rich: finished blocks of a stream, and a preview of the unfinished one.

No text of the model can control the terminal or hide: each piece goes through `foveal.core.wire.safe_print` before
it is parsed as Markdown, and again after entities were resolved.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from typing import ClassVar, Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.theme import Theme as RichTheme

from foveal.agent.terminal.output.styled_text import COLOUR_NUMBERS, Theme
from foveal.core.wire.safe_print import readable

MAX_PROSE_COLUMNS: Final = 100
"""Wider terminals are not filled: longer lines are hard to read."""


def markdown_styles(theme: Theme) -> RichTheme:
    """Return the styles of Markdown in the colours of a theme."""
    numbers = COLOUR_NUMBERS[theme.background] if theme.colours == 256 else {}
    accent = f"color({numbers['accent']})" if numbers else "blue" if theme.background == "light" else "cyan"
    blue = f"color({numbers['blue']})" if numbers else "blue"
    styles = {
        "markdown.code": accent,
        "markdown.block_quote": "dim",
        "markdown.item.bullet": accent,
        "markdown.item.number": accent,
        "markdown.link_url": f"{blue} underline",
        "markdown.hr": "dim",
        **dict.fromkeys((f"markdown.h{level}" for level in range(1, 7)), "bold"),
    }
    return RichTheme(styles)


class _LeftHeading(Heading):
    """A heading on the left, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold")
        yield self.text


class _PlainMarkdown(Markdown):
    """Markdown with plain headings, in which HTML is text."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}

    def __init__(self, text: str, *, code_theme: str) -> None:
        super().__init__(text, code_theme=code_theme, hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self.parsed = parser.parse(text)


class MarkdownPainter:
    """Converts Markdown to text with ANSI colours."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._code_theme = "ansi_light" if theme.background == "light" else "ansi_dark"
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="256" if theme.colours == 256 else "standard",
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            theme=markdown_styles(theme),
        )

    def draw(self, text: str, *, width: int) -> str:
        """Return Markdown as lines, each with its newline; "" if nothing is visible."""
        if not text.strip():
            return ""
        options = self._console.options.update(width=max(20, min(width - 1, MAX_PROSE_COLUMNS)))
        markdown = _PlainMarkdown(readable(text), code_theme=self._code_theme)
        lines = self._console.render_lines(markdown, options, pad=False)
        return "".join(line + "\n" for line in _collapse_blank_lines([self._line(line) for line in lines]))

    def _line(self, segments: list[Segment]) -> str:
        return "".join(map(self._segment, _strip_padding(segments)))

    def _segment(self, segment: Segment) -> str:
        if segment.control:
            return ""
        text = self._theme.characters(readable(segment.text).replace("\n", ""))
        style = segment.style or Style.null()
        if not self._theme.codes:
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
