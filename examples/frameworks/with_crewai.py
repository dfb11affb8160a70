"""crewai inside the model's window: an LLM around the LLM of the agent."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from foveal.adapters.crewai import CrewCall, FovealLLM


def name_conversation(call: CrewCall) -> str:
    """Return the name of the call's task."""
    return getattr(call.task, "name", None) or "other"


llm = FovealLLM(LLM("openai/gpt-4.1"), conversation=name_conversation, summarise="own", store="contexts.db")


@tool("recall_search")
def recall_search(query: str) -> str:
    """Search what happened earlier in this task."""
    found = llm.conversations.find("ci")
    return "Nothing yet." if found is None else found.recall("recall_search", {"query": query})


agent = Agent(
    role="Reviewer",
    goal="Find out why CI is red.",
    backstory="You are careful.",
    tools=[recall_search],
    llm=llm,
    respect_context_window=False,  # otherwise crewai may replace the messages by its own summary
)
task = Task(name="ci", description="Why is CI red?", expected_output="The reason.", agent=agent)

if __name__ == "__main__":
    print(Crew(agents=[agent], tasks=[task]).kickoff())
    streaming = Crew(agents=[agent], tasks=[task], stream=True).kickoff()
    for chunk in streaming:
        print(chunk.content, end="")
    found = llm.conversations.find("ci")
    assert found is not None
    print(found.context.report())
    print(found.context.why("e1"))
    llm.conversations.close()
