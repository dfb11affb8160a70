"""The preset `recent` does what its documentation says: it shows the newest steps that fit."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from foveal import Context
from foveal.errors import ContextOverflow

Json = dict[str, Any]
HEAD: Final[list[Json]] = [
    {"role": "system", "content": "You keep a workshop."},
    {"role": "user", "content": "Find every part that is missing."},
]


def step(number: int, rows: int) -> list[Json]:
    function = {"name": "look", "arguments": json.dumps({"shelf": number})}
    called = [{"id": f"c{number}", "type": "function", "function": function}]
    text = "\n".join(f"row {row} holds part_{number}_{row}" for row in range(rows))
    return [
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": f"c{number}", "content": text},
    ]


NOTICE_TOKENS: Final = 128
"""Most tokens that a cut leaves free for the notices of what was dropped: the one that is shown, and the next."""


def context(policy: str, *, reserve: int = 500) -> Context:
    return Context("gpt-5", policy=policy, window=6_000, reserve=reserve, tokenizer="estimate")


def does_fit(messages: list[Json], *, beside: int = 0) -> bool:
    try:
        context("off", reserve=500 + beside).fit(messages)
    except ContextOverflow:
        return False
    return True


def is_notice(message: Json) -> bool:
    return str(message["content"]).startswith("[foveal: ")


def test_recent_shows_the_latest_request_and_the_newest_steps_that_fit() -> None:
    ctx, steps = context("recent"), [step(number, rows=20 + 17 * number % 60) for number in range(40)]
    cuts = 0
    for count in range(1, len(steps) + 1):
        messages = [*HEAD, *(message for each in steps[:count] for message in each)]
        shown = ctx.fit(messages)
        kept = [message for message in shown if not is_notice(message)]
        hidden = (len(messages) - len(kept)) // 2
        assert kept == [*HEAD, *(message for each in steps[hidden:count] for message in each)]
        if hidden:
            cuts += 1
            more = [*HEAD, *(message for each in steps[hidden - 1 : count] for message in each)]
            assert (does_fit(shown), does_fit(more, beside=NOTICE_TOKENS)) == (True, False)
    assert cuts > 20


@pytest.mark.parametrize(("rows", "is_whole"), [(200, True), (900, False)])
def test_recent_clips_a_newest_result_only_above_three_quarters_of_the_room(
    rows: int, is_whole: bool
) -> None:
    steps = [step(0, 300), step(1, rows)]
    shown = context("recent").fit([*HEAD, *steps[0], *steps[1]])
    assert (shown[-1] == steps[1][-1]) == is_whole
    assert shown[:2] == HEAD
