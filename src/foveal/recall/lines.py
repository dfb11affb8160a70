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

from foveal.recall.grep import finder
from foveal.recall.text import plain
from foveal.tokens import Counter

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


class Part(NamedTuple):
    """What is shown of a text: the numbered lines, and in words which they are and how to get the others."""

    body: str
    shows: str
    more: str


class Line(NamedTuple):
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

    def cut(self, length: int) -> Line:
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


def part(text: str, wanted: Wanted, *, counter: Counter, tokens: int) -> Part:
    """The wanted lines, as many as the tokens allow."""
    if wanted.grep:
        return _found(text, wanted, counter, tokens)
    total = count(text)
    if wanted.first > total:
        return Part("", f"there is no line {wanted.first:,}", f'lines="1-{min(total, 40)}"' if total else "")
    if wanted.head is not None and wanted.tail is not None and wanted.head + wanted.tail < total:
        return _both(text, wanted, counter, tokens)
    if wanted.tail is not None and wanted.head is None:
        return _tail(text, total, wanted.tail, counter, tokens)
    last = min(total, wanted.last or total, wanted.head or total)
    return _forward(text, Wanted(first=wanted.first, skip=wanted.skip, last=last), counter, tokens)


def _forward(text: str, wanted: Wanted, counter: Counter, tokens: int) -> Part:
    last = wanted.last or wanted.first
    lines = list(_lines(text, wanted.first, min(last, wanted.first + tokens), wanted.skip))
    shown = _fitting(lines, counter, tokens)
    end = shown[-1].number if shown else wanted.first - 1
    more = f'lines="{end + 1}-{last}"' if end < last else ""
    return Part(_body(shown), f"lines {wanted.first:,}-{end:,} follow" if shown else "no line fits", more)


def _tail(text: str, total: int, wanted: int, counter: Counter, tokens: int) -> Part:
    lines = list(_lines(text, max(1, total + 1 - min(wanted, tokens)), total))
    shown = _fitting(lines[::-1], counter, tokens)[::-1]
    first = shown[0].number if shown else total
    more = f'lines="{max(1, total + 1 - wanted)}-{first - 1}"' if first > max(1, total + 1 - wanted) else ""
    return Part(_body(shown), f"lines {first:,}-{total:,} follow" if shown else "no line fits", more)


def _both(text: str, wanted: Wanted, counter: Counter, tokens: int) -> Part:
    head = part(text, Wanted(head=wanted.head), counter=counter, tokens=tokens // 2)
    tail = part(text, Wanted(tail=wanted.tail), counter=counter, tokens=tokens // 2)
    shows = f"{head.shows.removesuffix(' follow')} and {tail.shows.removeprefix('lines ')}"
    return Part(f"{head.body}\n[…]\n{tail.body}", shows, head.more or tail.more)


def _lines(text: str, first: int, last: int, skip: int = 0) -> Iterator[Line]:
    """Lines of a text, each from its character `skip` on (of the first line only) and cut to what can be shown."""
    at, number = 0, 1
    while number < first:
        at, number = text.find("\n", at) + 1, number + 1
    while number <= last and at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        start = min(at + skip, end)
        yield Line(number, text[start : min(end, start + WIDTH)], start - at, max(0, end - start - WIDTH))
        at, number, skip = end + 1, number + 1, 0


def _fitting(lines: Iterable[Line], counter: Counter, tokens: int) -> list[Line]:
    """As many as there is room for; of the first at least a part."""
    shown: list[Line] = []
    for line in lines:
        cost = counter.count(line.told()) + 1
        if cost > tokens and not shown:
            return [line.cut(max(1, counter.head(line.text, tokens - 30)))]
        if cost > tokens:
            break
        tokens -= cost
        shown.append(line)
    return shown


def _body(lines: Iterable[Line]) -> str:
    return "\n".join(line.told() for line in lines)


# ── where something stands ───────────────────────────────────────────────────────────────────────────────


def _found(text: str, wanted: Wanted, counter: Counter, tokens: int) -> Part:
    """The lines with a match, marked `:`, and the line on either side, marked `-`."""
    find, how = finder(wanted.grep)
    last = min(count(text), wanted.last or len(text))
    deadline = time.monotonic() + SECONDS
    matches: dict[int, Line] = {}
    stopped = ""
    for number, at, end in _spans(text, wanted.first, last):
        place = _looked(text, at, end, find, deadline)
        if place is not None:
            start = at if end - at <= WIDTH else max(at, place - WIDTH // 10)
            stretch = text[start : min(end, start + WIDTH)]
            matches[number] = Line(number, stretch, start - at, max(0, end - start - WIDTH), ":")
        if time.monotonic() > deadline or len(matches) > 10 * tokens:
            stopped = f"; stopped at line {number:,}, the search goes on with lines={number + 1}-"
            break
    shown = _fitting(_beside(text, matches, tokens), counter, tokens) if matches else []
    hits = [line.number for line in shown if line.number in matches]
    more = f'lines="{hits[-1] + 1}-{last}" with the same grep' if len(hits) < len(matches) and hits else ""
    told = f"{len(hits):,} of {len(matches):,} lines that match follow" if matches else "no line matches"
    return Part(_body(shown), f"{told} ({how}){stopped}", more)


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


def _beside(text: str, matches: dict[int, Line], tokens: int) -> Iterator[Line]:
    """The matches in order with the lines next to them; those are short."""
    chosen = list(matches)[:tokens]
    wanted = {near for number in chosen for near in (number - 1, number, number + 1)}
    for number, at, end in _spans(text, max(1, chosen[0] - 1), chosen[-1] + 1):
        if number in matches:
            yield matches[number]
        elif number in wanted:
            yield Line(number, text[at : min(end, at + 200)], mark="-")
