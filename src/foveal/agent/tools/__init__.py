"""Tools that a model can call: files, search, shell, recall and MCP servers.

workspace.py       the working folder: which paths are allowed, which files have been read
files.py           read, write, edit, list and search (text_edit.py: encodings and replacements;
                   search_worker.py: the process that searches)
shell.py           run (process_group.py: a process with its environment, its group and its output;
                   background_commands.py: those that it does not wait for, and the tool job)
todo.py            todo, the list of steps that the model keeps
subagents.py       task, which starts sub-agents
mcp.py             tools of MCP servers
approvals.py       facts about a call, for the decision whether it needs approval

The interface of a tool and the toolbox are `foveal.agent.tool`, the recall tools `foveal.agent.log_recall`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foveal.agent.log_recall import recall_tools
from foveal.agent.tool import Arguments, InvalidArguments, Tool, Toolbox, ToolInterrupted, ToolOutput
from foveal.agent.tools.approvals import call_facts
from foveal.agent.tools.files import file_tools, search_tool
from foveal.agent.tools.mcp import McpServers, mcp_tool_name
from foveal.agent.tools.process_group import OutputSpool, without_secrets
from foveal.agent.tools.shell import shell_tool
from foveal.agent.tools.workspace import Workspace
from foveal.core.engine.tool_deferral import ToolDeferral, requested_names
from foveal.core.reduction.truncation import UNLIMITED
from foveal.core.wire.event_text import LOAD_TOOLS
from foveal.core.wire.safe_print import one_line
from foveal.recall import Library

__all__ = [
    "InvalidArguments",
    "McpServers",
    "OutputSpool",
    "Tool",
    "ToolInterrupted",
    "ToolOutput",
    "Toolbox",
    "Workspace",
    "builtin_tools",
    "call_facts",
    "file_tools",
    "mcp_tool_name",
    "recall_tools",
    "search_tool",
    "shell_tool",
    "without_secrets",
]


def builtin_tools(
    root: str | Path, library: Library | None = None, *, extra_folders: Iterable[str | Path] = ()
) -> list[Tool]:
    """Return the built-in tools for a folder, with the recall tools if a session (or other library) is given."""
    workspace = Workspace(root, extra_folders=extra_folders)
    recall = [] if library is None else recall_tools(library)
    return [*file_tools(workspace), search_tool(workspace), shell_tool(workspace), *recall]


def load_tools_tool(deferral: ToolDeferral) -> Tool:
    """Return the tool that answers for a deferral. The deferral itself offers it, with its index."""

    async def run(given: Arguments) -> ToolOutput:
        return ToolOutput(content=deferral.answer(given))

    def describe(given: Arguments) -> str:
        return one_line(f"{LOAD_TOOLS} {' '.join(requested_names(given))}", width=200)

    return Tool(
        name=LOAD_TOOLS,
        description="",
        parameters={"type": "object"},
        run=run,
        describe=describe,
        limits=UNLIMITED,
        is_offered=False,
    )
