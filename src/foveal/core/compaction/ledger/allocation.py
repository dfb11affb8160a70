"""Shares a ledger's room among its sections.

1. Items that must not be lost come first (`needed`), section by section. A section uses at most its share of the
   room for them; when all sections have had theirs, what is left goes to those that need more.
2. Then come items that help a reader (`useful`). The next one is always taken from the section that is furthest
   behind its weight, so that one section cannot use up the room. Items are produced only while there is room.
3. An item fills a slot of its section. A later item for the same slot replaces it if it is longer: the same thing,
   told at length.
4. A section ends with a line that says what it leaves out.
5. The composed text is counted at the end; if it exceeds the room, the items taken last are removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from foveal.core.compaction.ledger.sections import ITEM_PREFIX
from foveal.core.tokens.counter import Counter

_FIRST_ITEM_URGENCY: Final = 2
"""How much more urgent the first useful item of a section is: an item from each section is worth most."""
MAX_SIZES_KEPT: Final = 4_000
"""Items whose counts are kept: several times those of a ledger."""
_MAX_MISSES: Final = 3
"""A section is closed after this many items in a row that did not fit."""


class Item(NamedTuple):
    """A part of a section."""

    slot: int
    """The place in the section; lower slots are shown first."""
    text: str
    """Lines that begin with an item prefix, or a name: names are joined by commas on one line."""


def _is_name(text: str) -> bool:
    return not text.startswith(ITEM_PREFIX)


def nothing_left_out(_shown: Collection[int]) -> str:
    return ""


class Section(NamedTuple):
    """A part of a ledger: a heading and items, the most valuable first."""

    heading: str
    useful: Iterator[Item]
    weight: float
    """Share of the room for useful items, relative to the other sections."""
    needed: Iterator[Item] = iter(())
    needed_share: float = 1.0
    """Share of the room that needed items may use before other sections have had theirs."""
    max_units: int | None = None
    """Limit of the section, beside the room."""
    left_out: Callable[[Collection[int]], str] = nothing_left_out
    """Returns a line about the items in other slots than these, or ""."""
    told_when_empty: bool = False
    """Whether that line is shown although the section shows no item."""


class _Taken(NamedTuple):
    """One choice, and how to take it back."""

    section: _OpenSection
    slot: int
    before: str | None
    cost: int


class _Queue:
    """Items of a section that wait to be taken."""

    def __init__(self, items: Iterator[Item]) -> None:
        self.items = items
        self.item = next(items, None)
        self.misses = 0

    @property
    def is_done(self) -> bool:
        return self.item is None or self.misses >= _MAX_MISSES

    def advance(self, *, missed: bool) -> None:
        self.misses = self.misses + 1 if missed else 0
        self.item = next(self.items, None)


class ItemSizes:
    """Counts items. Most items of a ledger are those of the ledger before, so their counts are kept."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._units: dict[int, int] = {}
        """By the hash value of the item."""
        self._text = ""
        self._text_units = 0

    def of(self, text: str) -> int:
        """Return the units of an item with what stands after it."""
        key = hash(text)
        units = self._units.get(key)
        if units is None:
            units = self.counter.count(f" {text}," if _is_name(text) else f"{text}\n") + 1
            if len(self._units) >= MAX_SIZES_KEPT:
                self._units.clear()
            self._units[key] = units
        return units

    def of_text(self, text: str) -> int:
        """Return the units of a whole text. Those of the last one are kept: it is measured several times."""
        if text is not self._text:
            self._text, self._text_units = text, self.counter.count(text)
        return self._text_units


class _OpenSection:
    """A section while items are being chosen."""

    def __init__(self, spec: Section, sizes: ItemSizes) -> None:
        self.spec = spec
        self.shown: dict[int, str] = {}
        self.needed = _Queue(spec.needed)
        self.useful = _Queue(spec.useful)
        self.spent = 0
        self.due = 0.0
        """Units for useful items, divided by the weight: the section with the lowest value is next."""
        self.next_cost = 0
        """The cost of the next useful item. It changes only with items of this section."""
        self._sizes = sizes

    def cost(self, item: Item) -> int:
        before = self.shown.get(item.slot)
        units = self._sizes.of(item.text) - (self._sizes.of(before) if before is not None else 0)
        return units if self.shown else units + self._sizes.of(self.spec.heading)

    def take(self, item: Item, cost: int) -> _Taken:
        taken = _Taken(self, item.slot, self.shown.get(item.slot), cost)
        self.shown[item.slot] = item.text
        self.spent += cost
        return taken

    def restore(self, slot: int, before: str | None) -> None:
        if before is None:
            self.shown.pop(slot, None)
        else:
            self.shown[slot] = before

    def schedule(self, *, is_first: bool) -> None:
        """Set when the next useful item is due."""
        if self.useful.item is not None:
            self.next_cost = self.cost(self.useful.item)
            urgency = _FIRST_ITEM_URGENCY if is_first else 1
            self.due += max(0, self.next_cost) / self.spec.weight / urgency

    def lines(self) -> list[str]:
        shown = [self.shown[slot] for slot in sorted(self.shown)]
        names = [text for text in shown if _is_name(text)]
        lines = [text for text in shown if not _is_name(text)]
        if names:
            lines.append(ITEM_PREFIX + ", ".join(names))
        rest = self.spec.left_out(self.shown.keys()) if lines or self.spec.told_when_empty else ""
        return [*([self.spec.heading] if lines else []), *lines, *([rest] if rest else [])]


def fill_sections(sections: Sequence[Section], *, room: int, useful_room: int, sizes: ItemSizes) -> str:
    """Return the sections that fit into the room, or "" if nothing does.

    Useful items are taken only while the whole stays within `useful_room`."""
    opened = [_OpenSection(section, sizes) for section in sections]
    taken, left = _take_needed(opened, room)
    taken += _take_useful(opened, left - (room - useful_room))
    return _shrink_to_room(opened, taken, room=room, sizes=sizes)


def _take_needed(opened: Sequence[_OpenSection], room: int) -> tuple[list[_Taken], int]:
    """Take needed items, first up to the share of each section; return them and the room that is left."""
    taken: list[_Taken] = []
    left = room
    for is_shared in (True, False):
        for section in opened:
            queue = section.needed
            share = int(room * section.spec.needed_share) if is_shared else room
            while (item := queue.item) is not None and not queue.is_done:
                cost = section.cost(item)
                if is_shared and section.spent + cost > share:
                    break
                is_shorter = item.slot in section.shown and cost <= 0
                fits = cost <= left and _is_allowed(section, cost)
                if fits and not is_shorter:
                    taken.append(section.take(item, cost))
                    left -= cost
                queue.advance(missed=not fits)
    return taken, left


def _is_allowed(section: _OpenSection, cost: int) -> bool:
    limit = section.spec.max_units
    return limit is None or section.spent + cost <= limit


def _take_useful(opened: Sequence[_OpenSection], left: int) -> list[_Taken]:
    taken: list[_Taken] = []
    waiting = [section for section in opened if not section.useful.is_done]
    for section in waiting:
        section.schedule(is_first=True)
    while waiting and left > 0:
        section = min(waiting, key=attrgetter("due"))
        item = section.useful.item
        assert item is not None
        cost = section.next_cost
        is_shorter = item.slot in section.shown and cost <= 0
        fits = cost <= left and _is_allowed(section, cost)
        if fits and not is_shorter:
            taken.append(section.take(item, cost))
            left -= cost
        section.useful.advance(missed=not fits)
        if section.useful.is_done:
            waiting.remove(section)
        else:
            section.schedule(is_first=False)
    return taken


def _shrink_to_room(
    opened: Sequence[_OpenSection], taken: list[_Taken], *, room: int, sizes: ItemSizes
) -> str:
    """Return the text within the room: the items taken last are removed until it fits."""
    while True:
        text = "\n".join(line for section in opened for line in section.lines())
        excess = sizes.of_text(text) - room
        if excess <= 0:
            return text
        if not taken:
            return ""
        while taken and excess > 0:
            section, slot, before, cost = taken.pop()
            section.restore(slot, before)
            excess -= max(1, cost)
