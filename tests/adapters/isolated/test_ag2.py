"""An agent of AG2 on the transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ag2 import Agent

from support.adapter_runs import TURNS, WINDOW, search
from support.framework_runs import check_transport_run, load_example
from support.provider_stand_in import StandIn


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
def test_an_agent_stays_inside_the_window(streaming: bool) -> None:
    example = load_example("ag2")

    async def run(provider: StandIn) -> None:
        config = example["make_config"](base_url=provider.openai, api_key="none", streaming=streaming)
        reply: Any = Agent("careful", "You are a careful agent.", config=config, tools=[search])
        kept: list[str] = []
        for turn in range(TURNS):
            reply = await reply.ask(f"Question {turn}: look it up.")
            events = list(map(repr, await reply.history.get_events()))
            assert events[: len(kept)] == kept, "the stored history has changed"
            kept = events

    with StandIn(window=WINDOW) as provider:
        asyncio.run(run(provider))
    check_transport_run(provider, example["conversations"])
