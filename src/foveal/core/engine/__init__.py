"""The engine: decides, performs and records reductions; reports and metrics."""

from foveal.core.engine.engine import Engine
from foveal.core.engine.event_status import event_status
from foveal.core.engine.metrics import Metrics
from foveal.core.engine.settings import resolve_settings
from foveal.core.engine.summary_job import SummaryJob

__all__ = [
    "Engine",
    "Metrics",
    "SummaryJob",
    "event_status",
    "resolve_settings",
]
