"""Scan for private keys in PEM blocks.

A block may be indented, quoted, numbered or have escaped line ends. A truncated block extends as far as its Base64.
BEGIN and END lines without Base64 between them, as in documentation, are not a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from foveal.core.redaction.secret_values import Secret

MAX_KEY_BLOCK_CHARS: Final = 32_768
"""Characters of the longest block: a key of 16,384 bits, quoted and indented."""

_GAP: Final = r"(?:[ +]|%20)"
_MARK: Final = re.compile(
    rf"-----(?i:(?P<begin>begin)|end){_GAP}(?:[A-Za-z0-9]{{1,12}}{_GAP}){{0,3}}"
    rf"(?i:private{_GAP}key(?:{_GAP}block)?)-{{2,5}}"
)
_BREAK: Final = r"(?:\\{1,3}[nrt]|%0[AaDd]|[\s\"'`,+>|-]|[0-9]{1,6}[:|\t→])"
_BODY: Final = r"(?:[A-Za-z0-9/=+]|%2[BbFf]|%3[Dd]|\\/)"
_HEADER: Final = r"(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\%]{0,120}"
_AFTER: Final = re.compile(
    rf"(?:{_BREAK}*+(?:{_HEADER}|{_BODY}{{24,}}+))*+"
    rf"(?:{_BREAK}{{1,8}}+(?=[A-Za-z]*(?:[0-9+/=]|[a-z][A-Z])){_BODY}{{1,23}}+(?![A-Za-z0-9_.]))?"
)
_REVERSED_BREAK: Final = r"(?:[\s\"'`,+>|-]|[nrt]\\{1,3}|[AaDd]0%)"
_BEFORE: Final = re.compile(rf"(?:{_REVERSED_BREAK}*+[A-Za-z0-9+/=]{{24,}}+)++")
"""`_AFTER` for a reversed text: the Base64 before an END line is read backwards."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{24}")


_PARTIAL_MARK: Final = re.compile(r"-{1,5}(?:[A-Za-z]{1,5}(?:[ +%][A-Za-z0-9 +%-]{0,70})?)?\Z")
_OPEN_BASE64: Final = re.compile(rf"[A-Za-z0-9+/=]{{0,23}}{_BEFORE.pattern}")
_WORDS: Final = re.compile(rb"v(?<=priv)ate(?:[ +]|%20)key")
MAX_MARK_CHARS: Final = 80
"""Characters of a BEGIN line before `private key`."""


def find_private_keys(text: str, lower: bytes) -> Iterator[Secret]:
    """Find private keys; `lower` is the text in lower case with `?` for other characters than ASCII."""
    marks = [mark for words in _WORDS.finditer(lower) if (mark := _mark_around(text, words))]
    last = 0
    for at, mark in enumerate(marks):
        if mark.start() < last:
            continue
        after = marks[at + 1] if at + 1 < len(marks) else None
        span = _block_from(text, mark, after) if mark["begin"] else _block_up_to(text, last, mark)
        if span:
            yield Secret(*span, "private key", tail=False)
            last = span[1]
        else:
            last = mark.end()


def open_block_start(text: str) -> int | None:
    """Return where a block begins that the text may not contain whole: its BEGIN line, or Base64 at the end."""
    first = max(0, len(text) - MAX_KEY_BLOCK_CHARS - MAX_MARK_CHARS)
    marks = list(_MARK.finditer(text, first))
    if marks and marks[-1]["begin"]:
        return marks[-1].start()
    partial = _PARTIAL_MARK.search(text, max(first, len(text) - MAX_MARK_CHARS))
    end = partial.start() if partial else len(text)
    rest = _OPEN_BASE64.match(text[first:end][::-1])
    return end - rest.end() if rest else partial and partial.start()


def _mark_around(text: str, words: re.Match[bytes]) -> re.Match[str] | None:
    start = text.rfind("-----", max(0, words.start() - MAX_MARK_CHARS), words.start())
    mark = _MARK.match(text, start) if start >= 0 else None
    return mark if mark and mark.end() > words.end() else None


def _block_from(text: str, mark: re.Match[str], after: re.Match[str] | None) -> tuple[int, int] | None:
    """Return the block that begins here, up to its END line or as far as its Base64 goes."""
    if after and not after["begin"] and after.start() - mark.end() < MAX_KEY_BLOCK_CHARS:
        found = _BASE64.search(text, mark.end(), after.start())
        return (mark.start(), after.end()) if found else None
    rest = _AFTER.match(text, mark.end())
    return (mark.start(), rest.end()) if rest and _BASE64.search(rest.group()) else None


def _block_up_to(text: str, last: int, mark: re.Match[str]) -> tuple[int, int] | None:
    """Return the rest of a block whose beginning was cut off."""
    backwards = text[max(last, mark.start() - MAX_KEY_BLOCK_CHARS) : mark.start()][::-1]
    rest = _BEFORE.match(backwards)
    return (mark.start() - rest.end(), mark.end()) if rest else None
