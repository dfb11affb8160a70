"""deepagents inside the model's window: one profile puts the middleware into the agent and its subagents."""

from typing import Any

from deepagents import HarnessProfile, create_deep_agent, register_harness_profile
from langgraph.checkpoint.memory import InMemorySaver

from foveal.adapters.langchain import FovealMiddleware

middleware = FovealMiddleware(recall_tools=True, summarise="own", store="contexts.db")
profile = HarnessProfile(
    extra_middleware=[middleware],
    # The summaries of deepagents would remove messages before Foveal sees them.
    excluded_middleware=frozenset({"SummarizationMiddleware"}),
)
register_harness_profile("openai", profile)  # the provider of the models


def search(query: str) -> str:
    """Search the sources."""
    return f"{query}: no match"


def make_agent() -> Any:
    return create_deep_agent(model="openai:gpt-4.1", tools=[search], checkpointer=InMemorySaver())


def ask(agent: Any, question: str) -> str:
    thread = {"configurable": {"thread_id": "ci"}}
    state = agent.invoke({"messages": [{"role": "user", "content": question}]}, thread)
    return str(state["messages"][-1].text)


if __name__ == "__main__":
    print(ask(make_agent(), "Why is CI red?"))
    found = middleware.conversations.find("ci")
    assert found is not None
    print(found.context.report())
    middleware.conversations.close()
