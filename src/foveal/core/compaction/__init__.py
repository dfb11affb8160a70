"""Compaction: replaces old turns by a summary that a model or the ledger writes."""

from foveal.core.compaction.chunks import quote_transcript
from foveal.core.compaction.draft_requests import MAX_DRAFT_REQUESTS
from foveal.core.compaction.health import (
    MAX_FAILURES,
    CompactionHealth,
    CompactionMetrics,
    CompactionOutcome,
    read_metrics,
)
from foveal.core.compaction.known_names import KnownNames, score_summary
from foveal.core.compaction.plan import MAX_REMAINING_SHARE, NoPlan, Plan, RangeTerms, resolve_plan
from foveal.core.compaction.summariser import (
    DialogueRun,
    Summariser,
    SummaryProgress,
    SummaryRequest,
    run_dialogue,
    summariser_chain,
)
from foveal.core.compaction.summariser_protocol import (
    Draft,
    DraftFailure,
    DraftRequest,
    SummaryWriter,
    failure_from_error,
    read_stream_chunk,
)
from foveal.core.compaction.summary import SummarySource, ledger_summary

__all__ = [
    "MAX_DRAFT_REQUESTS",
    "MAX_FAILURES",
    "MAX_REMAINING_SHARE",
    "CompactionHealth",
    "CompactionMetrics",
    "CompactionOutcome",
    "DialogueRun",
    "Draft",
    "DraftFailure",
    "DraftRequest",
    "KnownNames",
    "NoPlan",
    "Plan",
    "RangeTerms",
    "Summariser",
    "SummaryProgress",
    "SummaryRequest",
    "SummarySource",
    "SummaryWriter",
    "failure_from_error",
    "ledger_summary",
    "quote_transcript",
    "read_metrics",
    "read_stream_chunk",
    "resolve_plan",
    "run_dialogue",
    "score_summary",
    "summariser_chain",
]
