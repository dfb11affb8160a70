"""Digest of a tool result: short lines that say what it holds.

    next(digest_lines('{"id": "A-7", "total": 19.50}'))  →  'id: A-7, total: 19.50'

1. The most telling line comes first, so a caller with little room takes the first lines.
2. A line has at most `MAX_DIGEST_LINE_CHARS`, and there are at most `MAX_DIGEST_LINES`. A text that is not blank
   has at least one.
3. Values are quoted from the text. Only counts (`40 rows`, `12 elements`) and separators are added.
4. It reads the first `MAX_HEAD_CHARS` and the last `MAX_TAIL_CHARS` of a text, in linear time.

The kind of a result is judged by its form alone: JSON, markup, code, rows of cells, fields (`key: value`, which
mail and chat are too), a page with headings. Anything else is read as sentences.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, filterfalse, islice, pairwise, takewhile
from typing import Final, NamedTuple, TypeAlias, TypeVar

from foveal.core.reduction.important_lines import ITEM, find_important_lines
from foveal.core.view.text_facts import listing_separator, strip_line_number
from foveal.core.wire.safe_print import readable

# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────

_MIN_PROSE_CHARS: Final = 200
"""A string in JSON from this length on is a text with a digest of its own."""
_MAX_PROSE_STRINGS: Final = 8
_MAX_NESTING: Final = 3
"""Objects inside objects whose values are shown under their path."""
_MAX_CLOSED_BRACKETS: Final = 50
_MAX_TAIL_PAIRS: Final = 8
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
_BEFORE_MARK: Final = rf'(?:[^"\[\]{{}},]++|{_STRING}?)*+'
_INSIDE: Final = rf'(?:[^"\[\]{{}}]++|{_STRING})*+'
_FLAT: Final = rf"(?:{{{_INSIDE}}}|\[{_INSIDE}\])"
_MARK: Final = re.compile(rf"{_BEFORE_MARK}([\[\]{{}},]|\Z)", re.DOTALL)
"""A bracket, a comma or the end, and all that stands before it."""
_INNER_MARK: Final = re.compile(rf"{_BEFORE_MARK}({_FLAT}(?:\s*+,\s*+{_FLAT})*+|[\[\]{{}},]|\Z)", re.DOTALL)
"""The same inside a container. Objects and arrays without others in them, one after the other, are one mark: most
rows of a long result are such."""
_JSON_PAIR: Final = re.compile(
    r'"([^"\\\n]{1,40})"\s{0,8}:\s{0,8}("[^"\\\n]{0,200}"|-?\d[\d.eE+-]{0,30}|true|false)'
)
_NAME_KEY: Final = re.compile(
    r"(?i:^|_|-)(?i:id|key|uuid|name|number|title|path|url)$|[a-z](?:Id|Key|Name|Number)$"
)
"""Keys whose values say which thing an object is about."""
_AMOUNT: Final = re.compile(
    r"[-+]?[$€£]?(?:\d{1,3}(?:[,' ]\d{3})+|\d{1,9})(?:[.,]\d{1,4})?\s?(?:%|[A-Z]{3}|[€$£])?"
)
"""A number that a later question may ask for, and not a longer one, such as a time in seconds since 1970."""
_MIN_AMOUNT_DIGITS: Final = 3
"""Fewer digits are a page, a version or a flag more often than an amount."""
_CLOSING: Final = {"{": "}", "[": "]"}


class _Number(str):
    """A number as the text has it: 1.50 stays 1.50."""

    __slots__ = ()


class ParsedJson(NamedTuple):
    """What was read of JSON."""

    value: object
    is_whole: bool


def parse_json_start(head: str, *, is_whole: bool) -> ParsedJson | None:
    """Return the JSON value of a text, a list of the values of its lines, or what its beginning holds; None if the
    text is not JSON."""
    value = _load(head) if is_whole else None
    if value is not None:
        return ParsedJson(value, is_whole=True)
    first, _, rest = head.partition("\n")
    if rest and not rest.isspace() and _load(first) is not None:
        lines = [line for line in head.split("\n") if line and not line.isspace()]
        values = [value for line in lines if (value := _load(line)) is not None]
        return ParsedJson(values, is_whole and len(values) == len(lines))
    # The beginning has enough for a digest, unless a long string stands there.
    value = _load(_closed(head[: MAX_DIGEST_LINES * MAX_DIGEST_LINE_CHARS])) or _load(_closed(head))
    return ParsedJson(value, is_whole=False) if value else None


def _load(text: str) -> object:
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except (ValueError, RecursionError):
        return None


def _closed(text: str) -> str:
    """Return the beginning of JSON up to the last complete value, with its brackets closed."""
    closing, end, closing_at_end = "", 0, ""
    at = 0
    while (mark := (_INNER_MARK if closing else _MARK).match(text, at)) is not None and (kind := mark[1]):
        at = mark.end()
        if kind in _CLOSING:
            closing = _CLOSING[kind] + closing
            continue
        if kind in _CLOSING.values():
            if closing[:1] != kind:
                return ""  # not JSON
            closing = closing[1:]
        if 0 < len(closing) <= _MAX_CLOSED_BRACKETS:
            end, closing_at_end = (mark.start(1) if kind == "," else at), closing
    return text[:end] + closing_at_end


def json_digest(
    parsed: ParsedJson, tail: str, *, digest_text: Callable[[str], Iterator[str]]
) -> Iterator[str]:
    """Yield the lines of a digest; `tail` is the end of a long text, `digest_text` reads the long strings."""
    value = parsed.value
    if tail and isinstance(value, dict):
        value = {**value, **_last_values(tail), **value}
    pieces = _json_pieces(value, "", _MAX_NESTING, "" if parsed.is_whole else "+")
    lines = packed(pieces, ", ")
    yield from islice(lines, 1)
    if tail:
        pairs = _JSON_PAIR.findall(tail)[-_MAX_TAIL_PAIRS:]
        yield from packed((f"{key}: {value}" for key, value in pairs), ", ")
    for name, text in islice(_prose_strings(parsed.value), _MAX_PROSE_STRINGS):
        inner = digest_text(text[:MAX_HEAD_CHARS])
        yield from (f"{name}: {line}" if name else line for line in islice(inner, 1))
        yield from inner
    yield from lines


def _last_values(tail: str) -> dict[str, object]:
    """Return the plain values of the outermost object that stand behind its last container."""
    if not tail.endswith("}"):
        return {}
    last = tail[:-1].rstrip()
    behind = last[max(last.rfind("]"), last.rfind("}")) + 1 :]
    # Without a container in the tail, these are values of an object inside.
    pairs = _JSON_PAIR.findall(behind) if behind != last else []
    return {key: value.strip('"') for key, value in pairs}


def _json_pieces(value: object, path: str, nesting: int, more: str) -> Iterator[str]:
    """Yield the values of an object or array, each with its path; `more` marks counts that may be too small."""
    if isinstance(value, list):
        yield from _array_pieces(value, path, more)
        return
    if not isinstance(value, dict) or not nesting:
        if value not in (None, ""):
            yield f"{path}: {_brief(value)}" if path else _brief(value)
        return
    for key, inner in _telling_first(value):
        if not _is_prose(inner):
            yield from _json_pieces(inner, f"{path}.{key}" if path else key, nesting - 1, more)


def _telling_first(value: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield what an object is called, its amounts, its other plain values, and then its containers."""
    names = [key for key in value if _NAME_KEY.search(key) and _is_plain(value[key])]
    name = "id" if "id" in names else next(iter(names), "")

    def place(pair: tuple[str, object]) -> int:
        key, inner = pair
        if key == name:
            return 0
        if not _is_plain(inner):
            return 3
        return 1 if _is_amount(inner) and not _NAME_KEY.search(key) else 2

    return iter(sorted(value.items(), key=place))


def _is_amount(value: object) -> bool:
    if not isinstance(value, str) or not _AMOUNT.fullmatch(value):
        return False
    return sum(map(str.isdigit, value)) >= _MIN_AMOUNT_DIGITS


def _is_plain(value: object) -> bool:
    return not isinstance(value, dict | list)


def _array_pieces(items: Sequence[object], path: str, more: str) -> Iterator[str]:
    count = f"{len(items)}{more} {'element' if len(items) == 1 else 'elements'}"
    yield f"{path}: {count}" if path else count
    # The last element of an array that is not read completely says nothing about its end.
    yield from map(_brief, islice(items, MAX_DIGEST_LINES) if more else ends_first(items))


def _brief(value: object, nesting: int = 2) -> str:
    """Return a value in a few words."""
    width = MAX_VALUE_CHARS if nesting else MAX_VALUE_CHARS // 2
    if isinstance(value, dict):
        inner = islice(value.items(), 8 * nesting)
        text = ", ".join(
            f"{key}: {_brief(item, nesting - 1)}" for key, item in inner if item not in (None, "")
        )
        return cut(f"{{{text}}}", 2 * width)
    if isinstance(value, list):
        return cut(f"[{', '.join(_brief(item, nesting - 1) for item in value[: 4 * nesting])}]", width)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else cut(str(value), width)


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and len(value) >= _MIN_PROSE_CHARS


def _prose_strings(
    value: object, name: str = "", nesting: int = 2 * _MAX_NESTING
) -> Iterator[tuple[str, str]]:
    """Yield the long strings of a JSON value, each with its key."""
    if isinstance(value, str):
        if _is_prose(value):
            yield name, value
    elif isinstance(value, dict | list) and nesting:
        pairs = value.items() if isinstance(value, dict) else ((name, inner) for inner in value)
        for key, inner in pairs:
            if isinstance(inner, dict | list) or _is_prose(inner):
                yield from _prose_strings(inner, key, nesting - 1)


# ── Limits, and short texts ──────────────────────────────────────────────────────────────────────────────

MAX_DIGEST_LINE_CHARS: Final = 160
"""Characters of one line of a digest."""
MAX_DIGEST_LINES: Final = 40
"""Lines of one digest."""
MAX_HEAD_CHARS: Final = 8_000
"""Characters that are read from the beginning of a text."""
MAX_TAIL_CHARS: Final = 2_000
"""Characters that are read from the end of a longer text: last rows and totals stand there."""
MAX_SAMPLE_LINES: Final = 24
"""Lines by which the kind of a text is judged."""
MAX_VALUE_CHARS: Final = 80
"""Characters of one value beside others on a line."""
DIGIT: Final = re.compile(r"\d")

T = TypeVar("T")


class TextLines(NamedTuple):
    """The lines of a text that are read, without blank ones."""

    lines: Sequence[str]
    is_whole: bool
    """Whether these are all lines of the text, and none is cut."""


def cut(text: str, width: int = MAX_DIGEST_LINE_CHARS) -> str:
    """Return the beginning of a text on one line that is safe to show."""
    if len(text) <= width and text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()  # most pieces need no more
    line = readable(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def packed(pieces: Iterable[str], separator: str) -> Iterator[str]:
    """Yield the pieces, as many on one line as fit."""
    line = ""
    for piece in filter(None, map(cut, pieces)):
        if line and len(line) + len(separator) + len(piece) > MAX_DIGEST_LINE_CHARS:
            yield line
            line = piece
        else:
            line = f"{line}{separator}{piece}" if line else piece
    if line:
        yield line


def ends_first(items: Sequence[T]) -> Iterator[T]:
    """Yield the first item, the last, and then the others in their order: the ends bound what lies between."""
    yield from items[:1]
    yield from items[1:][-1:]
    yield from items[1:-1]


def distinct(items: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item


# ── Rows of cells ────────────────────────────────────────────────────────────────────────────────────────

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
    bare = partial(strip_line_number, separator=listing_separator(text.lines))
    sample = [bare(line) for line in text.lines[:MAX_SAMPLE_LINES]]
    if len(sample) < 3 or sum(map(_is_code, sample)) < _CODE_SHARE * len(sample):
        return None
    defined = filter(_DEFINITION.match, map(bare, text.lines))
    first = next(defined, None)
    lines = map(bare, text.lines) if first is None else chain([first], defined)
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


# ── Any text ─────────────────────────────────────────────────────────────────────────────────────────────

DigestReader: TypeAlias = Callable[[TextLines], Iterable[str] | None]
"""Returns the digest of a text of its kind; None if the text is of another kind."""
READERS: Final[tuple[DigestReader, ...]] = (code_digest, table_digest, fields_digest, page_digest)
"""The first that knows the text writes its digest."""


def digest_lines(text: str) -> Iterator[str]:
    """Yield short lines that say what a text holds, the most telling first."""
    text = _without_fence(text.strip())
    seen: set[str] = set()
    for line in _digest(text):
        if (short := cut(line)) and short not in seen:
            seen.add(short)
            yield short
        if len(seen) == MAX_DIGEST_LINES:
            return
    if not seen and text:
        yield cut(text)  # a form without content, such as `{}`


def _digest(text: str) -> Iterator[str]:
    head, tail = text[:MAX_HEAD_CHARS], text[max(MAX_HEAD_CHARS, len(text) - MAX_TAIL_CHARS) :]
    if head[:1] in ("{", "["):
        parsed = parse_json_start(head, is_whole=not tail)
        if parsed is not None:
            return json_digest(parsed, tail, digest_text=_lines_digest)
    return _lines_digest(head, tail)


def _lines_digest(head: str, tail: str = "") -> Iterator[str]:
    """Return the digest of a text that is not JSON, of its beginning and its end."""
    if head.count("</") >= 2 or head[:5].lower() in ("<!doc", "<html"):
        head, tail = without_markup(head), without_markup(tail)
    lines = head.split("\n")
    if tail:
        # The last line of the head and the first of the tail are cut, unless there is no other.
        lines = [*(lines[:-1] or lines), *tail.split("\n")[1:]]
    text = TextLines([line for line in lines if line and not line.isspace()], is_whole=not tail)
    found = next(filter(None, (read(text) for read in READERS)), None)
    return iter(sentences_digest(text.lines) if found is None else found)


def _without_fence(text: str) -> str:
    """Return a text without the fence of a code block that holds all of it."""
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") : -3].strip() or text
    return text
