"""Calibration: predicted token counts, learned from reports, robust against outliers."""

from __future__ import annotations

import contextvars
import gzip
import json
import math
import random
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveal
from foveal.core.tokens import Calibration
from foveal.core.tokens.calibration import MeasuredSpan
from foveal.core.tokens.counter import Counter, counter
from foveal.errors import BadSetting
from support.effort import rest_in_soak
from support.paths import RECORDED

DATA = RECORDED


def conversation(
    *, ratio: float, overhead: int, calls: int = 20, start: int = 500
) -> Iterator[tuple[int, int]]:
    """Yield units and reported tokens of calls with a growing history."""
    chance = random.Random(3)
    units = start
    for _ in range(calls):
        yield units, overhead + round(ratio * units)
        units += chance.randint(100, 3000)


def calibrate(calls: Iterator[tuple[int, int]], start: Calibration | None = None) -> Calibration:
    calibration = start or Calibration()
    for units, reported in calls:
        calibration = calibration.observe(units, reported)
    return calibration


def test_without_reports_tokens_are_units_and_the_bound_is_wide() -> None:
    fresh = Calibration()
    assert (fresh.ratio, fresh.measured, fresh.overhead, fresh.tokens(1000)) == (1.0, False, 0, 1000)
    assert fresh.upper(1000) > 1300
    assert Calibration(ratio=1.25).tokens(1000) == 1250


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.1, 1.35, 1.9])
@pytest.mark.parametrize("overhead", [0, 300, 15_000])
def test_ratio_and_overhead_are_learned(ratio: float, overhead: int) -> None:
    learned = calibrate(conversation(ratio=ratio, overhead=overhead))
    assert learned.measured
    assert learned.ratio == pytest.approx(ratio, rel=0.03)
    assert learned.tokens(50_000) == pytest.approx(overhead + ratio * 50_000, rel=0.03)
    assert abs(learned.overhead - overhead) < 0.05 * learned.at_tokens


def test_a_prediction_starts_from_the_newest_report() -> None:
    learned = Calibration().observe(1000, 17_000)
    assert (learned.tokens(1000), learned.tokens(1200), learned.overhead) == (17_000, 17_200, 16_000)


def test_a_low_first_report_lowers_the_ratio_not_the_overhead() -> None:
    learned = Calibration(ratio=1.2).observe(10_000, 9000)
    assert (learned.ratio, learned.overhead) == (0.9, 0)


def test_the_ratio_is_clamped() -> None:
    assert calibrate(conversation(ratio=6, overhead=0, calls=40)).ratio <= 2.0
    assert calibrate(conversation(ratio=0.1, overhead=5000, calls=40)).ratio >= 0.5
    for ratio in (0.4, 2.1, math.nan):
        with pytest.raises(BadSetting, match=r"from 0\.5 to 2\.0"):
            Calibration(ratio=ratio)


def test_only_the_first_change_may_move_the_ratio_by_more_than_a_tenth() -> None:
    first = Calibration().observe(1000, 1000)
    hot = first.observe(11_000, 16_000)
    assert hot.ratio > 1.4
    later = hot.observe(111_000, 100_000)
    assert later.ratio == pytest.approx(hot.ratio * 0.9)


@given(st.integers(1, 200_000), st.sampled_from([0, -5, math.nan, math.inf, -math.inf, 0.2, 1e12]))
def test_absurd_reports_are_ignored(units: int, reported: float) -> None:
    """Acceptance 35."""
    learned = calibrate(conversation(ratio=1.2, overhead=400))
    assert learned.observe(units, reported) == learned
    assert Calibration().observe(units, reported) == Calibration()


@pytest.mark.parametrize("units", [0, -1])
def test_a_report_for_no_units_is_ignored(units: int) -> None:
    assert Calibration().observe(units, 500) == Calibration()


def test_the_report_of_another_model_is_ignored() -> None:
    """Acceptance 36."""
    mine = calibrate(conversation(ratio=1.1, overhead=0), Calibration(model="deepseek-chat"))
    assert mine.observe(5000, 9999, model="claude-sonnet-4-5") == mine
    assert mine.observe(5000, 5600, model="deepseek-chat").at_tokens == 5600


def test_a_count_from_before_a_compaction_is_ignored() -> None:
    """Acceptance 36: 150,000 tokens were reported for what are now 8,000 units."""
    learned = calibrate(conversation(ratio=1.1, overhead=2000, calls=40))
    stale = learned.observe(8000, 150_000)
    assert stale.tokens(8000) == learned.tokens(8000)
    assert stale.observe(8000, 10_800).tokens(9000) == pytest.approx(2000 + 1.1 * 9000, rel=0.02)


def test_a_cumulative_count_is_ignored() -> None:
    """Acceptance 34: the sum over all requests so far is reported once."""
    learned = calibrate(conversation(ratio=1.1, overhead=2000))
    assert learned.observe(30_000, 400_000).tokens(31_000) == learned.tokens(31_000)


def test_three_outliers_in_a_row_move_the_anchor_not_the_ratio() -> None:
    learned = calibrate(conversation(ratio=1.1, overhead=0))
    moved = calibrate(iter([(20_000, 82_000), (20_500, 82_550), (21_000, 83_100)]), learned)
    assert (moved.at_tokens, moved.ratio, moved.strikes) == (83_100, learned.ratio, 0)


def test_smaller_requests_after_a_reduction_are_predicted_and_learned_from() -> None:
    learned = calibrate(conversation(ratio=1.25, overhead=3000, calls=40))
    expected = 3000 + 1.25 * 6000
    assert learned.tokens(6000) == pytest.approx(expected, rel=0.05)
    assert learned.upper(6000) >= expected
    again = learned.observe(6000, round(expected))
    assert again.ratio == pytest.approx(1.25, rel=0.02)
    assert again.tokens(7000) == pytest.approx(expected + 1250, rel=0.005)


def test_the_upper_bound_narrows_with_reports_and_widens_with_errors() -> None:
    def width(calibration: Calibration) -> float:
        return calibration.upper(40_000) / calibration.tokens(40_000) - 1

    steady = calibrate(conversation(ratio=1.1, overhead=0))
    shaken = calibrate(iter([(31_000, 38_000), (32_000, 36_000), (33_000, 44_000)]), steady)
    assert width(steady) < 0.05 < width(Calibration())
    assert width(shaken) > 2 * width(steady)


# ── Requests after a reduction ───────────────────────────────────────────────────────────────────────────


def measured(*texts: tuple[int, float], overhead: int = 700) -> tuple[Calibration, list[tuple[int, int]]]:
    """Return the calibration after a request per text (units, tokens per unit), and the seqs with their units."""
    calibration, shown, units, tokens = Calibration(), [], 0, float(overhead)
    for seq, (size, ratio) in enumerate(texts):
        shown.append((seq, size))
        units, tokens = units + size, tokens + size * ratio
        predicted = calibration.tokens(units)
        calibration = calibration.observe(
            units, tokens, until=seq + 1, unreduced=units, predicted=predicted if seq else 0
        )
    return calibration, shown


TEXTS = ((1_000, 1.0), (9_000, 1.1), (4_000, 1.6), (2_000, 0.9), (9_000, 1.3), (500, 1.2))


@pytest.mark.parametrize("left", [(0, 1), (0, 4, 5), (0, 2), (0, 3), (1, 2, 4)])
def test_a_reduced_request_is_predicted_from_the_texts_that_are_left(left: tuple[int, ...]) -> None:
    learned, shown = measured(*TEXTS)
    kept = [shown[seq] for seq in left]
    units = sum(size for _, size in kept)
    reduced = learned.reduced(len(TEXTS))
    assert reduced.needs_anchoring
    expected = 700 + sum(TEXTS[seq][0] * TEXTS[seq][1] for seq in left)
    assert reduced.anchored(units, kept).tokens(units) == pytest.approx(expected, rel=0.01)


def test_without_a_reduction_since_the_newest_report_nothing_is_anchored() -> None:
    learned, _ = measured(*TEXTS)
    assert not learned.needs_anchoring
    assert not learned.reduced(len(TEXTS) - 1).needs_anchoring
    assert not Calibration().observe(1_000, 1_200).reduced(9).needs_anchoring, "no report named its events"


def test_an_undone_reduction_needs_no_anchor_unless_a_report_measured_it() -> None:
    learned, _ = measured(*TEXTS)
    first = len(TEXTS)
    assert not learned.reduced(first).reverted(first, first + 1).needs_anchoring
    assert learned.reduced(first).reduced(first + 1).reverted(first + 1, first + 2).needs_anchoring
    reported = learned.reduced(first).observe(9_000, 12_000, until=first + 1, unreduced=26_000)
    assert not reported.needs_anchoring
    assert reported.reverted(first, first + 2).needs_anchoring


def test_a_new_text_in_a_reduced_request_is_measured_and_can_be_removed_again() -> None:
    learned, shown = measured(*TEXTS)
    kept, new = [shown[0], shown[4]], (7, 10_000)
    units = sum(size for _, size in (*kept, new))
    reduced = learned.reduced(6).anchored(units, [*kept, new])
    before = 700 + 1_000 * 1.0 + 9_000 * 1.3
    after = reduced.observe(
        units,
        before + 10_000 * 1.7,
        until=8,
        unreduced=sum(size for size, _ in TEXTS) + 10_000,
        predicted=reduced.tokens(units),
    )
    left = sum(size for _, size in kept)
    assert after.reduced(8).anchored(left, kept).tokens(left) == pytest.approx(before, rel=0.01)


def test_what_no_new_text_explains_counts_as_beyond_the_spans() -> None:
    learned, _ = measured(*TEXTS)
    unreduced = sum(size for size, _ in TEXTS) + 100
    after = learned.reduced(7).observe(9_000, 13_000, until=8, unreduced=unreduced, predicted=11_000)
    assert after.spans[-1] == MeasuredSpan(8, 100, 3.0)
    assert after.beyond_spans == pytest.approx(learned.beyond_spans + 2_000 - 100 * (3.0 - learned.ratio))


@given(st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 4)), min_size=1, max_size=300))
def test_the_number_of_spans_is_bounded(texts: list[tuple[int, float]]) -> None:
    learned, shown = measured(*texts)
    assert len(learned.spans) <= 2 + 64 * (1 + math.log(1 + learned.at_unreduced / 64))
    assert learned.anchored(learned.at_units, shown).tokens(learned.at_units) >= 0


calibrations = st.builds(
    lambda ratio, overhead, calls, rest: calibrate(
        iter(rest), calibrate(conversation(ratio=ratio, overhead=overhead, calls=calls))
    ),
    st.floats(0.3, 3),
    st.integers(0, 30_000),
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(-10, 200_000), st.integers(-10, 400_000)), max_size=6),
)


@given(calibrations, st.integers(0, 300_000))
def test_units_is_the_inverse_of_tokens(calibration: Calibration, units: int) -> None:
    tokens = calibration.tokens(units)
    back = calibration.units(tokens)
    assert back >= units
    assert back == 0 or calibration.tokens(back) <= tokens < calibration.tokens(back + 1)


@given(calibrations, st.integers(0, 300_000))
def test_safe_units_keep_the_upper_bound_within_the_limit(calibration: Calibration, limit: int) -> None:
    safe = calibration.safe_units(limit)
    assert safe <= calibration.units(limit)
    assert safe == 0 or calibration.upper(safe) <= limit < calibration.upper(safe + 1)


@given(calibrations, st.integers(0, 300_000), st.integers(0, 5000))
def test_more_units_never_mean_fewer_tokens(calibration: Calibration, units: int, more: int) -> None:
    assert 0 <= calibration.tokens(units) <= calibration.tokens(units + more)
    assert calibration.tokens(units) <= calibration.upper(units) <= calibration.upper(units + more)
    assert 0.5 <= calibration.ratio <= 2.0


@given(calibrations)
def test_a_calibration_can_be_stored(calibration: Calibration) -> None:
    stored = msgspec.json.encode(calibration)
    assert msgspec.json.decode(stored, type=Calibration) == calibration


def units_of(message: dict[str, Any], count: Counter) -> int:
    content = message.get("content") or ""
    texts = [content if isinstance(content, str) else json.dumps(content)]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    texts += [text for call in calls for text in (call["name"], call["arguments"])]
    return (
        4 + 6 * len(calls) + sum(count.count_all([t if isinstance(t, str) else json.dumps(t) for t in texts]))
    )


class RecordedUsage(NamedTuple):
    """A recorded conversation: the units of each message, and for each call how many messages it had sent and the
    tokens that the provider reported."""

    id: str
    sizes: list[int]
    reports: list[tuple[int, int]]


@cache
def recorded_usage(name: str, vocabulary: str) -> list[RecordedUsage]:
    count = counter(vocabulary)
    with gzip.open(DATA / f"{name}.jsonl.gz") as lines:
        return [
            RecordedUsage(
                recorded["id"],
                [units_of(message, count) for message in recorded["messages"]],
                [(position, tokens) for position, tokens, *_ in recorded["meta"].get("usage") or []],
            )
            for recorded in map(json.loads, lines)
        ]


def predictions(name: str, vocabulary: str) -> Iterator[tuple[int, int, int]]:
    """Yield expected, upper and reported tokens of each call after the first five of its conversation."""
    for recorded in recorded_usage(name, vocabulary):
        before = list(accumulate(recorded.sizes, initial=0))
        calibration = Calibration()
        for index, (position, reported) in enumerate(recorded.reports):
            units = before[position]
            if index >= 5:
                yield calibration.tokens(units), calibration.upper(units), reported
            calibration = calibration.observe(units, reported)


def reduced_predictions(name: str, vocabulary: str) -> Iterator[float]:
    """Yield the relative error of predicted requests from which random calls were removed with what followed them.
    Their true size is known: two reports say how many tokens were between them."""
    for recorded in recorded_usage(name, vocabulary):
        chance, sizes, reports = random.Random(recorded.id), recorded.sizes, recorded.reports
        before = list(accumulate(sizes, initial=0))
        calibration = Calibration()
        for index, (position, reported) in enumerate(reports):
            units = before[position]
            predicted = calibration.tokens(units) if index else 0
            calibration = calibration.observe(
                units, reported, until=position, unreduced=units, predicted=predicted
            )
            if index < 5 or index % 5:
                continue
            places = list(range(reports[0][0]))
            tokens = reports[0][1]
            for (first, earlier), (last, after) in pairwise(reports[: index + 1]):
                if chance.random() < 0.5:
                    places += range(first, last)
                    tokens += after - earlier
            shown = [(place, sizes[place]) for place in places]
            left = sum(size for _, size in shown)
            if left and tokens > 0:
                reduced = calibration.reduced(position).anchored(left, shown)
                yield abs(reduced.tokens(left) - tokens) / tokens


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="the recorded conversations are not beside the checkout")
@pytest.mark.parametrize("vocabulary", rest_in_soak(["estimate", "o200k_base"]))
def test_recorded_prompts_are_predicted_within_2_percent_median_5_p90(
    vocabulary: str,
) -> None:
    if vocabulary != "estimate":
        pytest.importorskip("toktok")
    pooled: list[float] = []
    for name in ("tau2", "miniswe", "pi", "claude_code"):
        found = list(predictions(name, vocabulary))
        errors = [abs(expected - reported) / reported for expected, _, reported in found]
        covered = sum(upper >= reported for _, upper, reported in found) / len(found)
        assert len(errors) > 100
        assert quantile(errors, 0.5) < 0.02, name
        assert quantile(errors, 0.9) < 0.05, name
        assert covered > 0.97, name
        pooled += errors
    assert (quantile(pooled, 0.5) < 0.02, quantile(pooled, 0.9) < 0.05) == (True, True)


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="the recorded conversations are not beside the checkout")
@pytest.mark.parametrize("vocabulary", rest_in_soak(["estimate", "o200k_base"]))
def test_recorded_requests_after_a_reduction_are_predicted_within_3_percent_p90(vocabulary: str) -> None:
    if vocabulary != "estimate":
        pytest.importorskip("toktok")
    names = ("tau2", "miniswe", "pi", "claude_code")
    pooled = [error for name in names for error in reduced_predictions(name, vocabulary)]
    assert len(pooled) > 500
    assert quantile(pooled, 0.9) < 0.03


@pytest.mark.filterwarnings(
    "ignore::foveal.errors.UnrelatedConversation", "ignore::foveal.errors.HistoryDiverged"
)
def test_runs_that_are_under_way_at_once_do_not_correct_an_error_several_times() -> None:
    """Each of four runs is fitted before any of the four reports: their predictions have the same error."""
    ctx = foveal.Context("gpt-4.1", window=12_000, reserve=1_000, tokenizer="estimate")
    tasks = [contextvars.copy_context() for _ in range(4)]
    histories: list[list[dict[str, str]]] = [[] for _ in tasks]
    for turn in range(10):
        sent = []
        for number, (task, history) in enumerate(zip(tasks, histories, strict=True)):
            asked = f"Talk {number}, question {turn}. " + f"Talk {number} waits for it. " * (turn * 60)
            history.append({"role": "user", "content": asked})
            sent.append((task.run(ctx.fit, list(history)), ctx.report().used))
        for task, history, (messages, predicted) in zip(tasks, histories, sent, strict=True):
            counted = 60 + round(1.12 * sum(len(message["content"]) for message in messages) / 4)
            assert turn == 0 or 0.8 < predicted / counted < 1.25, (turn, predicted, counted)
            task.run(ctx.observe, {"prompt_tokens": counted, "completion_tokens": 5})
            history.append({"role": "assistant", "content": f"Fine {turn}."})
