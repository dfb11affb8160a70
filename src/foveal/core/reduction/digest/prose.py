"""Digest of pages with headings and of plain sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Final

from foveal.core.reduction.digest.pieces import DIGIT, TextLines, distinct, packed
from foveal.core.reduction.important_lines import ITEM, find_important_lines

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
