"""Ranking of search hits: messages near a hit gain from its score.

The evidence is often beside the words of the query (the answer after a question, the next remark on the same
subject), so a hit adds to the scores of the messages around it, less with each step of distance. The full-text
index (`foveal.stores.sqlite.full_text`) scores the hits themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foveal.ports import Hit

NEIGHBOUR_REACH_EVENTS: Final = 8
"""Events before and after a hit that get a part of its score."""
NEIGHBOUR_DECAY: Final = 0.8
"""Factor by which that part shrinks with each event of distance."""
TOP_HITS_FIRST: Final = 1
"""Number of best hits that rank above all other messages, even without other hits around them."""


def spread_scores(
    hits: Sequence[Hit],
    *,
    reach: int = NEIGHBOUR_REACH_EVENTS,
    decay: float = NEIGHBOUR_DECAY,
    first: int = TOP_HITS_FIRST,
) -> list[tuple[int, float]]:
    """Return hits and the events around them with their scores, best first.

    A message near a hit gains from its score. Of equal scores, the newer event comes first.

    Args:
        hits: The hits of a search.
        reach: Events before and after a hit that gain from it.
        decay: Factor by which the gain shrinks with each event of distance.
        first: Number of best hits that rank above all other messages.

    Examples:
        ```python
        from foveal.ports import Hit
        from foveal.recall import spread_scores

        assert spread_scores([Hit(seq=4, score=2.0)], reach=0) == [(4, 4.0)]
        ```
    """
    scores: dict[int, float] = {}
    for hit in sorted(hits, key=lambda hit: hit.seq):
        for near in range(max(0, hit.seq - reach), hit.seq + reach + 1):
            scores[near] = scores.get(near, 0.0) + hit.score * decay ** abs(near - hit.seq)
    highest = max(scores.values(), default=0.0)
    for hit in hits[:first]:
        scores[hit.seq] += highest
    return sorted(scores.items(), key=lambda item: (-item[1], -item[0]))
