"""How long the parts of a compaction take that no model waits for, for a range of 1,000 events.

Made-up conversations as of coding agents (see `work`), and real ones, joined until they are long enough: their
results are larger, and their commands many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from bench.bench_ledger import DATA, rows_of
from bench.measure import Row, best_of, progress, shown
from bench.work import AGENT, messages
from foveal.compaction.ledger import ledger
from foveal.events import Event
from foveal.tokens import counter
from foveal.wire import openai_chat

EVENTS: Final = 1_000
ROOMS: Final = (400, 3_000, 20_000)
"""A tight one, the one that policies give by default, and the largest that is of use."""
TARGETS: Final = {"made up": 0.010, "recorded": 0.020}
"""Seconds, for all rooms but the largest."""


def events_of(chat: Sequence[Any]) -> list[Event]:
    facts = (fact for chunk in openai_chat.read(chat) for fact in chunk.facts)
    return [Event(seq, fact) for seq, fact in enumerate(islice(facts, EVENTS))]


def rows() -> Iterator[Row]:
    yield from _ledgers("made up", "", events_of(messages(EVENTS, AGENT)))
    for name in ("openhands", "miniswe", "pi") if DATA.exists() else ():
        chat = [message for row in rows_of([name]) for message in row["messages"]]
        yield from _ledgers("recorded", f" {name}", events_of(chat))


def _ledgers(kind: str, name: str, events: list[Event]) -> Iterator[Row]:
    for room in ROOMS:
        progress(f"compaction: {kind}{name}, room {room:,} …")
        exact, estimate = (_time(events, room, counting) for counting in ("o200k_base", "estimate"))
        note = f"counted with o200k_base; {shown(estimate, 's')} by estimate"
        limit = TARGETS[kind] if room < ROOMS[-1] else None
        yield Row(
            f"ledger of {len(events):,} events, {kind}{name}, room {room:,}", exact, limit=limit, note=note
        )


def _time(events: list[Event], room: int, counting: str) -> float:
    counts = counter(counting)
    return best_of(7, lambda: ledger(events, room=room, counter=counts))
