"""Ledger section of what is about a focus that was set.

The lines of results and of the agent that contain words of the focus, from the newest message to the oldest, at
most `_MAX_LINES_EACH` of one. A line with more of the words comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from foveal.core.compaction.ledger.allocation import (
    AGENT_PREFIX,
    FOCUS_HEADING,
    ITEM_PREFIX,
    OUTPUT_PREFIX,
    Item,
    Section,
    quote_line,
)
from foveal.core.log.events import Event, ModelSaid, ToolReturned, text_of

_MAX_LINES_EACH: Final = 3
"""Lines of one message."""
_MAX_FOCUS_WORDS: Final = 40
_MIN_WORD_CHARS: Final = 3
_NEEDED_SHARE: Final = 0.3
"""Share of the room that the section may use before others have had theirs."""
_WEIGHT: Final = 4.0
_WORD: Final = re.compile(r"\w[\w./-]*\w|\w")
_COMMON: Final = frozenset(
    ("the", "and", "for", "with", "from", "this", "that", "all", "what", "how", "why", "are")
)


def focus_words(focus: str) -> frozenset[str]:
    """Return the words by which a line is about a focus."""
    words = [word.casefold() for word in _WORD.findall(focus)]
    chosen = (word for word in words if len(word) >= _MIN_WORD_CHARS and word not in _COMMON)
    return frozenset(list(dict.fromkeys(chosen))[:_MAX_FOCUS_WORDS])


def focus_section(events: Sequence[Event], focus: str, *, hidden: Callable[[int], bool]) -> Section:
    """Return the section of the lines about a focus in messages that are `hidden`, by their seq."""
    words = focus_words(focus)
    items = [*_items(events, words, hidden)] if words else []
    return Section(FOCUS_HEADING, iter(items), _WEIGHT, needed=iter(items), needed_share=_NEEDED_SHARE)


def _items(events: Sequence[Event], words: frozenset[str], hidden: Callable[[int], bool]) -> Iterator[Item]:
    place = 0
    for event in reversed(events):
        fact = event.fact
        if not isinstance(fact, ModelSaid | ToolReturned) or not hidden(event.seq):
            continue
        found = _matching_lines(text_of(fact.content), words)
        if found:
            mark = AGENT_PREFIX if isinstance(fact, ModelSaid) else OUTPUT_PREFIX
            quoted = (mark + quote_line(line) for line in found)
            yield Item(place, "\n".join((f"{ITEM_PREFIX}{event.handle}:", *quoted)))
            place += 1


def _matching_lines(text: str, words: frozenset[str]) -> list[str]:
    """Return the lines with most of the words, in their order."""
    folded = text.casefold()
    if not any(word in folded for word in words):
        return []
    lines = [line for line in dict.fromkeys(text.split("\n")) if line.strip()]
    scores = [sum(word in line.casefold() for word in words) for line in lines]
    best = sorted((place for place in range(len(lines)) if scores[place]), key=lambda place: -scores[place])
    return [lines[place] for place in sorted(best[:_MAX_LINES_EACH])]
