"""The agent with deferred tools, on a real session that is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import foveal
from foveal import Session
from foveal.agent.loop import Agent
from foveal.agent.tools import Tool, Toolbox, ToolOutput, load_tools_tool
from foveal.core.engine.tool_deferral import ToolDeferral
from foveal.core.log import Dialect, Equipped, ToolReturned, ToolsLoaded, text_of
from foveal.core.view.loaded_tools import named_tools
from foveal.core.view.request import Fitted
from foveal.core.wire import wire_for
from foveal.ports import Reply, ReplyPiece
from foveal.providers.anthropic import add_breakpoints
from foveal.providers.base import anthropic_tools
from foveal.testing import Scripted
from support.mcp_tools import neutral_tools

NAMES: Final = [tool["name"] for tool in neutral_tools()]


async def answer(given: Mapping[str, Any]) -> ToolOutput:
    return ToolOutput(content="42 items")


def recorded_tool(schema: Mapping[str, Any]) -> Tool:
    return Tool(
        name=schema["name"],
        description=schema["description"],
        parameters={"type": "object"} | {"description": str(schema["parameters"])},
        run=answer,
        describe=lambda _: schema["name"],
    )


class ScriptedIn(Scripted):
    """A provider that answers in another dialect than chat."""

    def __init__(self, dialect: Dialect, *answers: Any, name: str) -> None:
        super().__init__(*answers, name=name)
        self.dialect = dialect

    async def send(self, request: Fitted, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        async for item in super().send(request, max_tokens=max_tokens):
            if isinstance(item, Reply):
                (chunk,) = wire_for("openai_chat").read(item.messages)
                (written,) = wire_for(self.dialect).write(chunk.facts[0])
                yield replace(item, message=written)
            else:
                yield item


async def run_turns(path: Path, provider: Scripted, *questions: str) -> Any:
    """Run turns of an agent that can load the recorded tools; return its events and the requests."""
    deferral = ToolDeferral(core=["read"])
    read = recorded_tool({"name": "read", "description": "Reads.", "parameters": {}})
    box = Toolbox([read, *map(recorded_tool, neutral_tools()), load_tools_tool(deferral)])
    async with foveal.open_store(str(path / "a.db")) as store:
        session = await Session.open(store, "a", model=provider.model)
        agent = Agent(session, provider, box, deferral=deferral)
        for question in questions:
            async for _ in agent.run(question):
                pass
        return await session.events(), await session.report()


def offered(request: Any) -> list[str]:
    return [name for name, tool in named_tools(request.tools) if not tool.get("defer_loading")]


def test_the_model_loads_a_tool_and_calls_it_and_another_process_knows(tmp_path: Path) -> None:
    provider = Scripted(
        [("load_tools", {"names": [NAMES[30]]})], [(NAMES[30], {})], "Done.", [(NAMES[60], {})], "Done again."
    )
    events, report = asyncio.run(run_turns(tmp_path, provider, "Count.", "Count more."))
    results = [text_of(event.fact.content) for event in events if isinstance(event.fact, ToolReturned)]
    assert results == [f"Loaded: {NAMES[30]}. You can call them now.", "42 items", "42 items"]
    assert [offered(request) for request in provider.requests] == [
        ["read", "load_tools"],
        ["read", "load_tools", NAMES[30]],
        ["read", "load_tools", NAMES[30]],
        ["read", "load_tools", NAMES[30]],
        ["read", "load_tools", NAMES[30], NAMES[60]],
    ]
    assert [one.why for one in report.breaks] == ["equipped", "equipped"]
    again = Scripted("Hello.")
    asyncio.run(run_turns(tmp_path, again, "And now?"))
    assert offered(again.requests[0]) == ["read", "load_tools", NAMES[30], NAMES[60]]


@pytest.mark.parametrize(
    ("dialect", "model"), [("anthropic", "anthropic/claude-sonnet-5"), ("openai_responses", "openai/gpt-5.5")]
)
def test_the_tools_stay_as_they_are_where_the_provider_can_load_some(
    tmp_path: Path, dialect: Dialect, model: str
) -> None:
    calls = [("load_tools", {"names": [NAMES[30]]})], [(NAMES[60], {})]
    provider = ScriptedIn(dialect, *calls, "Done.", name=model)
    events, report = asyncio.run(run_turns(tmp_path, provider, "Count."))
    requests = provider.requests
    assert len(requests) == 3
    assert requests[0].tools == requests[1].tools == requests[2].tools
    assert sum(isinstance(event.fact, Equipped) for event in events) == 1
    assert sum(isinstance(event.fact, ToolsLoaded) for event in events) == 2
    assert report.breaks == ()
    if dialect == "anthropic":
        (result,) = requests[1].to_anthropic()[-1]["content"]
        assert result["content"] == [{"type": "tool_reference", "tool_name": NAMES[30]}]
    else:
        item = requests[1].to_responses()[-1]
        assert item["type"] == "additional_tools"
        assert [(tool["type"], tool["name"]) for tool in item["tools"]] == [("function", NAMES[30])]
    again = ScriptedIn(dialect, "Hello.", name=model)
    asyncio.run(run_turns(tmp_path, again, "And now?"))
    assert again.requests[0].tools == requests[0].tools


def test_no_cache_mark_stands_on_a_tool_that_is_loaded_later(tmp_path: Path) -> None:
    provider = ScriptedIn("anthropic", "Hello.", name="anthropic/claude-sonnet-5")
    asyncio.run(run_turns(tmp_path, provider, "Hello."))
    (request,) = provider.requests
    body = {"tools": anthropic_tools(request.tools), "messages": request.to_anthropic()}
    marked = [tool for tool in add_breakpoints(body, ())["tools"] if "cache_control" in tool]
    assert [tool["name"] for tool in marked] == ["load_tools"]
    assert {tool["name"] for tool in body["tools"] if tool.get("defer_loading")} == set(NAMES)
