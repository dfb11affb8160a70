"""Recognises pasted text in messages of the user: code, logs, markup and tool output.

Some agents report results of tools in the user role, and users paste files and logs. Words such as "must" and
"only" in pasted text state no rule. A line that may be a plain sentence counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

_MAX_SPANS: Final = 40
_MAX_TAG_CHARS: Final = 200
_FENCE: Final = re.compile(r"^[ \t]*(```|~~~)", re.MULTILINE)
_PASTED_TAG: Final = re.compile(
    r"<(environment_\w+|system[-_]reminder|file(?:s|_contents?)?|documents?|tool_results?|function_results?|results?"
    rf"|observation|output|stdout|stderr|\w+-stdout|diff|code|pre|logs?|search_results?)\b[^>\n]{{0,{_MAX_TAG_CHARS}}}>"
)
_TOOL_REPORT: Final = re.compile(
    r"\[[\w-]{2,60}(?: for '[^\n]{0,4000}')?\] Result:|(?:OBSERVATION|Observation|Tool (?:result|output)):"
)
_HARNESS_TAG: Final = re.compile(
    r"<([\w-]*(?:reminder|notification|notice|caveat|environment|hook|skill|stdout|stderr|command|system|tool)[\w-]*)"
    rf"\b[^>\n]{{0,{_MAX_TAG_CHARS}}}>"
)
"""The beginning of a notice that a harness writes."""
_SKILL: Final = re.compile(r"Base directory for this skill:")
"""The beginning of instructions that a harness has loaded."""
_DOCSTRING: Final = re.compile(r'"""[^"]*(?:"(?!"")[^"]*)*"""')
_FORWARDED: Final = re.compile(
    r"^(?:-{2,} ?(?:forwarded|original) message\b.*|begin forwarded message:|from: \S+@\S+.*|from: .+<\S+@\S+>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
"""The beginning of a mail that the user passes on."""
_OWN_WORDS: Final = re.compile(r"<(feedback|user_message|user_feedback|answer|task)>")
"""What the user said, inside a report of a tool."""

_PASTED_LINE: Final = re.compile(
    r"\s*(?:"
    r"</?\w[^>]*>\s*$"  # a tag
    r"|>"  # a quoted line of a mail
    r"|.*\"\"\""  # a docstring
    r"|[{\[]?[\"'].*[\"'}\]],\s*$"  # a line of a literal
    r"|(?:for|while|if|elif|with) [^\n]*[(\[=][^\n]*:\s*(?:#.*)?$"
    r"|(?:await|yield|assert) \S+[(.]"
    r"|\|.*\|"  # a row of a table
    r"|[+-]?\s*\d+\s*(?:[|│→\t]|[+-]\s)"  # a line of a listing or a diff
    r"|[+-]\s+\d+\s"
    r"|E\s{2,}|at \S+ ?\(|File \"|>>> |\$ |//|/\*|\*/|<!--|#!"
    r"|\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d:\d\d|\[?(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b[\]:]"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d "
    r"|[\w.]*(?:Error|Exception|Warning)\b(?:\[\w+\])?:"
    r"|(?:import|from|def|class|return|const|let|var|function|export|public|private|elif|throw|raise) \S+"
    r".*[({;:=\])]\s*$"
    r"|[\w.\"'$-]+\s*(?:=|:=|\+=)\s*\S"  # an assignment
    r"|\[[\w.:-]+\]\s*$"  # a section of a configuration file
    r"|[\"'][\w.-]+[\"']\s*:"  # a key of JSON
    r"|\S.*(?:[{;]|=>|\(\)|\):)\s*$"
    r")"
)
_LAST_TAG: Final = re.compile(r"</([\w-]{2,60})>\s*\Z")
_COMMENT: Final = re.compile(r"\s*#+ ")
_NEIGHBOUR_CHARS: Final = 200
_MAX_WRAPPED_LINES: Final = 4


def pasted_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of the blocks that are pasted; they may overlap."""
    spans = [*_fenced(text)] if "```" in text or "~~~" in text else []
    if "<" in text:
        spans += _pasted_elements(text)
    if is_tool_report(text):
        spans += _outside_own_words(text)
    if '"""' in text:
        spans += [found.span() for found in islice(_DOCSTRING.finditer(text), _MAX_SPANS)]
    if (forwarded := _FORWARDED.search(text)) is not None:
        spans.append((forwarded.start(), len(text)))
    return spans


def is_tool_report(text: str) -> bool:
    """Return whether a message of the user reports the result of a tool."""
    return text[:1] in ("[", "O", "T") and _TOOL_REPORT.match(text) is not None


def is_harness_text(text: str) -> bool:
    """Return whether a harness wrote all of a message in the user role: a report of a tool, or a notice in tags."""
    text = text.strip()
    if is_tool_report(text):
        return _OWN_WORDS.search(text) is None
    while (found := _HARNESS_TAG.match(text)) is not None:
        closing = f"</{found[1]}>"
        end = text.find(closing, found.end())
        if end < 0:
            return False
        text = text[end + len(closing) :].lstrip()
        if not text:
            return True
    return _SKILL.match(text) is not None


def end_of_own_words(text: str) -> int:
    """Return where a text ends without the pasted block after it, as agents append one to messages."""
    found = _LAST_TAG.search(text, max(0, len(text) - _MAX_TAG_CHARS))
    start = text.rfind(f"<{found[1]}", 0, found.start()) if found else -1
    return start if start > 0 and _PASTED_TAG.match(text, start) else len(text)


def is_pasted_line(text: str, at: int) -> bool:
    """Return whether the line around a position is no plain sentence."""
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)]
    if _PASTED_LINE.match(line) or (line[:1].isspace() and _continues_pasted(text, start)):
        return True
    # A comment in a configuration file looks like a heading; its neighbours tell them apart.
    return bool(_COMMENT.match(line)) and any(
        map(_PASTED_LINE.match, _neighbours(text, start, end if end >= 0 else len(text)))
    )


def _continues_pasted(text: str, start: int) -> bool:
    """Return whether an indented line belongs to a pasted one above it, as in a wrapped listing."""
    for _ in range(_MAX_WRAPPED_LINES):
        above = text.rfind("\n", 0, max(0, start - 1)) + 1
        line = text[above : max(0, start - 1)]
        if _PASTED_LINE.match(line):
            return True
        if not line[:1].isspace() or above == 0:
            return False
        start = above
    return False


def _neighbours(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the line before and the line after, without blank ones."""
    yield text[max(0, start - _NEIGHBOUR_CHARS) : start].rstrip().rpartition("\n")[2]
    yield text[end : end + _NEIGHBOUR_CHARS].lstrip("\n").partition("\n")[0]


def _fenced(text: str) -> Iterator[tuple[int, int]]:
    start: int | None = None
    for number, found in enumerate(_FENCE.finditer(text)):
        if number >= 2 * _MAX_SPANS:
            break
        if start is None:
            start = found.start()
        else:
            yield start, found.end()
            start = None


def _pasted_elements(text: str) -> Iterator[tuple[int, int]]:
    end = 0
    for _ in range(_MAX_SPANS):
        found = _PASTED_TAG.search(text, end)
        if found is None:
            return
        close = text.find(f"</{found[1]}>", found.end())
        end = close if close >= 0 else found.end()
        if close >= 0:
            yield found.start(), close


def _outside_own_words(text: str) -> Iterator[tuple[int, int]]:
    end = 0
    for _ in range(_MAX_SPANS):
        found = _OWN_WORDS.search(text, end)
        if found is None:
            break
        yield end, found.end()
        close = text.find(f"</{found[1]}>", found.end())
        end = close if close >= 0 else len(text)
    yield end, len(text)
