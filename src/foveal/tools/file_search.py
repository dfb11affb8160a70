"""The search tool: lines of files that match a pattern, found by a process of its own (`hunt`)."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Final

from foveal.core.wire.safe_print import one_line
from foveal.tools import search_worker
from foveal.tools.files import parameters
from foveal.tools.process_group import execute
from foveal.tools.shell import clean
from foveal.tools.tool import Arguments, Tool, ToolOutput, added
from foveal.tools.tool_arguments import InvalidArguments
from foveal.tools.workspace import Workspace

SECONDS: Final = 30.0


def search(workspace: Workspace, *, seconds: float = SECONDS) -> Tool:
    return Tool(
        name="search",
        description=(
            "Search files for lines that match a regular expression (Python's). Files that git ignores and binary "
            "files are passed over."
        ),
        parameters=parameters(
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
        run=partial(_search, workspace, seconds),
        describe=_told,
        timeout=seconds + 10,
    )


def _told(given: Arguments) -> str:
    path = one_line(str(given.get("path") or "."), width=300)
    return f"search {path} for {one_line(str(given['pattern']), width=300)}"


async def _search(workspace: Workspace, seconds: float, given: Arguments) -> ToolOutput:
    path = workspace.find(given.get("path") or ".")
    if not path.exists():
        raise InvalidArguments(f"There is no {workspace.name(path)}.")
    task = {**given, "root": str(workspace.root), "path": str(path)}
    argv = [sys.executable, "-I", search_worker.__file__, json.dumps(task)]
    ran = await execute(argv, cwd=workspace.root, env=clean(os.environ), timeout=seconds)
    content = ran.output.removesuffix("\n")
    if ran.late:
        note = f"[foveal: stopped after {seconds:g} seconds; narrow the pattern, the path or the glob]"
        content = str(added(content, note))
    return ToolOutput(content=content, error=ran.status != 0, touched=(str(path),))
