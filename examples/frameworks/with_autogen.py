"""AutoGen inside the model's window: its OpenAI client sends through Foveal's transport."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_model_client(**options: Any) -> OpenAIChatCompletionClient:
    """Return a model client for any agent of AutoGen. Its model context keeps every message."""
    http_client = foveal.transport.httpx2_async(conversations)
    return OpenAIChatCompletionClient(model="gpt-4.1", http_client=http_client, max_tokens=1_000, **options)


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


async def main() -> None:
    client = make_model_client(default_headers={"X-Foveal-Session": "ci"})
    agent = AssistantAgent("helper", client, tools=[search], model_client_stream=True)
    result = await agent.run(task="Why is CI red?")
    print(result.messages[-1])
    async for event in agent.run_stream(task="And yesterday?"):
        print(type(event).__name__)
    context = conversations.context("ci")
    assert context is not None
    print(context.report())
    print(context.why("e1"))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
