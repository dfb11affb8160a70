"""The chat with a real MCP server whose tools are deferred."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from foveal.core.log import ToolReturned, text_of
from support.chat_project import ChatProject, InProcessChat, run_chat
from support.warm_commands import arguments, warm_commands

SERVER: Final = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("many")

def numbered(number):
    def tool(first: int, second: int = 0) -> str:
        return str(number + first)
    tool.__name__ = f"add_{number}"
    tool.__doc__ = f"Add {number}. " + "It takes whole numbers, and returns the sum as text. " * 6
    return tool

for number in range(40):
    server.tool()(numbered(number))
server.run()
"""


@pytest.fixture
def warm() -> Iterator[Path]:
    with warm_commands() as address:
        yield address


def test_the_chat_loads_a_tool_of_an_mcp_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Path
) -> None:
    project = ChatProject(tmp_path)
    (tmp_path / "server.py").write_text(SERVER)
    settings = tmp_path / ".config" / "foveal" / "foveal.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'[tools]\ndefer = true\ncore = ["many__add_7"]\nallow = ["many__*"]\n'
        f'[mcp.many]\ncommand = "{sys.executable}"\nargs = {arguments(warm, tmp_path / "server.py")}\n'
    )
    project.script(
        [("load_tools", {"names": ["many__add_30"]})],
        [("many__add_30", {"first": 12}), ("many__add_31", {"first": 12})],
        "42 and 43.",
    )

    async def steps(chat: InProcessChat) -> None:
        listed = await chat.send("/tools")
        assert "many__add_7, load_tools\n" in listed
        assert "it can load 39 more: many__add_0, " in listed
        assert "42 and 43." in await chat.send("Add.")
        context = await chat.send("/context")
        assert " tools, " in context
        assert "3 used; 37 deferred, which would take " in context
        assert "many__add_30, many__add_31" in await chat.send("/tools")

    run_chat(project, monkeypatch, steps)
    results = [
        text_of(event.fact.content) for event in project.events() if isinstance(event.fact, ToolReturned)
    ]
    assert results == ["Loaded: many__add_30. You can call them now.", "42", "43"]
