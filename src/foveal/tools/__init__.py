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

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from foveal.core.reduction.truncation import UNLIMITED
from foveal.core.wire.safe_print import one_line
from foveal.recall import Library, Recall, tools
from foveal.tools.approvals import Approvals, suggested
from foveal.tools.file_search import search
from foveal.tools.files import files
from foveal.tools.mcp import McpServers, full_name
from foveal.tools.process_group import OutputSpool
from foveal.tools.shell import clean, run
from foveal.tools.tool import Arguments, Tool, Toolbox, ToolInterrupted, ToolOutput
from foveal.tools.tool_arguments import InvalidArguments
from foveal.tools.workspace import Workspace

# ── recalled ──────────────────────────────────────────────────────────────────────────────────────
# The recall tools over a session, as tools of an agent.

TOKENS: Final = 2_000


def recalled(library: Library, *, tokens: int = TOKENS) -> list[Tool]:
    """Look back into a session (or another library). An answer has at most so many tokens, so it is not clipped."""
    recall = Recall(library, tokens=tokens)
    return [
        Tool(
            name=offered["name"],
            description=offered["description"],
            parameters=offered["input_schema"],
            run=_run(recall, offered["name"]),
            describe=_told(offered["name"]),
            limits=UNLIMITED,
            timeout=30.0,
        )
        for offered in tools("anthropic")
    ]


def _run(recall: Recall, name: str) -> Callable[[Arguments], Awaitable[ToolOutput]]:
    async def run(given: Arguments) -> ToolOutput:
        return ToolOutput(content=await recall.call(name, given))

    return run


def _told(name: str) -> Callable[[Arguments], str]:
    def told(given: Arguments) -> str:
        return f"{name} {one_line(' '.join(str(value) for value in given.values()), width=200)}"

    return told


# ──   init   ──────────────────────────────────────────────────────────────────────────────────────

__all__ = [
    "Approvals",
    "InvalidArguments",
    "McpServers",
    "OutputSpool",
    "Tool",
    "ToolInterrupted",
    "ToolOutput",
    "Toolbox",
    "Workspace",
    "builtin",
    "clean",
    "files",
    "full_name",
    "recalled",
    "run",
    "search",
    "suggested",
]


def builtin(
    root: str | Path, library: Library | None = None, *, also: Iterable[str | Path] = ()
) -> list[Tool]:
    """The built-in tools over a folder and, if given, a session to look back into."""
    workspace = Workspace(root, also=also)
    looking_back = [] if library is None else recalled(library)
    return [*files(workspace), search(workspace), run(workspace), *looking_back]
