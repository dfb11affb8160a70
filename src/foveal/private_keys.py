"""Private keys in a text: whole blocks, and what a cut has left of one.

A block may be indented, quoted, numbered or have its line ends escaped; one that was cut off goes as far as its
Base64 does. Between a beginning and an end that somebody only talks about there is none, and nothing is found.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from foveal.secret_shapes import Found

MOST: Final = 32_768
"""Characters of the longest block that is looked for: a key of 16,384 bits, quoted and indented."""

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
_KERB: Final = r"(?:[\s\"'`,+>|-]|[nrt]\\{1,3}|[AaDd]0%)"
_BEFORE: Final = re.compile(
    rf"(?:{_KERB}*+[A-Za-z0-9+/=]{{24,}}+)++"
    rf"(?:{_KERB}{{1,8}}+(?=[A-Za-z]*(?:[0-9+/=]|[A-Z][a-z]))[A-Za-z0-9+/=]{{1,23}}+(?![A-Za-z0-9_.]))?"
)
"""The same from the end, for a text that is read backwards."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{24}")
_ENCODED: Final = "LS0tLS1CRUdJTi"
_ENCODED_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{56,}+={0,2}")


def private_keys(text: str) -> Iterator[Found]:
    marks = list(_MARK.finditer(text))
    last = 0
    for at, mark in enumerate(marks):
        if mark.start() < last:
            continue
        after = marks[at + 1] if at + 1 < len(marks) else None
        span = _from(text, mark, after) if mark["begin"] else _up_to(text, last, mark)
        if span:
            yield Found(*span, "private key", tail=False)
            last = span[1]
        else:
            last = mark.end()
    yield from _encoded(text)


def _from(text: str, mark: re.Match[str], after: re.Match[str] | None) -> tuple[int, int] | None:
    """The block that begins here: up to its end, or as far as there is something of it."""
    if after and not after["begin"] and after.start() - mark.end() < MOST:
        found = _BASE64.search(text, mark.end(), after.start())
        return (mark.start(), after.end()) if found else None
    rest = _AFTER.match(text, mark.end())
    return (mark.start(), rest.end()) if rest and _BASE64.search(rest.group()) else None


def _up_to(text: str, last: int, mark: re.Match[str]) -> tuple[int, int] | None:
    """The rest of a block whose beginning was cut off."""
    backwards = text[max(last, mark.start() - MOST) : mark.start()][::-1]
    rest = _BEFORE.match(backwards)
    return (mark.start() - rest.end(), mark.end()) if rest else None


def _encoded(text: str) -> Iterator[Found]:
    """A block that was encoded once more, as in a Kubernetes secret."""
    at = text.find(_ENCODED)
    while at >= 0:
        run = _ENCODED_RUN.match(text, at)
        if run and b"PRIVATE KEY" in _decoded(run.group()[:56]):
            yield Found(*run.span(), "private key", tail=False)
        at = text.find(_ENCODED, run.end() if run else at + len(_ENCODED))


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text)
    except binascii.Error:
        return b""
