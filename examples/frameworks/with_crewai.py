"""crewai inside the model's window: an LLM around the LLM of the agent."""

from crewai import LLM, Agent, Crew, Task

from foveal.adapters.crewai import FovealLLM

llm = FovealLLM(LLM("openai/gpt-4.1"), summarise="own")
agent = Agent(role="Reviewer", goal="Find out why CI is red.", backstory="You are careful.", llm=llm)
task = Task(description="Why is CI red?", expected_output="The reason.", agent=agent)

if __name__ == "__main__":
    print(Crew(agents=[agent], tasks=[task]).kickoff())
