"""Metrics of compactions and overflows: the Prometheus text is parsed back and compared with the events."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.core.compaction import SummaryRequest
from foveal.core.compaction.health import CompactionMetrics, is_by_model
from foveal.core.engine import Metrics
from foveal.core.engine.metrics import COMPACTION_REASONS, DURATION_BUCKETS_S, SHARE_BUCKETS, Histogram
from foveal.core.log import AnyFact, Compacted, CompactionFailed, Event, Overflowed, UserSaid, raw
from support.effort import examples
from support.histories import context, session

_LINE: Final = re.compile(r"([a-z_]+)(?:\{([^}]*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-z_]+)="([^"\\\n]*)"')
COUNTERS: Final = {
    "foveal_compactions_total": {"reason", "by"},
    "foveal_compaction_failures_total": {"reason"},
    "foveal_summariser_failures_total": {"cause"},
    "foveal_compaction_rejected_total": set(),
    "foveal_compaction_tokens_total": {"kind"},
    "foveal_overflows_total": {"kind"},
}
HISTOGRAMS: Final = ("foveal_compaction_seconds", "foveal_compaction_ratio", "foveal_compaction_score")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> tuple[Samples, dict[str, str]]:
    """Parse a text as strictly as a scraper does; return its samples and types."""
    assert text.endswith("\n")
    samples: Samples = {}
    types: dict[str, str] = {}
    helped: list[str] = []
    for line in text.splitlines():
        assert line == line.strip()
        if line.startswith("# HELP "):
            helped.append(line.split()[2])
            assert len(line.split()) > 3
        elif line.startswith("# TYPE "):
            _, _, name, sort = line.split()
            assert name == helped[-1], "help comes first, once"
            assert name not in types
            types[name] = sort
        else:
            found = _LINE.fullmatch(line)
            assert found, line
            name, labels, value = found.groups()
            pairs = _LABEL.findall(labels or "")
            assert ",".join(f'{key}="{text}"' for key, text in pairs) == (labels or "")
            key = (name, frozenset(pairs))
            assert key not in samples, "no sample twice"
            family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in types else name
            assert family == helped[-1], "samples follow their family"
            samples[key] = float(value)
    return samples, types


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def summary_fact(reason: str = "tokens", by: str = "gpt-4.1", **measured: Any) -> Compacted:
    return Compacted(
        first=1, last=2, summary="s", by=by, reason=reason, metrics=raw(CompactionMetrics(**measured))
    )


def counted(*facts: AnyFact) -> tuple[Samples, dict[str, str]]:
    return parsed(Metrics(Event(seq, fact) for seq, fact in enumerate(facts)).text())


def test_without_events_every_metric_is_declared_and_zero() -> None:
    samples, types = parsed(Metrics().text())
    assert types == dict.fromkeys(COUNTERS, "counter") | dict.fromkeys(HISTOGRAMS, "histogram")
    assert set(samples.values()) == {0.0}


def test_summaries_are_counted_by_trigger_and_author() -> None:
    samples, _ = counted(
        summary_fact("tokens"),
        summary_fact("tokens"),
        summary_fact("hand", by="ledger"),
        summary_fact("turns", by="claude, ledger"),
        UserSaid(content=""),
    )
    assert sample(samples, "foveal_compactions_total", reason="tokens", by="model") == 2
    assert sample(samples, "foveal_compactions_total", reason="hand", by="ledger") == 1
    assert sample(samples, "foveal_compactions_total", reason="turns", by="model") == 1


def test_a_ledger_with_a_models_earlier_text_counts_as_a_ledger() -> None:
    samples, _ = counted(
        summary_fact("tokens", by="gpt-4.1", events=9, asked=1),
        summary_fact("tokens", by="gpt-4.1", events=9),
    )
    assert sample(samples, "foveal_compactions_total", reason="tokens", by="model") == 1
    assert sample(samples, "foveal_compactions_total", reason="tokens", by="ledger") == 1


def test_failures_rejected_drafts_and_their_tokens_are_counted() -> None:
    spent = CompactionMetrics(
        asked=2, input=900, cached=400, output=70, checks=("It is empty.", "It was cut off.")
    )
    failed = CompactionFailed(first=1, last=2, problem="no", reason="overflow", metrics=raw(spent))
    samples, _ = counted(failed, summary_fact(input=100, output=5, checks=("It is empty.",)))
    assert sample(samples, "foveal_compaction_failures_total", reason="overflow") == 1
    assert sample(samples, "foveal_compaction_rejected_total") == 3
    assert sample(samples, "foveal_compaction_tokens_total", kind="input") == 1_000
    assert sample(samples, "foveal_compaction_tokens_total", kind="cached") == 400
    assert sample(samples, "foveal_compaction_tokens_total", kind="output") == 75
    assert sample(samples, "foveal_compaction_seconds_count") == 1, "a failure has no ratio and no score"


def test_overflows_are_counted_by_kind_of_limit() -> None:
    sorts = get_args(get_type_hints(Overflowed)["limit_kind"])
    samples, _ = counted(*(Overflowed(model="m", limit_kind=sort) for sort in sorts), Overflowed(model="m"))
    assert {sort: sample(samples, "foveal_overflows_total", kind=sort) for sort in sorts} == {
        sort: 1 + (sort == "tokens") for sort in sorts
    }


def test_no_label_ever_comes_from_a_conversation() -> None:
    hostile = 'x"} 1\nfoveal_compactions_total{reason="'
    samples, _ = counted(
        Compacted(first=0, last=1, summary=hostile, by=hostile, reason=hostile, rule=hostile),
        CompactionFailed(first=0, last=1, problem=hostile, by=hostile, reason=hostile),
        Overflowed(model=hostile, problem=hostile),
        summary_fact(hostile, checks=(hostile,)),
    )
    assert sample(samples, "foveal_compactions_total", reason="other", by="model") == 2
    assert sample(samples, "foveal_compaction_failures_total", reason="other") == 1


def test_unreadable_metrics_of_a_summary_count_as_none() -> None:
    samples, _ = counted(
        Compacted(first=0, last=1, summary="s", by="gpt-4.1", reason="tokens", metrics=raw("what?")),
        Compacted(first=0, last=1, summary="s", by="gpt-4.1", reason="tokens"),
    )
    assert sample(samples, "foveal_compactions_total", reason="tokens", by="model") == 2
    assert sample(samples, "foveal_compaction_tokens_total", kind="input") == 0


@pytest.mark.parametrize("bounds", [DURATION_BUCKETS_S, SHARE_BUCKETS])
def test_a_value_at_a_histogram_bound_is_in_its_bucket(
    bounds: tuple[float, ...],
) -> None:
    assert list(bounds) == sorted(set(bounds))
    for bound in bounds:
        histogram = Histogram(bounds)
        histogram.add(bound)
        samples, _ = parsed("# HELP h a b\n# TYPE h histogram\n" + "\n".join(histogram.lines("h")) + "\n")
        assert sample(samples, "h_bucket", le=str(bound)) == 1
        assert sum(samples["h_bucket", frozenset({("le", str(b))})] for b in bounds if b < bound) == 0


outcomes = st.one_of(
    st.builds(
        summary_fact,
        st.sampled_from((*COMPACTION_REASONS, "recorded", "")),
        st.sampled_from(("ledger", "gpt-4.1", "a, b")),
        seconds=st.floats(0, 500),
        before=st.integers(0, 10**6),
        after=st.integers(0, 10**6),
        input=st.integers(0, 10**7),
        output=st.integers(0, 10**6),
        score=st.one_of(st.none(), st.floats(0, 1)),
        checks=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    ),
    st.builds(
        CompactionFailed,
        first=st.just(0),
        last=st.just(1),
        problem=st.text(),
        reason=st.sampled_from(COMPACTION_REASONS),
    ),
    st.builds(
        Overflowed, model=st.text(), limit_kind=st.sampled_from(("tokens", "bytes", "output", "silent"))
    ),
    st.builds(UserSaid, content=st.text()),
)


@examples(20)
@given(st.lists(outcomes, max_size=12))
def test_the_text_parsed_back_is_what_the_events_say(facts: list[AnyFact]) -> None:
    samples, types = counted(*facts)
    summaries = [fact for fact in facts if isinstance(fact, Compacted)]
    measured = [CompactionMetrics(**_given(fact)) for fact in summaries]
    by_kind = Counter(
        (
            fact.reason if fact.reason in COMPACTION_REASONS else "other",
            "model" if is_by_model(fact) else "ledger",
        )
        for fact in summaries
    )
    for (reason, by), count in by_kind.items():
        assert sample(samples, "foveal_compactions_total", reason=reason, by=by) == count
    assert sum(value for (name, _), value in samples.items() if name == "foveal_overflows_total") == sum(
        isinstance(fact, Overflowed) for fact in facts
    )
    expected = {
        "foveal_compaction_seconds": ([m.seconds for m in measured], DURATION_BUCKETS_S),
        "foveal_compaction_ratio": ([m.ratio for m in measured], SHARE_BUCKETS),
        "foveal_compaction_score": ([m.score for m in measured if m.score is not None], SHARE_BUCKETS),
    }
    for name, (values, bounds) in expected.items():
        assert types[name] == "histogram"
        assert sample(samples, f"{name}_count") == len(values)
        assert sample(samples, f"{name}_bucket", le="+Inf") == len(values)
        for bound in bounds:
            assert sample(samples, f"{name}_bucket", le=str(bound)) == sum(value <= bound for value in values)
        assert sample(samples, f"{name}_sum") == pytest.approx(sum(values), rel=1e-4)
    for (name, labels), _ in samples.items():
        if name in COUNTERS:
            assert {key for key, _ in labels} == COUNTERS[name]


def _given(fact: Compacted) -> dict[str, Any]:
    assert isinstance(fact.metrics, msgspec.Raw)
    values: dict[str, Any] = msgspec.json.decode(fact.metrics)
    return values


def test_a_large_sum_still_grows() -> None:
    histogram = Histogram(DURATION_BUCKETS_S)
    for _ in range(3):
        histogram.add(1_000_000.0)
    before = next(line for line in histogram.lines("h") if "_sum" in line)
    histogram.add(0.75)
    assert next(line for line in histogram.lines("h") if "_sum" in line) != before


def test_events_can_be_added_one_by_one_from_many_logs() -> None:
    facts: list[AnyFact] = [
        summary_fact(),
        summary_fact("hand"),
        Overflowed(model="m"),
        CompactionFailed(first=0, last=1, problem="no"),
    ]
    one_by_one = Metrics()
    for fact in facts:
        one_by_one.add(Event(0, fact))
    assert one_by_one.text() == Metrics(Event(0, fact) for fact in facts).text()


def test_metrics_of_a_context_with_summaries_and_refusals() -> None:
    def write(request: SummaryRequest) -> str:
        return "<summary>\n## Goal\nIt.\n## Decisions\n-\n## State\nHalf.\n## Next\n-\n## Dead ends\n-\n</summary>"

    ctx = context(6_000, "recent-summary", summarise=write)
    messages = session(30)
    ctx.fit(messages)
    ctx.overflowed("prompt is too long: 4100 tokens > 4000 maximum")
    samples, _ = parsed(Metrics(ctx.log).text())
    assert sample(samples, "foveal_compactions_total", reason="tokens", by="model") == 1
    assert sample(samples, "foveal_overflows_total", kind="tokens") == 1
    assert sample(samples, "foveal_compaction_ratio_count") == 1
    assert 0 < sample(samples, "foveal_compaction_ratio_sum") < 1
