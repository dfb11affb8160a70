"""The search tool: lines of files that match a pattern.

`search_worker` searches in its own process, so that a pattern that never finishes can be stopped.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Final

from foveal.agent.tool import Arguments, Tool, ToolOutput, append_note
from foveal.agent.tool_arguments import InvalidArguments
from foveal.agent.tools import search_worker
from foveal.agent.tools.files import object_schema
from foveal.agent.tools.process_group import run_process, without_secrets
from foveal.agent.tools.workspace import Workspace
from foveal.core.wire.safe_print import one_line

SEARCH_TIMEOUT_S: Final = 30.0


def search_tool(workspace: Workspace, *, timeout_s: float = SEARCH_TIMEOUT_S) -> Tool:
    """Return the search tool for a workspace."""
    return Tool(
        name="search",
        description=(
            "Search files for lines that match a regular expression (Python's). Files that git ignores and binary "
            "files are passed over."
        ),
        parameters=object_schema(
            ["pattern"],
            pattern={"type": "string", "minLength": 1, "maxLength": 2_000},
            path={"type": "string", "description": "A folder or file; the working folder, if not given"},
            glob={
                "type": "string",
                "maxLength": 500,
                "description": 'Only files with such names, like "*.py"',
            },
            ignore_case={"type": "boolean"},
        ),
        run=partial(_search, workspace, timeout_s),
        describe=_describe_search,
        timeout=timeout_s + 10,
    )


def _describe_search(given: Arguments) -> str:
    path = one_line(str(given.get("path") or "."), width=300)
    return f"search {path} for {one_line(str(given['pattern']), width=300)}"


async def _search(workspace: Workspace, timeout_s: float, given: Arguments) -> ToolOutput:
    path = workspace.resolve(given.get("path") or ".")
    if not path.exists():
        raise InvalidArguments(f"There is no {workspace.display_name(path)}.")
    task = {**given, "root": str(workspace.root), "base": str(workspace.base_of(path)), "path": str(path)}
    argv = [sys.executable, "-I", "-S", search_worker.__file__, json.dumps(task)]
    result = await run_process(argv, cwd=workspace.root, env=without_secrets(os.environ), timeout_s=timeout_s)
    content = result.output.removesuffix("\n")
    if result.timed_out:
        note = f"[foveal: stopped after {timeout_s:g} seconds; narrow the pattern, the path or the glob]"
        content = str(append_note(content, note))
    return ToolOutput(content=content, error=result.status != 0, touched=(str(path),))
