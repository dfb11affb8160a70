"""What was summarised or left out since a chat was last answered, for its answer or in the background meanwhile.

It is read from the log: between the last thing that was said before a turn and the last one that was said in it. So
each reduction belongs to one answer, whichever process made it, and also after a crash.
"""

from __future__ import annotations

from typing import Final

from foveal.events import Compacted, Dropped, Event, ModelSaid, Reverted, UserSaid, parse_handle
from foveal.service.room import Room

BACK: Final = 64
"""Events before a turn that are looked at; there are few between two turns."""


async def reductions(room: Room, said: str) -> list[Event]:
    """Those that the answer of a turn tells of; `said` is the handle of the first thing that was said in it. What
    somebody asked for, or took back, he knows."""
    seq = parse_handle(said)
    if seq is None:
        return []
    events = await room.events(first=max(0, seq - BACK))
    first, last = _between(events, seq)
    undone = {event.fact.target for event in events if isinstance(event.fact, Reverted)}
    return [
        event
        for event in events
        if first < event.seq < last
        and isinstance(event.fact, Compacted | Dropped)
        and event.fact.reason != "hand"
        and event.seq not in undone
    ]


def _between(events: list[Event], seq: int) -> tuple[int, int]:
    """The last thing that was said before a turn, and the last one that was said in it."""
    before, last = -1, seq
    for event in events:
        if isinstance(event.fact, UserSaid) and event.seq > seq:
            break  # the next turn
        if isinstance(event.fact, UserSaid | ModelSaid):
            before, last = (event.seq, last) if event.seq < seq else (before, event.seq)
    return before, last
