"""Composes the ledger, the part of a summary that needs no model.

    write_ledger(events, room=2_000, counter=counter)

1. It is derived from the log alone, always succeeds, and is the same for the same events.
2. Each section has a share of the room, with its most valuable items first: requests and their state, what the
   model said last, unresolved errors, calls without a result, files, commands, lines and names that are likely to
   be needed again, and at the end the handles of the range for recall.
3. Text quoted from the conversation follows `- ` or `  > `; lines that begin at the margin are the ledger's own.
4. Pinned rules, instructions and earlier summaries are left out: the first two stay in the request, and the events
   that an earlier summary covers are among the events.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from foveal.core.compaction.ledger import files_and_commands, likely_reused
from foveal.core.compaction.ledger.sections import fill_sections
from foveal.core.compaction.ledger.user_requests import model_messages_section, requests_section
from foveal.core.log.events import Event, ModelSaid, ToolReturned, UserSaid
from foveal.core.tokens.counter import Counter

_MESSAGE_FACTS: Final = (UserSaid, ModelSaid, ToolReturned)
MIN_CALLS_READ: Final = 120
"""Newest calls that are always read for what they did; a larger room reads more."""
UNITS_PER_CALL: Final = 25
"""Units that are enough for the items of one call."""


def write_ledger(
    events: Sequence[Event],
    *,
    room: int,
    counter: Counter,
    keep: Set[int] = frozenset(),
    elsewhere: Set[str] = frozenset(),
    after: Sequence[Event] = (),
) -> str:
    """Return the ledger of a range in at most `room` units of `counter`.

    `events` are the effective events of the range, oldest first. Events in `keep` stay visible beside the ledger
    and are only referred to; names in `elsewhere` are shown anyway and count for less. The events `after` the
    range may have answered a request or resolved an error inside it."""
    if room <= 0 or not any(isinstance(event.fact, _MESSAGE_FACTS) for event in events):
        return ""
    actions = files_and_commands.collect_actions(
        events, max_calls=max(MIN_CALLS_READ, room // UNITS_PER_CALL)
    )
    later = files_and_commands.collect_actions(after, max_calls=MIN_CALLS_READ)
    replaced = [event for event in events if event.seq not in keep] if keep else events
    signs = likely_reused.ReuseSigns(replaced, actions)
    sections = (
        requests_section(events, keep=keep, room=room, counter=counter, after=after),
        model_messages_section(events, keep=keep),
        files_and_commands.errors_section(actions, keep=keep, later=later),
        files_and_commands.open_calls_section(actions),
        files_and_commands.files_section(actions, elsewhere=elsewhere),
        files_and_commands.commands_section(actions, later=later),
        likely_reused.line_section(signs),
        likely_reused.name_section(signs, elsewhere=elsewhere),
    )
    return fill_sections(sections, last=_range_line(events), room=room, counter=counter)


def _range_line(events: Sequence[Event]) -> str:
    first, last = events[0].handle, events[-1].handle
    return f"look back: {first}–{last}" if last != first else f"look back: {first}"
