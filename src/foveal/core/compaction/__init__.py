"""Old turns become a summary: planned, written, checked and recorded."""

from foveal.core.compaction.chunks import source
from foveal.core.compaction.draft import MOST_ASKS
from foveal.core.compaction.health import FAILURES, REFUSALS, CompactionHealth, CompactionMeasures, measures
from foveal.core.compaction.plan import LASTING, NoPlan, Plan, RangeTerms, due, settled, turns_since
from foveal.core.compaction.protocol import Ask, Draft, Failure, SummaryWriter, failure, piece
from foveal.core.compaction.summariser import (
    Summariser,
    SummaryProgress,
    SummaryRequest,
    awrite,
    chain,
    write,
)
from foveal.core.compaction.validation import KnownNames, score
from foveal.core.compaction.writing import CompactionOutcome, dialogue

__all__ = [
    "FAILURES",
    "LASTING",
    "MOST_ASKS",
    "REFUSALS",
    "Ask",
    "CompactionHealth",
    "CompactionMeasures",
    "CompactionOutcome",
    "Draft",
    "Failure",
    "KnownNames",
    "NoPlan",
    "Plan",
    "RangeTerms",
    "Summariser",
    "SummaryProgress",
    "SummaryRequest",
    "SummaryWriter",
    "awrite",
    "chain",
    "dialogue",
    "due",
    "failure",
    "measures",
    "piece",
    "score",
    "settled",
    "source",
    "turns_since",
    "write",
]
