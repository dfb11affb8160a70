"""smolagents inside the model's window: a model around the model of the agent."""

from smolagents import OpenAIModel, ToolCallingAgent

from foveal.adapters.smolagents import FovealModel

model = FovealModel(OpenAIModel("gpt-4.1"), summarise="own")
agent = ToolCallingAgent([], model, verbosity_level=0)

if __name__ == "__main__":
    print(agent.run("Why is CI red?"))
