"""Text of unknown origin made safe to print: nothing in it can control a terminal or hide from the reader.

Control characters, escape sequences, zero-width, bidirectional and tag characters are shown as what they are. What
is stored never changes: this is for eyes only.
"""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """The text with every character that could deceive or command shown by its number; newlines and tabs stay."""
    return _UNSAFE.sub(_named, text)


def one_line(text: str, *, width: int = 80) -> str:
    """The beginning of a text on one line."""
    words = visible(" ".join(text.split(maxsplit=width)))
    return words if len(words) <= width else words[: width - 1] + "…"


def _named(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else f"\\u{{{code:x}}}"
