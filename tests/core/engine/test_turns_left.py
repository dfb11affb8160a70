"""Turns until the next reduction: what is foretold is compared with what happens."""

from __future__ import annotations

import pytest

import foveal
from foveal.core.log.events import REDUCTIONS, ToolReturned
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


def check_room(report: foveal.Report) -> None:
    """Check that no more turns are promised than turns of the shown size have room."""
    if report.turn_tokens is None:
        assert report.turns_left is None
        return
    room = max(0, report.act - report.used)
    if report.turns_left is None:  # it is too far ahead for the turns seen
        assert room / report.turn_tokens > 10 * min(report.turns, 5)
        return
    # Both numbers are rounded from units.
    assert report.turns_left <= room / max(1, report.turn_tokens - 1) + 1


@pytest.mark.parametrize("policy", ["sliding-summary", "rolling", "handoff", "off"])
def test_no_more_turns_are_foretold_than_have_room(policy: str) -> None:
    ctx = context(16_000, policy)
    for turn in range(40):
        answer = words(300, f"a{turn}b") if turn % 4 else "Done."
        ctx.append(user(f"Look at part {turn}."), {"role": "assistant", "content": answer})
        if policy != "off":
            ctx.fit()
        check_room(ctx.report())


@pytest.mark.parametrize("policy", ["handoff", "recent-summary"])
def test_a_short_turn_after_a_compaction_does_not_promise_hundreds_of_turns(policy: str) -> None:
    ctx = context(32_000, policy)
    for turn in range(8):
        answer = {"role": "assistant", "content": words(2_000, f"a{turn}b")}
        ctx.append(user(f"Look at part {turn}."), answer)
    before = ctx.report()
    ctx.append(user("Thanks."), {"role": "assistant", "content": "Done."})
    ctx.compact()
    after = ctx.report()
    assert after.used < before.used / 2
    assert after.turn_tokens == before.turn_tokens
    assert after.turns_left is not None
    assert after.turns_left == (after.act - after.used) // (after.turn_tokens or 1)


def test_hidden_results_do_not_make_turns_look_smaller() -> None:
    ctx = context(200_000)
    left_and_cuts(ctx, turns=8, calls=2)
    before = ctx.report().turn_tokens
    for event in ctx.log[:-4]:
        if isinstance(event.fact, ToolReturned):
            ctx.drop(event.seq)
    assert ctx.report().turn_tokens == before


def test_a_result_that_is_clipped_at_once_counts_as_it_is_shown() -> None:
    policy = {"preset": "handoff", "clip": {"tokens": 200}}
    ctx = context(200_000, policy)
    ctx.append(user("Read it."), call_message("c1"), result_message("c1", words(5_000, "w")))
    ctx.append({"role": "assistant", "content": "Read."})
    report = ctx.report()
    assert report.reduced.clipped == 1
    assert report.turn_tokens is not None
    assert report.turn_tokens <= report.used < 400


def test_the_turns_of_a_reopened_log_have_the_same_size() -> None:
    ctx = context(8_000, "sliding-summary")
    left_and_cuts(ctx, turns=9, calls=1)
    reopened = context(8_000, "sliding-summary", log=ctx.log).report()
    assert reopened.turn_tokens == ctx.report().turn_tokens
    assert reopened.turns_left == ctx.report().turns_left


def test_a_summary_after_a_number_of_turns_is_foretold() -> None:
    left, cuts = left_and_cuts(context(200_000, "sliding-summary"), turns=12, calls=0)
    assert cuts == [5, 10]
    assert left == [4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 4, 3]


def test_before_an_answered_turn_nothing_is_foretold() -> None:
    ctx = context()
    assert ctx.report().turns_left is None
    ctx.append(user("hello"))
    assert ctx.report().turns_left is None


def test_in_a_large_empty_window_nothing_is_foretold() -> None:
    ctx = context(1_000_000)
    left, _ = left_and_cuts(ctx, turns=6, calls=2)
    assert left == [None] * 6


def test_each_turn_seen_foretells_ten_more() -> None:
    left, _ = left_and_cuts(context(128_000, "handoff"), turns=6, calls=2)
    first = next(turn for turn, one in enumerate(left) if one is not None)
    foretold = left[first:]
    assert first > 0
    assert foretold[0] <= 10 * (first + 1)  # type: ignore[operator]
    assert None not in foretold
    assert foretold == sorted(foretold, reverse=True)  # type: ignore[type-var]
