"""AG2 inside the model's window: its OpenAI client sends through Foveal's transport."""

import asyncio
from typing import Any

from ag2 import Agent
from ag2.config import OpenAIConfig

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_config(**options: Any) -> OpenAIConfig:
    """Return a model configuration for any agent of AG2. Its stream keeps every event."""
    http_client = foveal.transport.httpx2_async(conversations)
    return OpenAIConfig(model="gpt-4.1", http_client=http_client, max_completion_tokens=1_000, **options)


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


async def main() -> None:
    config = make_config(streaming=True, default_headers={"X-Foveal-Session": "ci"})
    agent = Agent("helper", "Answer briefly.", config=config, tools=[search])
    reply = await agent.ask("Why is CI red?")
    reply = await reply.ask("And yesterday?")
    print(reply.body)
    context = conversations.context("ci")
    assert context is not None
    print(context.report())
    print(context.why("e1"))


if __name__ == "__main__":
    asyncio.run(main())
