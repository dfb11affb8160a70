"""Leave-one-source-out: the best policy on all other sources, measured on the source left out.

A value that was chosen on the conversations that it is reported on looks better than it is. For each source, the
policy is therefore chosen on the other sources. The best policy is the one with the lowest bill of those whose
recall (the mean of names, far names, lines and far lines, pooled) is at most half a point below the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from foveal.replay.play import EVERYTHING_LABEL, Trace
from foveal.replay.statistics import PolicyStatistics
from foveal.replay.strata import GroupStatistics, group_statistics
from foveal.replay.upper_bound import is_bound

MAX_RECALL_BELOW_BEST: Final = 0.005
"""Share by which the recall of the chosen policy may be lower than the highest."""


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


def leave_one_source_out(rows: Sequence[PolicyStatistics]) -> SourceValidation | None:
    """Choose the best policy without each source, and measure it on that source.

    Args:
        rows: The rows that `run` returned.

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
    tried = [row for row in rows if row.policy != EVERYTHING_LABEL and not is_bound(row.policy)]
    sources = dict.fromkeys(trace.source for row in tried for trace in row.traces)
    if len(tried) < 2 or len(sources) < 2:
        return None
    chosen: list[LeftOutSource] = []
    traces: list[Trace] = []
    for source in sources:
        best = _best_policy(tried, without=source)
        measured = [trace for trace in best.traces if trace.source == source]
        traces += measured
        statistics = group_statistics(source, measured)
        chosen.append(LeftOutSource(source=source, policy=best.policy, statistics=statistics))
    return SourceValidation(sources=chosen, together=group_statistics("all sources", traces))


def _best_policy(rows: Sequence[PolicyStatistics], *, without: str) -> PolicyStatistics:
    measured = [
        (row, group_statistics(row.policy, [trace for trace in row.traces if trace.source != without]))
        for row in rows
    ]
    highest = max(group.recall or 0.0 for _, group in measured)
    enough = [
        (row, group) for row, group in measured if (group.recall or 0.0) >= highest - MAX_RECALL_BELOW_BEST
    ]
    return min(enough, key=lambda pair: pair[1].bill.pooled or 0.0)[0]
