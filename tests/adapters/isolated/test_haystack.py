"""An agent of Haystack on the transport."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from support.adapter_runs import TURNS, WINDOW, search
from support.framework_runs import check_transport_run, load_example
from support.provider_stand_in import StandIn


def agent(example: dict[str, Any], provider: StandIn, *, is_async: bool, streaming: bool) -> Agent:
    settings: dict[str, Any] = {"max_completion_tokens": 1_000}
    options: dict[str, Any] = {"api_base_url": provider.openai, "api_key": Secret.from_token("none")}
    if streaming:
        settings["stream_options"] = {"include_usage": True}
        options["streaming_callback"] = _ignore_async if is_async else _ignore
    generator = example["make_generator"](is_async=is_async, generation_kwargs=settings, **options)
    return Agent(chat_generator=generator, tools=[create_tool_from_function(search)])


def _ignore(chunk: Any) -> None:
    pass


async def _ignore_async(chunk: Any) -> None:
    pass


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_agent_stays_inside_the_window(is_async: bool, streaming: bool) -> None:
    example = load_example("haystack")

    async def run(provider: StandIn) -> None:
        careful = agent(example, provider, is_async=is_async, streaming=streaming)
        kept: list[ChatMessage] = []
        for turn in range(TURNS):
            messages = [*kept, ChatMessage.from_user(f"Question {turn}: look it up.")]
            result = await careful.run_async(messages) if is_async else careful.run(messages)
            assert result["messages"][: len(messages)] == messages, "the stored history has changed"
            kept = deepcopy(result["messages"])

    with StandIn(window=WINDOW) as provider:
        asyncio.run(run(provider))
    check_transport_run(provider, example["conversations"])
