"""Status of one event: how the next request shows it, or what hid it.

1. `event_status` and `event_statuses` ask the view of an engine, and the log in memory.
2. Only later events hide an event or take it back. So `hidden_event_status` finds the status of an event that is
   not in memory by reading the log from that event on, and of most events only `without_text`.
3. `request_parts` has the tokens of each message that the next request shows, and its category in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from foveal.core.engine.engine import Engine
from foveal.core.log.events import (
    AnyFact,
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
from foveal.core.policies.ladder.priorities import tool_priority
from foveal.core.view.fold import EffectiveLog, effective_events
from foveal.core.view.steps import (
    PASSED_RULE,
    CoveredRange,
    Level,
    ShownMessage,
    Step,
    foreign_summary_seq,
    hidden_ranges,
    synthetic_units,
)
from foveal.core.view.view import View
from foveal.core.wire.tool_schemas import LOADED_TOOLS_SOURCE


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
    priority: str = ""
    """`low` or `high`, if reductions hide it before or after others; "" if not."""
    priority_since: str = ""
    """The handle of the event that recorded that, for `undo`; "" if it is the priority of its tool."""


def event_statuses(engine: Engine, parts: Iterable[RequestPart]) -> Iterator[EventStatus]:
    """Yield the status of each event in memory; `parts` are those of the next request."""
    effective = {event.seq for event in effective_events(engine.log)}
    tokens = {part.seq: part.tokens for part in parts}
    covers = engine.view.covers_of([event.seq for event in engine.log])
    for event in engine.log:
        is_effective = event.seq in effective
        yield _status(engine, event, tokens, covers.get(event.seq), is_effective=is_effective)


def event_status(engine: Engine, event: Event) -> EventStatus:
    """Return how the next request shows one event. An event that is not shown needs the whole log in memory: only
    the log knows what hid it or took it back."""
    is_effective = engine.view.find(event.seq) is not None or any(
        event.seq == other.seq for other in effective_events(engine.log)
    )
    tokens = {part.seq: part.tokens for part in request_parts(engine)}
    cover = engine.view.cover_of(event.seq)
    return _status(engine, event, tokens, cover, is_effective=is_effective)


def _status(
    engine: Engine, event: Event, tokens: Mapping[int, int], cover: CoveredRange | None, *, is_effective: bool
) -> EventStatus:
    view = engine.view
    unsent = unsent_status(event, is_effective=is_effective)
    if unsent is not None:
        return unsent
    status = prioritised_status(engine, _status_of_message(view, event, tokens, cover), event.seq)
    by = view.superseded.get(event.seq)
    if by is None:
        return status
    return replaced_status(status, by=by, since=view.superseded_since[event.seq])


def prioritised_status(engine: Engine, status: EventStatus, seq: int) -> EventStatus:
    """Return the status of the message `seq` with its priority."""
    marked = engine.view.priorities.get(seq)
    if marked is not None:
        priority, since = marked[0], handle(marked[1])
    else:
        priority, since = tool_priority(engine.view, seq, engine.policy), ""
    if priority == "normal":
        return status
    return msgspec.structs.replace(status, priority=priority, priority_since=since)


def _status_of_message(
    view: View, event: Event, tokens: Mapping[int, int], cover: CoveredRange | None
) -> EventStatus:
    found = view.find(event.seq)
    shown = found[1] if found is not None else _aside(view, event.seq)
    if shown is None:
        is_orphan = event.seq in view.orphan_results
        return hidden_status(event, cover, is_orphan=is_orphan, is_expanded=bool(view.expansions))
    # A result may be clipped in a part and then masked as a whole: the newest says what is shown.
    if found is not None and found[0].kind == "passed":
        return EventStatus(
            handle=event.handle,
            kind=kind(event.fact),
            level="summarised",
            rule=PASSED_RULE,
            by=handle(foreign_summary_seq(view.steps)),
        )
    newest = max((shown.overlays or {}).values(), key=lambda overlay: overlay.owner, default=None)
    by, rule = (handle(newest.owner), newest.rule) if newest is not None else ("", "")
    if newest is None and shown.again >= 0:
        by, rule = handle(shown.again_since), f"shows {handle(shown.again)} again"
    if found is not None and (expanded_by := _expanded_by(view, found[0])):
        by, rule = expanded_by, "expanded until the user speaks"
    return EventStatus(
        handle=event.handle,
        kind=kind(event.fact),
        level=shown.level,
        tokens=tokens.get(shown.seq, 0),
        rule=rule,
        by=by,
    )


def _expanded_by(view: View, step: Step) -> str:
    """Return the handle of the event that expanded a step for this turn, or ""."""
    return next((event.handle for event in view.expansions if event.seq == step.pin_seq), "")


def _aside(view: View, seq: int) -> ShownMessage | None:
    return next((shown for shown in view.asides.values() if shown.seq == seq), None)


# ── Events that are not shown ─────────────────────────────────────────────────────────────────────────────


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


# ── Parts of the next request ────────────────────────────────────────────────────────────────────────────


class RequestPart(NamedTuple):
    """A part of the next request: a message, or the tools."""

    category: str
    seq: int
    """The event that it shows; -1 for a part without one."""
    tokens: int


def request_parts(engine: Engine) -> list[RequestPart]:
    """Return all parts of the next request. The learned ratio turns units into tokens."""
    measured = list(_part_units(engine.view))
    total = engine.calibration.tokens(engine.total_units)
    counted = sum(units for _, _, units in measured)
    ratio = min(engine.calibration.ratio, total / counted) if counted else 0.0
    return [RequestPart(category, seq, round(units * ratio)) for category, seq, units in measured]


def _part_units(view: View) -> Iterator[tuple[str, int, int]]:
    """Yield the category, the event and the units of each part."""
    meter = view.meter
    for shown in view.asides.values():
        yield instruction_category(shown.fact), shown.seq, shown.units(meter)
    yield "tools", -1, view.tool_units
    for step in view.steps:
        if step.kind == "passed":
            continue
        yield step_category(step), step.utterance.seq, step.utterance.units(meter)
        for slot in step.slots:
            if slot.result is None:
                yield "placeholders", -1, synthetic_units(meter)
            else:
                yield result_category(slot.result), slot.result.seq, slot.result.units(meter)


def result_category(shown: ShownMessage) -> str:
    """Return the category of a tool result as it is shown."""
    return "placeholders" if shown.is_masked else "results"


def step_category(step: Step) -> str:
    """Return the category of the message that a step begins with."""
    match step.kind:
        case "instructed":
            fact = step.utterance.fact
            is_tools = isinstance(fact, Instructed) and fact.source == LOADED_TOOLS_SOURCE
            return "tools" if is_tools else instruction_category(fact)
        case "model" | "passed":
            return "assistant"
        case "summary" | "foreign":
            return "summaries"
        case "notice":
            return "placeholders"
        case "user" | "pinned":
            return step.kind


def instruction_category(fact: AnyFact) -> str:
    """Return the category of system text: the caller's own, or that of an instructions file."""
    return "instructions" if isinstance(fact, Instructed) and fact.source else "system"
