"""Statistics of groups of conversations, and leave-one-source-out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from foveal import replay
from foveal.core.models.model import model
from foveal.replay import (
    CallSurprise,
    FigureSpread,
    GroupStatistics,
    RecallCount,
    ReplaySetting,
    Trace,
    html_page,
)
from foveal.replay.statistics import policy_statistics
from foveal.replay.strata import by_pressure, group_statistics


def trace(
    name: str, *, full: int, sent: int, ident: tuple[int, int] = (0, 0), source: str = "", policy: str = "p"
) -> Trace:
    """Return a trace of one call: tokens if everything is sent, tokens that were sent, and needs kept of all."""
    kept, needed = ident
    recall = RecallCount(needed=needed, kept=kept, needed_far=needed, kept_far=kept)
    return Trace(
        conversation=name,
        source=source,
        policy=policy,
        window=1_200,
        limit=1_000,
        sizes=[sent],
        cached=[0],
        full_sizes=[full],
        ident=recall,
    )


@pytest.mark.parametrize(
    ("full", "ratio", "stratum"),
    [
        (10, 1.0, "≤ 1"), (1_000, 1.0, "≤ 1"), (1_001, 1.0, "1–3"), (3_000, 1.0, "1–3"), (8_000, 1.0, "3–8"),
        (8_001, 1.0, "> 8"), (1_000, 1.1, "1–3"),
    ],
)  # fmt: skip
def test_pressure_is_the_largest_full_request_relative_to_the_input_limit(
    full: int, ratio: float, stratum: str
) -> None:
    one = replace(trace("one", full=full, sent=1), full_sizes=[5, full], ratio=ratio)
    assert replay.pressure(one) == full * ratio / 1_000
    assert [group.name for group in by_pressure([one])] == [stratum]


def test_strata_have_pooled_figures_means_and_the_worst_tenth() -> None:
    traces = [trace(f"c{n}", full=100, sent=50, ident=(1, 1)) for n in range(18)]
    traces += [trace("costly", full=1_000, sent=1_000, ident=(2, 4)), trace("no needs", full=100, sent=90)]
    traces[1] = replace(
        traces[1], surprises=[CallSurprise(call=n, bits=bits) for n, bits in ((1, 0.2), (2, 0))]
    )
    traces[2] = replace(traces[2], surprises=[CallSurprise(call=1, bits=0.2), CallSurprise(call=2, bits=0.2)])
    (group,) = by_pressure([*traces, replace(traces[0], over=[1], breaks=[1])][1:])
    bill = FigureSpread(
        pooled=(18 * 50 + 1_090) / 2_900, mean=pytest.approx((18 * 0.5 + 1.9) / 20), worst=pytest.approx(0.95)
    )
    ident = FigureSpread(pooled=20 / 22, mean=pytest.approx(18.5 / 19), worst=0.5)
    surprise = FigureSpread(pooled=pytest.approx(0.15), mean=pytest.approx(0.15), worst=0.2)
    nothing = FigureSpread(pooled=None, mean=None, worst=None)
    assert group == GroupStatistics(
        name="≤ 1",
        conversations=20,
        calls=20,
        over=1,
        bill=bill,
        bill_highest=1.0,
        surprise=surprise,
        samples=4,
        breaks=FigureSpread(pooled=5.0, mean=5.0, worst=50.0),
        ident=ident,
        ident_far=ident,
        line=nothing,
        line_far=nothing,
    )


def test_strata_are_in_the_order_of_pressure() -> None:
    traces = [trace(str(full), full=full, sent=1) for full in (9_000, 100, 4_000, 2_000)]
    assert [group.name for group in by_pressure(traces)] == ["≤ 1", "1–3", "3–8", "> 8"]


def swept(policy: str, traces: Sequence[Trace]) -> replay.PolicyStatistics:
    return policy_statistics(policy, [replace(one, policy=policy) for one in traces], model("gpt-5"))


def test_each_left_out_source_is_measured_under_the_best_policy_of_the_others() -> None:
    # `low` is cheapest, but forgets on source two; without source two it is the best.
    low = [
        trace("one", source="one", full=100, sent=10, ident=(9_960, 10_000)),
        trace("two", source="two", full=100, sent=10, ident=(5_000, 10_000)),
    ]
    high = [
        trace("one", source="one", full=100, sent=80, ident=(10_000, 10_000)),
        trace("two", source="two", full=100, sent=70, ident=(10_000, 10_000)),
    ]
    baseline = [replace(one, policy="everything", sizes=[100]) for one in high]
    rows = [swept("everything", baseline), swept("low", low), swept("high", high)]
    found = replay.leave_one_source_out(rows)
    assert found == replay.SourceValidation(
        sources=[
            replay.LeftOutSource(source="one", policy="high", statistics=group_statistics("one", high[:1])),
            replay.LeftOutSource(source="two", policy="low", statistics=group_statistics("two", low[1:])),
        ],
        together=group_statistics("all sources", [high[0], low[1]]),
    )
    assert "two: low" in replay.table(rows, sources=True)
    assert "Leaving out one source" in html_page(rows, setting=ReplaySetting(), sources=True)
    assert replay.leave_one_source_out(rows[:2]) is None
