"""A bounded part of one text, by lines: from the beginning, the end, a range, or where something stands.

Lines are counted from 1 and end at a newline. A line too long to show is cut, and the note after it says how to go
on inside it (`lines="7+2000"`: line 7 from its character 2,000 on), so that every character can be reached.

A search (see `grep`) looks at lines in slices of `WIDTH` characters; after `SECONDS` it stops and says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from foveal.core.tokens.counter import Counter
from foveal.core.wire.event_text import plain

# ── grep ──────────────────────────────────────────────────────────────────────────────────────────
# Finding a text or a simple pattern in a line, in bounded time.
#
# What is wanted is text, upper and lower case alike, and also a pattern if it is of the harmless sort: characters,
# classes, anchors, alternatives, groups without repetition, and repetitions of single characters. Each repetition is
# bounded and `.*` becomes "and after that", so that no line of ordinary length takes long. Anything else (repeated
# groups, look-around, back references, what is no valid pattern) is taken as plain text only.

CHOICES: Final = 5_000
"""Ways in which one piece of a pattern may try to match at one place."""
_LONGEST: Final = 200
_TIMES: Final = 64
"""What `*` and `+` on a single character end at."""
_SPECIAL: Final = re.compile(r"[\\^$.*+?{}\[\]()|]")
_TOKEN: Final = re.compile(
    r"(?P<atom>\\[dDwWsSbBtn]|\\[^A-Za-z0-9]|\[\^?\]?[^\[\]\\]*(?:\\.[^\[\]\\]*)*\]|[^\\\[\](){}?*+|])"
    r"(?P<times>[?*+]|\{\d{1,2}(?:,\d{0,2})?\})?\??"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))(?P<maybe>\??)|(?P<bar>\|)"
)

Pieces = list[re.Pattern[str]]


def finder(wanted: str) -> tuple[Callable[[str], int], str]:
    """A function that says where a line matches (-1: nowhere), and how `wanted` was understood."""
    wanted = next((line for line in wanted.split("\n") if line.strip()), wanted)[:1_000]
    literal = [re.compile(re.escape(wanted), re.I)]
    simple = _simple(wanted) if _SPECIAL.search(wanted) and len(wanted) <= _LONGEST else None
    if simple is None:
        return lambda line: _in_order(literal, line), "as plain text"
    choices = [literal, *simple]
    return lambda line: max(_in_order(pieces, line) for pieces in choices), "as text or pattern"


def _in_order(pieces: Pieces, line: str) -> int:
    """Where the first piece matches, if the others follow it."""
    start, at = -1, 0
    for piece in pieces:
        match = piece.search(line, at)
        if match is None:
            return -1
        start, at = match.start() if start < 0 else start, match.end()
    return start


def _simple(pattern: str) -> list[Pieces] | None:
    """A pattern as alternatives, each of pieces to be found one after the other; None when it is not valid, or
    could take long."""
    choices: list[list[str]] = [[""]]
    at, depth, ways = 0, 0, 1
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or ways > CHOICES:
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
            choices[-1][-1] += _bounded(token)
            ways *= _ways(token)
    try:
        return (
            [[re.compile(piece, re.I) for piece in pieces] for pieces in choices] if ways <= CHOICES else None
        )
    except (re.error, OverflowError):
        return None


def _ways(token: re.Match[str]) -> int:
    if token["bar"] or token["maybe"] or token["times"] == "?":
        return 2
    return 1 if token["times"] is None or re.fullmatch(r"\{\d+\}", token["times"]) else _TIMES


def _bounded(token: re.Match[str]) -> str:
    """The same with an end to its repetition."""
    if token["atom"] is None or token["times"] is None:
        return token.group()
    times = {"*": f"{{0,{_TIMES}}}", "+": f"{{1,{_TIMES}}}"}.get(token["times"], token["times"])
    return token["atom"] + (f"{times[:-1]}{_TIMES}}}" if times.endswith(",}") else times)


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────

WIDTH: Final = 2_000
"""Characters of one line that are shown at a time."""
SECONDS: Final = 1.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of a text somebody wants; with nothing set, all from the beginning."""

    first: int = 1
    skip: int = 0
    """Characters of the first line to pass over."""
    last: int | None = None
    head: int | None = None
    tail: int | None = None
    grep: str = ""


ALL: Final = Wanted()


class Excerpt(NamedTuple):
    """What is shown of a text: the numbered lines, and in words which they are and how to get the others."""

    body: str
    shows: str
    more: str


class NumberedLine(NamedTuple):
    """A line, or a stretch of one: `skip` characters come before it and `rest` after it."""

    number: int
    text: str
    skip: int = 0
    rest: int = 0
    mark: str = "|"

    def told(self) -> str:
        shown = f"{self.number}{self.mark} {plain(self.text)}"
        if not self.rest:
            return shown
        go_on = f'lines="{self.number}+{self.skip + len(self.text)}"'
        return f"{shown}\n[line {self.number} goes on for {self.rest:,} characters: {go_on}]"

    def cut(self, length: int) -> NumberedLine:
        return self._replace(text=self.text[:length], rest=self.rest + max(0, len(self.text) - length))


_RANGE: Final = re.compile(r"(\d{1,9})(?:\+(\d{1,12}))?\s*(?:(-|–|:|\.\.|,|to)\s*(\d{1,9}|end|\$)?)?")


def wanted_lines(text: str) -> Wanted | str:
    """A range as a model writes it ("10-40", "10-", "7", "7+2000"), or what is wrong with it."""
    match = _RANGE.fullmatch(text.strip().lower())
    if match is None:
        return 'lines must be like "10-40", "10-" or "7"'
    first, skip, dash, last = match.groups()
    end = int(last) if last and last.isdigit() else None if dash else int(first)
    if int(first) < 1 or (end is not None and end < int(first)):
        return "lines count from 1, and a range goes up"
    return Wanted(first=int(first), skip=int(skip or 0), last=end)


def count(text: str) -> int:
    return text.count("\n") + (text[-1:] not in ("", "\n"))


def excerpt(text: str, wanted: Wanted, *, counter: Counter, tokens: int) -> Excerpt:
    """The wanted lines, as many as the tokens allow."""
    if wanted.grep:
        return _found(text, wanted, counter, tokens)
    total = count(text)
    if wanted.first > total:
        return Excerpt(
            "", f"there is no line {wanted.first:,}", f'lines="1-{min(total, 40)}"' if total else ""
        )
    if wanted.head is not None and wanted.tail is not None and wanted.head + wanted.tail < total:
        return _both(text, wanted, counter, tokens)
    if wanted.tail is not None and wanted.head is None:
        return _tail(text, total, wanted.tail, counter, tokens)
    last = min(total, wanted.last or total, wanted.head or total)
    return _forward(text, Wanted(first=wanted.first, skip=wanted.skip, last=last), counter, tokens)


def _forward(text: str, wanted: Wanted, counter: Counter, tokens: int) -> Excerpt:
    last = wanted.last or wanted.first
    lines = list(_lines(text, wanted.first, min(last, wanted.first + tokens), wanted.skip))
    shown = _fitting(lines, counter, tokens)
    end = shown[-1].number if shown else wanted.first - 1
    more = f'lines="{end + 1}-{last}"' if end < last else ""
    return Excerpt(_body(shown), f"lines {wanted.first:,}-{end:,} follow" if shown else "no line fits", more)


def _tail(text: str, total: int, wanted: int, counter: Counter, tokens: int) -> Excerpt:
    lines = list(_lines(text, max(1, total + 1 - min(wanted, tokens)), total))
    shown = _fitting(lines[::-1], counter, tokens)[::-1]
    first = shown[0].number if shown else total
    more = f'lines="{max(1, total + 1 - wanted)}-{first - 1}"' if first > max(1, total + 1 - wanted) else ""
    return Excerpt(_body(shown), f"lines {first:,}-{total:,} follow" if shown else "no line fits", more)


def _both(text: str, wanted: Wanted, counter: Counter, tokens: int) -> Excerpt:
    head = excerpt(text, Wanted(head=wanted.head), counter=counter, tokens=tokens // 2)
    tail = excerpt(text, Wanted(tail=wanted.tail), counter=counter, tokens=tokens // 2)
    shows = f"{head.shows.removesuffix(' follow')} and {tail.shows.removeprefix('lines ')}"
    return Excerpt(f"{head.body}\n[…]\n{tail.body}", shows, head.more or tail.more)


def _lines(text: str, first: int, last: int, skip: int = 0) -> Iterator[NumberedLine]:
    """Lines of a text, each from its character `skip` on (of the first line only) and cut to what can be shown."""
    at, number = 0, 1
    while number < first:
        at, number = text.find("\n", at) + 1, number + 1
    while number <= last and at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        start = min(at + skip, end)
        yield NumberedLine(
            number, text[start : min(end, start + WIDTH)], start - at, max(0, end - start - WIDTH)
        )
        at, number, skip = end + 1, number + 1, 0


def _fitting(lines: Iterable[NumberedLine], counter: Counter, tokens: int) -> list[NumberedLine]:
    """As many as there is room for; of the first at least a part."""
    shown: list[NumberedLine] = []
    for line in lines:
        cost = counter.count(line.told()) + 1
        if cost > tokens and not shown:
            return [line.cut(max(1, counter.head(line.text, tokens - 30)))]
        if cost > tokens:
            break
        tokens -= cost
        shown.append(line)
    return shown


def _body(lines: Iterable[NumberedLine]) -> str:
    return "\n".join(line.told() for line in lines)


# ── where something stands ───────────────────────────────────────────────────────────────────────────────


def _found(text: str, wanted: Wanted, counter: Counter, tokens: int) -> Excerpt:
    """The lines with a match, marked `:`, and the line on either side, marked `-`."""
    find, how = finder(wanted.grep)
    last = min(count(text), wanted.last or len(text))
    deadline = time.monotonic() + SECONDS
    matches: dict[int, NumberedLine] = {}
    stopped = ""
    for number, at, end in _spans(text, wanted.first, last):
        place = _looked(text, at, end, find, deadline)
        if place is not None:
            start = at if end - at <= WIDTH else max(at, place - WIDTH // 10)
            stretch = text[start : min(end, start + WIDTH)]
            matches[number] = NumberedLine(number, stretch, start - at, max(0, end - start - WIDTH), ":")
        if time.monotonic() > deadline or len(matches) > 10 * tokens:
            stopped = f"; stopped at line {number:,}, the search goes on with lines={number + 1}-"
            break
    shown = _fitting(_beside(text, matches, tokens), counter, tokens) if matches else []
    hits = [line.number for line in shown if line.number in matches]
    more = f'lines="{hits[-1] + 1}-{last}" with the same grep' if len(hits) < len(matches) and hits else ""
    told = f"{len(hits):,} of {len(matches):,} lines that match follow" if matches else "no line matches"
    return Excerpt(_body(shown), f"{told} ({how}){stopped}", more)


def _spans(text: str, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    at, number = 0, 1
    while number <= last and at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if number >= first:
            yield number, at, end
        at, number = end + 1, number + 1


def _looked(text: str, at: int, end: int, find: Callable[[str], int], deadline: float) -> int | None:
    """Where a line matches, looked at in slices that overlap by a tenth."""
    for start in range(at, max(end, at + 1), WIDTH - WIDTH // 10):
        place = find(text[start : min(end, start + WIDTH)])
        if place >= 0:
            return start + place
        if time.monotonic() > deadline:
            break
    return None


def _beside(text: str, matches: dict[int, NumberedLine], tokens: int) -> Iterator[NumberedLine]:
    """The matches in order with the lines next to them; those are short."""
    chosen = list(matches)[:tokens]
    wanted = {near for number in chosen for near in (number - 1, number, number + 1)}
    for number, at, end in _spans(text, max(1, chosen[0] - 1), chosen[-1] + 1):
        if number in matches:
            yield matches[number]
        elif number in wanted:
            yield NumberedLine(number, text[at : min(end, at + 200)], mark="-")
