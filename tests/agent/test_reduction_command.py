"""A program of the user that is asked before each cut."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from foveal import EventBrief, FovealError, ProposedCut
from foveal.agent.reduction_command import MAX_COMMAND_ANSWER_BYTES, ReductionCommand

CUT = ProposedCut(
    kind="mask",
    reason="tokens",
    rule="economy",
    events=(),
    freed=9,
    used=99,
    limit=90,
    is_forced=True,
    rewritten=3,
)


def command(code: str, *, timeout_s: float = 10.0) -> ReductionCommand:
    return ReductionCommand([sys.executable, "-c", code], folder=Path.cwd(), timeout_s=timeout_s)


@pytest.mark.anyio
async def test_a_program_reads_the_cut_and_answers_what_to_keep() -> None:
    code = "import json, sys; print(json.dumps({'keep': ['e4'], 'focus': json.load(sys.stdin)['reason']}))"
    assert await command(code)(CUT) == {"keep": ["e4"], "focus": "tokens"}


@pytest.mark.anyio
async def test_a_program_gets_the_beginning_and_the_end_of_a_long_message() -> None:
    text = "a" * 500 + "b" * 1_200 + "c" * 493 + " FAILED"
    brief = EventBrief(handle="e4", kind="tool_returned", level="masked", tokens=900, text=text)
    cut = msgspec.structs.replace(CUT, events=(brief,))
    code = "import json, sys; print(json.dumps({'focus': json.load(sys.stdin)['events'][0]['text']}))"
    shown = f"{'a' * 500}\n… 1,200 characters left out …\n{'c' * 493} FAILED"
    assert await command(code)(cut) == {"focus": shown}


@pytest.mark.anyio
async def test_a_program_that_says_nothing_has_no_wish() -> None:
    assert await command("")(CUT) is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import time; time.sleep(60)", "longer than 0.5 seconds"),
        ("import sys; sys.exit('no list')", "status 1: no list"),
        (f"print('x' * {MAX_COMMAND_ANSWER_BYTES + 1})", "more than 65,536 bytes"),
    ],
)
async def test_a_program_that_fails_is_an_error(code: str, problem: str) -> None:
    with pytest.raises(FovealError, match=problem):
        await command(code, timeout_s=0.5 if "sleep" in code else 10.0)(CUT)
