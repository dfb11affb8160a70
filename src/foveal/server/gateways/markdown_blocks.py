"""Reads Markdown as the blocks of a chat message.

A block is a leaf of the document: a paragraph, a heading, a code block, a table or a rule. Quotes and lists, which
contain blocks, are properties of the blocks inside them. A table is drawn in monospaced text, and the addresses of
its links follow below it.

The inline Markdown of a block is text and marks. `plain_inline` returns what a reader sees, for chat apps that take
formatting beside the text. `source_inline` returns the source without the delimiters of its marks, for chat apps
that take Markdown: escapes stay in it. Neither loses the address of a link: an address that cannot be a link is
written after the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from foveal.server.gateways.split_message import MarkedText, TextMark, cut_text

_KINDS: Final = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_MAX_LINK_CHARS: Final = 2_000
"""A longer address is written after its text: Telegram refuses it in a link."""
_MAX_SOURCE_LINK_CHARS: Final = 800
"""The same bound where the address takes room in the message."""


def plain_inline(tokens: Sequence[Token]) -> MarkedText:
    """Return the text that a reader sees, and its marks; marks never overlap code, and code is no link."""
    return _InlineReader(tokens, is_source=False).result()


def source_inline(tokens: Sequence[Token]) -> MarkedText:
    """Return the source with its marks taken out."""
    return _InlineReader(tokens, is_source=True).result()


class _OpenMark(NamedTuple):
    kind: str
    start: int
    value: str
    place: int
    """Where the mark belongs in the order of the marks."""
    written: int
    """How many texts were written before it."""


class _InlineReader:
    def __init__(self, tokens: Sequence[Token], *, is_source: bool) -> None:
        self._is_source = is_source
        self._max_link_chars = _MAX_SOURCE_LINK_CHARS if is_source else _MAX_LINK_CHARS
        self._text: list[str] = []
        self._length = 0
        self._marks: list[TextMark | None] = []
        self._open: list[_OpenMark] = []
        for token in tokens:
            self._read(token)

    def result(self) -> MarkedText:
        text = "".join(self._text)
        return MarkedText(text, tuple(mark for mark in self._marks if mark)).slice(0, len(text))

    def _read(self, token: Token) -> None:
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name in _KINDS:
            self._begin(_KINDS[name], token.markup) if token.nesting == 1 else self._end()
            return
        match token.type:
            case "softbreak" | "hardbreak":
                self._write("\n")
            case "code_inline":
                self._code(token)
            case "link_open" | "link_close" if self._is_source and token.markup == "autolink":
                self._write("<" if token.nesting == 1 else ">")
            case "link_open":
                self._begin("link", str(token.attrs.get("href", "")))
            case "link_close":
                self._end_link()
            case "image":
                self._begin("link", str(token.attrs.get("src", "")))
                self._write(token.content or "picture")
                self._end_link()
            case "text_special" if self._is_source:
                self._write(token.markup)
            case _:
                self._write(token.content)

    def _write(self, text: str) -> None:
        self._text.append(text)
        self._length += len(text)

    def _begin(self, kind: str, value: str) -> None:
        self._open.append(_OpenMark(kind, self._length, value, len(self._marks), len(self._text)))
        self._marks.append(None)

    def _end(self) -> None:
        opened = self._open.pop()
        self._marks[opened.place] = TextMark(opened.kind, opened.start, self._length, opened.value)

    def _code(self, token: Token) -> None:
        """Write code as a mark of its own; Telegram shows no other mark around code, and no link on it."""
        if self._is_source:
            self._begin("code", token.markup)
            self._write(token.content)
            self._end()
        elif any(mark.kind == "link" for mark in self._open):
            self._write(token.content)
        else:
            interrupted = list(self._open)
            while self._open:
                self._end()
            self._begin("code", token.markup)
            self._write(token.content)
            self._end()
            for mark in interrupted:
                self._begin(mark.kind, mark.value)

    def _end_link(self) -> None:
        """End a link; write the address after its text if it cannot be a link."""
        opened = self._open[-1]
        if not "".join(self._text[opened.written :]).strip():
            self._open.pop()
            self._write(opened.value)
        elif opened.value.startswith(("http://", "https://")) and len(opened.value) <= self._max_link_chars:
            self._end()
        else:
            self._open.pop()
            self._write(f" ({opened.value})" if opened.value else "")


_MAX_LANGUAGE_CHARS: Final = 30
_LEAVES: Final = ("paragraph_open", "heading_open", "fence", "code_block", "table_open", "hr")
_URL: Final = re.compile(r"https?://\S+")
_WIDE_ITEM: Final = re.compile(r" {0,2}\d{2,9}[.)] {1,4}(?=\S)")
"""The marker of a numbered item from 10 on."""
_SUB_ITEM: Final = re.compile(r" *(?:[-*+]|\d{1,9}[.)]) ")
_FENCE: Final = re.compile(r" *(`{3,}|~{3,})")
_ITEM_INDENT: Final = 3
"""Spaces with which models indent the items below a numbered item."""
_LANGUAGE: Final = re.compile(r"[\w+#.-]+", re.ASCII)


class MessageBlock(NamedTuple):
    """One leaf of a document, and the lists and quotes around it."""

    kind: Literal["paragraph", "heading", "code", "table", "rule"]
    body: MarkedText
    header: str = ""
    """The lines of a table that each part repeats."""
    joined: frozenset[int] = frozenset()
    """Positions of the line breaks inside a row of a table."""
    language: str = ""
    """The language of code."""
    level: int = 0
    """The level of a heading."""
    quote: int = 0
    """The number of the outermost quote around the block; 0 if there is none."""
    items: tuple[str, ...] = ()
    """Markers of the list items around the block, such as `-` and `2.`."""
    is_first: bool = False
    """Whether the block begins the innermost list item, so that the marker stands before it."""
    is_close: bool = False
    """Whether the block belongs to the same list as the block before it."""
    is_separate: bool = False
    """Whether the source has a blank line before the block."""

    @property
    def is_monospace(self) -> bool:
        return self.kind in ("code", "table")

    def with_body(self, body: MarkedText, *, is_first: bool) -> MessageBlock:
        """Return one piece of a block that was cut."""
        kept = self._replace(body=body, joined=frozenset())
        return kept if is_first else kept._replace(is_first=False, is_close=True, is_separate=False)


def cut_block(
    block: MessageBlock,
    *,
    window: int,
    fits: Callable[[MessageBlock], bool],
    continued: Callable[[MarkedText], MarkedText] = lambda body: body,
) -> Iterator[MessageBlock]:
    """Yield a block that is larger than a part as several blocks that fit; `window` bounds the characters of each.

    `continued` changes the text of prose after a cut."""
    pieces = cut_text(
        block.body,
        window=window,
        fits=lambda body: fits(block._replace(body=body)),
        is_monospace=block.is_monospace,
        joined=block.joined,
    )
    for number, piece in enumerate(pieces):
        is_prose = number > 0 and not block.is_monospace
        yield block.with_body(continued(piece) if is_prose else piece, is_first=number == 0)


InlineText = Callable[[Sequence[Token]], MarkedText]


def read_blocks(
    markdown: str, *, inline: InlineText, has_references: bool, max_table_width: int
) -> list[MessageBlock]:
    """Return the blocks of a message.

    `has_references` says whether `[text][1]` is a link; the chat app shows it as it is otherwise.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("text_join")
    if not has_references:
        parser.disable("reference")
    environment: dict[str, Any] = {}
    tokens = parser.parse("\n".join(_nested_items(markdown)), environment)
    reader = _BlockReader(inline, max_table_width)
    for token in tokens:
        reader.read(token)
    return [*reader.blocks, *_unused_references(environment, tokens)]


def _nested_items(markdown: str) -> Iterator[str]:
    """Yield the lines of a document; items below a numbered item from 10 on are indented by as much as it requires.

    CommonMark requires four spaces there, and models write three, as below the items before it.
    """
    fence, width, shift = "", 0, 0
    for line in markdown.split("\n"):
        text = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if fence:
            fence = "" if text.startswith(fence) and not text.strip(fence[0]) else fence
        else:
            if text and indent < _ITEM_INDENT:
                item = _WIDE_ITEM.match(line)
                width, shift = item.end() if item else 0, 0
            elif not shift and _SUB_ITEM.match(line):
                shift = max(0, width - indent)
            found = _FENCE.match(line)
            fence = found[1] if found else ""
        yield " " * (shift if text and indent >= _ITEM_INDENT else 0) + line


def _unused_references(environment: dict[str, Any], tokens: Sequence[Token]) -> list[MessageBlock]:
    """Return the addresses that the document defines and never uses, which a reader would not see otherwise."""
    used = {
        str(child.attrs.get("href") or child.attrs.get("src"))
        for token in tokens
        for child in token.children or ()
        if child.type in ("link_open", "image")
    }
    defined = [*environment.get("references", {}).values(), *environment.get("duplicate_refs", [])]
    lines = [str(reference["href"]) for reference in defined if reference["href"] not in used]
    return [MessageBlock("paragraph", MarkedText("\n".join(lines)), is_separate=True)] if lines else []


class _ListState(NamedTuple):
    bullet: str
    """The marker of a bullet; "" in a numbered list."""
    number: int
    """The number of the current item."""


class _BlockReader:
    """Reads the tokens in one pass; holds the lists, quotes and table that are open."""

    def __init__(self, inline: InlineText, max_table_width: int) -> None:
        self.blocks: list[MessageBlock] = []
        self._inline = inline
        self._max_table_width = max_table_width
        self._lists: list[_ListState] = []
        self._is_item_start = False
        self._quotes = 0
        self._quote_depth = 0
        self._heading = 0
        self._table: _TableReader | None = None
        self._starts_list = True
        """Whether the next block does not continue the list of the block before it."""
        self._first_line, self._end_line = 0, 0
        """Lines of the current block in the source."""
        self._last_line = 0
        """Where the block before it ended."""

    def read(self, token: Token) -> None:
        if token.type in _LEAVES and token.map:
            self._first_line, self._end_line = token.map
        if self._table is not None:
            self._read_table(token, self._table)
        else:
            self._read_block(token)

    def _read_block(self, token: Token) -> None:
        match token.type:
            case "inline":
                kind: Literal["heading", "paragraph"] = "heading" if self._heading else "paragraph"
                self._add(MessageBlock(kind, self._inline(token.children or []), level=self._heading))
            case "heading_open" | "heading_close":
                self._heading = int(token.tag[1:]) if token.nesting == 1 else 0
            case "fence" | "code_block":
                self._add_monospace(
                    MessageBlock(
                        "code", MarkedText(token.content.rstrip("\n")), language=_language(token.info)
                    )
                )
            case "hr":
                self._add(MessageBlock("rule", MarkedText("")))
            case "table_open":
                self._table = _TableReader()
            case "blockquote_open" | "blockquote_close":
                self._quotes += token.nesting == 1 and self._quote_depth == 0
                self._quote_depth += token.nesting
            case "bullet_list_open":
                self._lists.append(_ListState(token.markup, 0))
            case "ordered_list_open":
                self._lists.append(_ListState("", int(token.attrs.get("start", 1)) - 1))
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
                self._starts_list = not self._lists
            case "list_item_open" | "list_item_close":
                self._item(is_open=token.nesting == 1)

    def _item(self, *, is_open: bool) -> None:
        if self._is_item_start:  # the item begins with another list, or is empty
            self._add(MessageBlock("paragraph", MarkedText("")))
        if is_open:
            self._lists[-1] = self._lists[-1]._replace(number=self._lists[-1].number + 1)
        self._is_item_start = is_open

    def _read_table(self, token: Token, table: _TableReader) -> None:
        if token.type != "table_close":
            table.read(token)
            return
        self._table = None
        self._add_monospace(table.block(self._max_table_width))
        if table.links:
            lines = "\n".join(f"[{number}] {url}" for url, number in table.links.items())
            self._add(MessageBlock("paragraph", MarkedText(lines)))

    def _add_monospace(self, block: MessageBlock) -> None:
        """Add a block of lines, which has the marker of a list item above it."""
        if self._is_item_start:
            self._add(MessageBlock("paragraph", MarkedText("")))
        if block.body.text.strip():
            self._add(block)

    def _add(self, block: MessageBlock) -> None:
        self.blocks.append(
            block._replace(
                quote=self._quotes if self._quote_depth else 0,
                items=tuple(item.bullet or f"{item.number}." for item in self._lists),
                is_first=self._is_item_start,
                is_close=bool(self._lists) and not self._starts_list,
                is_separate=self._first_line > self._last_line,
            )
        )
        self._is_item_start = False
        self._starts_list = not self._lists
        self._last_line = self._end_line


class _TableReader:
    """Collects the cells of a table as plain text, and the addresses of its links."""

    def __init__(self) -> None:
        self.links: dict[str, int] = {}
        """Addresses and their numbers."""
        self._rows: list[list[str]] = []
        self._right: set[int] = set()

    def read(self, token: Token) -> None:
        match token.type:
            case "tr_open":
                self._rows.append([])
            case "th_open" if "right" in str(token.attrs.get("style", "")):
                self._right.add(len(self._rows[-1]))
            case "inline":
                self._rows[-1].append(self._cell(plain_inline(token.children or [])))

    def block(self, max_width: int) -> MessageBlock:
        columns = len(self._rows[0])
        rows = [[*row, *[""] * columns][:columns] for row in self._rows]
        table = draw_table(rows, max_width=max_width, right=frozenset(self._right))
        if not table.rows:
            return MessageBlock("table", MarkedText("\n".join(table.header)))
        joined, position = [], 0
        for row in table.rows:
            for number, line in enumerate(row):
                position += len(line) + 1
                if number < len(row) - 1:
                    joined.append(position - 1)
        text = "\n".join(line for row in table.rows for line in row)
        return MessageBlock(
            "table", MarkedText(text), header="\n".join(table.header), joined=frozenset(joined)
        )

    def _cell(self, cell: MarkedText) -> str:
        """Return the text of a cell; each address is a number, because a wrapped address cannot be followed."""
        text, done = "", 0
        for mark in cell.marks:
            if mark.kind == "link":
                shown = cell.text[mark.start : mark.end]
                text += cell.text[done : mark.start]
                text += mark.value if _URL.fullmatch(shown) else f"{shown} {mark.value}"
                done = mark.end
        return _URL.sub(self._number, text + cell.text[done:]).replace("\n", " ")

    def _number(self, url: re.Match[str]) -> str:
        return f"[{self.links.setdefault(url[0], len(self.links) + 1)}]"


def _language(info: str) -> str:
    first = info.split()[0] if info.split() else ""
    return first if _LANGUAGE.fullmatch(first) and len(first) <= _MAX_LANGUAGE_CHARS else ""


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────
# 1. Columns are aligned. A table that is too wide has its cells wrapped; a table with too many columns becomes a
#    list of records, with the column's name before each value.
# 2. The header is separate from the rows, so that each part of a long table can repeat it.
# 3. Widths are those of a terminal: characters of East Asia and emoji take two columns.

_SEPARATOR: Final = " | "
_MIN_COLUMN_CHARS: Final = 6
"""A column is not made narrower than this."""


class MonospaceTable(NamedTuple):
    """The lines of a table."""

    header: tuple[str, ...]
    """Lines above the rows; none in a list of records."""
    rows: tuple[tuple[str, ...], ...]
    """The lines of each row."""


def draw_table(
    rows: Sequence[Sequence[str]], *, max_width: int, right: frozenset[int] = frozenset()
) -> MonospaceTable:
    """Return a table; the first row is the header, `right` are the columns that are aligned to the right."""
    widths = _column_widths(rows, max_width=max_width)
    if not widths:
        return _records(rows, max_width=max_width)
    drawn = [_row(row, widths, right) for row in rows]
    rule = "-+-".join("-" * width for width in widths)
    return MonospaceTable((*drawn[0], rule), tuple(drawn[1:]))


def _column_widths(rows: Sequence[Sequence[str]], *, max_width: int) -> list[int]:
    """Return the widths with which a table fits; none if it has too many columns."""
    widths = [min(max_width, max(1, *map(display_width, column))) for column in zip(*rows, strict=True)]
    room = max_width - len(_SEPARATOR) * (len(widths) - 1)
    if room < len(widths):
        return []
    while sum(widths) > room:
        widest = widths.index(max(widths))
        if widths[widest] <= _MIN_COLUMN_CHARS:
            return []
        widths[widest] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> tuple[str, ...]:
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    columns = [
        [_pad(line, width, to_right=number in right) for line in [*lines, *[""] * (height - len(lines))]]
        for number, (lines, width) in enumerate(zip(wrapped, widths, strict=True))
    ]
    return tuple(_SEPARATOR.join(line).rstrip() for line in zip(*columns, strict=True))


def _records(rows: Sequence[Sequence[str]], *, max_width: int) -> MonospaceTable:
    names, *records = rows
    drawn = [
        tuple(
            line
            for name, cell in zip(names, record, strict=True)
            for line in _wrap(f"{name}: {cell}".strip(": "), max_width)
        )
        for record in records or [names]
    ]
    rule = "-" * max_width
    return MonospaceTable(
        (), tuple((*([rule] if number else []), *lines) for number, lines in enumerate(drawn))
    )


def _pad(text: str, width: int, *, to_right: bool) -> str:
    blanks = " " * (width - display_width(text))
    return blanks + text if to_right else text + blanks


def _wrap(text: str, width: int) -> list[str]:
    """Return the text in lines of at most this width; at least one line."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if display_width(joined) <= width:
            lines[-1] = joined
            continue
        *full, last = _chunks(word, width)
        lines += [*full, last] if lines[-1] else []
        if lines == [""]:
            lines = [*full, last]
    return lines


def _chunks(word: str, width: int) -> list[str]:
    """Return a word in pieces of at most this width, or of one character."""
    pieces = [""]
    for character in word:
        if pieces[-1] and display_width(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def display_width(text: str) -> int:
    """Return how many columns a text takes."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("F", "W") else 1
