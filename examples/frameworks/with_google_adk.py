"""Google ADK inside the model's window: a plugin for all agents of a runner."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import (
    RunConfig,
    StreamingMode,  # pyright: ignore[reportPrivateImportUsage]
)
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from google.genai import types

from foveal.adapters.google_adk import FovealAdkPlugin


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


agent = LlmAgent(name="helper", model="gemini-2.5-pro", instruction="Answer briefly.", tools=[search])
fitted = FovealAdkPlugin(recall_tools=True, summarise="own", store="contexts.db")
app = App(name="helpdesk", root_agent=agent, plugins=[fitted])
runner = InMemoryRunner(app=app)


async def ask(question: str) -> None:
    """Print the answer as it arrives."""
    message = types.Content(role="user", parts=[types.Part(text=question)])
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    events = runner.run_async(user_id="ann", session_id="ci", new_message=message, run_config=config)
    async for event in events:
        if event.partial and event.content:
            print("".join(part.text or "" for part in event.content.parts or ()), end="")


async def main() -> None:
    await runner.session_service.create_session(app_name="helpdesk", user_id="ann", session_id="ci")
    await ask("Why is CI red?")
    found = fitted.conversations.find("helpdesk/ann/ci/helper")
    assert found is not None
    print(found.context.report())
    print(found.context.why("e1"))
    await runner.close()  # closes the store too


if __name__ == "__main__":
    asyncio.run(main())
