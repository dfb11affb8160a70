"""Mode `confirm` of every policy: nothing is reduced without a yes while the request fits."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal import PRESETS, Context, ContextOverflow, NotCompacted, policy
from foveal.core.log import Clipped, Compacted, Dropped, Event, Masked
from foveal.core.log.events import REDUCTIONS
from support.effort import examples
from support.histories import (
    ScriptedHistory,
    call_message,
    context,
    events_of,
    recount,
    result_message,
    scripted_histories,
    user,
)

REDUCING = tuple(name for name in PRESETS if name != "off")


def confirming(name: str, **changes: Any) -> Any:
    return policy(name, mode="confirm", **changes)


def reductions(events: tuple[Event, ...]) -> list[Event]:
    """Return the reductions that a policy chose; the naming of late results reduces nothing."""
    found = events_of(events, *REDUCTIONS)
    return [event for event in found if not isinstance(event.fact, Dropped) or event.fact.reason != "late"]


def rules(events: tuple[Event, ...]) -> set[str]:
    return {str(getattr(event.fact, "rule", "")).rpartition(": ")[2] for event in reductions(events)}


def chat_until_asked(ctx: Context, *, words: int = 120) -> int:
    """Add turns until the report has a question, and return how many."""
    for turn in range(1_000):
        ctx.append(
            user(f"question {turn}"), {"role": "assistant", "content": f"answer {turn} " + "word " * words}
        )
        ctx.fit()
        if ctx.report().question:
            return turn + 1
    raise AssertionError("no question")


@given(
    history=scripted_histories(turns=6, steps=5),
    name=st.sampled_from(REDUCING),
    window=st.sampled_from([1_500, 3_000, 6_000, 20_000]),
)
@examples(20)
def test_without_a_yes_nothing_is_reduced_while_the_request_fits(
    history: ScriptedHistory, name: str, window: int
) -> None:
    ctx = context(window, confirming(name), dialect=history.dialect)
    done = 0
    for length in history.calls:
        ctx.append(*history.messages[done:length])
        done, count = length, len(ctx.log)
        before = ctx.report()
        assert bool(before.question) == (before.state in ("act", "over"))
        with suppress(ContextOverflow):  # what may not be cut is larger than the window
            ctx.fit()
        if reductions(ctx.log[count:]):
            assert before.state == "over"
        assert rules(ctx.log) <= {"no consent"}


@pytest.mark.parametrize("name", REDUCING)
def test_a_yes_reduces_below_the_question(name: str) -> None:
    ctx = context(6_000, confirming(name))
    chat_until_asked(ctx)
    assert reductions(ctx.log) == []
    handle = ctx.agree()
    assert ctx.report().question == ""
    assert rules(ctx.log) == {"agreed"}
    assert handle == reductions(ctx.log)[-1].handle
    count = len(ctx.log)
    ctx.fit()
    assert ctx.log[count:] == (), "what was agreed to is all"
    with pytest.raises(NotCompacted, match=r"the question comes above [\d.]+ %"):
        ctx.agree()


@pytest.mark.parametrize("name", REDUCING)
def test_a_yes_drops_nothing_for_a_threshold_that_the_latest_message_exceeds_alone(name: str) -> None:
    def asked(words: int) -> Context:
        ctx = context(6_000, confirming(name), reserve=100)
        ctx.append(user("The task: never touch production."))
        ctx.append(*({"role": "assistant", "content": f"answer {number}"} for number in range(4)))
        ctx.append(user("word " * words))
        return ctx

    sizes = range(3_000, 9_000, 40)
    ctx = asked(sizes[bisect_left(sizes, True, key=lambda words: asked(words).report().question != "")])
    assert ctx.report().state == "act"
    with suppress(NotCompacted):
        ctx.agree()
    assert events_of(ctx.log, Dropped) == []
    assert "never touch production" in str(ctx.fit())


@pytest.mark.parametrize("name", [name for name in REDUCING if PRESETS[name].compact])
def test_a_yes_has_the_model_write_the_summary(name: str) -> None:
    asked = []

    def summarise(request: Any) -> str:
        asked.append(request)
        return "Goal: many answers.\nDone: all of them."

    ctx = context(6_000, confirming(name), summarise=summarise)
    chat_until_asked(ctx)
    assert asked == []
    ctx.agree()
    assert asked
    assert ctx.why(events_of(ctx.log, Compacted)[0].seq).rule == ""
    assert [event.fact.rule for event in events_of(ctx.log, Compacted)] == [f"{name}: agreed"]  # type: ignore[union-attr]


def test_a_no_changes_nothing_and_the_question_stays_until_the_limit() -> None:
    asked: list[str] = []
    ctx = context(6_000, confirming("economy"), summarise=lambda request: "never")
    turn = chat_until_asked(ctx, words=60)
    while not reductions(ctx.log):
        asked.append(ctx.report().question)
        near = ctx.report().notice
        turn += 1
        ctx.append(user(f"no {turn}"), {"role": "assistant", "content": "word " * 60})
        ctx.fit()
    assert len(asked) >= 2
    assert all(asked)
    assert near.startswith("The next turn needs about "), "told before"
    assert rules(ctx.log) == {"no consent"}
    assert {event.fact.by for event in events_of(ctx.log, Compacted)} == {"ledger"}, "no model is called"  # type: ignore[union-attr]


def test_new_results_stay_whole_in_mode_confirm_unless_a_limit_is_set() -> None:
    text = "\n".join(f"line {number} of the listing" for number in range(3_000))
    for name in REDUCING:
        ctx = context(200_000, confirming(name))
        sent = ctx.fit([user("list"), call_message("c1"), result_message("c1", text), call_message("c2")])
        assert sent[2]["content"] == text
        ctx.append(result_message("c2", text))
        assert events_of(ctx.log, Clipped, Masked, Dropped) == []
    ctx = context(200_000, confirming("rolling", clip=PRESETS["rolling"].clip))
    ctx.fit([user("list"), call_message("c1"), result_message("c1", text)])
    assert len(events_of(ctx.log, Clipped)) == 1


def test_a_result_that_does_not_fit_is_clipped_to_the_room() -> None:
    ctx = context(4_000, confirming("economy"))
    sent = ctx.fit([user("list"), call_message("c1"), result_message("c1", "word " * 9_000)])
    assert recount(sent) <= ctx.report().limit
    assert rules(ctx.log) == {"no consent"}


def test_the_question_comes_at_nine_tenths_of_the_window_by_default() -> None:
    for name in REDUCING:
        report = context(100_000, confirming(name), reserve=0, margin=0.0).report()
        assert report.act <= 90_000
        assert name == "rolling" or report.act >= 89_900
    assert context(100_000, confirming("economy", act=0.5, warn=0.5), reserve=0).report().act in range(
        49_900, 50_001
    )


def test_agree_needs_a_question() -> None:
    ctx = context(6_000, "economy")
    with pytest.raises(NotCompacted, match='mode "auto" asks nothing'):
        ctx.agree()


def test_the_policy_off_asks_nothing_because_a_yes_would_reduce_nothing() -> None:
    ctx = context(1_000, confirming("off"))
    ctx.append(user("word " * 2_000))
    report = ctx.report()
    assert (report.state, report.question, report.notice) == ("over", "", "")
    with pytest.raises(NotCompacted, match="the policy `off` reduces nothing"):
        ctx.agree()


@pytest.mark.parametrize("name", PRESETS)
def test_a_policy_in_mode_confirm_can_be_written_and_read(name: str) -> None:
    for chosen in (
        confirming(name),
        confirming(name, act=1.0, warn=1.0, target=1.0, clip=PRESETS["rolling"].clip),
    ):
        assert policy(chosen.values()) == chosen


@pytest.mark.parametrize("name", ["economy", "handoff", "sliding-summary"])
def test_the_question_comes_after_a_number_of_turns(name: str) -> None:
    ctx = Context("gpt-4.1", policy=policy(name, mode="confirm", every_turns=2, overlap_turns=1))
    for turn in range(2):
        assert ctx.report().question == ""
        ctx.append(user(f"Question {turn}: " + "word " * 300))
        ctx.append({"role": "assistant", "content": f"Answer {turn}. " + "text " * 300})
    assert ctx.report().question == "2 turns are not summarised yet. Compact conversation? [y/N]"
    ctx.fit()
    assert not ctx.report().reduced  # no yes yet
    ctx.agree()
    report = ctx.report()
    assert report.reduced
    assert report.question == ""
