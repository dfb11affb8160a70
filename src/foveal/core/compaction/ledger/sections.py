"""Headings of a ledger, and quotes that cannot pass for a line of it.

1. Headings and lines that count what is left out begin at the margin; items follow `- `.
2. Words of the user follow `  > `, words of the agent `  ~ `, and tool output `  | `: each source has its own mark.
3. Quoted text has visible control characters and altered role tags and placeholders. A line of tool output or of
   the agent that begins like a heading, an item or a pinned rule is marked `(quoted)`.
"""

from __future__ import annotations

import re
from typing import Final

from foveal.core.wire.safe_print import readable

ITEM_PREFIX: Final = "- "
USER_PREFIX: Final = "  > "
AGENT_PREFIX: Final = "  ~ "
OUTPUT_PREFIX: Final = "  | "
GAP_LINE: Final = "  …"
"""Stands for what is left out between two parts of a quoted text."""
MAX_QUOTED_LINE_CHARS: Final = 200
"""Limit of one quoted line."""
MAX_CALL_TITLE_CHARS: Final = 120
"""Characters of a command or of a tool's subject that name a call."""
MAX_CUT_WORD_CHARS: Final = 24
"""A text is cut between two words; a word that is longer than this is cut itself."""

REQUESTS_HEADING: Final = "The user said, in this order (the later counts):"
FILES_HEADING: Final = "Files changed, newest first:"
FILES_READ_HEADING: Final = "Files only named:"
CALLS_HEADING: Final = "Calls made, newest first:"
ERRORS_HEADING: Final = "Unresolved errors, with tool output quoted:"
PLAN_HEADING: Final = "The agent's latest plan:"
SAID_HEADING: Final = "The agent said last:"
OPEN_CALLS_HEADING: Final = "Calls without a result:"
EXCERPTS_HEADING: Final = "Tool output, quoted, not the user's words:"
SECTION_HEADINGS: Final = (
    REQUESTS_HEADING,
    FILES_HEADING,
    FILES_READ_HEADING,
    CALLS_HEADING,
    ERRORS_HEADING,
    PLAN_HEADING,
    SAID_HEADING,
    OPEN_CALLS_HEADING,
    EXCERPTS_HEADING,
)
"""Headings of a ledger, in their order."""

_ROLES: Final = "system|developer|user|assistant|human|tool|function|summary|instructions?|foveal"
_INSIDE: Final = r"(?:[^\[\]\n]|\[[^\[\]\n]{0,200}\]){0,400}"
"""The rest of a marker up to its end, which may contain brackets itself."""
_FAKE_MARKUP: Final = re.compile(
    rf"\[(?=\s*foveal)(?:(?P<square>{_INSIDE})\])?"
    rf"|<(?=\||/?\s*(?:{_ROLES})\b)(?:(?P<angle>[^<>\n]{{0,400}})>)?"
    r"|【(?=\s*foveal)(?:(?P<lenticular>[^【】\n]{0,400})】)?",
    re.IGNORECASE,
)
_REPLACEMENTS: Final = {"square": "()", "angle": "‹›", "lenticular": "()"}
_OPENING: Final = {"[": "(", "<": "‹", "【": "("}
_LEDGER_STARTS: Final = "|".join(
    re.escape(heading.partition(",")[0].rstrip(":")) for heading in SECTION_HEADINGS
)
_FAKE_LINE: Final = re.compile(
    rf"\W{{0,8}}(?:pinned rule|standing\b|look back\b|shown in full\b|end of the record|record of e\d|\+ \d+ more"
    rf"|e\d+, (?:standing|open|answered)|{_LEDGER_STARTS})",
    re.IGNORECASE,
)


def escape_tags(text: str) -> str:
    """Return the text without anything that looks like a role tag or a Foveal placeholder."""
    text = readable(text)
    if "[" in text or "<" in text or "【" in text:
        return _FAKE_MARKUP.sub(_other_brackets, text)
    return text


def _other_brackets(found: re.Match[str]) -> str:
    """Return fake markup in other brackets, of the same length; without its end, only the opening one."""
    kind = found.lastgroup
    if kind is None:
        return _OPENING[found.group()]
    brackets = _REPLACEMENTS[kind]
    return f"{brackets[0]}{_FAKE_MARKUP.sub(_other_brackets, found[kind])}{brackets[1]}"


def is_imitation(line: str) -> bool:
    """Return whether a line begins like a line that only Foveal writes."""
    return _FAKE_LINE.match(line) is not None


def _untrusted(line: str) -> str:
    """Return a line of tool output or of the agent; an imitation of a line of the ledger is marked."""
    line = escape_tags(line)
    return f"(quoted) {line}" if is_imitation(line) else line


def inline(text: str, width: int = MAX_QUOTED_LINE_CHARS) -> str:
    """Return the beginning of a text on one line, with whitespace collapsed."""
    words = _untrusted(" ".join(text[: 4 * width].split()))
    return words if len(words) <= width and len(text) <= 4 * width else _shortened(words, width)


def quote_line(line: str, width: int = MAX_QUOTED_LINE_CHARS) -> str:
    """Return one line verbatim, without its indent."""
    line = _untrusted(line[: 2 * width].strip().replace("\n", "␊"))
    return line if len(line) <= width else _shortened(line, width)


def _shortened(line: str, width: int) -> str:
    return line[: word_end(line, width - 1)].rstrip() + "…"


def word_end(text: str, at: int) -> int:
    """Return the last position up to `at` where no word is cut; `at` itself if the word is very long."""
    if at >= len(text):
        return len(text)
    for place in range(at, max(0, at - MAX_CUT_WORD_CHARS), -1):
        if text[place].isspace() or text[place - 1].isspace():
            return place
    return at


def word_start(text: str, at: int) -> int:
    """Return the first position from `at` where no word is cut; `at` itself if the word is very long."""
    if at <= 0:
        return 0
    for place in range(at, min(len(text), at + MAX_CUT_WORD_CHARS)):
        if text[place - 1].isspace():
            return place
    return at


def quote_user(text: str) -> str:
    """Return all lines of a text of the user, each with its prefix."""
    return "\n".join(USER_PREFIX + line.rstrip() for line in escape_tags(text).split("\n"))


def quote_agent(text: str) -> str:
    """Return the lines of a text of the agent that are not blank, each with its prefix."""
    lines = (_untrusted(line).rstrip() for line in readable(text).split("\n"))
    return "\n".join(AGENT_PREFIX + line for line in lines if line.strip())
