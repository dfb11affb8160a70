"""The engine: decide, do, record; reports and metrics."""

from foveal.core.engine.engine import Engine
from foveal.core.engine.metrics import REASONS, SECONDS, Histogram, Metrics
from foveal.core.engine.report import CATEGORIES, event_status, text, usage_line
from foveal.core.engine.settings import engine_settings
from foveal.core.engine.summary_job import SummaryJob

__all__ = [
    "CATEGORIES",
    "REASONS",
    "SECONDS",
    "Engine",
    "Histogram",
    "Metrics",
    "SummaryJob",
    "engine_settings",
    "event_status",
    "text",
    "usage_line",
]
