"""Figures of groups of conversations: by pressure, by window, by source.

1. *Pressure* is the size of the largest request if everything is sent, in tokens of the provider, divided by the
   input limit (window − reserve). At 1 the whole conversation just fits.
2. Each figure is *pooled* (every call or need has the same weight), a *mean* over conversations, and the *worst
   tenth*: the mean over the tenth of the conversations, at least one, with the highest bill or surprise, or the
   lowest recall.
3. A conversation that is replayed in several windows counts once for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Final

import msgspec

from foveal.replay.cache_cost import DEFAULT_PRICES, RelativePrices
from foveal.replay.play import RecallCount, Trace

STRATA: Final = (("≤ 1", 1.0), ("1–3", 3.0), ("3–8", 8.0), ("> 8", inf))
"""Names of the strata of pressure, and the highest pressure in each."""
WORST_SHARE: Final = 0.1
"""Share of the conversations that are the worst ones."""

TraceFigure = Callable[[Sequence[Trace]], float | None]
"""A figure of some conversations together, None if they have nothing to measure."""


class FigureSpread(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a group of conversations. None if no conversation has it.

    Examples:
        ```python
        from foveal.replay import FigureSpread

        spread = FigureSpread(pooled=0.9, mean=0.8, worst=0.5)
        ```
    """

    pooled: float | None
    """Of all calls or needs together."""
    mean: float | None
    """Mean over the conversations."""
    worst: float | None
    """Mean over the worst tenth of the conversations."""


class GroupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a policy over a group of conversations.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        (stratum,) = rows[1].strata
        assert stratum.conversations == 1
        ```
    """

    name: str
    """The name of the group."""
    conversations: int
    """Conversations in the group."""
    calls: int
    """Calls of these conversations."""
    over: int
    """Calls whose request was too large for the window."""
    bill: FigureSpread
    """Relative to sending everything, as `PolicyStatistics.bill`."""
    bill_highest: float | None
    """Highest bill of one conversation."""
    surprise: FigureSpread
    """Surprise of the sampled calls, in bits per byte."""
    samples: int
    """Calls at which surprise was measured."""
    breaks: FigureSpread
    """Prefix breaks per 100 calls."""
    ident: FigureSpread
    """Recall of names."""
    ident_far: FigureSpread
    """Recall of names whose source is far back."""
    line: FigureSpread
    """Recall of lines."""
    line_far: FigureSpread
    """Recall of lines whose source is far back."""

    @property
    def recall(self) -> float | None:
        """Mean of the four pooled recalls, None if there are no needs."""
        spreads = (self.ident, self.ident_far, self.line, self.line_far)
        return mean(spread.pooled for spread in spreads)


def pressure(trace: Trace) -> float:
    """Return the largest request if everything is sent, relative to the input limit.

    Args:
        trace: The trace of a conversation.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.pressure(rows[1].traces[0]) < 1
        ```
    """
    largest = max(trace.full_sizes, default=0) * trace.ratio
    return largest / trace.limit if trace.limit else inf


def by_pressure(traces: Iterable[Trace]) -> list[GroupStatistics]:
    """Return the statistics of each stratum of pressure that has conversations."""
    order = [name for name, _ in STRATA]
    return sorted(by_key(traces, _stratum), key=lambda group: order.index(group.name))


def _stratum(trace: Trace) -> str:
    return next(name for name, highest in STRATA if pressure(trace) <= highest)


def by_window(traces: Iterable[Trace]) -> list[GroupStatistics]:
    """Return the statistics of each window."""
    return by_key(traces, lambda trace: f"{trace.window:,}")


def by_source(traces: Iterable[Trace]) -> list[GroupStatistics]:
    """Return the statistics of each source."""
    return by_key(traces, lambda trace: trace.source)


def by_key(traces: Iterable[Trace], key: Callable[[Trace], str]) -> list[GroupStatistics]:
    """Return the statistics of the conversations with the same key, in the order of the first ones."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(key(trace), []).append(trace)
    return [group_statistics(name, group) for name, group in groups.items()]


def group_statistics(name: str, traces: Sequence[Trace]) -> GroupStatistics:
    """Return the statistics of some conversations."""
    bill, highest = _figure_spread(traces, _default_bill, is_worst_high=True)
    return GroupStatistics(
        name=name,
        conversations=len(traces),
        calls=sum(len(trace.sizes) for trace in traces),
        over=sum(len(trace.over) for trace in traces),
        bill=bill,
        bill_highest=highest,
        surprise=_figure_spread(traces, mean_surprise, is_worst_high=True)[0],
        samples=sum(len(trace.surprises) for trace in traces),
        breaks=_figure_spread(traces, breaks_per_100, is_worst_high=True)[0],
        ident=_figure_spread(traces, lambda some: total_recall(trace.ident for trace in some).share)[0],
        ident_far=_figure_spread(traces, lambda some: total_recall(trace.ident for trace in some).far)[0],
        line=_figure_spread(traces, lambda some: total_recall(trace.line for trace in some).share)[0],
        line_far=_figure_spread(traces, lambda some: total_recall(trace.line for trace in some).far)[0],
    )


def _figure_spread(
    traces: Sequence[Trace], value: TraceFigure, *, is_worst_high: bool = False
) -> tuple[FigureSpread, float | None]:
    """Return a figure, and its worst value in one conversation."""
    known = (value([trace]) for trace in traces)
    worst_first = sorted((each for each in known if each is not None), reverse=is_worst_high)
    tenth = worst_first[: max(1, int(WORST_SHARE * len(worst_first)))]
    spread = FigureSpread(pooled=value(traces), mean=mean(worst_first), worst=mean(tenth))
    return spread, worst_first[0] if worst_first else None


# ── Figures ───────────────────────────────────────────────────────────────────────────────────────


def share(part: float, whole: float) -> float | None:
    """Return a part relative to the whole, None if the whole is nothing."""
    return part / whole if whole else None


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def total_recall(recalls: Iterable[RecallCount]) -> RecallCount:
    """Return the sum of counts."""
    total = RecallCount()
    for recall in recalls:
        total = total.plus(recall)
    return total


def breaks_per_100(traces: Sequence[Trace]) -> float | None:
    """Return the prefix breaks per 100 calls."""
    return share(100 * sum(len(trace.breaks) for trace in traces), sum(len(trace.sizes) for trace in traces))


def mean_surprise(traces: Sequence[Trace]) -> float | None:
    """Return the mean surprise of the sampled calls, in bits per byte."""
    return mean(surprise.bits for trace in traces for surprise in trace.surprises)


def relative_bill(traces: Sequence[Trace], prices: RelativePrices) -> float | None:
    """Return the bill relative to sending everything with an ideal cache."""
    return share(
        sum(trace_bill(trace, prices) for trace in traces), sum(full_bill(trace, prices) for trace in traces)
    )


def trace_bill(trace: Trace, prices: RelativePrices) -> float:
    """Return the bill of a conversation with its summaries, in tokens."""
    sent = sum(map(prices.bill, trace.sizes, trace.cached))
    return sent + prices.bill(*trace.summaries)


def _default_bill(traces: Sequence[Trace]) -> float | None:
    return relative_bill(traces, DEFAULT_PRICES)


def full_bill(trace: Trace, prices: RelativePrices) -> float:
    """Return the bill of sending everything, each request with the whole previous one in the cache."""
    first = trace.full_sizes[:1]
    rest = sum(prices.bill(size, min(before, size)) for before, size in pairwise(trace.full_sizes))
    return sum(prices.bill(size, 0) for size in first) + rest
