"""Ranking of a full-text search by BM25, the same in every store.

An index stores which words occur in which piece of an event, not how often. The rarity of a word is computed within
the session. Pieces are numbered: the first piece of an event has the event's seq, further pieces have numbers from
`EXTRA_PIECES_START` on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from foveal.ports import Hit

MAX_ROWS_PER_TERM: Final = 20_000
"""Pieces read for one word, the newest first; a word that occurs in more of them hardly distinguishes events."""
EXTRA_PIECES_START: Final = 1 << 31

_BM25_K1: Final = 1.2
_BM25_B: Final = 0.3
_TYPICAL_PIECE_WORDS: Final = 200
"""BM25's k1, b and average length: a piece of this many words is neither favoured nor penalised for its length."""


class FoundPiece(NamedTuple):
    """A piece of an event that was found."""

    seq: int
    words: int
    score: float


def best_pieces(found: Iterable[Sequence[int]], *, total: int, limit: int) -> list[tuple[int, float]]:
    """Return the pieces with the highest scores; `found` has the pieces of each word of the query.

    These are more than `limit`, because `rank` merges the pieces of an event and ranks again by length."""
    scores: dict[int, float] = {}
    for pieces in found:
        rarity = math.log(1 + (total - len(pieces) + 0.5) / (len(pieces) + 0.5))
        for piece in pieces:
            scores[piece] = scores.get(piece, 0.0) + rarity
    return heapq.nlargest(4 * limit + 100, scores.items(), key=lambda item: (item[1], item[0]))


def rank(pieces: Iterable[FoundPiece], *, limit: int) -> list[Hit]:
    """Return events with the score of their best piece, adjusted for its length; of equals, the newer first."""
    best: dict[int, float] = {}
    for seq, words, score in pieces:
        length = words / _TYPICAL_PIECE_WORDS
        adjusted = score * ((_BM25_K1 + 1) / (1 + _BM25_K1 * (1 - _BM25_B + _BM25_B * length)))
        best[seq] = max(adjusted, best.get(seq, 0.0))
    ranked = sorted(best.items(), key=lambda item: (-item[1], -item[0]))
    return [Hit(seq=seq, score=score) for seq, score in ranked[:limit]]
