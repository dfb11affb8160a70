"""Thresholds that trigger reductions: acceptance cases 39 to 48, those without compaction."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import foveal
from foveal import PRESETS, BadSetting, ContextOverflow, Policy, policy
from foveal.core.engine import Engine
from foveal.core.engine.settings import EngineSettings
from foveal.core.log import Clipped, Compacted, Dropped, Masked
from foveal.core.log.events import REDUCTIONS
from foveal.core.models import Caps
from foveal.core.models.budget import Budget, plan_budget, thresholds
from foveal.core.policies import Moment
from foveal.core.reduction.truncation import TOKENS_8K
from foveal.core.tokens import Calibration
from support.effort import examples, rest_in_soak
from support.histories import (
    ESTIMATE,
    ManualClock,
    call_message,
    context,
    encode_and_decode,
    events_of,
    plain_model,
    recount,
    result,
    result_message,
    session,
    user,
)

WINDOWS = (1, 2, 10, 100, 1_000, 10_000, 32_000, 60_000, 128_000, 200_000, 1_000_000, 2_000_000)
SHARES = (0.0, 0.01, 0.5, 0.8, 0.999, 1.0, float("nan"), -1.0, 7.0, float("inf"))


def test_thresholds_are_ordered_for_every_room_and_share() -> None:
    for hard, warn, act, window in product((-5, 0, *WINDOWS), SHARES, SHARES, (None, 0, 10_000)):
        low, middle, high = thresholds(hard, warn=warn, act=act, window=window, fixed=100)
        assert 0 <= low <= middle < high, (hard, warn, act, window)
        assert high == max(1, hard), (hard, warn, act, window)


@pytest.mark.parametrize(("name", "window"), rest_in_soak(product(PRESETS, WINDOWS), every=5))
def test_reported_thresholds_are_ordered_for_every_window_and_preset(name: str, window: int) -> None:
    report = context(window, name).report()
    assert report.warn <= report.act < report.limit


@given(st.integers(1, 2_000_000), st.integers(0, 3_000_000), st.floats(0, 0.9), st.integers(0, 3_000_000))
def test_a_plan_never_gives_out_more_than_the_window_holds(
    window: int, reserve: int, margin: float, most: int
) -> None:
    caps = Caps(reserve=reserve, margin=margin, max_input_tokens=most or None)
    budget = plan_budget(plain_model(window), caps, Calibration(), warn=0.8, act=1.0)
    assert budget.available <= max(0, window - budget.reserve)
    assert budget.hard <= max(1, budget.available)
    if most:
        assert budget.available <= most


@pytest.mark.parametrize("fixed", [0, 500])
def test_shares_of_the_window_count_the_whole_request_and_end_just_below_the_limit(fixed: int) -> None:
    def budget(**caps: Any) -> Budget:
        calibration = Calibration(spread=0.0)
        return plan_budget(
            plain_model(8_000), Caps(**caps), calibration, warn=0.8, act=0.9, shares_of="window", fixed=fixed
        )

    roomy, tight = budget(reserve=100, margin=0.0), budget(reserve=1_000)
    assert (roomy.warn + fixed, roomy.act + fixed) == (6_400, 7_200)
    assert tight.hard + fixed == 8_000 - 1_000 - 320
    assert tight.act == int(tight.hard * 0.95)
    assert tight.warn == int(tight.act * (0.8 / 0.9)), "the warning stays before the question"


def test_warn_and_act_are_shares_of_the_window_in_mode_confirm_only() -> None:
    assert {name: preset.shares_of for name, preset in PRESETS.items()} == {
        name: "window" if name == "confirm" else "room" for name in PRESETS
    }
    assert policy("economy", mode="confirm").shares_of == "window"


def test_the_state_is_ok_warn_or_over_at_the_thresholds() -> None:
    ctx = context(2_000, "off")
    seen: list[str] = []
    try:
        for _ in range(1_000):
            ctx.append(user("word " * 5))
            ctx.fit()
            report = ctx.report()
            assert (report.state == "ok") == (report.used <= report.warn)
            seen.append(report.state)
    except ContextOverflow:
        seen.append(ctx.report().state)
    assert list(dict.fromkeys(seen)) == ["ok", "warn", "act", "over"] or list(dict.fromkeys(seen)) == [
        "ok",
        "warn",
        "over",
    ]


def test_an_unanswered_message_can_trigger_a_reduction() -> None:
    ctx = context(4_000)
    ctx.fit(session(6))
    assert events_of(ctx.log, *REDUCTIONS) == []
    ctx.fit([*session(6), user("word " * 1_500)])
    assert events_of(ctx.log, *REDUCTIONS) != []


def test_system_text_and_tools_alone_can_overflow_and_the_error_says_so() -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "description": "word " * 50}} for n in range(60)
    ]
    ctx = context(3_000)
    with pytest.raises(ContextOverflow, match="system text and tools alone take") as problem:
        ctx.fit([user("hi")], tools=tools)
    assert problem.value.needed > problem.value.window > problem.value.available
    assert f"{problem.value.available:,} are available" in str(problem.value)


def test_an_input_limit_below_the_window_holds() -> None:
    model = foveal.model("test", window=30_000, max_input=8_000)
    ctx = foveal.Context(model, tokenizer=ESTIMATE, reserve=1_000, clock=ManualClock())
    assert ctx.report().limit <= 8_000
    assert recount(ctx.fit(session(40))) <= 8_000


@pytest.mark.parametrize("how", ["model", "cap"])
def test_an_input_limit_far_below_the_window_stays_mostly_usable(how: str) -> None:
    if how == "model":
        ctx = foveal.Context(foveal.model("test", window=100_000, max_input=4_000), tokenizer=ESTIMATE)
    else:
        ctx = context(100_000, max_input_tokens=4_000)
    assert 2_500 < ctx.report().limit <= 4_000
    assert ctx.fit([user("hi")]) == [user("hi")]


def test_the_reserve_counts_against_the_window_not_the_input_limit() -> None:
    model = foveal.model("test", window=100_000, max_input=50_000)
    small = foveal.Context(model, tokenizer=ESTIMATE, reserve=10_000).report().limit
    large = foveal.Context(model, tokenizer=ESTIMATE, reserve=45_000).report().limit
    assert small == large
    assert foveal.Context(model, tokenizer=ESTIMATE, reserve=80_000).report().limit < small


def test_a_cap_above_the_window_is_clamped_to_it() -> None:
    capped = context(8_000, max_input_tokens=1_000_000, max_history_tokens=1_000_000)
    assert capped.report().limit == context(8_000).report().limit


def test_a_reserve_above_the_window_is_refused_at_once() -> None:
    for reserve in (4_000, 9_000):
        with pytest.raises(BadSetting, match=f"which has 4,000: a reserve of {reserve:,} for the answer"):
            context(4_000, reserve=reserve)


def test_a_reserve_above_the_window_of_another_model_leaves_no_room_and_says_so() -> None:
    ctx = context(16_000, reserve=9_000)
    ctx.use("test", window=4_000)
    with pytest.raises(ContextOverflow) as problem:
        ctx.fit([user("hi")])
    assert (problem.value.window, problem.value.reserve, problem.value.available) == (4_000, 4_000, 0)


def test_an_unknown_model_gets_128_000_tokens_marked_as_a_guess() -> None:
    report = foveal.Context("unknown/model", tokenizer=ESTIMATE).report()
    assert report.window == 128_000
    assert report.window_source
    assert report.window_source not in ("yours", "")
    assert report.window_source in str(report)
    known = foveal.Context("gpt-4.1", tokenizer=ESTIMATE).report()
    assert known.window_source != report.window_source


def test_the_policy_off_reduces_nothing_and_raises_on_overflow() -> None:
    ctx = context(6_000, "off")
    history = session(12)
    assert ctx.fit(history) == history
    with pytest.raises(ContextOverflow, match='policy "off" reduces nothing'):
        ctx.fit(session(60))
    assert events_of(ctx.log, Masked, Dropped, Clipped) == []


def test_an_overflow_has_its_numbers_and_the_irreducible_floor() -> None:
    ctx = context(4_000)
    with pytest.raises(ContextOverflow) as caught:
        ctx.fit([*session(5), user("word " * 9_000)])
    problem = caught.value
    assert problem.window == 4_000
    assert problem.reserve == 400
    assert problem.margin == 400
    assert problem.needed >= problem.floor > problem.available > 0
    assert f"{problem.needed:,}" in str(problem)
    assert "the latest message alone takes" in str(problem)


def test_an_overflow_needs_more_than_is_available() -> None:
    for words in range(4_000, 8_000, 40):
        ctx = context(8_000, "off", reserve=1_000)
        try:
            ctx.fit([user("word " * words)])
        except ContextOverflow as caught:
            problem = caught
            break
    assert problem.needed > problem.available
    assert f"{problem.available:,} are available" in str(problem)


def test_after_an_overflow_a_shorter_history_fits_again() -> None:
    ctx = context(4_000)
    history = session(5)
    with pytest.raises(ContextOverflow):
        ctx.fit([*history, user("word " * 9_000)])
    request = ctx.fit([*history, user("short")])
    assert request[-1] == user("short")
    assert recount(request) <= ctx.report().limit


def test_a_smaller_model_reduces_before_the_next_call() -> None:
    engine = Engine(EngineSettings(plain_model(100_000), policy("economy"), Caps(), ESTIMATE))
    ctx = context(100_000)
    ctx.fit(session(60))
    for event in ctx.log:
        engine.append(event.fact)
    engine.reduce_to_fit(Moment(calls=1))
    assert events_of(engine.log, *REDUCTIONS) == []
    engine.model = plain_model(8_000)
    budget = engine.reduce_to_fit(Moment(calls=1))
    assert engine.view.units <= budget.hard < 8_000
    assert events_of(engine.log, *REDUCTIONS) != []


def test_resuming_with_a_smaller_model_reduces_before_the_next_call() -> None:
    ctx = context(100_000)
    ctx.fit(session(60))
    engine = Engine(
        EngineSettings(plain_model(8_000), policy("economy"), Caps(), ESTIMATE),
        log=encode_and_decode(ctx.log),
    )
    budget = engine.reduce_to_fit(Moment(calls=1))
    assert engine.view.units <= budget.hard < 8_000


def test_the_strictest_of_several_limits_wins() -> None:
    limits = [
        context(50_000, **caps).report().limit
        for caps in ({}, {"max_input_tokens": 20_000}, {"max_history_tokens": 6_000})
    ]
    together = context(50_000, max_input_tokens=20_000, max_history_tokens=6_000).report().limit
    assert limits[0] > limits[1] > limits[2] == together


def test_no_history_limit_also_overrides_that_of_the_policy() -> None:
    limited = context(100_000, "rolling").report().limit
    unlimited = context(100_000, "rolling", max_history_tokens=0).report().limit
    assert limited == 20_000
    assert unlimited == context(100_000, {"preset": "rolling", "max_history_tokens": 0}).report().limit
    assert unlimited > 50_000


def test_a_cut_is_not_made_again_at_the_next_call() -> None:
    ctx = context(9_000)
    history = session(0)
    cuts: list[int] = []
    for number in range(60):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number))]
        known = len(ctx.log)
        ctx.fit(history)
        if events_of(ctx.log[known:], *REDUCTIONS):
            cuts.append(number)
    assert len(cuts) >= 2
    assert all(later - earlier >= 4 for earlier, later in pairwise(cuts)), cuts


def test_a_cold_cache_triggers_a_cut_and_a_warm_one_does_not() -> None:
    for seconds, expected in ((10, 0), (-1_000_000, 0), (100_000, 1)):
        clock = ManualClock()
        ctx = context(6_000, clock=clock)
        ctx.fit(session(11))
        clock.now += seconds
        ctx.fit(session(12))
        assert ctx.report().limit > recount(session(12))
        assert len(events_of(ctx.log, Compacted)) == expected, seconds


def test_changed_tools_trigger_a_cut_because_the_prefix_is_lost_anyway() -> None:
    for changed, expected in (("a", 0), ("b", 1)):
        ctx = context(6_000)
        ctx.fit(session(11), tools=[{"type": "function", "function": {"name": "a"}}])
        ctx.fit(session(12), tools=[{"type": "function", "function": {"name": changed}}])
        assert len(events_of(ctx.log, Compacted)) == expected


def test_a_changed_system_text_with_first_tools_triggers_a_cut() -> None:
    ctx = context(6_000, dialect="openai_chat")
    ctx.fit(session(11), system="one")
    ctx.fit(session(12), system="two", tools=[{"type": "function", "function": {"name": "a"}}])
    assert len(events_of(ctx.log, Compacted)) == 1


def test_rolling_has_the_values_that_its_description_names() -> None:
    rolling = PRESETS["rolling"]
    assert (rolling.keep_first, rolling.keep_last, rolling.max_history_tokens) == (2, 5, 20_000)
    assert rolling.clip == TOKENS_8K
    assert (TOKENS_8K.strategy, TOKENS_8K.tokens) == ("head", 8_000)


def test_rolling_keeps_the_history_below_its_cap_and_clips_from_the_head() -> None:
    ctx = context(200_000, "rolling")
    history = session(0)
    for number in range(12):
        history += [call_message(f"c{number}"), result_message(f"c{number}", result(number, 9_000))]
        assert recount(ctx.fit(history)[1:]) <= 20_000
    assert events_of(ctx.log, Dropped) != []
    assert {event.fact.strategy for event in events_of(ctx.log, Clipped)} == {"head"}  # type: ignore[union-attr]


def test_economy_is_the_default_of_nine_presets() -> None:
    assert policy().name == "economy"
    assert list(PRESETS) == [
        "economy", "handoff", "sliding-summary", "recent-summary", "confirm", "plain", "rolling", "recent", "off",
    ]  # fmt: skip
    assert context().report().policy == "economy"


@pytest.mark.parametrize("name", PRESETS)
def test_the_values_of_a_preset_can_be_written_as_toml(name: str) -> None:
    values = PRESETS[name].values()
    assert policy(values) == PRESETS[name]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("warn", 1.5),
        ("warn", -0.1),
        ("act", "high"),
        ("act", float("nan")),
        ("target", 2),
        ("keep_first", -1),
        ("keep_last", 1.5),
        ("keep_last", True),
        ("mask_every", 0),
        ("max_history_tokens", -1),
        ("skeleton_tokens", -3),
        ("skeleton_share", 1.1),
        ("early_tokens", -1),
        ("early_tokens", 0.5),
        ("early", 0.5),
        ("patience", 1.0),
        ("mask_arguments", 80),
        ("clip", {"tokens": -1}),
        ("clip", {"strategy": "middle"}),
        ("clip_tools", {"bash": {"lines": 1.5}}),
        ("exempt_tools", "bash"),
        ("mask", "yes"),
        ("nonsense", 1),
    ],
)
def test_an_invalid_setting_is_refused_by_name_with_what_is_allowed(field: str, value: Any) -> None:
    with pytest.raises(BadSetting) as problem:
        policy({"preset": "economy", field: value})
    assert problem.value.field == field
    assert field in str(problem.value)
    assert problem.value.allowed


@pytest.mark.parametrize(
    "pair", [{"warn": 0.9, "act": 0.5, "target": 0.1}, {"act": 0.4, "warn": 0.1, "target": 0.9}]
)
def test_settings_that_contradict_each_other_are_refused_together(pair: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="at most act"):
        policy("economy", **pair)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadSetting, match=r"economy, handoff, .*rolling, recent, off"):
        policy("thrifty")


@pytest.mark.parametrize("wrong", [5, None, 1.5, ["economy"], b"economy"])
def test_a_policy_of_a_wrong_type_is_refused_with_the_same_message(wrong: Any) -> None:
    with pytest.raises(BadSetting, match=r"economy, handoff, .*rolling, recent, off"):
        policy(wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0),
        ("window", -1),
        ("window", "big"),
        ("window", 1.5),
        ("reserve", -1),
        ("reserve", 10.5),
        ("max_input_tokens", 0),
        ("max_history_tokens", -1),
        ("max_images", -1),
        ("max_media_bytes", "lots"),
    ],
)
@pytest.mark.parametrize("model", ["gpt-4.1", foveal.model("gpt-4.1")], ids=["named", "given"])
def test_a_context_refuses_a_bad_value_by_name(model: Any, field: str, value: Any) -> None:
    with pytest.raises(BadSetting) as problem:
        foveal.Context(model, **{field: value})
    assert problem.value.field == field


def test_a_custom_policy_builds_on_a_preset_without_changing_it() -> None:
    before = PRESETS["rolling"]
    mine = policy("rolling", name="mine", keep_last=9)
    assert isinstance(mine, Policy)
    assert (mine.name, mine.keep_last, mine.keep_first) == ("mine", 9, 2)
    assert PRESETS["rolling"] is before
    assert before.keep_last == 5


def test_one_context_changes_nothing_in_another() -> None:
    settings = {"preset": "rolling", "clip_tools": {"bash": {"tokens": 10}}}
    one, two = context(50_000, settings), context(50_000, "rolling")
    one.fit(session(3, words=900))
    two.fit(session(3, words=900))
    assert events_of(one.log, Clipped) != []
    assert events_of(two.log, Clipped) == []


def test_economy_keeps_the_task_when_everything_else_is_dropped() -> None:
    ctx = context(3_000)
    history = session(0)
    for number in range(40):
        history += [
            {"role": "assistant", "content": result(number)},
            user(f"and {number}? " + result(number, 60)),
        ]
        request = ctx.fit(history)
        assert user("Find the bug in the parser, please.") in request
        assert request[-1] == history[-1]


def _parts(message: str) -> tuple[int, int]:
    """Return the tokens that an overflow's message calls available, and what its parts leave of the window."""
    available, parts = re.findall(r"but ([\d,]+) are available \(window ([^)]*)\)", message)[0]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", parts)]
    return int(available.replace(",", "")), numbers[0] - sum(numbers[1:])


@examples(30)
@given(
    window=st.integers(1_000, 20_000),
    reserve=st.integers(0, 15_000),
    margin=st.one_of(st.none(), st.floats(0, 0.9)),
    max_input=st.one_of(st.none(), st.integers(500, 20_000)),
    most=st.one_of(st.none(), st.integers(1, 20_000)),
    history=st.integers(0, 20_000),
    beside=st.integers(0, 2_000),
    pinned=st.integers(0, 500),
    factor=st.sampled_from([None, 0.7, 1.0, 1.37]),
)
def test_the_numbers_of_an_overflow_add_up_for_all_settings(
    window: int,
    reserve: int,
    margin: float | None,
    max_input: int | None,
    most: int | None,
    history: int,
    beside: int,
    pinned: int,
    factor: float | None,
) -> None:
    model = foveal.model("test", window=window, max_input=min(max_input or window, window))
    assume(reserve + int(window * (margin or 0)) < window)  # everything else is refused at once
    caps = {"reserve": reserve, "margin": margin, "max_input_tokens": most, "max_history_tokens": history}
    ctx = foveal.Context(model, tokenizer=ESTIMATE, clock=ManualClock(), **caps)  # type: ignore[arg-type]
    with suppress(ContextOverflow):
        ctx.fit([user("word " * 20)])
        ctx.observe({"prompt_tokens": int(30 * (factor or 0)), "completion_tokens": 1})
    with suppress(BadSetting):  # a pin that is larger than the room
        ctx.pin("rule " * (pinned + 1))
    tools = [{"type": "function", "function": {"name": "f", "description": "word " * beside}}]
    with pytest.raises(ContextOverflow) as caught:
        ctx.fit([user("word " * 20), user("word " * 25_000)], tools=tools, system="word " * beside)
    problem = caught.value
    left = problem.window - problem.reserve - problem.margin - problem.capped
    assert _parts(str(problem)) == (problem.available, problem.available)
    assert problem.available == left < problem.needed
    assert min(problem.available, problem.reserve, problem.margin, problem.capped) >= 0
    for taken in re.findall(r"alone takes? ([\d,]+)", str(problem)):
        assert int(taken.replace(",", "")) <= problem.needed


def test_an_overflow_names_the_cap_that_leaves_less_than_the_window() -> None:
    ctx = context(8_000, max_history_tokens=500)
    with pytest.raises(ContextOverflow) as caught:
        ctx.fit([user("word " * 9_000)])
    problem = caught.value
    assert (problem.reserve, problem.margin, problem.capped, problem.available) == (800, 800, 5_900, 500)
    assert "window 8,000 − reserve 800 − margin 800 − 5,900 for `max_history_tokens`" in str(problem)


@pytest.mark.parametrize("name", ["economy", "handoff", "recent-summary", "sliding-summary"])
def test_turns_trigger_a_summary_under_every_policy_that_summarises(name: str) -> None:
    ctx = context(60_000, {"preset": name, "every_turns": 3, "overlap_turns": 1})
    said: list[Any] = []
    for turn in range(6):
        said += [user(f"Ask {turn}. " * 40)]
        ctx.fit(said)
        said += [{"role": "assistant", "content": f"Answer {turn}. " * 400}]
    made = [event.fact for event in ctx.log if isinstance(event.fact, Compacted)]
    assert [fact.reason for fact in made][:1] == ["turns"]


@pytest.mark.parametrize("name", ["rolling", "recent", "off"])
@pytest.mark.parametrize("field", ["every_turns", "overlap_turns"])
def test_turns_are_refused_where_nothing_is_summarised(name: str, field: str) -> None:
    with pytest.raises(BadSetting, match=rf"{field} = 2 .*0 with {name}, .*sliding-summary, handoff"):
        policy({"preset": name, field: 2})
