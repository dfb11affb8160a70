"""What a fork has of the context or session that it comes from: hooks, limits, memories, deferred tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import foveal
from foveal import Context, ProposedCut
from foveal.core.tokens.counter import Estimate
from foveal.memory import Memory
from foveal.stores import MemoryStore
from support.histories import call_message, context, result, result_message, user
from support.mcp_tools import tools_of


def test_a_fork_asks_the_hook_of_its_parent_and_cuts_only_itself() -> None:
    seen: list[ProposedCut] = []
    ctx = context(8_000, "economy", on_reduction=seen.append)
    ctx.append(user("Why is CI red?"))
    child = ctx.fork("Read the logs.")
    for number in range(30):
        child.append(call_message(f"c{number}"), result_message(f"c{number}", result(number)))
    child.fit()
    assert seen
    assert ctx.fit() == [user("Why is CI red?")]


def test_a_limit_counts_what_was_used_before_the_fork_and_then_each_on_its_own() -> None:
    ctx = context(limit="10k tokens")
    messages: list[Any] = [user("Why is CI red?")]
    ctx.fit(messages)
    ctx.observe({"prompt_tokens": 4_000, "completion_tokens": 0})
    child = ctx.fork("Read the log.")
    child.fit(messages)
    child.observe({"prompt_tokens": 5_999, "completion_tokens": 0})
    with pytest.raises(foveal.BudgetExceeded):
        child.fit([*messages, user("Go on.")])
    ctx.fit(messages)
    assert [status.spent for status in ctx.report().budgets] == [4_000]
    child.set_limit(None)
    child.fit([*messages, user("Go on.")])
    assert child.report().budgets == ()
    assert len(ctx.report().budgets) == 1


def test_a_fork_shows_the_memory_and_hears_its_own_user_once() -> None:
    memory = Memory("ada", store=MemoryStore(), counting=Estimate())
    ctx = context(memory=memory)
    ctx.fit([user("Remember that I like tea.")])
    child = ctx.fork("Ask the user.")
    shown = child.fit([user("Remember that I like tea."), user("Remember that I live in Bern.")])
    assert "I like tea." in str(shown)
    ctx.join(child, "She lives in Bern.")
    ctx.fit()
    assert [entry.text for entry in asyncio.run(memory.entries())] == ["I like tea.", "I live in Bern."]


def test_a_tool_that_a_fork_loads_is_not_offered_by_its_parent() -> None:
    tools, messages = tools_of("openai_chat"), [user("Why is CI red?")]
    ctx = context(200_000, defer_tools=True)
    ctx.fit(messages, tools=tools)
    before = ctx.tools
    child = ctx.fork("Read the log.")
    offered = {tool["function"]["name"] for tool in before}
    name = next(tool["function"]["name"] for tool in tools if tool["function"]["name"] not in offered)
    load = [call_message("c1", "load_tools", names=[name]), result_message("c1", "Loaded.")]
    child.fit([*messages, *load], tools=tools)
    assert name in {tool["function"]["name"] for tool in child.tools}
    ctx.fit(messages, tools=tools)
    assert ctx.tools == before
    assert Context.load(child.save()).branches() == child.branches()


def test_a_forked_session_asks_the_hook_too() -> None:
    async def work() -> list[ProposedCut]:
        seen: list[ProposedCut] = []
        async with MemoryStore() as store:
            session = await foveal.Session.open(
                store, "demo", model="gpt-4.1", window=8_000, tokenizer="estimate", on_reduction=seen.append
            )
            await session.append(foveal.UserSaid(content="Why is CI red?"))
            child = await session.fork("child")
            for number in range(30):
                call = foveal.events.Call(id=f"c{number}", name="bash", arguments="{}")
                await child.append(foveal.ModelSaid(content=(call,)))
                await child.append(foveal.ToolReturned(call_id=call.id, content=result(number)))
            await child.fit()
        return seen

    assert asyncio.run(work())


def test_a_joined_branch_is_shown_after_a_restart_and_an_edit_of_what_follows_keeps_it() -> None:
    ctx, messages = context(40_000), [user("Why is CI red?")]
    ctx.fit(messages)
    child = ctx.fork("Read the log.")
    child.append(user("Read the log."), {"role": "assistant", "content": "The disk was full."})
    ctx.join(child)
    fitted = ctx.fit(messages)
    loaded = Context.load(ctx.save())
    assert loaded.fit(messages) == fitted
    edits = ([{"role": "assistant", "content": said}] for said in ("I free some space.", "I add a disk."))
    for edit in edits:
        assert loaded.fit(messages + edit) == fitted + edit
        again = Context.load(loaded.save())
        assert again.fit(messages + edit) == fitted + edit
        assert again.fit([*messages, user("Go on.")]) == [*fitted, user("Go on.")]
        assert Context.load(loaded.save()).fit([*messages, user("Go on.")]) == [*fitted, user("Go on.")]
