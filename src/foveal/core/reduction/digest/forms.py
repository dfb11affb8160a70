"""Digests of texts by their form: rows of cells, fields, pages and sentences, code; and the text of markup."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, filterfalse, islice, pairwise, takewhile
from typing import Final, NamedTuple

from foveal.core.reduction.digest.pieces import (
    DIGIT,
    MAX_SAMPLE_LINES,
    MAX_VALUE_CHARS,
    TextLines,
    cut,
    distinct,
    ends_first,
    packed,
)
from foveal.core.reduction.important_lines import ITEM, find_important_lines
from foveal.core.view.text_facts import strip_line_number

RULE_LINE: Final = re.compile(r"\s*[-=+|:*_─━┼├┤ ]{3,}$")
"""A line that only separates others."""
_MAX_TITLE_LINES: Final = 2
"""Lines above a table that come before it."""
_WIDE_GAP: Final = re.compile(r"\s{2,}")


def table_digest(text: TextLines) -> Iterable[str] | None:
    """Return the header, the first and last row and the number of rows; then the lines around the table, and the
    other rows."""
    lines = filterfalse(RULE_LINE.match, text.lines)
    first = list(islice(lines, MAX_SAMPLE_LINES))
    if len(first) < 2:
        return None
    for split, share in ((_pipe_cells, 0.5), (_tab_cells, 0.5), (_wide_cells, 0.6), (_comma_cells, 0.8)):
        sample = list(map(split, first))
        widths = list(map(len, sample))
        width = max(set(widths), key=widths.count)
        if width < 2 or widths.count(width) < max(2 if width > 2 else 3, share * len(sample)):
            continue
        if not _is_listing([row for row in sample if len(row) == width]):
            return _rows_digest([*sample, *map(split, lines)], width, "" if text.is_whole else "+")
    return None


def _rows_digest(lines: Sequence[Sequence[str]], width: int, more: str) -> Iterator[str]:
    rows = [row for row in lines if len(row) == width]
    # A first row with a number is a row of values, and no header.
    has_header = not any(DIGIT.match(cell.lstrip(" -+$€£")) for cell in rows[0])
    body = rows[has_header:]
    others = (row for row in lines if len(row) != width)
    titles = islice(takewhile(lambda row: len(row) != width, lines), _MAX_TITLE_LINES)
    shown = chain(titles, rows[:has_header], islice(ends_first(body), 2))
    count = f"{len(body)}{more} {'row' if len(body) == 1 else 'rows'}"
    pieces = chain(map(" | ".join, shown), [count], map(" | ".join, chain(others, body[1:-1])))
    return packed(distinct(pieces), " / ")


def _is_listing(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether two columns are no table: numbered lines, or fields (`key: value`)."""
    return len(rows[0]) == 2 and (rows[0][0].strip().isdecimal() or all(row[0].endswith(":") for row in rows))


def _pipe_cells(line: str) -> list[str]:
    return line.strip().strip("|").split("|") if "|" in line else [line]


def _tab_cells(line: str) -> list[str]:
    return line.split("\t")


def _wide_cells(line: str) -> list[str]:
    return _WIDE_GAP.split(line.strip()) if "  " in line else [line]


def _comma_cells(line: str) -> list[str]:
    for mark in (";", ","):
        if line.count(mark) >= 2:
            # `csv` knows quotes, in which a comma separates nothing.
            return next(csv.reader([line.replace("\r", "")], delimiter=mark))
    return [line]


# ── Fields ─────────────────────────────────────────────────────────────────────────────────────────────

_MAX_KEY_CHARS: Final = 40
_MAX_KEY_WORDS: Final = 5
_FIELD_SHARE: Final = 0.5
"""Share of lines that are fields from which a text is made of fields."""
_FIRST_LINES: Final = 6
"""Lines at the beginning among which the head of a mail is looked for."""
_MAIL_KEYS: Final = ("from", "subject")
"""Fields that come before the others of a message."""
_CLOCK_TIME: Final = re.compile(r"\d:\d\d")
_MARKS_BEFORE: Final = " \t>*-•#"


class _Field(NamedTuple):
    key: str
    value: str


class _FieldRecord:
    """Fields of one message or thing, and the text below them."""

    def __init__(self) -> None:
        self.title = ""
        self.fields: dict[str, str] = {}
        self.body: list[str] = []

    def add_line(self, line: str) -> None:
        """Add a line that is no field: the title if it is the first of all."""
        if self.fields or self.title:
            self.body.append(line)
        else:
            self.title = line

    def pieces(self) -> Iterator[str]:
        """Yield the title and the fields. After the first two come two sentences of the text below them: the first,
        and the first with a figure."""
        first = (key for mail_key in _MAIL_KEYS for key in self.fields if key.lower() == mail_key)
        keys = dict.fromkeys(chain(first, self.fields))
        shown = (cut(f"{key}: {self.fields[key]}", _MAX_KEY_CHARS + MAX_VALUE_CHARS) for key in keys)
        yield self.title
        yield from islice(shown, 2)
        sentences = list(split_sentences(self.body))
        yield from distinct(chain(sentences[:1], islice(filter(DIGIT.search, sentences), 1)))
        yield from shown


def fields_digest(text: TextLines) -> Iterable[str] | None:
    """Return the fields of a text, of each message the sender, the subject and the first sentence."""
    sample = [_read_field(line) for line in text.lines[:MAX_SAMPLE_LINES]]
    has_head = any(one and other for one, other in pairwise(sample[:_FIRST_LINES]))
    if not has_head and sum(map(bool, sample)) < max(2, _FIELD_SHARE * len(sample)):
        return None
    digests = [packed(record.pieces(), "; ") for record in ends_first(_records(text.lines))]
    # Every message has its first line before any has its second.
    first = chain.from_iterable(islice(lines, 1) for lines in digests)
    return packed(chain(first, *digests), " / ")


def _records(lines: Sequence[str]) -> list[_FieldRecord]:
    """Return the records of a text. A record ends at a rule and where a key comes again."""
    records = [_FieldRecord()]
    for line in lines:
        field, last = _read_field(line), records[-1]
        if RULE_LINE.match(line):
            if last.fields:
                records.append(_FieldRecord())
        elif field is None:
            last.add_line(line)
        else:
            # In a chat each message has its time.
            if field.key in last.fields or (last.fields and _CLOCK_TIME.search(field.key)):
                records.append(_FieldRecord())
            records[-1].fields[field.key] = field.value
    return [record for record in records if record.fields or record.title]


def _read_field(line: str) -> _Field | None:
    if "**" in line or "\t" in line:
        line = line.replace("**", "").replace("\t", " ")
    if ": " not in line and "=" not in line:
        return None
    line = line.lstrip(_MARKS_BEFORE)
    for mark in (": ", " = ", "="):
        key, found, value = line.partition(mark)
        if not found:
            continue
        key, value = key.strip(), value.strip()
        if value and len(key) <= _MAX_KEY_CHARS and len(key.split()) <= _MAX_KEY_WORDS:
            return _Field(key, value) if any(map(str.isalpha, key)) else None
    return None


# ── Prose ──────────────────────────────────────────────────────────────────────────────────────────────

_HEADING: Final = re.compile(r"#{1,6} +\S")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？])(?=\S)")
_ASCII_SENTENCE_END: Final = re.compile(r"\s(?<=[.!?]\s)\s*(?=\S)")
"""The same in ASCII. It begins with a character, so `re` tries it at blanks only."""


def page_digest(text: TextLines) -> Iterable[str] | None:
    """Return the headings of a page, each with the first sentence below it, and then its sentences with figures."""
    starts = [at for at, line in enumerate(text.lines) if line[0] == "#" and _HEADING.match(line)]
    if len(starts) < 2 and starts[:1] != [0]:
        return None
    sections = [text.lines[at:end] for at, end in pairwise([*starts, len(text.lines)])]
    parts = [
        ": ".join([section[0].strip("# "), *islice(split_sentences(section[1:]), 1)]) for section in sections
    ]
    rest = [line for line in text.lines if not _HEADING.match(line)]
    return chain(packed(parts, " / "), sentences_digest(rest))


def sentences_digest(lines: Sequence[str]) -> Iterator[str]:
    """Yield the first sentence, what reports errors, sentences with figures, and the others."""
    # A caller with little room reads few of them, so each of these splits only what is read.
    first = islice(split_sentences(lines), 1)
    with_figures = filter(DIGIT.search, split_sentences(lines))
    return packed(distinct(chain(first, _errors(lines), with_figures, split_sentences(lines))), " / ")


def _errors(lines: Sequence[str]) -> Iterator[str]:
    text = "\n".join(lines)
    for line in find_important_lines(text, 0, len(text), enough=2)[:4]:
        if line.rank <= ITEM:
            yield text[line.start : line.end].strip()


def split_sentences(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of a text. A line that begins in lower case continues the one before."""
    paragraph = ""
    for line in lines:
        line = line.strip()
        if paragraph and not line[:1].islower():
            yield from _sentences_of(paragraph)
            paragraph = ""
        paragraph = f"{paragraph} {line}" if paragraph else line
    if paragraph:
        yield from _sentences_of(paragraph)


def _sentences_of(paragraph: str) -> list[str]:
    return (_ASCII_SENTENCE_END if paragraph.isascii() else _SENTENCE_END).split(paragraph)


# ── Code ───────────────────────────────────────────────────────────────────────────────────────────────

_CODE_SHARE: Final = 0.4
"""Share of lines that look like code from which a text is code."""
_CODE_START: Final = re.compile(
    r"(?:def|class|import|return|elif|else|func|fn|function|const|let|var|public|private|static|export|raise"
    r"|try|except|package|use|struct|enum|#include)\b(?!:? +[A-Z][a-z]+ [a-z])|//|/\*|\*/|@\w|[\])}]|self\."
)
_CODE_END: Final = ("{", "}", ";", "(", "[", "):", "=>")
_DEFINITION: Final = re.compile(
    r"\s*(?:(?:export|public|private|protected|static|async|pub|default|abstract|final)\s+){0,4}"
    r"(?:def|class|function|func|fn|struct|enum|interface|trait|impl|type|module|package|CREATE TABLE)\s+\S"
)


def code_digest(text: TextLines) -> Iterable[str] | None:
    """Return the definitions of code; of code without any, its first lines."""
    sample = [strip_line_number(line) for line in text.lines[:MAX_SAMPLE_LINES]]
    if len(sample) < 3 or sum(map(_is_code, sample)) < _CODE_SHARE * len(sample):
        return None
    defined = filter(_DEFINITION.match, map(strip_line_number, text.lines))
    first = next(defined, None)
    lines = map(strip_line_number, text.lines) if first is None else chain([first], defined)
    return packed((cut(line, MAX_VALUE_CHARS) for line in lines), "; ")


def _is_code(line: str) -> bool:
    return line.endswith(_CODE_END) or _CODE_START.match(line) is not None


# ── Markup ─────────────────────────────────────────────────────────────────────────────────────────────

_UNSHOWN: Final = (("<script", "</script"), ("<style", "</style"), ("<svg", "</svg"), ("<!--", "-->"))
"""Elements that hold no text."""
_TAG: Final = re.compile(r"<(/?)([A-Za-z][\w:.-]{0,40})([^<>]{0,2000})>|<[!?][^<>]{0,2000}>")
_HTML_SIGN: Final = re.compile(r"<(?:html|body|div|p|h1|tr|li)\b", re.IGNORECASE)
_INLINE_TAGS: Final = frozenset(
    ("a", "b", "code", "em", "i", "small", "span", "strong", "sub", "sup", "time", "u")
)
_HEADING_TAGS: Final = frozenset(("title", "h1", "h2", "h3", "h4", "h5", "h6"))
_EMPTY_FIELD: Final = re.compile(r"^[ \t]*[\w:.-]+: *$", re.MULTILINE)


def without_markup(text: str) -> str:
    """Return the text of a page, with headings after `#` and cells after `|`; of XML, elements as fields."""
    for opening, closing in _UNSHOWN:
        if opening in text:
            text = "".join(_outside(text, opening, closing))
    plain = _TAG.sub(_html_tag if _HTML_SIGN.search(text) else _xml_tag, text)
    return html.unescape(_EMPTY_FIELD.sub("", plain))


def _outside(text: str, opening: str, closing: str) -> Iterator[str]:
    end = 0
    while (start := text.find(opening, end)) >= 0:
        yield text[end:start]
        end = text.find(closing, start)
        if end < 0:
            return
        end += closing.endswith(">") and len(closing)
    yield text[end:]


def _html_tag(tag: re.Match[str]) -> str:
    name = (tag[2] or "").lower()
    if name in _INLINE_TAGS:
        return ""
    if name in ("td", "th"):
        return "" if tag[1] else " | "
    return "\n# " if name in _HEADING_TAGS and not tag[1] else "\n"


def _xml_tag(tag: re.Match[str]) -> str:
    return "\n" if tag[1] or not tag[2] else f"\n{tag[2]}: "
