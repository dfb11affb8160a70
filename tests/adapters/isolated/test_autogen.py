"""An agent of AutoGen on the transport."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent

from support.adapter_runs import TURNS, WINDOW, search
from support.framework_runs import check_transport_run, load_example
from support.provider_stand_in import StandIn


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_agent_stays_inside_the_window(streaming: bool) -> None:
    example = load_example("autogen")

    async def run(provider: StandIn) -> None:
        client = example["make_model_client"](
            base_url=provider.openai, api_key="none", include_name_in_message=False
        )
        agent = AssistantAgent(
            "careful", client, tools=[search], max_tool_iterations=8, model_client_stream=streaming
        )
        kept: list[object] = []
        for turn in range(TURNS):
            await agent.run(task=f"Question {turn}: look it up.")
            state = dict(await agent.save_state())["llm_context"]["messages"]
            assert state[: len(kept)] == kept, "the stored history has changed"
            kept = state
        await client.close()

    with StandIn(window=WINDOW) as provider:
        asyncio.run(run(provider))
    check_transport_run(provider, example["conversations"])
