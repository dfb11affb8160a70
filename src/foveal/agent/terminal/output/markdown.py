"""Draws Markdown for a terminal, with rich.

No text of the model can control the terminal or hide: each piece goes through `foveal.core.wire.safe_print` before
it is parsed as Markdown, and again after entities were resolved.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.theme import Theme as RichTheme

from foveal.agent.terminal.output.styled_text import COLOUR_NUMBERS, Theme
from foveal.core.wire.safe_print import printable

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
        self.parsed = [_without_images(token) for token in parser.parse(text)]


def _without_images(token: Token) -> Token:
    """Return a token with each image as a link to it: rich draws an image before the paragraph that it is in, and
    what it has drawn then takes room from the paragraph's first line."""
    if token.children is None:
        return token
    children = list[Token]()
    for child in token.children:
        if child.type != "image":
            children.append(child)
            continue
        address = str(child.attrs.get("src", ""))
        alt = "".join(part.content for part in child.children or ())
        text = f"image: {alt}" if alt else "image"
        is_in_link = sum(one.nesting for one in children if one.type.startswith("link_")) > 0
        ends = [] if is_in_link else [Token("link_close", "a", -1)]
        begins = [] if is_in_link else [Token("link_open", "a", 1, attrs={"href": address})]
        children += [*begins, Token("text", "", 0, content=text), *ends]
    token.children = children
    return token


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
        markdown = _PlainMarkdown(printable(text), code_theme=self._code_theme)
        lines = self._console.render_lines(markdown, options, pad=False)
        return "".join(line + "\n" for line in _collapse_blank_lines([self._line(line) for line in lines]))

    def _line(self, segments: list[Segment]) -> str:
        return "".join(map(self._segment, _strip_padding(segments)))

    def _segment(self, segment: Segment) -> str:
        if segment.control:
            return ""
        text = self._theme.characters(printable(segment.text).replace("\n", ""))
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
