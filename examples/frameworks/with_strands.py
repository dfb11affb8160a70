"""Strands inside the model's window: a plugin of the agent."""

from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models.openai import OpenAIModel

from foveal.adapters.strands import FovealPlugin

agent = Agent(
    model=OpenAIModel(model_id="gpt-4.1"),
    plugins=[FovealPlugin(recall_tools=True)],
    conversation_manager=NullConversationManager(),  # others remove messages from the agent
    callback_handler=None,
)

if __name__ == "__main__":
    print(agent("Why is CI red?"))
