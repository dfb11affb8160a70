"""The difference of two requests."""

from __future__ import annotations

import json
import time

import pytest

from foveal.core.log import (
    AnyFact,
    Call,
    Dropped,
    Equipped,
    Event,
    Instructed,
    Mask,
    Masked,
    ModelSaid,
    Opened,
    Pinned,
    Reverted,
    ToolReturned,
    UserSaid,
    raw,
)
from foveal.errors import UnknownHandle
from foveal.inspector.timeline.request_content import request_content
from foveal.inspector.timeline.request_diff import (
    MAX_ROW_LINES,
    DiffRow,
    Divergence,
    RequestDiff,
    line_diff,
    request_diff,
    value_lines,
)


def numbered(*facts: AnyFact) -> list[Event]:
    return [Event(seq, fact, float(seq)) for seq, fact in enumerate(facts)]


def call(name: str) -> ModelSaid:
    return ModelSaid(content=(Call(id=name, name="bash", arguments='{"command": "ls"}'),))


LOG = numbered(
    Opened(model="gpt-5", policy="economy"),
    UserSaid(content="look"),
    call("a"),
    ToolReturned(call_id="a", content="one\ntwo\nthree"),
    call("b"),
    ToolReturned(call_id="b", content="four"),
    Masked(masks=(Mask(target=3, text="[foveal: masked]"),), reason="price", rule="mask"),
    ModelSaid(content="done"),
    UserSaid(content="thanks"),
    Reverted(target=6),
)


def test_a_request_that_only_grew_has_no_first_difference() -> None:
    found = request_diff(LOG, a=3, b=5)
    assert (found.first, found.same, found.moved_by, found.by) == (None, 3, "", ())
    assert [(row.op, row.a, row.b, row.key, row.count) for row in found.rows] == [
        ("same", 0, 0, "e1", 3),
        ("added", -1, 3, "e4", 1),
        ("added", -1, 4, "e5", 1),
    ]


def test_the_first_difference_names_message_byte_and_mover() -> None:
    found = request_diff(LOG, a=5, b=8)
    assert found.first is not None
    body = raw(request_content(LOG, at=8).body())
    old = raw(request_content(LOG, at=5).body())
    same = next(at for at, (x, y) in enumerate(zip(bytes(body), bytes(old), strict=False)) if x != y)
    assert found == RequestDiff(
        a=5,
        b=8,
        dialect="openai_chat",
        first=Divergence(message=2, byte=same, key="e3"),
        same=2,
        moved_by="e6: masked 1 message: a smaller request costs less",
        by=(6,),
        rows=(
            DiffRow(op="same", a=0, b=0, key="e1", label="user e1", count=2),
            DiffRow(
                op="changed",
                a=2,
                b=2,
                key="e3",
                label="tool e3",
                lines=(
                    (" ", "role: tool"),
                    (" ", "tool_call_id: a"),
                    ("-", "content:"),
                    ("-", "  one"),
                    ("-", "  two"),
                    ("-", "  three"),
                    ("+", "content: [foveal: masked]"),
                ),
            ),
            DiffRow(op="same", a=3, b=3, key="e4", label="assistant e4", count=2),
            DiffRow(
                op="added",
                b=5,
                key="e7",
                label="assistant e7",
                lines=(("+", "role: assistant"), ("+", "content: done")),
            ),
            DiffRow(
                op="added",
                b=6,
                key="e8",
                label="user e8",
                lines=(("+", "role: user"), ("+", "content: thanks")),
            ),
        ),
    )


def test_an_undo_is_a_mover_and_requests_compare_in_both_directions() -> None:
    assert request_diff(LOG, a=8, b=9).moved_by == "e9: took back e6"
    assert request_diff(LOG, a=9, b=8).by == (9,)


def test_a_pin_that_shows_a_dropped_message_again_is_a_mover() -> None:
    dropped = Dropped(ranges=((3, 3),), reason="room", names_ranges=True)
    talk = [
        UserSaid(content="look"),
        ModelSaid(content="one"),
        UserSaid(content="again"),
        ModelSaid(content="two"),
    ]
    log = numbered(LOG[0].fact, *talk, dropped, Pinned(target=3, whole=True), UserSaid(content="thanks"))
    found = request_diff(log, a=5, b=7)
    assert found.first is not None
    assert found.by == (6,)


def test_the_notice_of_dropped_messages_is_one_message() -> None:
    drops = [
        Dropped(ranges=((2, 3),), reason="room", names_ranges=True),
        Dropped(ranges=((4, 5),), reason="room", names_ranges=True),
    ]
    log = numbered(*(event.fact for event in LOG[:6]), UserSaid(content="go on"), *drops)
    found = request_diff(log, a=7, b=8)
    assert [(row.op, row.key) for row in found.rows] == [
        ("same", "e1"), ("changed", "n8"), ("removed", "e4"), ("removed", "e5"), ("same", "e6"),
    ]  # fmt: skip
    assert found.by == (8,)


def test_tools_and_system_text_come_before_all_messages() -> None:
    log = numbered(
        *(event.fact for event in LOG[:6]),
        Instructed(content="Be brief.", aside=True, dialect="anthropic"),
        Equipped(tools=raw([{"name": "bash", "input_schema": {}}])),
    )
    found = request_diff(log, a=5, b=7, dialect="anthropic")
    assert found.first is not None
    assert (found.first.message, found.first.key, found.same, found.by) == (-1, "", 5, (6, 7))
    assert [row.label for row in found.rows[:2]] == ["tools", "system"]


def test_moved_cache_marks_are_no_difference() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": "bash", "description": "run", "parameters": {"type": "object"}}
    log = numbered(
        Opened(model="anthropic/claude-sonnet-4-6", settings=raw({"folder": "x"})),
        Instructed(content="Careful."),
        Equipped(tools=raw([tool])),
        UserSaid(content="look"),
        call("a"),
        ToolReturned(call_id="a", content="one"),
    )
    assert mark["cache_control"] in [
        block.get("cache_control") for block in request_content(log, at=5).messages[0]["content"]
    ]
    assert request_diff(log, a=3, b=5).first is None


def test_equal_lines_far_from_a_difference_are_left_out() -> None:
    old = [f"line {number}" for number in range(100)]
    new = [*old[:50], "another", *old[51:]]
    assert line_diff(old, new) == (
        ("…", "47 equal lines"),
        (" ", "line 47"),
        (" ", "line 48"),
        (" ", "line 49"),
        ("-", "line 50"),
        ("+", "another"),
        (" ", "line 51"),
        (" ", "line 52"),
        (" ", "line 53"),
        ("…", "46 equal lines"),
    )
    assert line_diff(old, old) == ()


def test_long_texts_are_compared_in_bounded_time() -> None:
    one = ["x" * 10_000, *(f"a {number % 7}" for number in range(50_000))]
    other = [f"b {number % 5}" for number in range(50_000)]
    started = time.process_time()
    found = line_diff(one, other)
    small = line_diff(one[1:3_000], other[:3_000])
    assert time.process_time() - started < 5
    assert len(found) == len(small) == MAX_ROW_LINES + 1
    assert max(len(text) for _, text in found) < 3_000


def test_lines_of_a_value_show_the_line_breaks_of_its_texts() -> None:
    value = {"role": "user", "content": [{"type": "text", "text": "a\nb"}], "n": None, "data": b"12"}
    assert value_lines(value) == [
        "role: user", "content:", "  -", "    type: text", "    text:", "      a", "      b", "n: null",
        "data: (2 bytes)",
    ]  # fmt: skip
    assert any("characters" in line for line in value_lines({"text": "x" * 300_000}))
    json.dumps(value_lines({"text": "x\u2028y"}))


def test_an_event_that_is_not_in_the_log_is_refused() -> None:
    with pytest.raises(UnknownHandle):
        request_diff(LOG, a=1, b=99)
