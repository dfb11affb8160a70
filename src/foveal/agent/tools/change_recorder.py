"""Records what file tools change, and restores files.

`record_changes` wraps a tool: the digests of its file before and after each call go to a callback, which stores
them in the log. `file_history` plans from that log, and `restore_files` carries out the plan.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from foveal.agent.tool import Arguments, Tool, ToolOutput, describe_error
from foveal.agent.tool_arguments import InvalidArguments
from foveal.agent.tools.file_history import (
    FILE_CHANGING_TOOLS,
    Digest,
    FileChange,
    LeftFile,
    Restoration,
    RestorePlan,
    digest_of,
)
from foveal.agent.tools.files import MAX_READ_BYTES
from foveal.agent.tools.workspace import FileStamp, Workspace

_UNREADABLE: Final = "unreadable"
"""In place of the digest of a file that cannot be read."""

Record = Callable[[FileChange], Awaitable[None]]


def record_changes(tools: Iterable[Tool], workspace: Workspace, record: Record) -> list[Tool]:
    """Return tools of which those that change files report each change to `record`."""
    return [
        replace(tool, run=_recording(tool, workspace, record)) if tool.name in FILE_CHANGING_TOOLS else tool
        for tool in tools
    ]


def _recording(
    tool: Tool, workspace: Workspace, record: Record
) -> Callable[[Arguments], Awaitable[ToolOutput]]:
    async def run(given: Arguments) -> ToolOutput:
        path = workspace.resolve(str(given["path"]))
        before = await asyncio.to_thread(_digest, workspace, path)
        output = await tool.run(given)
        after = await asyncio.to_thread(_digest, workspace, path)
        if not output.error and _UNREADABLE not in (before, after):
            await record(FileChange(str(path), before, after))
        return output

    return run


def _digest(workspace: Workspace, path: Path) -> Digest:
    try:
        return digest_of(read_file(workspace, path))
    except (OSError, InvalidArguments):
        return _UNREADABLE


def read_file(workspace: Workspace, path: Path) -> bytes | None:
    """Return the bytes of a regular file, None if there is no such path."""
    return _read_with_stamp(workspace, path)[0]


def present_states(workspace: Workspace, paths: Iterable[str]) -> dict[str, bytes | None]:
    """Return the bytes of files of the workspace; paths that cannot be read or are outside are left out, so that
    they are compared with no digest but that of a missing file."""
    states: dict[str, bytes | None] = {}
    for path in paths:
        with suppress(OSError, InvalidArguments):
            states[path] = read_file(workspace, workspace.resolve(path))
    return states


def restore_files(workspace: Workspace, plan: RestorePlan) -> RestorePlan:
    """Restore files; return the plan with what was done, and with the files that could not be restored."""
    done: list[Restoration] = []
    left = list(plan.left)
    for one in plan.restorations:
        try:
            _restore(workspace, one)
            done.append(one)
        except (OSError, InvalidArguments) as problem:
            left.append(LeftFile(one.change.path, describe_error(problem)))
    return RestorePlan(restorations=tuple(done), left=tuple(left))


def _restore(workspace: Workspace, one: Restoration) -> None:
    path = workspace.resolve(one.change.path)
    if str(path) != one.change.path:
        raise InvalidArguments("a link is on its path now")
    data, stamp = _read_with_stamp(workspace, path)
    if digest_of(data) != one.change.before:
        raise InvalidArguments("it has changed in this moment")
    if one.data is not None:
        workspace.write(path, one.data, expected=stamp)
    elif data is not None:
        with workspace.open_folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)


def _read_with_stamp(workspace: Workspace, path: Path) -> tuple[bytes | None, FileStamp | None]:
    if not os.path.lexists(path):
        return None, None
    with workspace.open_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_READ_BYTES:
            raise InvalidArguments("it is too large")
        return file.read(MAX_READ_BYTES), FileStamp.of(found)
