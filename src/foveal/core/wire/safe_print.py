"""Makes untrusted text safe to print in a terminal.

Control characters, escape sequences, zero-width, bidirectional and tag characters are replaced by visible
symbols or their code. Only the printed text changes, never what is stored.
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
    """Return the text with each unsafe character as a symbol or its code; newlines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, *, width: int = 80) -> str:
    """Return the first `width` characters of a text on one line, safe to print."""
    words = visible(" ".join(text.split(maxsplit=width)))
    return words if len(words) <= width else words[: width - 1] + "…"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else f"\\u{{{code:x}}}"
