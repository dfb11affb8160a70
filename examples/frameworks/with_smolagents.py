"""smolagents inside the model's window: a model around the model of the agent."""

from smolagents import OpenAIModel, ToolCallingAgent, tool

from foveal.adapters.smolagents import FovealModel

model = FovealModel(OpenAIModel("gpt-4.1"), conversation="ci", summarise="own", store="contexts.db")


@tool
def recall_search(query: str) -> str:
    """Search what was said earlier in this conversation.

    Args:
        query: The words to search for.
    """
    found = model.conversations.find("ci")
    return "Nothing yet." if found is None else found.recall("recall_search", {"query": query})


@tool
def recall_read(handle: str) -> str:
    """Read an earlier event of this conversation.

    Args:
        handle: An event, such as e12, or a range, such as e12-e20.
    """
    found = model.conversations.find("ci")
    return "Nothing yet." if found is None else found.recall("recall_read", {"handle": handle})


agent = ToolCallingAgent([recall_search, recall_read], model, verbosity_level=0, stream_outputs=True)

if __name__ == "__main__":
    print(agent.run("Why is CI red?"))
    for step in agent.run("And yesterday?", stream=True, reset=False):
        print(type(step).__name__)
    found = model.conversations.find("ci")
    assert found is not None
    print(found.context.report())
    print(found.context.why("e1"))
    model.conversations.close()
