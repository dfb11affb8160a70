"""The part of a summary that code writes: what happened, told from the log alone.

    ledger(events, room=2_000, counter=counter)

It needs no model, always succeeds and says the same for the same events. Each section has a share of the room, with
the most valuable items first: requests and their state, what the model said last, failures that still stand, calls
without a result, files, commands, lines and names that are likely to be needed again, and at the end the handles to
look back with. Whatever it quotes of the conversation stands behind `- ` or `  > `; lines that begin at the margin
are ours.

Pinned rules, instructions and earlier summaries are left out: the first two stay in the request, and what the last
stood for is among the events.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from foveal.core.compaction.ledger import agent_actions, likely_reused
from foveal.core.compaction.ledger.sections import filled
from foveal.core.compaction.ledger.user_requests import requests, sayings
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid
from foveal.core.tokens.counter import Counter

SAID: Final = (UserSaid, ModelSaid, ToolReturned)
FEWEST_CALLS: Final = 120
"""So many calls, the newest, are read for what they did; more when there is room to tell more."""
CALL: Final = 25
"""Units that are enough to tell of one call."""


def ledger(
    events: Sequence[Event],
    *,
    room: int,
    counter: Counter,
    keep: Set[int] = frozenset(),
    elsewhere: Set[str] = frozenset(),
    after: Sequence[Event] = (),
) -> str:
    """What happened in these events (those that count, of one range of the log, oldest first), in at most `room`
    units of `counter`. Events in `keep` stay visible beside it and are only referred to; names in `elsewhere` are
    shown anyway and count for less. `after` is what came after the range: it may have answered a request, or set
    right what had failed."""
    if room <= 0 or not any(isinstance(event.fact, SAID) for event in events):
        return ""
    done = agent_actions.deeds(events, most=max(FEWEST_CALLS, room // CALL))
    since = agent_actions.deeds(after, most=FEWEST_CALLS)
    away = [event for event in events if event.seq not in keep] if keep else events
    signs = likely_reused.ReuseSigns(away, done)
    sections = (
        requests(events, keep=keep, room=room, counter=counter, after=after),
        sayings(events, keep=keep),
        agent_actions.errors(done, keep=keep, since=since),
        agent_actions.open_calls(done),
        agent_actions.files(done, elsewhere=elsewhere),
        agent_actions.commands(done, since=since),
        likely_reused.line_section(signs),
        likely_reused.name_section(signs, elsewhere=elsewhere),
    )
    return filled(sections, last=_look_back(events), room=room, counter=counter)


def _look_back(events: Sequence[Event]) -> str:
    first, last = events[0].handle, events[-1].handle
    return f"look back: {first}–{last}" if last != first else f"look back: {first}"
