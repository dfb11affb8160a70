"""Digest of fields (`key: value`), which mail and chat are too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
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
from foveal.core.reduction.digest.prose import split_sentences
from foveal.core.reduction.digest.tables import RULE_LINE

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
