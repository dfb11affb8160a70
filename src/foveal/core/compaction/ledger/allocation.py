"""The sections of a ledger: how they share its room, their headings and quotes.

1. Items that must not be lost come first (`needed`), section by section. A section uses at most its share of the
   room for them; when all sections have had theirs, what is left goes to those that need more.
2. Then come items that help a reader (`useful`). The next one is always taken from the section that is furthest
   behind its weight, so that one section cannot use up the room. Items are produced only while there is room.
3. An item fills a slot of its section. A later item for the same slot replaces it if it is longer: the same thing,
   told at length.
4. A section ends with a line that says what it leaves out.
5. The composed text is counted at the end; if it exceeds the room, the items taken last are removed again.

Quotes cannot pass for a line of the ledger:

1. Headings and lines that count what is left out begin at the margin; items follow `- `.
2. Words of the user follow `  > `, words of the agent `  ~ `, and tool output `  | `: each source has its own mark.
3. Quoted text has visible control characters and altered role tags and placeholders. A line of tool output or of
   the agent that begins like a heading, an item or a pinned rule is marked `(quoted)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from foveal.core.tokens.counter import Counter
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
FOCUS_HEADING: Final = "On what was to be kept above all, newest first:"
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
    FOCUS_HEADING,
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
