"""Room given out by value: every section has a share, and what one leaves over goes to the others.

Items of a section come with the most valuable first, and are made only as far as there is room for them. The next
item is always taken from the section that is furthest behind its share, so the room is never used up by whoever
comes first. What was given out is counted at the end; should the whole be larger than its parts, the last items go
again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from foveal.core.reduction.placeholder import names
from foveal.core.tokens.counter import Counter
from foveal.core.wire.safe_print import visible

# ── quoting ───────────────────────────────────────────────────────────────────────────────────────
# Text of the conversation inside a ledger: quoted data, never a line that could pass for one of ours.
#
# Headings of a ledger begin at the margin; whatever comes from the conversation stands behind `- ` or `  > `, on one
# bounded line, with its control characters visible and its role tags and placeholders taken apart.

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


# ── share ─────────────────────────────────────────────────────────────────────────────────────────

_FIRST: Final = 2
"""So many times as urgent as its share says is the first item of a section: one of each tells most."""
_SHORT: Final = 300
"""Longer items are not searched for the names that they show."""
_MISSES: Final = 3
"""A section is closed after so many items in a row that did not fit."""


class Section(NamedTuple):
    heading: str
    weight: float
    items: Iterator[str]
    """The most valuable first."""
    joined: bool = False
    """Single names, all on one line with commas between; those that an item taken before shows are left out."""
    most: int | None = None
    """Units that it may take at most."""


class _OpenSection:
    """A section while the room is given out."""

    def __init__(self, section: Section, counter: Counter) -> None:
        self.section = section
        self.chosen: list[str] = []
        self.item: str | None = None
        """The next one, None when there is none."""
        self.cost = 0
        """Of the next item; with the first one comes the heading."""
        self.due = 0.0
        """How far the section would be when it had taken that, in shares."""
        self._spent = 0
        self._misses = 0
        self._count = counter.count
        self._heading = counter.count(section.heading + "\n") + 1
        self.move()

    @property
    def done(self) -> bool:
        return self.item is None or self._misses >= _MISSES

    def fits(self, room: int) -> bool:
        most = self.section.most
        return self.cost <= room and (most is None or self._spent + self.cost <= most)

    def take(self, item: str) -> None:
        self.chosen.append(item)
        self._spent += self.cost
        self._misses = 0
        self.move()

    def miss(self) -> None:
        self._misses += 1
        self.move()

    def move(self) -> None:
        """On to the next item."""
        self.item = next(self.section.items, None)
        if self.item is not None:
            price = self._count(f" {self.item}," if self.section.joined else self.item + "\n")
            self.cost = price if self.chosen else price + self._heading
            self.due = (self._spent + self.cost) / self.section.weight / (1 if self.chosen else _FIRST)

    def lines(self) -> list[str]:
        if self.section.joined:
            return [self.section.heading, "- " + ", ".join(self.chosen)]
        return [self.section.heading, *self.chosen]


def filled(sections: Sequence[Section], *, last: str, room: int, counter: Counter) -> str:
    """The sections as far as the room goes, then the line `last`; "" when not even that fits."""
    if counter.count(last) > room:
        return ""
    opened = [_OpenSection(section, counter) for section in sections]
    taken = _taken(opened, room - counter.count("\n" + last) - 1)
    return _within(lambda: _text(opened, last), taken, room=room, counter=counter)


def _taken(opened: Sequence[_OpenSection], room: int) -> list[_OpenSection]:
    """The sections in the order in which they took an item each, until the room is given out."""
    taken: list[_OpenSection] = []
    shown: set[str] = set()
    waiting = [section for section in opened if not section.done]
    while waiting:
        turn = min(waiting, key=attrgetter("due"))
        item, joined = turn.item or "", turn.section.joined
        if joined and item in shown:
            turn.move()
        elif turn.fits(room):
            room -= turn.cost
            if joined or len(item) <= _SHORT:
                shown.update((item,) if joined else names(item))
            turn.take(item)
            taken.append(turn)
        else:
            turn.miss()
        if turn.done:
            waiting.remove(turn)
    return taken


def _text(opened: Sequence[_OpenSection], last: str) -> str:
    lines = [line for section in opened if section.chosen for line in section.lines()]
    return "\n".join([*lines, last])


def _within(text: Callable[[], str], taken: list[_OpenSection], *, room: int, counter: Counter) -> str:
    """The text once it is within the room: the items taken last are given back, more of them each time."""
    back = 1
    while counter.count(shown := text()) > room and taken:
        for _ in range(min(back, len(taken))):
            taken.pop().chosen.pop()
        back *= 2
    return shown
