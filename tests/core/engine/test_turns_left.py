"""Turns until the next reduction: what is foretold is compared with what happens."""

from __future__ import annotations

import pytest

import foveal
from foveal.core.log.events import REDUCTIONS
from support.histories import call_message, context, result_message, user


def words(count: int, of: str) -> str:
    return " ".join(f"{of}{number}" for number in range(count))


def left_and_cuts(ctx: foveal.Context, *, turns: int, calls: int) -> tuple[list[int | None], list[int]]:
    """Return what the report says after each turn, and the turns in which something was reduced."""
    left: list[int | None] = []
    cuts: list[int] = []
    for turn in range(turns):
        before = len(ctx.log)
        ctx.append(user(f"Look at part {turn}."))
        for call in range(calls):
            ctx.fit()
            name = f"c{turn}_{call}"
            ctx.append(call_message(name), result_message(name, words(300, f"w{name}x")))
        ctx.fit()
        ctx.append({"role": "assistant", "content": words(300, f"a{turn}b")})
        if any(isinstance(event.fact, REDUCTIONS) for event in ctx.log[before:]):
            cuts.append(turn)
        left.append(ctx.report().turns_left)
    return left, cuts


@pytest.mark.parametrize(
    ("window", "calls", "turns"), [(200_000, 3, 60), (1_000_000, 1, 60), (32_000, 1, 30), (16_000, 0, 60)]
)
def test_the_next_cut_comes_when_the_report_says_even_if_it_is_cheap_before_the_limit(
    window: int, calls: int, turns: int
) -> None:
    model = foveal.model("claude-sonnet-4-5", window=window)
    ctx = foveal.Context(model, tokenizer="estimate", clock=lambda: 0.0)
    left, cuts = left_and_cuts(ctx, turns=turns, calls=calls)
    assert cuts
    for turn, foretold in enumerate(left):
        following = [cut - turn - 1 for cut in cuts if cut > turn]
        if turn > 0 and following and following[0] < 8:
            assert foretold is not None
            assert abs(foretold - following[0]) <= 1 + following[0] // 4, (turn, foretold, following[0])


def test_a_cut_before_the_limit_is_foretold() -> None:
    model = foveal.model("claude-sonnet-4-5", window=1_000_000)
    ctx = foveal.Context(model, tokenizer="estimate", clock=lambda: 0.0)
    left_and_cuts(ctx, turns=20, calls=1)
    report = ctx.report()
    assert report.turns_left is not None
    assert report.turn_tokens is not None
    until_the_limit = (report.act - report.used) // report.turn_tokens
    assert report.turns_left < until_the_limit // 5


def test_a_summary_after_a_number_of_turns_is_foretold() -> None:
    left, cuts = left_and_cuts(context(200_000, "sliding-summary"), turns=12, calls=0)
    assert cuts == [5, 10]
    assert left == [4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4, 3]


def test_before_an_answered_turn_nothing_is_foretold() -> None:
    ctx = context()
    assert ctx.report().turns_left is None
    ctx.append(user("hello"))
    assert ctx.report().turns_left is None
