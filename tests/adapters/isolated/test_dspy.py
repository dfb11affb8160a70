"""An agent of DSPy on the transport."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import dspy
import pytest

from support.adapter_runs import TURNS, WINDOW, search
from support.framework_runs import check_transport_run, ending_with, load_example
from support.provider_stand_in import StandIn, looping


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_agent_stays_inside_the_window(is_async: bool) -> None:
    example = load_example("dspy")

    async def run(provider: StandIn) -> None:
        # The last message of each request moves, so only an id tells that they belong together.
        lm = example["make_lm"](
            api_base=provider.openai,
            api_key="none",
            num_retries=0,
            extra_headers={"X-Foveal-Session": "s"},
        )
        agent = dspy.ReActV2("question -> answer", tools=[search])
        history = dspy.History(messages=[])
        kept: list[Any] = []
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True)):
            for turn in range(TURNS):
                asked = {"question": f"Question {turn}: look it up.", "history": history}
                answer = await agent.acall(**asked) if is_async else agent(**asked)
                assert answer.termination_reason == "submit"
                history = answer.history
                assert history.messages[: len(kept)] == kept, "the stored history has changed"
                kept = deepcopy(history.messages)

    with StandIn(window=WINDOW, script=ending_with("submit", "answer", looping())) as provider:
        asyncio.run(run(provider))
    # DSPy ends every request with the same message, which moves with each step of a turn.
    check_transport_run(provider, example["conversations"], framework_breaks=4 * TURNS)
