"""Foveal keeps LLM agents inside their model's context window without losing anything.

`import foveal` is fast: each name loads its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveal.context import Context
    from foveal.core.compaction.summariser import Summariser
    from foveal.core.engine.report import Report
    from foveal.core.log.events import Event, Instructed, ModelSaid, ToolReturned, UserSaid
    from foveal.core.models.model import Model, model
    from foveal.core.policies.presets import PRESETS, Policy, policy
    from foveal.core.reduction.truncation import Limits
    from foveal.errors import (
        BadSetting,
        Conflict,
        ContextOverflow,
        FovealError,
        MalformedMessage,
        NotCompacted,
        ProviderError,
        StoreError,
        StoreUnusable,
        UnknownHandle,
        UnknownSession,
        UnreadableEvent,
    )
    from foveal.recall import Recall
    from foveal.sessions.session import Session
    from foveal.stores import open_store

__version__ = "0.1.0"

_MODULES = {
    "core.reduction.truncation": ("Limits",),
    "context": ("Context",),
    "errors": (
        "BadSetting",
        "Conflict",
        "ContextOverflow",
        "FovealError",
        "MalformedMessage",
        "NotCompacted",
        "ProviderError",
        "StoreError",
        "StoreUnusable",
        "UnknownHandle",
        "UnknownSession",
        "UnreadableEvent",
    ),
    "core.log.events": ("Event", "Instructed", "ModelSaid", "ToolReturned", "UserSaid"),
    "core.models.model": ("Model", "model"),
    "core.policies.presets": ("PRESETS", "Policy", "policy"),
    "recall": ("Recall",),
    "core.engine.report": ("Report",),
    "sessions.session": ("Session",),
    "stores": ("open_store",),
    "core.compaction.summariser": ("Summariser",),
}
_MODULE_OF = {name: f"foveal.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "PRESETS",
    "BadSetting",
    "Conflict",
    "Context",
    "ContextOverflow",
    "Event",
    "FovealError",
    "Instructed",
    "Limits",
    "MalformedMessage",
    "Model",
    "ModelSaid",
    "NotCompacted",
    "Policy",
    "ProviderError",
    "Recall",
    "Report",
    "Session",
    "StoreError",
    "StoreUnusable",
    "Summariser",
    "ToolReturned",
    "UnknownHandle",
    "UnknownSession",
    "UnreadableEvent",
    "UserSaid",
    "model",
    "open_store",
    "policy",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'foveal' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
