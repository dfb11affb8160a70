"""Leave-one-source-out: the best policy on all other sources, measured on the source left out.

A value that was chosen on the conversations that it is reported on looks better than it is. For each source, the
policy is therefore chosen on the other sources, as `choice.py` describes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from foveal.replay.cache_cost import RelativePrices, model_prices
from foveal.replay.choice import ChoiceFigures, choice_figures, choosable_rows, choose, trace_sums
from foveal.replay.play import DEFAULT_REPLAY_SETTING, EVERYTHING_LABEL, ReplaySetting, Trace, replay_model
from foveal.replay.statistics import PolicyStatistics
from foveal.replay.strata import GroupStatistics, group_statistics


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
