"""Text of the conversation inside a ledger: quoted data, never a line that could pass for one of ours.

Headings of a ledger begin at the margin; whatever comes from the conversation stands behind `- ` or `  > `, on one
bounded line, with its control characters visible and its role tags and placeholders taken apart.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.visible import visible

ITEM: Final = "- "
QUOTE: Final = "  > "
WIDTH: Final = 200
"""Characters of one quoted line."""

_ROLES: Final = "system|developer|user|assistant|human|tool|function|summary|instructions?|foveal"
_FALSE: Final = re.compile(rf"\[(?=\s*foveal)|<(?=\||/?\s*(?:{_ROLES})\b)|【(?=\s*foveal)", re.IGNORECASE)
_PARTED: Final = {"[": "(", "<": "‹", "【": "("}


def safe(text: str) -> str:
    """The text with nothing in it that a reader could take for a tag or a placeholder of ours."""
    text = visible(text)
    if "[" in text or "<" in text or "【" in text:
        return _FALSE.sub(lambda found: _PARTED[found.group()], text)
    return text


def inline(text: str, width: int = WIDTH) -> str:
    """The beginning of a text on one line, blanks folded."""
    words = safe(" ".join(text[: 4 * width].split()))
    return words if len(words) <= width and len(text) <= 4 * width else words[: width - 1] + "…"


def verbatim(line: str, width: int = WIDTH) -> str:
    """One line as it stands, without its indent."""
    line = safe(line[: 2 * width].strip().replace("\n", "␊"))
    return line if len(line) <= width else line[: width - 1] + "…"


def block(text: str) -> str:
    """All lines of a text, each behind the quotation mark."""
    return "\n".join(QUOTE + line.rstrip() for line in safe(text).split("\n"))
