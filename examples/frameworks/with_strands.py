"""Strands inside the model's window: a plugin of the agent."""

import asyncio

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models.openai import OpenAIModel
from strands.session import FileSessionManager

from foveal.adapters.strands import FovealPlugin

fitted = FovealPlugin(recall_tools=True, summarise="own", store="contexts.db")
agent = Agent(
    model=OpenAIModel(model_id="gpt-4.1"),
    plugins=[fitted],
    conversation_manager=NullConversationManager(),  # others remove messages from the agent
    session_manager=FileSessionManager(session_id="ci", storage_dir="sessions"),
    callback_handler=None,
)


async def stream(question: str) -> None:
    async for event in agent.stream_async(question):
        print(event.get("data", ""), end="")


if __name__ == "__main__":
    print(agent("Why is CI red?"))
    asyncio.run(stream("And yesterday?"))
    found = fitted.conversations.find("ci")  # the session_id
    assert found is not None
    print(found.context.report())
    print(found.context.why("e1"))
    fitted.conversations.close()
