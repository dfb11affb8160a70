"""The choice of a policy from measured figures, and its check: leave-one-source-out.

1. A policy that leaves more calls over the window than another one is no candidate. Neither is one that asks the
   user, because a replay has no answers.
2. A candidate costs at most as much as sending everything, at the model's own prices.
3. Of these, the ones that lose least: at most a point of recall and 0.02 bits per byte of surprise behind the best.
   If none is that close in both, the closest.
4. Of these, the cheapest.
5. A policy that costs more than sending everything is chosen only if all others lose far more: ten such steps.
6. Where everything fits, it is sent as it is unless the chosen policy costs less, or the same and loses little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from foveal.replay.cache_cost import RelativePrices, model_prices
from foveal.replay.play import DEFAULT_REPLAY_SETTING, EVERYTHING_LABEL, ReplaySetting, Trace, replay_model
from foveal.replay.statistics import PolicyStatistics
from foveal.replay.strata import GroupStatistics, full_bill, group_statistics, mean, share, trace_bill
from foveal.replay.upper_bound import is_bound

RECALL_STEP: Final = 0.01
"""Recall that counts as little."""
SURPRISE_STEP: Final = 0.02
"""Surprise, in bits per byte, that counts as little."""
MAX_STEPS_BEHIND: Final = 10
"""Steps behind the best up to which a policy is preferred because it costs less than sending everything."""
MAX_EXTRA_OVER: Final = 0.001
"""Share of the calls that may be over the window beyond those of the best policy."""

TraceSums: TypeAlias = tuple[float, ...]
"""Counts of a conversation that add up over conversations; `trace_sums` has their order."""


class ChoiceFigures(NamedTuple):
    """The figures of a policy that decide; None where nothing was measured."""

    paid: float
    """Input in tokens at the price of uncached input."""
    bill: float
    """The same relative to sending everything with an ideal cache."""
    over: float
    """Share of the calls that did not fit."""
    recall: float | None
    """Mean of the recall of names, far names, lines and far lines."""
    surprise: float | None


def trace_sums(trace: Trace, prices: RelativePrices) -> TraceSums:
    """Return the counts of a conversation."""
    recalls = [
        count
        for kind in (trace.ident, trace.line)
        for count in (kind.kept, kind.needed, kind.kept_far, kind.needed_far)
    ]
    bits = sum(each.bits for each in trace.surprises)
    bills = trace_bill(trace, prices), full_bill(trace, prices)
    return (*bills, len(trace.over), len(trace.sizes), bits, len(trace.surprises), *recalls)


def choice_figures(conversations: Iterable[TraceSums]) -> ChoiceFigures:
    """Return the figures of some conversations together."""
    paid, full, over, calls, bits, samples, *recalls = map(sum, zip(*conversations, strict=True))
    shares = (share(kept, needed) for kept, needed in zip(recalls[::2], recalls[1::2], strict=True))
    return ChoiceFigures(
        paid=paid,
        bill=share(paid, full) or 0.0,
        over=share(over, calls) or 0.0,
        recall=mean(shares),
        surprise=share(bits, samples),
    )


def choosable_rows(rows: Sequence[PolicyStatistics]) -> list[PolicyStatistics]:
    """Return the rows of policies that may be chosen."""
    return [
        row
        for row in rows
        if row.policy != EVERYTHING_LABEL
        and not is_bound(row.policy)
        and (row.rules is None or not row.rules.asks)
    ]


def choose(candidates: Sequence[ChoiceFigures], everything: ChoiceFigures) -> int:
    """Return the place of the best candidate; `everything` is sending everything."""
    fitting = _fitting(candidates)
    affordable = [place for place in fitting if not costs_more(candidates[place], everything)]
    chosen = _cheapest_of_best(candidates, affordable or fitting)
    if _steps_behind(candidates[chosen], [candidates[place] for place in fitting]) > MAX_STEPS_BEHIND:
        return _cheapest_of_best(candidates, fitting)
    return chosen


def is_everything_better(chosen: ChoiceFigures, everything: ChoiceFigures) -> bool:
    """Return whether sending everything fits as often as the chosen policy, and costs less or loses less for the
    same bill."""
    if everything.over > chosen.over + MAX_EXTRA_OVER:
        return False
    return costs_more(chosen, everything) or (
        not costs_more(everything, chosen) and _steps_behind(chosen, [everything]) > 1
    )


def cheapest(candidates: Sequence[ChoiceFigures]) -> int:
    """Return the place of the candidate with the lowest bill, whatever it loses."""
    return min(_fitting(candidates), key=lambda place: candidates[place].bill)


def most_faithful(candidates: Sequence[ChoiceFigures]) -> int:
    """Return the place of the candidate that loses least, whatever it costs; of equal ones the cheapest."""
    places = _fitting(candidates)
    among = [candidates[place] for place in places]
    return min(places, key=lambda at: (_steps_behind(candidates[at], among), candidates[at].bill))


def _fitting(candidates: Sequence[ChoiceFigures]) -> list[int]:
    most = min(each.over for each in candidates) + MAX_EXTRA_OVER
    return [place for place, each in enumerate(candidates) if each.over <= most]


def costs_more(one: ChoiceFigures, everything: ChoiceFigures) -> bool:
    """Return whether a policy costs more than sending everything, by a tenth of a percent or more."""
    return round(one.bill - everything.bill, 3) > 0


def _cheapest_of_best(candidates: Sequence[ChoiceFigures], places: Sequence[int]) -> int:
    among = [candidates[place] for place in places]
    behind = {place: _steps_behind(candidates[place], among) for place in places}
    most = max(1.0, min(behind.values()))
    best = [place for place in places if behind[place] <= most]
    # Rounded, so that of equal policies the first is chosen: of the presets the default.
    return min(best, key=lambda place: round(candidates[place].bill, 3))


def _steps_behind(one: ChoiceFigures, others: Iterable[ChoiceFigures]) -> float:
    """Return how far a policy is behind the best recall and the lowest surprise: the larger distance, in steps."""
    distances = [0.0]
    for other in others:
        if one.recall is not None and other.recall is not None:
            distances.append((other.recall - one.recall) / RECALL_STEP)
        if one.surprise is not None and other.surprise is not None:
            distances.append((one.surprise - other.surprise) / SURPRISE_STEP)
    return round(max(distances), 6)  # a distance of exactly one step counts as one


# ── Leave-one-source-out ──────────────────────────────────────────────────────────────────────────
# A value that was chosen on the conversations that it is reported on looks better than it is. For each source, the
# policy is therefore chosen on the other sources.


class LeftOutSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source, and the policy that is best on all others.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.leave_one_source_out(rows) is None  # one source and one policy
        ```
    """

    source: str
    """The name of the source."""
    policy: str
    """The label of the policy."""
    statistics: GroupStatistics
    """Of this policy on this source."""


class SourceValidation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of leaving out each source in turn.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.leave_one_source_out(rows) is None  # one source and one policy
        ```
    """

    sources: list[LeftOutSource]
    """One entry for each source."""
    together: GroupStatistics
    """Of all sources, each under the policy that was chosen without it."""


def leave_one_source_out(
    rows: Sequence[PolicyStatistics], *, setting: ReplaySetting = DEFAULT_REPLAY_SETTING
) -> SourceValidation | None:
    """Choose the best policy without each source, and measure it on that source.

    Args:
        rows: The rows that `run` returned.
        setting: The settings of the replay, for the prices of its model.

    Returns:
        None if there are fewer than two policies or sources.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        assert replay.leave_one_source_out(rows) is None  # one source and one policy
        ```
    """
    tried = choosable_rows(rows)
    sources = dict.fromkeys(trace.source for row in tried for trace in row.traces)
    if len(tried) < 2 or len(sources) < 2:
        return None
    prices = model_prices(replay_model(setting))
    everything = next(row for row in rows if row.policy == EVERYTHING_LABEL)
    chosen: list[LeftOutSource] = []
    traces: list[Trace] = []
    for source in sources:
        others = [_figures_without(row, source, prices) for row in tried]
        best = tried[choose(others, _figures_without(everything, source, prices))]
        measured = [trace for trace in best.traces if trace.source == source]
        traces += measured
        statistics = group_statistics(source, measured)
        chosen.append(LeftOutSource(source=source, policy=best.policy, statistics=statistics))
    return SourceValidation(sources=chosen, together=group_statistics("all sources", traces))


def _figures_without(row: PolicyStatistics, source: str, prices: RelativePrices) -> ChoiceFigures:
    return choice_figures(trace_sums(trace, prices) for trace in row.traces if trace.source != source)
