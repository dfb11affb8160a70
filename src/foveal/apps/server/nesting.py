"""How deep and how wide a JSON text is, found before anything is built of it: without recursion, in time that grows
with its length and no faster, whatever it contains."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

_STRING: Final = re.compile(rb'"[^"]*"?')
_OTHER: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def deeper_than(text: bytes, most: int) -> bool:
    """Whether arrays and objects are nested in more than `most` levels. What is no JSON may get either answer."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    brackets = _without_strings(text).translate(None, _OTHER)
    return any(map(most.__lt__, accumulate(map(_STEPS.__getitem__, brackets))))


def more_values_than(text: bytes, most: int) -> bool:
    """Whether there are more than `most` values in all arrays and objects together."""
    marks = (b",", b"[", b"{")
    if sum(map(text.count, marks)) <= most:
        return False
    return sum(map(_without_strings(text).count, marks)) > most


def _without_strings(text: bytes) -> bytes:
    """Escapes first, pair by pair from the left, so that every quote that is left begins or ends a string; then
    empty strings, which are quicker to find that way."""
    return _STRING.sub(b"", text.replace(b"\\\\", b"").replace(b'\\"', b"").replace(b'""', b""))
