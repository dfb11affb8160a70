"""Foveal keeps LLM agents inside their model's context window without losing anything.

`import foveal` is fast: each name loads its module when it is first used.
"""

from typing import TYPE_CHECKING

from foveal import old_paths

if TYPE_CHECKING:
    from foveal import adapters as adapters
    from foveal import branches as branches
    from foveal import errors as errors
    from foveal import events as events
    from foveal import memory as memory
    from foveal import policies as policies
    from foveal import ports as ports
    from foveal import recall as recall
    from foveal import stores as stores
    from foveal import testing as testing
    from foveal import transcripts as transcripts
    from foveal import transport as transport
    from foveal.context import Context
    from foveal.core.compaction.summariser import Summariser, SummaryRequest
    from foveal.core.engine.report import Report
    from foveal.core.engine.reviews import EventBrief as EventBrief
    from foveal.core.engine.reviews import ProposedCut as ProposedCut
    from foveal.core.engine.reviews import Steering as Steering
    from foveal.core.log.events import Event, Instructed, ModelSaid, ToolReturned, UserSaid
    from foveal.core.models.model import Model, model
    from foveal.core.policies.presets import PRESETS, Policy, policy
    from foveal.core.reduction.truncation import Limits
    from foveal.core.reduction.truncation import clip as clip
    from foveal.errors import (
        BadSetting,
        BudgetExceeded,
        Conflict,
        ContextOverflow,
        FovealError,
        MalformedMessage,
        NotCompacted,
        ProviderError,
        StoreError,
        UnknownHandle,
        UnknownSession,
        UnreadableEvent,
    )
    from foveal.errors import StoreUnusable as StoreUnusable
    from foveal.memory.memory import Memory
    from foveal.recall import Recall
    from foveal.sessions.session import Session
    from foveal.stores import open_store

__version__ = "0.2.0"

_MODULES = {
    "core.reduction.truncation": ("Limits", "clip"),
    "context": ("Context",),
    "errors": (
        "BadSetting",
        "BudgetExceeded",
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
    "memory.memory": ("Memory",),
    "recall": ("Recall",),
    "core.engine.report": ("Report",),
    "core.engine.reviews": ("EventBrief", "ProposedCut", "Steering"),
    "sessions.session": ("Session",),
    "stores": ("open_store",),
    "core.compaction.summariser": ("Summariser", "SummaryRequest"),
}
_MODULE_OF = {name: f"foveal.{module}" for module, names in _MODULES.items() for name in names}
_SUBMODULES = {
    "adapters": "foveal.adapters",
    "branches": "foveal.branches",
    "errors": "foveal.errors",
    "events": "foveal.events",
    "memory": "foveal.memory",
    "policies": "foveal.policies",
    "ports": "foveal.ports",
    "recall": "foveal.recall",
    "stores": "foveal.stores",
    "testing": "foveal.testing",
    "transcripts": "foveal.transcripts",
    "transport": "foveal.transport",
}
"""Modules that are attributes after `import foveal`. A type checker reads the imports above instead."""

old_paths.install()

__all__ = [
    "PRESETS",
    "BadSetting",
    "BudgetExceeded",
    "Conflict",
    "Context",
    "ContextOverflow",
    "Event",
    "FovealError",
    "Instructed",
    "Limits",
    "MalformedMessage",
    "Memory",
    "Model",
    "ModelSaid",
    "NotCompacted",
    "Policy",
    "ProviderError",
    "Recall",
    "Report",
    "Session",
    "StoreError",
    "Summariser",
    "SummaryRequest",
    "ToolReturned",
    "UnknownHandle",
    "UnknownSession",
    "UnreadableEvent",
    "UserSaid",
    "model",
    "open_store",
    "policy",
]


if not TYPE_CHECKING:  # a checker that sees `__getattr__` accepts every misspelt name
    from importlib import import_module

    def __getattr__(name: str) -> object:
        if name in _SUBMODULES:
            value = import_module(_SUBMODULES[name])
        elif name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
        else:
            raise AttributeError(f"module 'foveal' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*_MODULE_OF, *_SUBMODULES, "__version__"]
