"""Types of an agent of the Microsoft Agent Framework with the middleware."""

from __future__ import annotations

from agent_framework import Agent, AgentSession, ChatContext
from agent_framework.openai import OpenAIChatCompletionClient

from foveal.adapters.agent_framework import FovealChatMiddleware


def by_size(context: ChatContext) -> str:
    return str(len(context.messages))


middleware = FovealChatMiddleware("gpt-4.1", summarise="own", store="contexts.db", conversation=by_size)
agent = Agent(
    OpenAIChatCompletionClient(model="gpt-4.1"), tools=[*middleware.recall_tools], middleware=[middleware]
)


async def ask(question: str) -> str:
    return (await agent.run(question, session=AgentSession(session_id="ci"))).text
