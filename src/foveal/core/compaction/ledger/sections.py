"""Shares a ledger's room among its sections and quotes text safely in it.

1. Each section has a share of the room; what it does not use goes to the others.
2. The items of a section come most valuable first and are produced only while there is room. The next item is
   always taken from the section that is furthest behind its share, so the first section cannot use up the room.
3. The composed text is counted at the end; if it exceeds the room, the items taken last are removed again.
4. Headings begin at the margin. Text from the conversation follows `- ` or `  > ` on one bounded line, with
   visible control characters and with role tags and placeholders altered, so that it cannot pass for a line of the
   ledger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from foveal.core.tokens.counter import Counter
from foveal.core.view.text_facts import find_names
from foveal.core.wire.safe_print import visible

# ── Quoting ──────────────────────────────────────────────────────────────────────────────────────────────

ITEM_PREFIX: Final = "- "
QUOTE_PREFIX: Final = "  > "
MAX_QUOTED_LINE_CHARS: Final = 200
"""Limit of one quoted line."""

_ROLES: Final = "system|developer|user|assistant|human|tool|function|summary|instructions?|foveal"
_FAKE_MARKUP: Final = re.compile(
    rf"\[(?=\s*foveal)|<(?=\||/?\s*(?:{_ROLES})\b)|【(?=\s*foveal)", re.IGNORECASE
)
_REPLACEMENTS: Final = {"[": "(", "<": "‹", "【": "("}


def escape_tags(text: str) -> str:
    """Return the text without anything that looks like a role tag or a Foveal placeholder."""
    text = visible(text)
    if "[" in text or "<" in text or "【" in text:
        return _FAKE_MARKUP.sub(lambda found: _REPLACEMENTS[found.group()], text)
    return text


def inline(text: str, width: int = MAX_QUOTED_LINE_CHARS) -> str:
    """Return the beginning of a text on one line, with whitespace collapsed."""
    words = escape_tags(" ".join(text[: 4 * width].split()))
    return words if len(words) <= width and len(text) <= 4 * width else words[: width - 1] + "…"


def quote_line(line: str, width: int = MAX_QUOTED_LINE_CHARS) -> str:
    """Return one line verbatim, without its indent."""
    line = escape_tags(line[: 2 * width].strip().replace("\n", "␊"))
    return line if len(line) <= width else line[: width - 1] + "…"


def quote_block(text: str) -> str:
    """Return all lines of a text, each with the quote prefix."""
    return "\n".join(QUOTE_PREFIX + line.rstrip() for line in escape_tags(text).split("\n"))


# ── Sections ─────────────────────────────────────────────────────────────────────────────────────────────

_FIRST_ITEM_URGENCY: Final = 2
"""How much more urgent the first item of a section is: an item from each section is worth most."""
_MAX_SEARCHED_CHARS: Final = 300
"""Longer items are not searched for the names that they show."""
_MAX_MISSES: Final = 3
"""A section is closed after this many items in a row that did not fit."""


class Section(NamedTuple):
    """A part of a ledger: a heading and items, the most valuable first."""

    heading: str
    weight: float
    """Share of the room, relative to the other sections."""
    items: Iterator[str]
    joined: bool = False
    """Whether the items are names, joined by commas on one line, without those that other items show."""
    max_units: int | None = None
    """Limit of the section, beside the room."""


class _OpenSection:
    """A section while items are being chosen."""

    def __init__(self, spec: Section, counter: Counter) -> None:
        self.spec = spec
        self.chosen: list[str] = []
        self.item: str | None = None
        """The next item, None at the end."""
        self.cost = 0
        """Units of the next item; the first item includes the heading."""
        self.due = 0.0
        """Units used with the next item, divided by the weight: the section with the lowest value is next."""
        self._spent = 0
        self._misses = 0
        self._count = counter.count
        self._heading = counter.count(spec.heading + "\n") + 1
        self.advance()

    @property
    def is_done(self) -> bool:
        return self.item is None or self._misses >= _MAX_MISSES

    def fits(self, room: int) -> bool:
        limit = self.spec.max_units
        return self.cost <= room and (limit is None or self._spent + self.cost <= limit)

    def take(self, item: str) -> None:
        self.chosen.append(item)
        self._spent += self.cost
        self._misses = 0
        self.advance()

    def miss(self) -> None:
        self._misses += 1
        self.advance()

    def advance(self) -> None:
        """Go on to the next item."""
        self.item = next(self.spec.items, None)
        if self.item is not None:
            units = self._count(f" {self.item}," if self.spec.joined else self.item + "\n")
            self.cost = units if self.chosen else units + self._heading
            self.due = (
                (self._spent + self.cost) / self.spec.weight / (1 if self.chosen else _FIRST_ITEM_URGENCY)
            )

    def lines(self) -> list[str]:
        if self.spec.joined:
            return [self.spec.heading, "- " + ", ".join(self.chosen)]
        return [self.spec.heading, *self.chosen]


def fill_sections(sections: Sequence[Section], *, last: str, room: int, counter: Counter) -> str:
    """Return the sections that fit into the room, then the line `last`; "" when not even that line fits."""
    if counter.count(last) > room:
        return ""
    opened = [_OpenSection(section, counter) for section in sections]
    taken = _choose_items(opened, room - counter.count("\n" + last) - 1)
    return _shrink_to_room(lambda: _compose(opened, last), taken, room=room, counter=counter)


def _choose_items(opened: Sequence[_OpenSection], room: int) -> list[_OpenSection]:
    """Choose items until the room is used up; return the section of each item, in order."""
    taken: list[_OpenSection] = []
    shown: set[str] = set()
    waiting = [section for section in opened if not section.is_done]
    while waiting:
        section = min(waiting, key=attrgetter("due"))
        item, joined = section.item or "", section.spec.joined
        if joined and item in shown:
            section.advance()
        elif section.fits(room):
            room -= section.cost
            if joined or len(item) <= _MAX_SEARCHED_CHARS:
                shown.update((item,) if joined else find_names(item))
            section.take(item)
            taken.append(section)
        else:
            section.miss()
        if section.is_done:
            waiting.remove(section)
    return taken


def _compose(opened: Sequence[_OpenSection], last: str) -> str:
    lines = [line for section in opened if section.chosen for line in section.lines()]
    return "\n".join([*lines, last])


def _shrink_to_room(
    compose: Callable[[], str], taken: list[_OpenSection], *, room: int, counter: Counter
) -> str:
    """Return the text within the room: the items taken last are removed, twice as many each time."""
    count = 1
    while counter.count(text := compose()) > room and taken:
        for _ in range(min(count, len(taken))):
            taken.pop().chosen.pop()
        count *= 2
    return text
