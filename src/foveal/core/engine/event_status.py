"""Status of one event: how the next request shows it, or what hid it.

Only later events hide an event or take it back. So the status of a hidden event is found by reading the log from
that event on, and of most events only `without_text`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from foveal.core.log.events import (
    Compacted,
    Dropped,
    Event,
    ForeignSummary,
    Instructed,
    ModelSaid,
    Pinned,
    Superseded,
    ToolReturned,
    UserSaid,
    calls_of,
    handle,
    kind,
)
from foveal.core.log.ranges import is_within
from foveal.core.view.fold import EffectiveLog
from foveal.core.view.steps import CoveredRange, Level, hidden_ranges


class EventStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the log, and how the next request shows it.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Why is CI red?"}])
        status = ctx.why("e1")
        assert (status.kind, status.level) == ("user_said", "full")
        ```
    """

    handle: str
    """The handle of the event."""
    kind: str
    """The kind of its fact."""
    level: Level | str
    """A level of detail, or "-" for an event that is never sent."""
    tokens: int = 0
    """Tokens as it is shown; those of all events of a category add up to its total, but for rounding."""
    rule: str = ""
    """The rule that decided the level; "" for an event that is shown in full."""
    by: str = ""
    """The handle of the event that recorded it."""
    replaced_by: str = ""
    """The handle of the later message that replaces it, as `supersede` has recorded; "" if it still holds."""
    replaced_since: str = ""
    """The handle of the event that recorded that, for `undo`."""


def unsent_status(event: Event, *, is_effective: bool) -> EventStatus | None:
    """Return the status of an event that no request sends, None for a message that counts."""
    fact = event.fact
    can_be_sent = isinstance(
        fact, UserSaid | ModelSaid | ToolReturned | Instructed | Pinned | Compacted | ForeignSummary
    )
    if not can_be_sent or (isinstance(fact, Pinned) and not fact.text):
        return EventStatus(handle=event.handle, kind=kind(fact), level="-")
    if not is_effective:
        is_foreign = isinstance(fact, ForeignSummary)
        rule = "rewound, or the model cannot read it" if is_foreign else "rewound or reverted"
        return EventStatus(handle=event.handle, kind=kind(fact), level="-", rule=rule)
    return None


def hidden_status(
    event: Event, cover: CoveredRange | None, *, is_orphan: bool, is_expanded: bool
) -> EventStatus:
    """Return the status of a message that is not shown; `cover` is the newest one of it."""
    if is_orphan:
        rule = "repair: a result that no call waits for"
        return EventStatus(handle=event.handle, kind=kind(event.fact), level="dropped", rule=rule)
    if cover is None and isinstance(event.fact, ToolReturned):
        rule = "its call is not shown"
        return EventStatus(handle=event.handle, kind=kind(event.fact), level="dropped", rule=rule)
    if isinstance(event.fact, Compacted):
        rule = "the events it replaced are shown again" if is_expanded else "a newer summary replaces it"
        if event.fact.takes_item_back and not event.fact.summary:
            rule = event.fact.rule  # it shows nothing itself
        return EventStatus(handle=event.handle, kind=kind(event.fact), level="-", rule=rule)
    if cover is None:
        return EventStatus(
            handle=event.handle, kind=kind(event.fact), level="-", rule="replaced by a newer one"
        )
    return EventStatus(
        handle=event.handle, kind=kind(event.fact), level=cover.level, rule=cover.rule, by=handle(cover.owner)
    )


def find_caller(before: Sequence[Event], result: ToolReturned) -> Event | None:
    """Return the newest of these events that calls for a result and has none yet; None if there is none."""
    answered = 0
    for event in reversed(before):
        fact = event.fact
        if isinstance(fact, ToolReturned) and fact.call_id == result.call_id:
            answered += 1
        elif isinstance(fact, ModelSaid):
            answered -= sum(call.id == result.call_id for _, call in calls_of(fact.content))
            if answered < 0:
                return event
    return None


def hidden_event_status(event: Event, later: EffectiveLog, *, is_orphan: bool) -> EventStatus:
    """Return the status of an event that is not shown. `later` is the log from the event on, or from before it; an
    orphan is a result that no call waits for."""
    is_effective = any(event.seq == other.seq for other in later.events)
    unsent = unsent_status(event, is_effective=is_effective)
    if unsent is not None:
        return unsent
    cover = _newest_cover(event.seq, later)
    status = hidden_status(event, cover, is_orphan=is_orphan, is_expanded=bool(later.expansions))
    for other in reversed(later.events):
        if isinstance(other.fact, Superseded) and other.fact.target == event.seq:
            return replaced_status(status, by=other.fact.by, since=other.seq)
    return status


def replaced_status(status: EventStatus, *, by: int, since: int) -> EventStatus:
    """Return the status of a message that event `since` says to be replaced by the later message `by`."""
    return msgspec.structs.replace(status, replaced_by=handle(by), replaced_since=handle(since))


def _newest_cover(seq: int, later: EffectiveLog) -> CoveredRange | None:
    for other in reversed(later.events):
        fact = other.fact
        if isinstance(fact, Dropped | Compacted) and is_within(seq, ranges := hidden_ranges(fact)):
            if isinstance(fact, Dropped):
                return CoveredRange("dropped", other.seq, ranges, fact.rule)
            return CoveredRange("summarised", other.seq, ranges, fact.rule)
    return None
