"""The agent: a loop of model and tools on a session."""

from foveal.agent.agent import INTERRUPTED_RESULT, Agent, HookOccasion, HookVerdict
from foveal.agent.agent_events import (
    AgentEvent,
    HookFailed,
    ModelAnswered,
    RequestRefused,
    TextStreamed,
    TurnFinished,
    UserMessageHeard,
)
from foveal.agent.agent_summariser import summariser_for

__all__ = [
    "INTERRUPTED_RESULT",
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
    "summariser_for",
]
