"""The engine: decides, performs and records reductions; reports and metrics."""

from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import event_status
from foveal.core.engine.metrics import COMPACTION_REASONS, DURATION_BUCKETS_S, Histogram, Metrics
from foveal.core.engine.overflow import MAX_RESENDS, ProviderLimits
from foveal.core.engine.report import CATEGORIES, usage_card, usage_line
from foveal.core.engine.settings import resolve_settings
from foveal.core.engine.summary_job import SummaryJob

__all__ = [
    "CATEGORIES",
    "COMPACTION_REASONS",
    "DURATION_BUCKETS_S",
    "MAX_RESENDS",
    "Engine",
    "Histogram",
    "Metrics",
    "ProviderLimits",
    "SummaryJob",
    "event_status",
    "resolve_settings",
    "usage_card",
    "usage_line",
]
