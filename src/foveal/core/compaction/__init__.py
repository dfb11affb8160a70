"""Compaction: replaces old turns by a summary that a model or the ledger writes."""

from foveal.core.compaction.health import CompactionOutcome
from foveal.core.compaction.plan import Plan
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.compaction.summariser_protocol import Draft, DraftFailure, DraftRequest

__all__ = [
    "CompactionOutcome",
    "Draft",
    "DraftFailure",
    "DraftRequest",
    "Plan",
    "Summariser",
    "SummaryRequest",
]
