"""Names, lines and outcomes that a text contains.

Pure functions of one text. They know no tool, language or project. `ShownMessage` and `Step` cache what these
functions return for the messages of a view.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec

_NAME_CHARS: Final = r"A-Za-z0-9_./:@#\-"
_MIN_NAME_CHARS: Final = 5
_MAX_NAME_CHARS: Final = 200
_NAME: Final = re.compile(rf"[{_NAME_CHARS}]{{{_MIN_NAME_CHARS},{_MAX_NAME_CHARS}}}")
_ASCII_SEPARATORS: Final = re.sub(rf"[^{_NAME_CHARS}]", " ", "".join(map(chr, range(128))))
"""For each ASCII character itself if a name may have it, else a blank."""
_PUNCTUATION_BEFORE: Final = ":-#@"
_PUNCTUATION_AFTER: Final = ".:-#/@"
_LONG_NAME_CHARS: Final = 9
_CAMEL_CASE: Final = re.compile(r"[a-z][A-Z]")
_EXIT_STATUS: Final = re.compile(
    r"(?:exit(?:ed)?[ _]?(?:with[ _]?)?(?:code|status)?|return[ _]?code|status)\W{1,4}(-?\d{1,3})\b",
    re.IGNORECASE,
)
_STATUS_WORDS: Final = ("exit", "return", "status")
"""One of them begins each exit status."""
_FAILURE_PHRASES: Final = (
    "Traceback (most recent call last)",
    "command not found",
    "No such file or directory",
    "Permission denied",
    "panicked at",
)
_FAILURE_LINE_SIGNS: Final = ("Error", "Exception", "fatal", "error", "ERROR", "FAILED", ": *** ")
_FAILURE_LINE: Final = re.compile(
    r"\n(?:(?:[\w.]*(?:Error|Exception)|fatal|error|ERROR)\b ?:|FAILED\b|make(?:\[\d+\])?: \*\*\* )"
)
"""The beginning of a line that reports a failure; such a line contains one of the signs."""
_FAILED_TESTS: Final = re.compile(r"\b\d+ failed\b")
_STATUS_EDGE_CHARS: Final = 200
_FAILURE_EDGE_CHARS: Final = 2_000
"""Characters at each end of a result that are searched for its outcome."""
_BLOCK_CHARS: Final = 4_000
"""Characters that are searched for names at once, up to the end of a line."""
_NUMBERED_LINE: Final = re.compile(r"\s*([0-9]{1,7})(?:([\t→|:])(.*)|\s*)", re.DOTALL)
_MAX_LISTING_LINES: Final = 60
"""Lines at the beginning of a text that show whether it is a numbered listing."""
_MIN_LISTING_RUN: Final = {"\t": 2, "→": 2, "|": 3, ":": 3}
"""Lines in a row, for each separator, whose numbers go up by one."""
_NUMBER_STARTS: Final = frozenset("0123456789 \t")


def find_names(text: str) -> Iterator[str]:
    """Yield the identifiers, paths and numbers of a text in their order, repeats included."""
    for match in _NAME.finditer(text):
        name = match.group().lstrip(_PUNCTUATION_BEFORE).rstrip(_PUNCTUATION_AFTER)
        if len(name) >= _MIN_NAME_CHARS and _is_distinctive(name):
            yield name


def distinct_names(text: str) -> Iterator[str]:
    """Yield the same names, each once. If only the first names are needed, only a part of the text is read."""
    seen: set[str] = set()
    start, end = 0, len(text)
    while start < end:
        stop = text.find("\n", start + _BLOCK_CHARS)
        stop = end if stop < 0 else stop
        for word in _distinct_words(text[start:stop]):
            if len(word) < _LONG_NAME_CHARS and (
                len(word) < _MIN_NAME_CHARS
                or (word.isalpha() and (word.islower() or not _is_distinctive(word)))
            ):
                continue
            name = word.lstrip(_PUNCTUATION_BEFORE).rstrip(_PUNCTUATION_AFTER)
            is_name = name == word or (len(name) >= _MIN_NAME_CHARS and _is_distinctive(name))
            if is_name and name not in seen:
                seen.add(name)
                yield name
        start = stop


def _distinct_words(text: str) -> Iterable[str]:
    """Return the words of the characters of names in their order, shorter ones than names among them. Most words of
    a text repeat, and each is returned once."""
    if text.isascii():  # splitting takes less time than the expression
        words = dict.fromkeys(text.translate(_ASCII_SEPARATORS).split())
        if max(map(len, words), default=0) <= _MAX_NAME_CHARS:
            return words
    return dict.fromkeys(_NAME.findall(text))


def _is_distinctive(word: str) -> bool:
    """Return whether a word of the characters of names is a name. A plain short word is none: a name has a digit,
    a separator, mixed case or nine letters."""
    return len(word) >= _LONG_NAME_CHARS or not word.isalpha() or _CAMEL_CASE.search(word) is not None


def name_candidates(text: str) -> set[str]:
    """Return the names of a text and other words that look alike: enough to tell whether a name occurs in it."""
    return {word.lstrip(_PUNCTUATION_BEFORE).rstrip(_PUNCTUATION_AFTER) for word in _distinct_words(text)}


def count_names(texts: Iterable[str]) -> dict[str, int]:
    """Return the names of the texts in their order, each with the number of its occurrences."""
    counts: dict[str, int] = {}
    # Most words of a text repeat, so each distinct one is looked at once.
    for word, number in Counter(chain.from_iterable(map(_NAME.findall, texts))).items():
        if len(word) < _LONG_NAME_CHARS and word.isalpha() and word.islower():
            continue
        name = word.lstrip(_PUNCTUATION_BEFORE).rstrip(_PUNCTUATION_AFTER)
        if len(name) >= _MIN_NAME_CHARS and _is_distinctive(name):
            counts[name] = counts.get(name, 0) + number
    return counts


def exit_status(text: str) -> int | None:
    """Return the exit status that a result reports in its first or last 200 characters."""
    for region in _ends(text, _STATUS_EDGE_CHARS):
        # The search tries every character, and most texts have none of the words. Beyond ASCII, other letters too
        # are equal to theirs without regard to case.
        lower = region.lower()
        if any(map(lower.__contains__, _STATUS_WORDS)) or not region.isascii():
            found = _EXIT_STATUS.search(region)
            if found:
                return int(found.group(1))
    return None


def reports_failure(text: str) -> bool:
    """Return whether a result reports a failure, as far as its ends show."""
    status = exit_status(text)
    if status is not None:
        return status != 0
    return any(map(_has_failure, _ends(text, _FAILURE_EDGE_CHARS)))


def _ends(text: str, chars: int) -> tuple[str, ...]:
    """Return so many characters from each end of a text, or all of a text that has no more."""
    return (text,) if len(text) <= chars else (text[:chars], text[-chars:])


def _has_failure(text: str) -> bool:
    """Return whether a text reports a failure. One expression for all of it would be tried at every character."""
    if any(map(text.__contains__, _FAILURE_PHRASES)):
        return True
    if any(map(text.__contains__, _FAILURE_LINE_SIGNS)) and _FAILURE_LINE.search(f"\n{text}"):
        return True
    return " failed" in text and _FAILED_TESTS.search(text) is not None


def listing_separator(lines: Iterable[str]) -> str:
    """Return what separates number and text in a numbered listing (`cat -n`, file tools), "" for another text.

    Numbers that go up by one are no proof: rows of data have ids, too. A listing of a file also has lines that are
    empty or indented behind their number."""
    last, separator, run, is_file = -1, "", 0, False
    for line in islice(lines, _MAX_LISTING_LINES):
        found = _NUMBERED_LINE.fullmatch(line) if line[:1] in _NUMBER_STARTS else None
        if found is None or (found[2] == "\t" and "\t" in found[3].strip("\t")):  # the row of a table
            last, separator, run, is_file = -1, "", 0, False
            continue
        number, mark, rest = int(found[1]), found[2] or "", found[3] or ""
        if number != last + 1 or (mark and separator and mark != separator):
            separator, run, is_file = "", 0, False
        last, separator, run = number, mark or separator, run + 1
        is_file = is_file or not rest.strip() or _is_indented(rest, mark)
        if separator and is_file and run >= _MIN_LISTING_RUN[separator]:
            return separator
    return ""


def _is_indented(rest: str, mark: str) -> bool:
    return rest.startswith("  ") if mark in "|:" else rest[0] in " \t"


def strip_line_number(line: str, separator: str) -> str:
    """Return a line without surrounding blanks and without the number that a listing with that separator puts in
    front of it."""
    line = line.strip()
    if separator and line[:1] in _NUMBER_STARTS:
        number, mark, rest = line.partition(separator)
        if number.isascii() and number.isdecimal():
            return rest.lstrip() if mark else ""
    return line


def parse_json(text: str) -> object:
    """Return a JSON value; raise `ValueError` or `RecursionError` if the text is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return json.loads(text)  # several times slower, and not as strict: it takes lone surrogates, say


def string_values(arguments: str) -> list[str]:
    """Return the strings among the JSON arguments of a call; the arguments themselves when they are not JSON."""
    try:
        return list(_strings(parse_json(arguments)))
    except (ValueError, RecursionError):
        return [arguments]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
