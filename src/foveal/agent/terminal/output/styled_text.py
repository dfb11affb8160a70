"""Styled text: rows of spans with named styles, their output, and the theme of the terminal.

Rows are data; `plain_text` and `ansi_text` turn them into text without and with colours. Every span goes through
`foveal.core.wire.safe_print`, so the text is safe to print.

A `Theme` has the colours and characters that the terminal can show:

1. `FOVEAL_THEME` is `dark`, `light` or `plain`. Otherwise the background is read from `COLORFGBG`, which some
   terminals set; if it is not known, the colours are legible on black and on white.
2. `NO_COLOR` means no colours. A terminal of 16 colours gets only those.
3. Where the locale is not UTF-8, the marks of the screen are ASCII characters of the same width.

The terminal is not asked for its background: an answer that comes late would be read as input.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

from foveal.core.wire.safe_print import MARK, printable

Background = Literal["dark", "light", "unknown"]

SGR_CODES: Final[dict[str, str]] = {
    "bold": "1",
    "dim": "2",
    "good": "32",
    "fair": "33",
    "bad": "31",
    "accent": "36",
    "blue": "34",
    "magenta": "35",
}
"""Codes of the styles for terminals of 16 colours, which have their own palette."""
LIGHT_SGR_CODES: Final = {**SGR_CODES, "fair": "35", "accent": "34"}
"""Without yellow and cyan, which are hard to read on white."""
COLOUR_NUMBERS: Final[dict[Background, dict[str, int]]] = {
    "dark": {"dim": 246, "good": 77, "fair": 179, "bad": 203, "accent": 80, "blue": 75, "magenta": 176},
    "light": {"dim": 242, "good": 28, "fair": 130, "bad": 160, "accent": 30, "blue": 26, "magenta": 127},
    "unknown": {"dim": 244, "good": 28, "fair": 166, "bad": 160, "accent": 31, "blue": 33, "magenta": 133},
}
"""Colours of the palette of 256 colours; those for an unknown background have a contrast of at least 3 on both."""
ASCII_MARKS: Final = str.maketrans(
    "│┊└●▪✗›…·▕▏█■▣□▫–—→←↑↓◐◓◑◒⏎␊“”‘’×−•▌─━═┃║┏┓┗┛┡┩├┤┬┴┼╇╈⟨⟩",
    "||`*-x>~.[]##%-.--><^v|/-\\\\\\\"\"''x-*|---||+++++++++++++<>",
)
"""ASCII characters of one column for the characters that the screen draws."""


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """How styles become codes, and which characters are used."""

    codes: Mapping[str, str] = msgspec.field(default_factory=lambda: SGR_CODES)
    """SGR codes by style; empty for no colours."""
    background: Background = "unknown"
    colours: int = 16
    """Number of colours: 0, 16 or 256 (also for terminals with more)."""
    is_unicode: bool = True

    def characters(self, text: str) -> str:
        """Return a text in characters that the terminal can show."""
        if self.is_unicode or text.isascii():
            return text
        return text.translate(ASCII_MARKS).encode("ascii", "backslashreplace").decode()


def terminal_theme(environ: Mapping[str, str] = os.environ) -> Theme:
    """Return the theme of the terminal that the environment describes."""
    wanted = environ.get("FOVEAL_THEME", "")
    is_unicode = has_unicode(environ)
    if environ.get("NO_COLOR") or wanted == "plain":
        return Theme(codes={}, colours=0, is_unicode=is_unicode)
    background = _background(wanted, environ)
    if not _has_256_colours(environ):
        codes = LIGHT_SGR_CODES if background == "light" else SGR_CODES
        return Theme(codes=codes, background=background, is_unicode=is_unicode)
    numbers = {style: f"38;5;{number}" for style, number in COLOUR_NUMBERS[background].items()}
    return Theme(codes={"bold": "1", **numbers}, background=background, colours=256, is_unicode=is_unicode)


def _background(wanted: str, environ: Mapping[str, str]) -> Background:
    if wanted in ("dark", "light"):
        return "dark" if wanted == "dark" else "light"
    *_, number = environ.get("COLORFGBG", "").split(";")
    if not number.isdecimal():
        return "unknown"
    return "light" if int(number) in (7, *range(9, 16)) else "dark"


def _has_256_colours(environ: Mapping[str, str]) -> bool:
    return "256" in environ.get("TERM", "") or environ.get("COLORTERM", "") in ("truecolor", "24bit")


def has_unicode(environ: Mapping[str, str]) -> bool:
    """Return whether the locale is UTF-8; one that is not set counts as UTF-8, as terminals are today."""
    name = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "UTF-8"
    return name.casefold().replace("-", "").endswith(("utf8", "utf8@euro"))


Style = Literal["", "bold", "dim", "good", "fair", "bad", "accent", "blue", "magenta"]
DEFAULT_THEME: Final = Theme()
STATE_STYLES: Final[dict[str, Style]] = {"ok": "good", "warn": "fair", "act": "bad", "over": "bad"}
"""Styles of the states of a report."""
TAB_COLUMNS: Final = 4
MAX_KNOWN_CHARACTERS: Final = 65_536
"""Characters whose width is remembered: a text can have millions."""
_ROW_START: Final = re.compile(r" *(?:│ +|[▪✗└●?] +|\S(?: ?\S)*  +)?")
"""The indentation of a row, with a mark or a first column after it."""

_REVERSED: Final = "\x1b[7m\\g<0>\x1b[27m"
"""A mark of a character that cannot be seen, apart from text that looks like one."""
_HUNK: Final = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_DIFF_STYLES: Final[dict[str, Style]] = {"+": "good", "-": "bad"}


class Span(NamedTuple):
    """A piece of text in one style."""

    text: str
    style: Style = ""


Row = tuple[Span, ...]
"""One line."""


def row(*parts: str | Span) -> Row:
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts)


def dim(text: str) -> Span:
    return Span(text, "dim")


def bold(text: str) -> Span:
    return Span(text, "bold")


def text_rows(text: str, *, style: Style = "", indent: str = "") -> list[Row]:
    """Return each line of a text as a row."""
    return [row(Span(indent + line, style)) for line in text.split("\n")]


def diff_rows(text: str) -> list[Row]:
    """Return a unified diff as rows in the usual colours, with the numbers of the lines; other text unchanged."""
    lines = text.rstrip("\n").split("\n")
    if not any(map(_HUNK.match, lines)):
        return text_rows(text.rstrip("\n"))
    rows, old, new = [], 0, 0
    for line in lines:
        if found := _HUNK.match(line):
            old, new = int(found[1]), int(found[2])
            rows.append(row(Span(line, "accent")))
        elif not new and not old:
            rows.append(row(dim(line)))  # the names of the files
        else:
            number = {"-": old, "\\": 0}.get(line[:1], new)
            rows.append(row(dim(f"{number or '':>5} "), Span(line, _DIFF_STYLES.get(line[:1], ""))))
            old, new = old + (line[:1] in " -"), new + (line[:1] in " +")
    return rows


# ── Width ────────────────────────────────────────────────────────────────────────────────────────────────


def cell_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return len(text) if text.isascii() else sum(map(char_width, text))


@lru_cache(maxsize=MAX_KNOWN_CHARACTERS)
def char_width(character: str) -> int:
    """Return the most columns that a character takes: prompt_toolkit, which draws the screen, and terminals
    disagree, and what a line loses at its end is not seen."""
    # Imported here, because output without a terminal does not need it.
    from prompt_toolkit.utils import get_cwidth

    is_wide = unicodedata.east_asian_width(character) in "WF"
    columns = 0 if unicodedata.combining(character) else 2 if is_wide else 1
    return max(columns, get_cwidth(character))


def fitting(text: str, start: int, width: int) -> int:
    """Return where the characters from `start` on that fit into `width` columns end."""
    end = start
    while end < len(text) and (width := width - char_width(text[end])) >= 0:
        end += 1
    return end


def cut(text: str, width: int) -> str:
    """Return a text on one line, cut to `width` columns."""
    text = single_line(text)
    if cell_width(text) <= width:
        return text
    return text[: fitting(text, 0, width - 1)] + "…"


def cut_row(parts: Row, width: int) -> Row:
    """Return a row cut to `width` columns."""
    spans: list[Span] = []
    for span in parts:
        text = single_line(span.text)
        if (size := cell_width(text)) > width:
            spans.append(Span(cut(text, width), span.style))
            break
        spans.append(Span(text, span.style))
        width -= size
    return tuple(spans)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns; a longer word is broken."""
    lines = [""]
    for word in single_line(text).split(" "):
        if lines[-1] and cell_width(lines[-1]) + 1 + cell_width(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        while cell_width(lines[-1]) > width:
            end = max(1, fitting(lines[-1], 0, width))
            lines[-1:] = [lines[-1][:end], lines[-1][end:]]
    return lines


def wrap_row(parts: Row, width: int) -> list[Row]:
    """Return a row as rows of at most `width` columns, broken at spaces; a longer word is broken. The rows after
    the first are indented to the text of the first, below its mark or its first column."""
    spans = [Span(single_line(span.text), span.style) for span in parts]
    text = "".join(span.text for span in spans)
    if cell_width(text) <= width:
        return [parts]
    indent = _hanging_indent(text, most=width // 2)
    end = _line_end(text, 0, width)
    rows = [_row_part(spans, 0, end)]
    while (start := _skip_spaces(text, end)) < len(text):
        end = _line_end(text, start, width - cell_width(indent))
        rows.append((Span(indent, spans[0].style), *_row_part(spans, start, end)))
    return rows


def _hanging_indent(text: str, *, most: int) -> str:
    """Return the beginning of the rows after the first: a bar is repeated, other marks and a first column that is
    followed by two spaces become spaces."""
    found = _ROW_START.match(text, 0, most + 1)
    start = found[0] if found is not None else ""
    if cell_width(start) > most:  # a wide first column leaves too little room beside it
        return " " * (len(text) - len(text.lstrip(" ")) + TAB_COLUMNS)
    return start if "│" in start else " " * cell_width(start)


def _line_end(text: str, start: int, width: int) -> int:
    """Return where a line of at most `width` columns that begins at `start` ends: at a space, or within a word that
    is longer than the line."""
    end = fitting(text, start, width)
    if end == len(text):
        return end
    space = text.rfind(" ", start, end + 1)
    while space > start and text.startswith("%", space + 1):  # a number and its percent sign stay together
        space = text.rfind(" ", start, space)
    return space if space > start and text[start:space].strip() else max(end, start + 1)


def _skip_spaces(text: str, at: int) -> int:
    while text.startswith(" ", at):
        at += 1
    return at


def _row_part(spans: Sequence[Span], start: int, end: int) -> Row:
    """Return the characters of a row from `start` to `end`, in their styles."""
    part: list[Span] = []
    for span in spans:
        if start < len(span.text) and end > 0:
            part.append(Span(span.text[max(0, start) : end], span.style))
        start, end = start - len(span.text), end - len(span.text)
    return tuple(part)


def single_line(text: str) -> str:
    """Return a text that is safe to print and has no line breaks."""
    return printable(text).replace("\n", "␊").expandtabs(TAB_COLUMNS)


# ── Output ───────────────────────────────────────────────────────────────────────────────────────────────


def plain_text(rows: Iterable[Row]) -> str:
    """Return rows as text without colours, each with its newline."""
    return "".join("".join(single_line(span.text) for span in parts).rstrip() + "\n" for parts in rows)


def ansi_text(rows: Iterable[Row], *, width: int = 0, theme: Theme = DEFAULT_THEME) -> str:
    """Return rows as text for a terminal; `width` 0 means that they are not cut."""
    rows = (cut_row(parts, width) if width else parts for parts in rows)
    if not theme.codes:
        return theme.characters(plain_text(rows))
    return "".join("".join(_ansi_span(span, theme) for span in parts) + "\n" for parts in rows)


def _ansi_span(span: Span, theme: Theme) -> str:
    text = theme.characters(MARK.sub(_REVERSED, single_line(span.text)))
    code = theme.codes.get(span.style, "")
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def rows_in_theme(rows: Iterable[Row], theme: Theme) -> list[Row]:
    """Return rows in the characters of a theme, which can take more columns."""
    if theme.is_unicode:
        return list(rows)
    return [
        tuple(Span(theme.characters(single_line(span.text)), span.style) for span in parts) for parts in rows
    ]


def table_lines(table: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return a table as lines with aligned columns; the columns in `right` are aligned to the right."""
    widths = [max(map(cell_width, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(_pad(cell, widths[i], i in right) for i, cell in enumerate(line)).rstrip() for line in table
    ]


def _pad(text: str, width: int, at_the_right: bool) -> str:  # noqa: FBT001
    space = " " * (width - cell_width(text))
    return space + text if at_the_right else text + space
