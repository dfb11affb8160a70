"""The lines of a long output that matter most: what went wrong, and how it ended.

`find` looks for a handful of literals with `str.find` and judges only the lines that contain one, so its
cost is a few passes over the text and its memory is bounded by `MOST_LINES`, whatever the size. Up to
`SCANNED` characters are read completely in search of errors (half of that for exit codes and the like, a
quarter for warnings); of a longer text the first and last quarter of that many and evenly spaced windows in
between, so a lone error in the midst of a very long text may be missed.

The patterns are general (compilers, test runners, package managers, shells); nothing here knows a project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

Span: TypeAlias = tuple[int, int]

SCANNED = 1_000_000
"""Characters of a text that are read in search of the worst; less is read for what matters less."""
WINDOWS = 24
"""Evenly spaced looks into a text longer than that."""
MOST_LINES = 600
"""About as many lines are judged per stage; of more, those nearest to the start and end of each window."""
LONGEST = 600
"""A longer line is shown as a window of this many characters around its match."""

VERDICT, CAUSE, ITEM, MENTION, WARNING, HARMLESS = range(6)
"""How much a line matters, most first: how it ended, what went wrong, what failed, the rest."""


class _Stage(NamedTuple):
    share: float
    """Which part of SCANNED is read."""
    rank: int | None
    """The rank of a line that holds a literal and fits no pattern; None leaves it out."""
    literals: tuple[str, ...]
    """Case-sensitive, because `str.find` is."""


_WORST = ("rror", "ERRO", "ERR!", "fail", "Fail", "FAIL", "xception", "raceback (", "\nE  ", "panic")
_STAGES = (
    _Stage(1.0, None, (*_WORST, "atal: ", "atal error", "FATAL")),
    _Stage(0.5, None, (" passed", "exit", "Ran ", "Tests", "ssert", "egmentation", "Killed", "not ok")),
    _Stage(0.5, ITEM, ("✗", "✕", "❌")),
    _Stage(0.25, None, ("annot ", "denied", "not found", "No such", "imed out", "nresolved", "ndefined")),
    _Stage(0.25, WARNING, ("arning", "WARN", "eprecat", "Caused by")),
)

# Two patterns for a rank: one for the beginning of a line, one for anywhere. In the latter every alternative
# starts with a literal character, which lets `re` skip quickly: no leading \b, no (?i), no [Aa].
_VERDICT = (
    re.compile(
        r" *(?:Ran \d+ tests?|Tests?(?: run| Suites| Files)?:? +\d|(?:FAIL|ok)\s+\S+\s+[\d.]+s$|Killed$)"
    ),
    re.compile(
        r" (?<=\d )(?:failed|passed|failing|passing|failures?|errors?)\b(?!:)"
        r"|FAILED \(|OK \(|BUILD (?:FAIL|SUCCE)|Build failed|Tests(?: run)?: |test result: |non-zero exit"
        r"|xit(?:ed)?(?: with)?(?: code| status):? *[1-9-]"
    ),
)
_CAUSE = (
    re.compile(
        r"E  +\S|[\w.]*(?:Error|Exception|Failure)(?: \[\w+\])?(?:: |$)"
        r"|\W*error(?: \w+)?: |ld: |panic\b|Caused by|[\w.]+: [\w.]*(?:Error|Exception): "
    ),
    re.compile(
        r"error\[\w+\]|:\d+(?::\d+)?:? (?:fatal )?error\b|\(\d+,\d+\): error|npm (?:ERR!|error)"
        r"|panicked at|panic: |egmentation fault|core dumped|FATAL|atal: |atal error: |##\[error\]"
        r"|undefined reference|ERROR: |:\d+: \w*(?:Error|Exception)$|Unhandled|Uncaught|Assertion.{0,80} failed"
    ),
)
_ITEM = (re.compile(r"\W*not ok\b"), re.compile(r"FAIL(?:ED|URE)?\b|ERR(?:OR)?\b|\[ ?error|level=error"))
_HARMLESS = (
    re.compile(r"(?:PASSED|ok|PASS|✓|0 errors|[Nn]o errors)\b"),
    re.compile(
        r" (?:(?:ok|PASSED|passed|succe\w+)(?: *\[ *\d+%\])?$"
        r"|(?:0|[Nn]o|[Ww]ithout) (?:errors?|fail\w*|warnings?)\b)"
    ),
)
_MENTION = re.compile(
    r"error(?<!\werror)s?\b|Errors?\b|ERROR|fail(?<!\wfail)(?:ed|ures?|s|ing)?\b|Fail(?:ed|ures?|ing)?\b|FAIL"
    r"|exception(?<!\wexception)s?\b|Exceptions?\b|panic|fatal|FATAL|assert(?<!\wassert)\b|annot |denied"
    r"|not found|No such|imed out|unresolved|Unresolved|undefined|exit (?:code|status)"
)
_PATTERNS = ((VERDICT, _VERDICT), (HARMLESS, _HARMLESS), (CAUSE, _CAUSE), (ITEM, _ITEM))
_PREFIX = re.compile(r"\x1b\[[\d;]*[A-Za-z]|^[\s\d:.,TZ+-]*\d{2}:\d{2}:\d{2}[\d.,Z]*\s?")
_FOLDED = re.compile(r"0x[0-9a-fA-F]+|\d+")
_UNINDENTED = re.compile(r"\n(?=\S)")


class ImportantLine(NamedTuple):
    """One salient line, or the part of a very long line around the match."""

    start: int
    end: int
    rank: int
    """How much it matters: VERDICT (0) most, HARMLESS (5) least."""
    shape: str
    """The line with its digits folded: repeats of one message have one shape."""


def important_lines(text: str, start: int, end: int, *, enough: int) -> list[ImportantLine]:
    """Salient lines between two positions, the most telling first; repeats of a shape only first and last.

    Later stages (missing things, then warnings) are searched only while fewer than `enough` shapes were found.
    """
    found: dict[int, ImportantLine] = {}
    for stage in _STAGES:
        ranks: dict[str, int | None] = {}
        windows = list(_windows(start, end, int(SCANNED * stage.share)))
        for span in _hits(text, windows, stage.literals):
            bare = _bare(text, *span)
            shape = _FOLDED.sub("0", bare)
            if shape not in ranks:
                ranks[shape] = _rank(bare, stage.rank)
            if bare.startswith("Traceback ("):
                found |= _last_of_traceback(text, span[1])
            elif (rank := ranks[shape]) is not None:
                found.setdefault(span[0], ImportantLine(*span, rank, shape))
        if len({line.shape for line in found.values()}) >= enough:
            break
    return _preferred(found[at] for at in sorted(found))


def _hits(text: str, windows: list[Span], literals: tuple[str, ...]) -> dict[Span, None]:
    """The lines with a literal; about MOST_LINES, shared fairly by windows and literals."""
    share = max(4, MOST_LINES // len(windows) // 4)
    hits: dict[Span, None] = {}
    for low, high in windows:
        for literal in literals:
            first = list(_forward(text, low, high, literal, share))
            hits |= dict.fromkeys(first)
            if len(first) == share:
                hits |= dict.fromkeys(_backward(text, first[-1][1], high, literal, share))
    return hits


def _forward(text: str, low: int, high: int, literal: str, most: int) -> Iterator[Span]:
    for _ in range(most):
        at = text.find(literal, low, high)
        if at < 0:
            return
        at += literal[0] == "\n"
        yield (span := bounds(text, at))
        low = max(span[1] - 1, at + 1)


def _backward(text: str, low: int, high: int, literal: str, most: int) -> Iterator[Span]:
    for _ in range(most):
        at = text.rfind(literal, low, high)
        if at < 0:
            return
        yield (span := bounds(text, at + (literal[0] == "\n")))
        high = min(span[0], at)


def _windows(start: int, end: int, most: int) -> Iterator[Span]:
    """The parts that are read: all, or the first and last quarter of `most` characters and looks in between."""
    if end - start <= most:
        yield start, end
        return
    quarter = most // 4
    yield start, start + quarter
    inner, width = end - start - 2 * quarter, 2 * quarter // WINDOWS
    for i in range(WINDOWS):
        low = start + quarter + (inner - width) * i // (WINDOWS - 1)
        yield low, low + width
    yield end - quarter, end


def bounds(text: str, at: int) -> Span:
    """The line around a position, its newline included, or a window of it when it is very long."""
    low = text.rfind("\n", max(0, at - LONGEST), at) + 1
    if low == 0 and at > LONGEST:
        low = at - LONGEST // 3
    high = text.find("\n", at, at + LONGEST) + 1
    if high == 0:
        high = len(text) if len(text) - at < LONGEST else at + LONGEST
    if high - low <= LONGEST:
        return low, high
    low = max(low, at - LONGEST // 3)
    return low, min(high, low + LONGEST)


def _bare(text: str, low: int, high: int) -> str:
    """A line without its colours and its time."""
    line = text[low:high].strip("\r\n")
    return _PREFIX.sub("", line) if "\x1b" in line or line[:1].isdigit() else line


def _last_of_traceback(text: str, start: int) -> dict[int, ImportantLine]:
    """The line that ends a traceback says what went wrong, even when its name is not an Error's."""
    close = _UNINDENTED.search(text, start - 1, start + 20_000)
    if not close:
        return {}
    low, high = bounds(text, close.end())
    return {low: ImportantLine(low, high, CAUSE, _FOLDED.sub("0", text[low:high]))}


def _rank(line: str, default: int | None) -> int | None:
    for rank, (start, anywhere) in _PATTERNS:
        if start.match(line) or anywhere.search(line):
            return rank if rank != HARMLESS or _MENTION.search(line) else None
    return MENTION if _MENTION.search(line) else default


def _preferred(lines: Iterable[ImportantLine]) -> list[ImportantLine]:
    """Severe before mild, first before last occurrence, rare shapes before common ones, both ends inwards."""
    shapes: dict[tuple[int, str], list[ImportantLine]] = {}
    for line in lines:
        shapes.setdefault((line.rank, line.shape), []).append(line)
    order: list[tuple[int, bool, bool, int, ImportantLine]] = []
    for i, ((rank, _), same) in enumerate(shapes.items()):
        inwards = min(i, len(shapes) - 1 - i)
        order.append((rank, False, len(same) > 2, inwards, same[0]))
        if len(same) > 1:
            order.append((rank, True, len(same) > 2, inwards, same[-1]))
    return [line for *_, line in sorted(order)]
