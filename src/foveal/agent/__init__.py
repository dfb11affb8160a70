"""The agent: a loop of model and tools on a session."""

from foveal.agent.agent import INTERRUPTED_RESULT, Agent
from foveal.agent.agent_events import (
    AgentEvent,
    HookFailed,
    LimitReached,
    ModelAnswered,
    RequestRefused,
    TextStreamed,
    TurnFinished,
    UserMessageStored,
)
from foveal.agent.agent_hooks import HookOccasion, HookVerdict

__all__ = [
    "INTERRUPTED_RESULT",
    "Agent",
    "AgentEvent",
    "HookFailed",
    "HookOccasion",
    "HookVerdict",
    "LimitReached",
    "ModelAnswered",
    "RequestRefused",
    "TextStreamed",
    "TurnFinished",
    "UserMessageStored",
]
