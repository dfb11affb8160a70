"""The timeline: its changes give the view of every point of the log."""

from __future__ import annotations

import sys

from hypothesis import given

from foveal import Context
from foveal.core.log.events import Call, Event, ModelSaid, Opened, UserSaid, handle
from foveal.core.tokens.message_tokens import MessageTokens
from foveal.core.view.fold import fold
from foveal.core.view.view import View
from foveal.inspector.timeline.builder import InspectedSettings, TimelineBuilder
from foveal.inspector.timeline.timeline import Timeline
from support.histories import ESTIMATE, logs


def build(log: list[Event]) -> Timeline:
    builder = TimelineBuilder(InspectedSettings(id="demo"), counter=ESTIMATE)
    builder.add(log)
    return builder.document()


def shown_at(timeline: Timeline, seq: int) -> dict[str, tuple[str, int]]:
    """Return what is in the request after an event: level and units by key."""
    state = {change.key: change for change in timeline.changes if change.at <= seq}
    return {
        key: (change.level, change.units)
        for key, change in state.items()
        if change.level in ("full", "clipped", "masked")
    }


def expected(view: View) -> dict[str, tuple[str, int]]:
    meter = view.meter
    items = {handle(shown.seq): ("full", shown.units(meter)) for shown in view.asides.values()}
    for step in view.steps:
        if step is view.notice:
            items[f"n{-1 - step.utterance.seq}"] = ("full", step.utterance.units(meter))
            continue
        for shown in step.shown_messages() if step.kind != "passed" else ():
            items[handle(shown.seq)] = (shown.level, shown.units(meter))
        for place, slot in enumerate(step.slots):
            if slot.result is None and step is not view.steps[-1]:
                items[f"m{step.seq}.{place}"] = ("full", 4 + meter.counter.count(slot.as_shown().content))
    return items


@given(logs())
def test_the_changes_give_the_view_after_every_event(made: tuple[str, list[Event]]) -> None:
    _, log = made
    timeline = build(log)
    for event in log:
        view = fold(log[: event.seq + 1], MessageTokens(ESTIMATE))
        assert shown_at(timeline, event.seq) == expected(view), event


@given(logs())
def test_a_timeline_in_parts_is_the_whole_one(made: tuple[str, list[Event]]) -> None:
    _, log = made
    whole = build(log)
    builder = TimelineBuilder(InspectedSettings(id="demo"), counter=ESTIMATE)
    rows, changes, requests = [], [], []
    for event in log:
        builder.add([event])
        part = builder.document(event.seq)
        rows += part.rows
        changes += part.changes
        requests[part.first_request :] = part.requests
    assert (tuple(rows), tuple(changes), tuple(requests)) == (whole.rows, whole.changes, whole.requests)
    assert builder.document() == whole


def test_the_builder_keeps_every_event_even_the_one_that_names_the_model() -> None:
    log = [Event(0, Opened(model="gpt-4.1")), Event(1, UserSaid(content="Hello"))]
    builder = TimelineBuilder(InspectedSettings(id="demo"), counter=ESTIMATE)
    builder.add(log)
    assert builder.log == log


def test_calls_without_results_cost_no_more_the_more_there_are() -> None:
    def work(count: int) -> int:
        """Return how many functions are called to build the timeline of `count` calls."""
        calls = [Call(id=f"c{seq}", name="look", arguments="{}") for seq in range(count)]
        log = [Event(seq, ModelSaid(content=(call,))) for seq, call in enumerate(calls)]
        called = 0

        def on_event(frame: object, event: str, argument: object) -> None:
            nonlocal called
            called += event == "call"

        sys.setprofile(on_event)
        try:
            build(log)
        finally:
            sys.setprofile(None)
        return called

    assert work(400) < 3 * work(200)


def test_the_end_and_the_fold_of_a_branch_name_its_beginning() -> None:
    ctx = Context("gpt-4.1")
    with ctx.branch("Find the failing test.") as branch:
        ctx.append({"role": "assistant", "content": "It is test_dates.py."})
        branch.result("test_dates.py fails")
    rows = build(list(ctx.log)).rows[1:]
    kinds = [(row.kind, row.target) for row in rows]
    assert kinds == [("branched", -1), ("model_said", -1), ("branch_ended", 1), ("compacted", 1)]
    assert rows[-1].preview == "folded e1 to e2, a branch, to its result"
