"""An agent of LlamaIndex on the transport."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer

from support.adapter_runs import TURNS, WINDOW, search
from support.framework_runs import check_transport_run, load_example
from support.provider_stand_in import StandIn


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_agent_stays_inside_the_window(streaming: bool) -> None:
    example = load_example("llama_index")

    async def run(provider: StandIn) -> None:
        options = {} if streaming else {"additional_kwargs": {}}
        llm = example["make_llm"](api_base=provider.openai, api_key="none", max_retries=0)
        llm.additional_kwargs = options.get("additional_kwargs", llm.additional_kwargs)
        agent = FunctionAgent(
            tools=[search], llm=llm, system_prompt="You are a careful agent.", streaming=streaming
        )
        memory = ChatMemoryBuffer.from_defaults(token_limit=10_000_000)
        kept: list[Any] = []
        for turn in range(TURNS):
            await agent.run(user_msg=f"Question {turn}: look it up.", memory=memory)
            messages = await memory.aget_all()
            assert messages[: len(kept)] == kept, "the stored history has changed"
            kept = deepcopy(messages)

    with StandIn(window=WINDOW) as provider:
        asyncio.run(run(provider))
    check_transport_run(provider, example["conversations"])
