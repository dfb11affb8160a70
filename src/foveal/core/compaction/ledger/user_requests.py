"""What the user asked for, verbatim, newest first, whether it was answered, and what the model said last.

A request is *done* when a later utterance without calls ended its turn, else it is *open*. An empty utterance,
which is what an abort leaves behind, ends nothing. The beginnings of the latest utterances are the nearest that
code comes to telling what the agent was about to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Final

from foveal.core.compaction.ledger.sections import ITEM, Section, block, inline
from foveal.core.log.events import Event, Media, ModelSaid, UserSaid, calls_of, parts, text_of
from foveal.core.tokens.counter import Counter

MOST: Final = 20_000
"""Units that all requests together may take."""
_SHARE: Final = 0.5
"""Of the room, one request may take so much; a longer one is shown by its beginning and its end."""
_WEIGHT: Final = 3.0
_SAYINGS: Final = 3
_WIDTH: Final = 240
"""Characters of an utterance that are shown."""


def requests(
    events: Sequence[Event], *, keep: Set[int], room: int, counter: Counter, after: Sequence[Event] = ()
) -> Section:
    """The section of requests; what came after the range may have answered the last of them."""
    most = min(MOST, room)
    done = any(isinstance(event.fact, ModelSaid) and _ends_turn(event.fact) for event in after)
    items = _items(events, keep, int(most * _SHARE), counter, done=done)
    return Section("Requests, newest first:", _WEIGHT, items, most=most)


def _items(
    events: Sequence[Event], keep: Set[int], most: int, counter: Counter, *, done: bool
) -> Iterator[str]:
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, ModelSaid):
            done = done or _ends_turn(fact)
        elif isinstance(fact, UserSaid):
            told = ", shown in full" if event.seq in keep else _told(fact, most, counter)
            yield f"{ITEM}{event.handle}, {'done' if done else 'open'}{told}"


def sayings(events: Sequence[Event], *, keep: Set[int]) -> Section:
    """What the model said last."""
    said = (
        f"{ITEM}{event.handle}: {inline(text, _WIDTH)}"
        for event in reversed(events)
        if isinstance(event.fact, ModelSaid) and event.seq not in keep
        if (text := text_of(event.fact.content).strip())
    )
    return Section("Said last, newest first:", 1.0, islice(said, _SAYINGS))


def _ends_turn(fact: ModelSaid) -> bool:
    return not calls_of(fact.content) and bool(text_of(fact.content).strip())


def _told(fact: UserSaid, most: int, counter: Counter) -> str:
    """What a request says, behind its handle and state."""
    files = sum(isinstance(part, Media) for part in parts(fact.content))
    beside = f", with {files} file{'s' if files > 1 else ''}" if files else ""
    text = text_of(fact.content).strip()
    if not text:
        return beside
    shown, omitted = _bounded(text, most, counter)
    cut = f", {omitted:,} characters left out" if omitted else ""
    return f"{beside}{cut}:\n{shown}"


def _bounded(text: str, most: int, counter: Counter) -> tuple[str, int]:
    """The text quoted, whole or by its two ends, and how many characters were left out."""
    part = text[: 8 * most + 1]
    units = counter.count(part)
    if len(part) == len(text) and units + text.count("\n") * 3 <= most:
        return block(text), 0
    size = max(1, int(0.8 * most * len(part) / max(1, units)))
    head, tail = text[: size * 3 // 4].rstrip(), text[len(text) - size // 4 :].lstrip()
    omitted = len(text) - len(head) - len(tail)
    if omitted <= 0:
        return block(text), 0
    return f"{block(head)}\n  …\n{block(tail)}", omitted
