"""The outline of a log: the newest request, as the timeline shows it."""

from __future__ import annotations

from hypothesis import given
from msgspec.structs import replace

from foveal.core.engine.event_status import hidden_event_status
from foveal.core.log.events import Event, ToolReturned, UserSaid, handle
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import EffectiveLog, fold
from foveal.inspector.timeline.builder import (
    InspectedSettings,
    TimelineBuilder,
    TimelineRows,
    timeline_outline,
)
from foveal.inspector.timeline.timeline import Timeline, ViewChange
from support.histories import ESTIMATE, logs

SHOWN = ("full", "clipped", "masked")


def whole_timeline(log: list[Event], rows: TimelineRows | None = None) -> Timeline:
    builder = TimelineBuilder(InspectedSettings(id="demo"), counter=ESTIMATE, row_maker=rows)
    builder.add(log)
    return builder.document()


def newest(timeline: Timeline) -> dict[str, ViewChange]:
    """Return how each message is shown in the end, as the page finds it: the newest cover of a hidden one counts.
    Summaries, rules and notices are left out when they are not shown."""
    last = {change.key: change for change in timeline.changes}
    states = {key: covered(timeline, change) for key, change in last.items()}
    kept = {
        key: state
        for key, state in states.items()
        if state.level in SHOWN or last[key].category in ("user", "assistant", "results", "placeholders")
    }
    return {key: state for key, state in kept.items() if state.level in SHOWN or key[0] == "e"}


def covered(timeline: Timeline, change: ViewChange) -> ViewChange:
    """Return the change with its newest cover, and without what an outline does not know."""
    change = replace(change, at=0, units=0)
    if change.level in SHOWN:
        return change
    change = replace(change, category="", by=-1 if change.level == "removed" else change.by)
    if change.level == "removed" or change.rule == "a result that no call waits for":
        return change
    seq = int(change.key[1:])
    for card in reversed(timeline.reductions):
        if card.undone < 0 and any(first <= seq <= last for first, last in card.ranges):
            level = "dropped" if card.kind == "dropped" else "summarised"
            return replace(change, level=level, by=card.seq, rule=card.rule)
    return change


@given(logs())
def test_the_outline_shows_every_message_as_the_newest_request_does(made: tuple[str, list[Event]]) -> None:
    _, log = made
    outline = timeline_outline("demo", log, TimelineRows())
    shown, expected = newest(outline), newest(whole_timeline(log))
    assert {key: (shown.get(key), state) for key, state in expected.items() if shown.get(key) != state} == {}
    assert shown.keys() == expected.keys()


@given(logs())
def test_a_timeline_after_its_outline_is_the_same_as_without_it(made: tuple[str, list[Event]]) -> None:
    _, log = made
    rows = TimelineRows()
    outline = timeline_outline("demo", log, rows)
    assert [row.preview for row in outline.rows] == [row.preview for row in whole_timeline(log).rows]
    assert whole_timeline(log, rows) == whole_timeline(log)


@given(logs())
def test_what_hid_a_message_is_what_why_says(made: tuple[str, list[Event]]) -> None:
    _, log = made
    states = newest(whole_timeline(log))
    view = fold(log, MessageTokens(ESTIMATE))
    effective = EffectiveLog.of(log)
    for event in log:
        state = states.get(event.handle)
        if state is None or state.level not in ("dropped", "summarised") or view.find(event.seq) is not None:
            continue
        status = hidden_event_status(event, effective, is_orphan=event.seq in view.orphan_results)
        by = "" if state.by < 0 else handle(state.by)
        assert (state.level, by) == (status.level, status.by), event.handle


def test_an_outline_has_no_sizes() -> None:
    log = [
        Event(0, UserSaid(content="Why is CI red?")),
        Event(1, ToolReturned(call_id="c", content="exit 1")),
    ]
    outline = timeline_outline("demo", log, TimelineRows())
    assert outline.outline
    assert {row.units for row in outline.rows} == {change.units for change in outline.changes} == {0}
