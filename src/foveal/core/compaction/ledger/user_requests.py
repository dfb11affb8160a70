"""Ledger sections of the user's requests and of what the model said last.

Requests are quoted verbatim, newest first. A request is *done* when a later model message without calls ended its
turn, else it is *open*. An empty model message, which an abort leaves behind, ends no turn. The beginnings of the
latest model messages are the best evidence, without a model, of what the agent was about to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Final

from foveal.core.compaction.ledger.sections import ITEM_PREFIX, Section, inline, quote_block
from foveal.core.log.events import Event, Media, ModelSaid, UserSaid, calls_of, parts, text_of
from foveal.core.tokens.counter import Counter

MAX_REQUEST_UNITS: Final = 20_000
"""Limit of all requests together."""
_MAX_REQUEST_SHARE: Final = 0.5
"""Share of the room for one request; a longer one is reduced to its beginning and its end."""
_SECTION_WEIGHT: Final = 3.0
_MAX_MODEL_MESSAGES: Final = 3
_MAX_MODEL_MESSAGE_CHARS: Final = 240
"""Characters of a model message that are shown."""


def requests_section(
    events: Sequence[Event], *, keep: Set[int], room: int, counter: Counter, after: Sequence[Event] = ()
) -> Section:
    """Return the section of requests; the events `after` the range may have answered the last of them."""
    limit = min(MAX_REQUEST_UNITS, room)
    is_done = any(isinstance(event.fact, ModelSaid) and _ends_turn(event.fact) for event in after)
    items = _request_items(events, keep, int(limit * _MAX_REQUEST_SHARE), counter, is_done=is_done)
    return Section("Requests, newest first:", _SECTION_WEIGHT, items, max_units=limit)


def _request_items(
    events: Sequence[Event], keep: Set[int], max_units: int, counter: Counter, *, is_done: bool
) -> Iterator[str]:
    for event in reversed(events):
        fact = event.fact
        if isinstance(fact, ModelSaid):
            is_done = is_done or _ends_turn(fact)
        elif isinstance(fact, UserSaid):
            text = ", shown in full" if event.seq in keep else _request_text(fact, max_units, counter)
            yield f"{ITEM_PREFIX}{event.handle}, {'done' if is_done else 'open'}{text}"


def model_messages_section(events: Sequence[Event], *, keep: Set[int]) -> Section:
    """Return the section of what the model said last."""
    said = (
        f"{ITEM_PREFIX}{event.handle}: {inline(text, _MAX_MODEL_MESSAGE_CHARS)}"
        for event in reversed(events)
        if isinstance(event.fact, ModelSaid) and event.seq not in keep
        if (text := text_of(event.fact.content).strip())
    )
    return Section("Said last, newest first:", 1.0, islice(said, _MAX_MODEL_MESSAGES))


def _ends_turn(fact: ModelSaid) -> bool:
    return not calls_of(fact.content) and bool(text_of(fact.content).strip())


def _request_text(fact: UserSaid, max_units: int, counter: Counter) -> str:
    """Return what follows the handle and the state of a request."""
    files = sum(isinstance(part, Media) for part in parts(fact.content))
    beside = f", with {files} file{'s' if files > 1 else ''}" if files else ""
    text = text_of(fact.content).strip()
    if not text:
        return beside
    shown, omitted = _quote_bounded(text, max_units, counter)
    cut = f", {omitted:,} characters left out" if omitted else ""
    return f"{beside}{cut}:\n{shown}"


def _quote_bounded(text: str, max_units: int, counter: Counter) -> tuple[str, int]:
    """Return the text quoted, whole or its two ends, and how many characters are left out."""
    part = text[: 8 * max_units + 1]
    units = counter.count(part)
    if len(part) == len(text) and units + text.count("\n") * 3 <= max_units:
        return quote_block(text), 0
    size = max(1, int(0.8 * max_units * len(part) / max(1, units)))
    head, tail = text[: size * 3 // 4].rstrip(), text[len(text) - size // 4 :].lstrip()
    omitted = len(text) - len(head) - len(tail)
    if omitted <= 0:
        return quote_block(text), 0
    return f"{quote_block(head)}\n  …\n{quote_block(tail)}", omitted
