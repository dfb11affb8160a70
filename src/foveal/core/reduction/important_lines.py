"""Important lines of a long output: errors, failures and verdicts.

`find_important_lines` looks for a few literals with `str.find` and ranks only the lines that contain one, so its
cost is a few passes over the text and its memory is bounded by `MAX_JUDGED_CHARS`, whatever the size. A text of up
to `MAX_SCANNED_CHARS` is read completely. Of a longer one it reads `MAX_SAMPLED_CHARS` in search of errors (half of
that for exit codes and the like, a quarter for warnings): a quarter at the beginning, a quarter at the end, and
evenly spaced windows in between. It may miss a single error in the middle of a very long text.

The patterns are general (compilers, test runners, package managers, shells) and know no project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

Span: TypeAlias = tuple[int, int]

MAX_SCANNED_CHARS: Final = 250_000
"""Characters up to which a text is read completely."""
MAX_SAMPLED_CHARS: Final = 100_000
"""Characters of a longer text that are read in search of errors; fewer are read for what matters less."""
SCAN_WINDOWS: Final = 24
"""Evenly spaced windows that are read of the middle of a longer text."""
MAX_JUDGED_CHARS: Final = 8_000
"""Characters of the lines with one literal that are ranked, about; of more, the lines nearest to the start and end
of each window."""
_MIN_JUDGED_CHARS: Final = 400
"""The share of one window."""
MAX_MATCHED_LINE_CHARS: Final = 600
"""A longer line is shown as a window of this many characters around its match."""

VERDICT, CAUSE, ITEM, MENTION, WARNING, HARMLESS = range(6)
"""Ranks of a line, the most important first: how it ended, what went wrong, what failed, the rest."""


class _Stage(NamedTuple):
    """One pass over the text."""

    share: float
    """The share of MAX_SAMPLED_CHARS that is read of a long text."""
    rank: int | None
    """The rank of a line that contains a literal and matches no pattern; None leaves it out."""
    literals: tuple[str, ...]
    """Case-sensitive, because `str.find` is."""


_WORST = ("rror", "ERR", "fail", "Fail", "FAIL", "xception", "raceback (", "\nE  ", "panic")
_STAGES = (
    _Stage(1.0, None, (*_WORST, "atal: ", "FATAL")),
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
_HEX_NUMBER = re.compile(r"0x[0-9a-fA-F]+")
_UNINDENTED = re.compile(r"\n(?=\S)")


class ImportantLine(NamedTuple):
    """One important line, or the part of a very long line around the match."""

    start: int
    end: int
    rank: int
    """Its importance: VERDICT (0) most, HARMLESS (5) least."""
    shape: bytes
    """The line without its digits, and whether there are any: repeats of one message have one shape."""


def find_important_lines(text: str, start: int, end: int, *, enough: int) -> list[ImportantLine]:
    """Return the important lines between two positions, the most important first; of repeats the first and last.

    Later stages (missing things, then warnings) run only while fewer than `enough` shapes were found.
    """
    found: dict[int, ImportantLine] = {}
    for stage in _STAGES:
        ranks: dict[bytes, int | None] = {}
        windows = list(_windows(start, end, int(MAX_SAMPLED_CHARS * stage.share)))
        for span in _hits(text, windows, stage.literals):
            line = _strip_prefix(text, *span)
            shape = _shape(line)
            if shape not in ranks:
                ranks[shape] = _rank(line, stage.rank)
            if line.startswith("Traceback ("):
                found |= _last_of_traceback(text, span[1])
            elif (rank := ranks[shape]) is not None:
                found.setdefault(span[0], ImportantLine(*span, rank, shape))
        if len({line.shape for line in found.values()}) >= enough:
            break
    return _sorted_by_importance(found[at] for at in sorted(found))


def _hits(text: str, windows: list[Span], literals: tuple[str, ...]) -> dict[Span, None]:
    """Return the lines with a literal: for each about MAX_JUDGED_CHARS, shared evenly by the windows."""
    share = max(_MIN_JUDGED_CHARS, MAX_JUDGED_CHARS // len(windows)) // 2
    hits: dict[Span, None] = {}
    for literal in literals:
        for low, high in windows:
            at = text.find(literal, low, high)
            if at >= 0:  # most literals occur nowhere
                first = list(_forward(text, at, high, literal, share))
                hits |= dict.fromkeys(first)
                hits |= dict.fromkeys(_backward(text, first[-1][1], high, literal, share))
    return hits


def _forward(text: str, at: int, high: int, literal: str, room: int) -> Iterator[Span]:
    """Yield the lines with the literal from `at` on, where it is, as far as the room holds them."""
    while at >= 0 and room > 0:
        at += literal[0] == "\n"
        yield (span := line_bounds(text, at))
        room -= span[1] - span[0]
        at = text.find(literal, max(span[1] - 1, at + 1), high)


def _backward(text: str, low: int, high: int, literal: str, room: int) -> Iterator[Span]:
    """Yield the lines with the literal between two positions, the last first, as far as the room holds them."""
    while (at := text.rfind(literal, low, high)) >= 0 and room > 0:
        yield (span := line_bounds(text, at + (literal[0] == "\n")))
        room -= span[1] - span[0]
        high = min(span[0], at)


def _windows(start: int, end: int, limit: int) -> Iterator[Span]:
    """Yield the parts to read: all, or the first and last quarter of `limit` characters and windows in between."""
    if end - start <= MAX_SCANNED_CHARS:
        yield start, end
        return
    quarter = limit // 4
    yield start, start + quarter
    inner, width = end - start - 2 * quarter, 2 * quarter // SCAN_WINDOWS
    for i in range(SCAN_WINDOWS):
        low = start + quarter + (inner - width) * i // (SCAN_WINDOWS - 1)
        yield low, low + width
    yield end - quarter, end


def line_bounds(text: str, at: int) -> Span:
    """Return the line around a position, its newline included, or a window of it when it is very long."""
    low = text.rfind("\n", max(0, at - MAX_MATCHED_LINE_CHARS), at) + 1
    if low == 0 and at > MAX_MATCHED_LINE_CHARS:
        low = at - MAX_MATCHED_LINE_CHARS // 3
    high = text.find("\n", at, at + MAX_MATCHED_LINE_CHARS) + 1
    if high == 0:
        high = len(text) if len(text) - at < MAX_MATCHED_LINE_CHARS else at + MAX_MATCHED_LINE_CHARS
    if high - low <= MAX_MATCHED_LINE_CHARS:
        return low, high
    low = max(low, at - MAX_MATCHED_LINE_CHARS // 3)
    return low, min(high, low + MAX_MATCHED_LINE_CHARS)


def _strip_prefix(text: str, low: int, high: int) -> str:
    """Return a line without its colours and its time."""
    line = text[low:high].strip("\r\n")
    return _PREFIX.sub("", line) if "\x1b" in line or line[:1].isdigit() else line


def _shape(line: str) -> bytes:
    if "0x" in line:
        line = _HEX_NUMBER.sub("0", line)
    encoded = line.encode("utf-8", "surrogatepass")
    rest = encoded.translate(None, b"0123456789")  # far faster than `re` or `str`
    # "91 passed" is a verdict and " passed" is not, so a number must be part of the shape.
    return rest if len(rest) == len(encoded) else b"0" + rest


def _last_of_traceback(text: str, start: int) -> dict[int, ImportantLine]:
    """Return the line that ends a traceback: it says what went wrong, even when its name does not end in Error."""
    close = _UNINDENTED.search(text, start - 1, start + 20_000)
    if not close:
        return {}
    low, high = line_bounds(text, close.end())
    return {low: ImportantLine(low, high, CAUSE, _shape(text[low:high]))}


def _rank(line: str, default: int | None) -> int | None:
    for rank, (start, anywhere) in _PATTERNS:
        if start.match(line) or anywhere.search(line):
            return rank if rank != HARMLESS or _MENTION.search(line) else None
    return MENTION if _MENTION.search(line) else default


def _sorted_by_importance(lines: Iterable[ImportantLine]) -> list[ImportantLine]:
    """Sort: severe before mild, first before last occurrence, rare shapes before common ones, both ends inwards."""
    shapes: dict[tuple[int, bytes], list[ImportantLine]] = {}
    for line in lines:
        shapes.setdefault((line.rank, line.shape), []).append(line)
    order: list[tuple[int, bool, bool, int, ImportantLine]] = []
    for i, ((rank, _), same) in enumerate(shapes.items()):
        inwards = min(i, len(shapes) - 1 - i)
        order.append((rank, False, len(same) > 2, inwards, same[0]))
        if len(same) > 1:
            order.append((rank, True, len(same) > 2, inwards, same[-1]))
    return [line for *_, line in sorted(order)]
