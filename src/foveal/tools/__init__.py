"""Tools that a model can call: files, commands, the log itself, and those of MCP servers.

tool.py        what a tool is; the toolbox, which answers every call
arguments.py   what a model wrote, checked
workspace.py   the working folder: what may be touched, and what has been seen
files.py       read, write, edit, list (texts.py: encodings; editing.py: one replacement; listing.py)
searching.py   search (hunt.py: the program that does it)
command.py     run (process.py: one process, its group and its output)
recalled.py    the recall tools
mcp.py         tools of MCP servers (mcp_content.py: what they answer)
approvals.py   what the user has allowed
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foveal.recall import Library
from foveal.tools.approvals import Approvals
from foveal.tools.command import run
from foveal.tools.files import files
from foveal.tools.recalled import recalled
from foveal.tools.searching import search
from foveal.tools.tool import Interrupted, Output, Tool, Toolbox
from foveal.tools.workspace import Workspace

__all__ = [
    "Approvals",
    "Interrupted",
    "Output",
    "Tool",
    "Toolbox",
    "Workspace",
    "builtin",
    "files",
    "recalled",
    "run",
    "search",
]


def builtin(
    root: str | Path, library: Library | None = None, *, also: Iterable[str | Path] = ()
) -> list[Tool]:
    """The built-in tools over a folder and, if given, a session to look back into."""
    workspace = Workspace(root, also=also)
    looking_back = [] if library is None else recalled(library)
    return [*files(workspace), search(workspace), run(workspace), *looking_back]
