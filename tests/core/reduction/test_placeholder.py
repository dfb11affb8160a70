"""Placeholders: exit status, errors and verdicts come first, within the room."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal.core.log.events import Compacted
from foveal.core.reduction.placeholder import short_placeholder, skeleton

FAILED_RUN = "\n".join(
    [
        "============================= test session starts ==============================",
        "platform linux -- Python 3.11.4, pytest-8.2.0, pluggy-1.5.0",
        *(f"tests/test_mod{i % 9}.py::test_case_{i} PASSED   [{i // 2:3d}%]" for i in range(95)),
        "tests/test_mod5.py::test_parse_price FAILED  [ 51%]",
        *(f"tests/test_mod{i % 9}.py::test_case_{i} PASSED   [{i // 2:3d}%]" for i in range(96, 190)),
        "=================================== FAILURES ===================================",
        ">       assert parse_price('1,50') == 1.5",
        "E       AssertionError: assert 150.0 == 1.5",
        "=========================== short test summary info ============================",
        "FAILED tests/test_mod5.py::test_parse_price - AssertionError: assert 150.0 == 1.5",
        "================== 1 failed, 189 passed in 3.21s ===================",
    ]
)
OUTCOME = [
    "tests/test_mod5.py::test_parse_price FAILED [ 51%]",
    "E AssertionError: assert 150.0 == 1.5",
    "1 failed, 189 passed in 3.21s",
]
ERROR = "2024-05-03 12:05:17 ERROR worker[2] no connection to db-primary-7.internal:5432"
LOG = "\n".join(
    ERROR if i == 317 else f"2024-05-03 12:{i // 60:02}:{i % 60:02} INFO worker[{i % 4}] batch {i} is done"
    for i in range(600)
)

WORDS = "some words\n" * 9


def held(text: str, room: int) -> list[str]:
    """Return what a short placeholder says about a text."""
    return short_placeholder(text, handle="e4", tokens=900, room=room).splitlines()[1:]


def test_a_cut_of_economy_keeps_what_failed_and_an_error_in_the_middle_of_a_log() -> None:
    ctx = foveal.Context("gpt-4.1", window=16_000)
    history: list[object] = [{"role": "user", "content": "Why is CI red?"}]
    for number, output in enumerate([FAILED_RUN, LOG, *["line of a file\n" * 900] * 4]):
        function = {"name": "bash", "arguments": json.dumps({"command": f"step {number}"})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        history.append({"role": "assistant", "content": None, "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": f"c{number}", "content": output})
        ctx.fit(history)
    masks = [mask for event in ctx.log if isinstance(event.fact, Compacted) for mask in event.fact.masks]
    run, log = (mask.text.splitlines()[1:] for mask in masks[:2])
    assert run[:3] == OUTCOME
    assert log[0] == ERROR


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{FAILED_RUN}\nexit code: 1", ["exit status 1", *OUTCOME]),
        (json.dumps({"output": LOG, "metadata": {"exit_code": 3}}), ["exit status 3", ERROR]),
        (json.dumps({"output": FAILED_RUN}, indent=2), OUTCOME),
        (
            "<returncode>0</returncode>\n<output>\nIt is mild.\n</output>",
            ["returncode: 0 / It is mild."],
        ),
        (f"{WORDS}[exited with code 2]", ["[exited with code 2]"]),
        ("Here is 1 file.\n" + "x\n" * 99 + "exit status 0", ["exit status 0"]),
    ],
)
def test_the_outcome_comes_first(text: str, shown: list[str]) -> None:
    assert held(text, 160)[: len(shown)] == shown


def test_little_room_has_the_verdict_or_the_beginning_of_the_error() -> None:
    assert held(FAILED_RUN, 60)[0] == "1 failed, 189 passed in 3.21s"
    assert held(LOG, 60) == [ERROR[:58] + "…"]


def test_the_skeleton_of_a_mask_has_an_error_that_is_longer_than_a_third_of_its_room() -> None:
    first, names = skeleton(LOG, 160)
    assert first == ERROR
    assert names.startswith("names: ")


def test_a_line_that_only_announces_others_is_left_out() -> None:
    text = "Traceback (most recent call last):\nError:\n" + "x\n" * 99 + "ValueError: bad port 8123\n"
    assert held(text, 160)[0] == "ValueError: bad port 8123"


@given(
    st.lists(
        st.sampled_from(
            [*OUTCOME, ERROR, "exit status 3", "{", '["a"]', "words " * 40, "-----", "Error: \ud800"]
        ),
        max_size=12,
    ).map("\n".join),
    st.integers(0, 400),
)
def test_a_placeholder_keeps_to_its_room(text: str, room: int) -> None:
    for lines in (held(text, room), list(skeleton(text, room))):
        assert len("\n".join(lines)) <= room
        assert all(line.splitlines() == [line] for line in lines)
