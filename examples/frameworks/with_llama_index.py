"""LlamaIndex inside the model's window: its OpenAI client sends through Foveal's transport."""

import asyncio
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai import OpenAI

import foveal

conversations = foveal.transport.ConversationPool(window=16_000, reserve=1_000)


def make_llm(**options: Any) -> OpenAI:
    """Return a model for any agent of LlamaIndex. The memory of the agent keeps every message."""
    return OpenAI(
        model="gpt-4.1",
        http_client=foveal.transport.httpx(conversations),
        async_http_client=foveal.transport.httpx_async(conversations),
        additional_kwargs={"stream_options": {"include_usage": True}},
        max_tokens=1_000,
        **options,
    )


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


async def main() -> None:
    llm = make_llm(default_headers={"X-Foveal-Session": "ci"})
    agent = FunctionAgent(tools=[search], llm=llm, system_prompt="Answer briefly.")
    memory = ChatMemoryBuffer.from_defaults(token_limit=10_000_000)  # a lower limit removes messages
    print(await agent.run(user_msg="Why is CI red?", memory=memory))
    run = agent.run(user_msg="And yesterday?", memory=memory)
    async for event in run.stream_events():
        if isinstance(event, AgentStream):
            print(event.delta, end="")
    await run
    context = conversations.context("ci")
    assert context is not None
    print(context.report())
    print(context.why("e1"))


if __name__ == "__main__":
    asyncio.run(main())
