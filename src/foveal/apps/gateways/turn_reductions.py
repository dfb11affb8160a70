"""Finds the reductions that the answer of a turn reports.

They are read from the log: the reductions between the last message before a turn and the last message in it. So
each reduction is reported with one answer, whichever process made it, also after a crash.
"""

from __future__ import annotations

from typing import Final

from foveal.core.log.events import Compacted, Dropped, Event, ModelSaid, Reverted, UserSaid, parse_handle
from foveal.server.live_session import LiveSession

MAX_EVENTS_BEFORE_TURN: Final = 64
"""Events before a turn that are read; there are few between two turns."""


async def turn_reductions(session: LiveSession, first_message: str) -> list[Event]:
    """Return the reductions to report with a turn, given the handle of its first message.

    Reductions that a user requested or has already undone are left out.
    """
    seq = parse_handle(first_message)
    if seq is None:
        return []
    events = await session.events(first=max(0, seq - MAX_EVENTS_BEFORE_TURN))
    first, last = _message_range(events, seq)
    undone = {event.fact.target for event in events if isinstance(event.fact, Reverted)}
    return [
        event
        for event in events
        if first < event.seq < last
        and isinstance(event.fact, Compacted | Dropped)
        and event.fact.reason != "hand"  # requested with /compact
        and event.seq not in undone
    ]


def _message_range(events: list[Event], seq: int) -> tuple[int, int]:
    """Return the last message before the turn that begins at `seq`, and the last message in it."""
    before, last = -1, seq
    for event in events:
        if isinstance(event.fact, UserSaid) and event.seq > seq:
            break  # the next turn
        if isinstance(event.fact, UserSaid | ModelSaid):
            before, last = (event.seq, last) if event.seq < seq else (before, event.seq)
    return before, last
