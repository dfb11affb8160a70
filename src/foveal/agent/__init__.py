"""The agent: a loop of model and tools on a session."""

from foveal.agent.agent import INTERRUPTED, Agent, HookOccasion, HookVerdict, own_model
from foveal.agent.agent_events import (
    AgentEvent,
    HookFailed,
    ModelAnswered,
    RequestRefused,
    TextStreamed,
    TurnFinished,
    UserMessageHeard,
)

__all__ = [
    "INTERRUPTED",
    "Agent",
    "AgentEvent",
    "HookFailed",
    "HookOccasion",
    "HookVerdict",
    "ModelAnswered",
    "RequestRefused",
    "TextStreamed",
    "TurnFinished",
    "UserMessageHeard",
    "own_model",
]
