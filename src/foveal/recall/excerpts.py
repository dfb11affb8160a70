"""Bounded excerpts of a text by lines: head, tail, range or grep.

1. Lines are counted from 1 and end at a newline. A line too long to show is cut, and a note after it says how to
   read on inside it (`lines="7+2000"`: line 7 from its character 2,000 on), so that every character can be reached.
2. Grep reads lines in slices of `MAX_LINE_CHARS`; after `GREP_TIMEOUT_S` it stops and says so.

A grep takes bounded time. Plain text matches, ignoring case, and also patterns that cannot take long: characters,
classes, anchors, alternatives, groups without repetition, and repetitions of single characters. Each repetition is
bounded, and `.*` splits a pattern into pieces that must match one after another. Anything else (repeated groups,
look-around, back references, invalid patterns) is matched as plain text only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from foveal.core.tokens.counter import Counter
from foveal.core.wire.event_text import escape_breaks

MAX_PATTERN_WAYS: Final = 5_000
"""Ways in which one piece of a pattern may match at one position, as an upper bound."""
_MAX_PATTERN_CHARS: Final = 200
_MAX_REPETITIONS: Final = 64
"""Upper bound of `*` and `+` on a single character."""
_SPECIAL: Final = re.compile(r"[\\^$.*+?{}\[\]()|]")
_TOKEN: Final = re.compile(
    r"(?P<atom>\\[dDwWsSbBtn]|\\[^A-Za-z0-9]|\[\^?\]?[^\[\]\\]*(?:\\.[^\[\]\\]*)*\]|[^\\\[\](){}?*+|])"
    r"(?P<times>[?*+]|\{\d{1,2}(?:,\d{0,2})?\})?\??"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))(?P<maybe>\??)|(?P<bar>\|)"
)


PatternPieces = list[re.Pattern[str]]


def compile_grep(wanted: str) -> tuple[Callable[[str], int], str]:
    """Return a function that finds a text or simple pattern in a line.

    Args:
        wanted: The text or pattern; case does not matter.

    Returns:
        A function that returns the position of a match, -1 if there is none, and how `wanted` is matched.

    Examples:
        ```python
        from foveal.recall import compile_grep

        find, how = compile_grep("error")
        assert find("an Error occurred") == 3
        ```
    """
    wanted = next((line for line in wanted.split("\n") if line.strip()), wanted)[:1_000]
    literal = [re.compile(re.escape(wanted), re.I)]
    simple = (
        _compile_pattern(wanted) if _SPECIAL.search(wanted) and len(wanted) <= _MAX_PATTERN_CHARS else None
    )
    if simple is None:
        return lambda line: _match_in_order(literal, line), "as plain text"
    choices = [literal, *simple]
    return lambda line: max(_match_in_order(pieces, line) for pieces in choices), "as text or pattern"


def _match_in_order(pieces: PatternPieces, line: str) -> int:
    """Return where the first piece matches if the others match after it, else -1."""
    start, at = -1, 0
    for piece in pieces:
        match = piece.search(line, at)
        if match is None:
            return -1
        start, at = match.start() if start < 0 else start, match.end()
    return start


def _compile_pattern(pattern: str) -> list[PatternPieces] | None:
    """Return a pattern as alternatives, each a list of pieces that must match one after another.

    None if the pattern is invalid or could take long."""
    choices: list[list[str]] = [[""]]
    at, depth, ways = 0, 0, 1
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or ways > MAX_PATTERN_WAYS:
            return None
        at = token.end()
        depth += bool(token["open"]) - bool(token["close"])
        if token["bar"] and not depth:
            choices.append([""])
            ways = 1
        elif token["atom"] == "." and token["times"] in ("*", "+") and not depth:
            choices[-1].append("")
            ways = 1
        else:
            choices[-1][-1] += _limit_repetition(token)
            ways *= _count_ways(token)
    try:
        return (
            [[re.compile(piece, re.I) for piece in pieces] for pieces in choices]
            if ways <= MAX_PATTERN_WAYS
            else None
        )
    except (re.error, OverflowError):
        return None


def _count_ways(token: re.Match[str]) -> int:
    if token["bar"] or token["maybe"] or token["times"] == "?":
        return 2
    return 1 if token["times"] is None or re.fullmatch(r"\{\d+\}", token["times"]) else _MAX_REPETITIONS


def _limit_repetition(token: re.Match[str]) -> str:
    """Return the token with a bounded repetition."""
    if token["atom"] is None or token["times"] is None:
        return token.group()
    times = {"*": f"{{0,{_MAX_REPETITIONS}}}", "+": f"{{1,{_MAX_REPETITIONS}}}"}.get(
        token["times"], token["times"]
    )
    return token["atom"] + (f"{times[:-1]}{_MAX_REPETITIONS}}}" if times.endswith(",}") else times)


GREP_TIMEOUT_S: Final = 1.0


MAX_LINE_CHARS: Final = 2_000
"""Characters of a line that are shown at once."""


class LineSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of a text to show; by default all, from the first.

    Examples:
        ```python
        from foveal.recall import LineSelection

        errors = LineSelection(grep="error", head=20)
        ```
    """

    first: int = 1
    """The first line, counted from 1."""
    skip: int = 0
    """Characters of the first line to skip."""
    last: int | None = None
    """The last line, included; None is the end."""
    head: int | None = None
    """Only so many lines from the start; None is no limit."""
    tail: int | None = None
    """Only so many lines from the end; None is no limit."""
    grep: str = ""
    """Only lines that contain this text or pattern; "" shows all."""


ALL_LINES: Final = LineSelection()


class Excerpt(NamedTuple):
    """The numbered lines, a phrase that says which lines they are, and the arguments that show the next ones."""

    body: str
    shows: str
    more: str


class NumberedLine(NamedTuple):
    """A line or a part of it: `skip` characters of the line come before the text, `rest` after it."""

    number: int
    text: str
    skip: int = 0
    rest: int = 0
    mark: str = "|"

    def render(self) -> str:
        """Return the text with its number, and a note if the line continues."""
        shown = f"{self.number}{self.mark} {escape_breaks(self.text)}"
        if not self.rest:
            return shown
        go_on = f'lines="{self.number}+{self.skip + len(self.text)}"'
        return f"{shown}\n[line {self.number} goes on for {self.rest:,} characters: {go_on}]"

    def shorten(self, length: int) -> NumberedLine:
        """Return the line with at most `length` characters of its text."""
        return self._replace(text=self.text[:length], rest=self.rest + max(0, len(self.text) - length))


_RANGE: Final = re.compile(r"(\d{1,9})(?:\+(\d{1,12}))?\s*(?:(-|–|:|\.\.|,|to)\s*(\d{1,9}|end|\$)?)?")


def parse_line_range(text: str) -> LineSelection | str:
    """Parse a range of lines as a model writes it.

    Args:
        text: `"10-40"`, `"10-"`, `"7"`, or `"7+2000"` for line 7 from its character 2,000 on.

    Returns:
        The selection, or a string that says what is wrong with the text.

    Examples:
        ```python
        from foveal.recall import LineSelection, parse_line_range

        assert parse_line_range("10-40") == LineSelection(first=10, last=40)
        ```
    """
    match = _RANGE.fullmatch(text.strip().lower())
    if match is None:
        return 'lines must be like "10-40", "10-" or "7"'
    first, skip, dash, last = match.groups()
    end = int(last) if last and last.isdigit() else None if dash else int(first)
    if int(first) < 1 or (end is not None and end < int(first)):
        return "lines count from 1, and a range goes up"
    return LineSelection(first=int(first), skip=int(skip or 0), last=end)


def count_lines(text: str) -> int:
    """Return the number of lines; a newline at the end starts no further line."""
    return text.count("\n") + (text[-1:] not in ("", "\n"))


def excerpt(text: str, wanted: LineSelection, *, counter: Counter, tokens: int) -> Excerpt:
    r"""Return the selected lines of a text, as many as fit.

    Args:
        text: The text.
        wanted: Which lines to show.
        counter: Counts the tokens.
        tokens: Most tokens to return.

    Returns:
        The numbered lines, a phrase that says which lines they are, and the arguments that show the next ones.

    Examples:
        ```python
        from foveal.core.tokens.counter import counter
        from foveal.recall import LineSelection, excerpt

        found = excerpt("one\ntwo\nthree", LineSelection(tail=1), counter=counter("estimate"), tokens=100)
        assert "three" in found.body
        ```
    """
    if wanted.grep:
        return _excerpt_grep(text, wanted, counter, tokens)
    total = count_lines(text)
    if wanted.first > total:
        return Excerpt(
            "", f"there is no line {wanted.first:,}", f'lines="1-{min(total, 40)}"' if total else ""
        )
    if wanted.head is not None and wanted.tail is not None and wanted.head + wanted.tail < total:
        return _excerpt_head_and_tail(text, wanted, counter, tokens)
    if wanted.tail is not None and wanted.head is None:
        return _excerpt_tail(text, total, wanted.tail, counter, tokens)
    last = min(total, wanted.last or total, wanted.head or total)
    return _excerpt_range(
        text, LineSelection(first=wanted.first, skip=wanted.skip, last=last), counter, tokens
    )


def _excerpt_range(text: str, wanted: LineSelection, counter: Counter, tokens: int) -> Excerpt:
    last = wanted.last or wanted.first
    lines = list(_numbered_lines(text, wanted.first, min(last, wanted.first + tokens), wanted.skip))
    shown = _take_fitting(lines, counter, tokens)
    end = shown[-1].number if shown else wanted.first - 1
    more = f'lines="{end + 1}-{last}"' if end < last else ""
    return Excerpt(
        _render_lines(shown), f"lines {wanted.first:,}-{end:,} follow" if shown else "no line fits", more
    )


def _excerpt_tail(text: str, total: int, wanted: int, counter: Counter, tokens: int) -> Excerpt:
    lines = list(_numbered_lines(text, max(1, total + 1 - min(wanted, tokens)), total))
    shown = _take_fitting(lines[::-1], counter, tokens)[::-1]
    first = shown[0].number if shown else total
    more = f'lines="{max(1, total + 1 - wanted)}-{first - 1}"' if first > max(1, total + 1 - wanted) else ""
    return Excerpt(
        _render_lines(shown), f"lines {first:,}-{total:,} follow" if shown else "no line fits", more
    )


def _excerpt_head_and_tail(text: str, wanted: LineSelection, counter: Counter, tokens: int) -> Excerpt:
    head = excerpt(text, LineSelection(head=wanted.head), counter=counter, tokens=tokens // 2)
    tail = excerpt(text, LineSelection(tail=wanted.tail), counter=counter, tokens=tokens // 2)
    shows = f"{head.shows.removesuffix(' follow')} and {tail.shows.removeprefix('lines ')}"
    return Excerpt(f"{head.body}\n[…]\n{tail.body}", shows, head.more or tail.more)


def _numbered_lines(text: str, first: int, last: int, skip: int = 0) -> Iterator[NumberedLine]:
    """Yield lines cut to `MAX_LINE_CHARS`, the first of them from its character `skip` on."""
    at, number = 0, 1
    while number < first:
        at, number = text.find("\n", at) + 1, number + 1
    while number <= last and at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        start = min(at + skip, end)
        yield NumberedLine(
            number,
            text[start : min(end, start + MAX_LINE_CHARS)],
            start - at,
            max(0, end - start - MAX_LINE_CHARS),
        )
        at, number, skip = end + 1, number + 1, 0


def _take_fitting(lines: Iterable[NumberedLine], counter: Counter, tokens: int) -> list[NumberedLine]:
    """Return the lines that fit into `tokens`, and at least a part of the first."""
    shown: list[NumberedLine] = []
    for line in lines:
        cost = counter.count(line.render()) + 1
        if cost > tokens and not shown:
            return [line.shorten(max(1, counter.head(line.text, tokens - 30)))]
        if cost > tokens:
            break
        tokens -= cost
        shown.append(line)
    return shown


def _render_lines(lines: Iterable[NumberedLine]) -> str:
    return "\n".join(line.render() for line in lines)


# ── Grep ─────────────────────────────────────────────────────────────────────────────────────────────────


def _excerpt_grep(text: str, wanted: LineSelection, counter: Counter, tokens: int) -> Excerpt:
    """Return the lines that match, marked `:`, and the line on either side, marked `-`."""
    find, how = compile_grep(wanted.grep)
    last = min(count_lines(text), wanted.last or len(text))
    deadline = time.monotonic() + GREP_TIMEOUT_S
    matches: dict[int, NumberedLine] = {}
    stopped = ""
    for number, at, end in _line_spans(text, wanted.first, last):
        position = _find_in_line(text, at, end, find, deadline)
        if position is not None:
            start = at if end - at <= MAX_LINE_CHARS else max(at, position - MAX_LINE_CHARS // 10)
            part = text[start : min(end, start + MAX_LINE_CHARS)]
            matches[number] = NumberedLine(
                number, part, start - at, max(0, end - start - MAX_LINE_CHARS), ":"
            )
        if time.monotonic() > deadline or len(matches) > 10 * tokens:
            stopped = f"; stopped at line {number:,}, the search goes on with lines={number + 1}-"
            break
    shown = _take_fitting(_with_adjacent_lines(text, matches, tokens), counter, tokens) if matches else []
    hits = [line.number for line in shown if line.number in matches]
    more = f'lines="{hits[-1] + 1}-{last}" with the same grep' if len(hits) < len(matches) and hits else ""
    shows = f"{len(hits):,} of {len(matches):,} lines that match follow" if matches else "no line matches"
    return Excerpt(_render_lines(shown), f"{shows} ({how}){stopped}", more)


def _line_spans(text: str, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    at, number = 0, 1
    while number <= last and at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if number >= first:
            yield number, at, end
        at, number = end + 1, number + 1


def _find_in_line(text: str, at: int, end: int, find: Callable[[str], int], deadline: float) -> int | None:
    """Return where a line matches; it is searched in slices that overlap by a tenth."""
    for start in range(at, max(end, at + 1), MAX_LINE_CHARS - MAX_LINE_CHARS // 10):
        position = find(text[start : min(end, start + MAX_LINE_CHARS)])
        if position >= 0:
            return start + position
        if time.monotonic() > deadline:
            break
    return None


def _with_adjacent_lines(text: str, matches: dict[int, NumberedLine], tokens: int) -> Iterator[NumberedLine]:
    """Yield the matches and the lines next to them in order; of the latter at most 200 characters."""
    chosen = list(matches)[:tokens]
    wanted = {near for number in chosen for near in (number - 1, number, number + 1)}
    for number, at, end in _line_spans(text, max(1, chosen[0] - 1), chosen[-1] + 1):
        if number in matches:
            yield matches[number]
        elif number in wanted:
            yield NumberedLine(number, text[at : min(end, at + 200)], mark="-")
