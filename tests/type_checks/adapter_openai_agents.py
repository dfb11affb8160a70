"""Types of an agent of the OpenAI Agents SDK on Foveal's models, with a session in a store."""

from __future__ import annotations

from agents import Agent, OpenAIProvider, RunConfig, Runner, Session

import foveal
from foveal.adapters.openai_agents import FovealModelProvider, FovealSession, ModelRequest


def first_item(request: ModelRequest) -> str:
    return str(request.items[0])


models = FovealModelProvider(
    "gpt-4.1", provider=OpenAIProvider(), summarise="own", store="contexts.db", conversation=first_item
)
agent: Agent[None] = Agent("helper", model="gpt-4.1", tools=[*models.recall_tools])


async def ask(question: str) -> str:
    async with foveal.open_store("chats.db") as store:
        session: Session = FovealSession("ci", store)
        config = RunConfig(model_provider=models)
        done = await Runner.run(agent, question, session=session, run_config=config)
    return str(done.final_output)
