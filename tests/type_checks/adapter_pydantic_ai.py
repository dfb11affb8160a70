"""Types of a pydantic-ai agent with the capability."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from foveal.adapters.pydantic_ai import FovealCapability

foveal = FovealCapability(summarise="own", recall_tools=True, store="contexts.db")
agent = Agent("openai:gpt-4.1", instructions="Answer briefly.", capabilities=[foveal])


def ask(question: str, history: list[ModelMessage]) -> list[ModelMessage]:
    result = agent.run_sync(question, message_history=history, conversation_id="thread-1")
    assert result.output
    return result.all_messages()
