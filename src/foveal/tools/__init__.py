"""Tools that a model can call: files, search, shell, recall and MCP servers.

tool.py            a tool and the toolbox, which answers every call
tool_arguments.py  arguments: parsed and checked against the schema
workspace.py       the working folder: which paths are allowed, which files have been read
files.py           read, write, edit and list (text_edit.py: encodings and replacements)
planned_change.py  the change of a file that the user is shown
file_search.py     search (search_worker.py: the process that searches)
shell.py           run (process_group.py: a process with its group and its output; command_environment.py)
log_recall.py      the recall tools: search and read the session's log
mcp.py             tools of MCP servers
approvals.py       facts about a call, for the decision whether it needs approval
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foveal.recall import Library
from foveal.tools.approvals import call_facts
from foveal.tools.command_environment import without_secrets
from foveal.tools.file_search import search_tool
from foveal.tools.files import file_tools
from foveal.tools.log_recall import recall_tools
from foveal.tools.mcp import McpServers, mcp_tool_name
from foveal.tools.process_group import OutputSpool
from foveal.tools.shell import shell_tool
from foveal.tools.tool import Tool, Toolbox, ToolInterrupted, ToolOutput
from foveal.tools.tool_arguments import InvalidArguments
from foveal.tools.workspace import Workspace

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
