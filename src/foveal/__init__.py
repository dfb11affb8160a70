"""Foveal keeps LLM agents inside their model's context window for as long as they run, losing nothing."""

from foveal.clip import Limits
from foveal.context import Context
from foveal.errors import (
    BadSetting,
    ContextOverflow,
    FovealError,
    MalformedMessage,
    UnknownHandle,
    UnreadableEvent,
)
from foveal.events import Event
from foveal.models import Model, model
from foveal.policy import PRESETS, Policy, policy
from foveal.report import Report

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "BadSetting",
    "Context",
    "ContextOverflow",
    "Event",
    "FovealError",
    "Limits",
    "MalformedMessage",
    "Model",
    "Policy",
    "Report",
    "UnknownHandle",
    "UnreadableEvent",
    "model",
    "policy",
]
