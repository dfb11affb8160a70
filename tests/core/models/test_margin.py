"""The margin follows the measured error of counting, from 1 to 10 % of the window."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import accumulate, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal.core.models.budget import Budget, Caps, plan_budget
from foveal.core.models.model import counter_for, first_calibration, has_own_vocabulary
from foveal.core.tokens import Calibration
from foveal.core.tokens.counter import Counter, Estimate, FunctionCounter, counter
from support.paths import RECORDED

WINDOW = 64_000


def named_counter(name: str) -> Counter:
    return FunctionCounter(name, len, exact=name != "estimate", limit=100_000)


def budget(calibration: Calibration, name: str = "gpt-5", window: int = WINDOW, **caps: float) -> Budget:
    known = foveal.model(name, window=window)
    return plan_budget(known, Caps(**{"reserve": 4_000, **caps}), calibration, warn=0.9, act=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "vocabulary", "own"),
    [
        ("gpt-5", "o200k_base", True),
        ("openai/gpt-4.1-mini", "o200k_base", True),
        ("gpt-4o", "o200k_harmony", True),
        ("o3", "o200k_base", True),
        ("gpt-4-1106-preview", "o200k_base", False),
        ("gpt-4-1106-preview", "cl100k_base", True),
        ("gpt-4o", "cl100k_base", False),
        ("deepseek/deepseek-chat", "deepseek", True),
        ("deepseek-chat", "o200k_base", False),
        ("claude-sonnet-4-5", "o200k_base", False),
        ("gemini-2.5-pro", "o200k_base", False),
        ("gpt-5", "estimate", False),
        ("local/qwen2.5-coder-0.5b", "qwen_cl100k", True),
        ("local/qwen2.5-coder-0.5b", "o200k_base", False),
        ("ollama/qwen3.5:9b", "qwen_cl100k", False),
    ],
)
def test_a_model_is_counted_with_its_own_vocabulary(model: str, vocabulary: str, own: bool) -> None:
    assert has_own_vocabulary(model, named_counter(vocabulary)) is own


def test_auto_counts_qwen_with_its_own_vocabulary() -> None:
    qwen, other = counter_for("local/qwen2.5-coder-0.5b"), counter_for("gpt-5")
    assert (qwen.name, other.name) == ("qwen_cl100k", "o200k_base")
    assert counter_for("local/qwen2.5-coder-0.5b", "estimate").name == "estimate"


def test_short_turns_do_not_make_another_vocabulary_sure_about_a_long_text() -> None:
    first = first_calibration(foveal.model("claude-sonnet-4-5", window=WINDOW), named_counter("o200k_base"))
    short = first.observe(500, 525).observe(1_500, 1_575)
    assert budget(short).margin >= 0.09 * WINDOW
    long = short.observe(21_500, 22_575).observe(41_500, 43_575)
    assert budget(long).margin < 0.03 * WINDOW


def test_before_the_first_report_the_margin_depends_on_the_vocabulary() -> None:
    def share(model: str, vocabulary: str) -> float:
        known = foveal.model(model, window=WINDOW)
        return budget(first_calibration(known, named_counter(vocabulary)), model).margin / WINDOW

    assert 0.01 <= share("gpt-5", "o200k_base") <= 0.02
    assert 0.07 <= share("claude-sonnet-4-5", "o200k_base") <= 0.1
    assert share("gpt-5", "estimate") == 0.1


def test_a_family_ratio_does_not_apply_to_the_own_vocabulary() -> None:
    known = foveal.model("deepseek-chat")
    assert first_calibration(known, named_counter("deepseek")).ratio == 1.0
    assert first_calibration(known, named_counter("o200k_base")).ratio == known.token_ratio > 1
    given_ratio = foveal.model("deepseek-chat", token_ratio=1.3)
    assert first_calibration(given_ratio, named_counter("deepseek")).ratio == 1.3


def test_an_exact_count_leaves_nearly_the_whole_room() -> None:
    exact = first_calibration(foveal.model("gpt-5"), named_counter("o200k_base"))
    assert budget(exact).hard >= 58_500
    for units in range(1_000, 58_000, 1_000):
        exact = exact.observe(units, units + 100)
    assert budget(exact).margin == 640
    assert budget(exact).available == 60_000 - 640


def test_reports_narrow_the_margin_and_errors_widen_it() -> None:
    calibration = first_calibration(foveal.model("claude-sonnet-4-5"), named_counter("o200k_base"))
    wide = budget(calibration).margin
    for units in range(2_000, 46_000, 1_000):
        calibration = calibration.observe(units, 300 + 1.2 * units)
    steady = budget(calibration).margin
    for units in range(46_000, 49_000, 1_000):
        calibration = calibration.observe(units, 300 + 1.2 * units + units % 3 * 2_000)
    assert steady < wide / 3
    assert budget(calibration).margin > 2 * steady


def test_a_margin_that_the_user_sets_is_kept() -> None:
    found = budget(Calibration(spread=0.3), margin=0.05)
    assert (found.margin, found.available, found.hard) == (3_200, 56_800, 56_800)
    assert budget(Calibration(), margin=0.0).available == 60_000


def test_a_cap_of_the_user_needs_no_margin() -> None:
    assert budget(Calibration(), max_input_tokens=20_000).available == 20_000


def test_the_margin_is_kept_below_the_input_limit_of_a_model() -> None:
    known = foveal.model("gpt-5")
    assert known.max_input < known.window
    found = plan_budget(known, Caps(reserve=4_000), Calibration(), warn=0.9, act=1.0)
    assert found.available == known.max_input - found.margin


@given(
    st.integers(100, 2_000_000),
    st.integers(0, 3_000_000),
    st.floats(0.5, 2),
    st.floats(0, 1),
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 300_000)), max_size=5),
)
def test_the_margin_is_between_1_and_10_percent_of_the_window(
    window: int, reserve: int, ratio: float, spread: float, reports: list[tuple[int, int]]
) -> None:
    calibration = Calibration(ratio=ratio, spread=spread)
    for units, tokens in reports:
        calibration = calibration.observe(units, tokens)
    found = budget(calibration, window=window, reserve=reserve)
    limit = foveal.model("gpt-5", window=window).input_limit(found.reserve)
    assert min(window * 0.01, int(limit * 0.4)) <= found.margin <= window * 0.1
    assert found.available == limit - found.margin or found.available == 0


# ── Recorded usage ───────────────────────────────────────────────────────────────────────────────────────


def excesses(name: str, count: Counter) -> Iterator[bool]:
    """Yield for each recorded call whether its report is above the input limit of a window that the request, as it
    was predicted, fills up to the margin."""
    with gzip.open(RECORDED / f"{name}.jsonl.gz") as lines:
        for recorded in map(json.loads, islice(lines, 0, None, 4 if name != "pi" else 1)):
            known = foveal.model(recorded["meta"]["model"].split()[0])
            calibration = first_calibration(known, count)
            sizes = (count.count(json.dumps(message)) for message in recorded["messages"])
            units_before = list(accumulate(sizes, initial=0))
            for index, (position, reported, *_) in enumerate(recorded["meta"].get("usage") or []):
                units = units_before[position]
                if index:
                    limit = calibration.tokens(units)
                    for _ in range(3):  # the margin depends on the limit
                        found = budget(
                            calibration, known.name, int(limit / 0.92), reserve=int(limit * 0.08 / 0.92)
                        )
                        limit = calibration.tokens(units) + found.margin
                    yield reported > limit
                calibration = calibration.observe(units, reported)


@pytest.mark.data
@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded conversations are not beside the checkout")
def test_few_recorded_requests_would_exceed_a_window_filled_up_to_the_margin() -> None:
    found = [over for name in ("tau2", "miniswe", "pi", "claude_code") for over in excesses(name, Estimate())]
    assert len(found) > 1_500
    assert sum(found) / len(found) <= 0.001


def test_the_counter_of_the_extra_is_the_own_vocabulary_of_gpt_5() -> None:
    pytest.importorskip("toktok")
    assert has_own_vocabulary("gpt-5", counter())
