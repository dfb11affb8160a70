"""Google ADK inside the model's window: a plugin for all agents of a runner."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner

from foveal.adapters.google_adk import FovealAdkPlugin

agent = LlmAgent(name="helper", model="gemini-2.5-pro", instruction="Answer briefly.")
app = App(name="helpdesk", root_agent=agent, plugins=[FovealAdkPlugin(recall_tools=True)])
runner = InMemoryRunner(app=app)

if __name__ == "__main__":
    asyncio.run(runner.run_debug("Why is CI red?", session_id="ci"))  # prints the answer
