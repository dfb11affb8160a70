"""Files of the working folder, for a model: read, write, edit and list them.

1. Nothing outside of the workspace is touched, and nothing but ordinary files is opened.
2. A file is written whole or not at all; its mode, its encoding and its line endings stay. What the model has not
   seen as it is now is not written over.
3. What is read comes as it is in the file. Lines of ours, `[foveal: …]`, come before it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from difflib import unified_diff
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from foveal.core.wire.safe_print import one_line, visible
from foveal.tools import text_edit
from foveal.tools.search_worker import CLOSED
from foveal.tools.text_edit import replaced
from foveal.tools.tool import Arguments, Tool, ToolOutput, image
from foveal.tools.tool_arguments import InvalidArguments
from foveal.tools.workspace import Workspace

# ── listing ───────────────────────────────────────────────────────────────────────────────────────
# What is in a folder, one line each.

MOST: Final = 2_000
"""Lines of one answer."""


def listing(folder: Path, *, depth: int) -> str:
    """Folders end in `/`, links show where they lead; the order is that of the names."""
    lines = list(islice(_lines(folder, "", depth), MOST + 1))
    if len(lines) > MOST:
        lines[-1] = f"[foveal: there is more; this is the first {MOST:,}]"
    return "\n".join(lines) or "[foveal: the folder is empty]"


def _lines(folder: Path, before: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as problem:
        yield f"{before}[foveal: cannot be listed: {problem.strerror}]"
        return
    for entry in entries:
        name = before + one_line(entry.name, width=300)
        if entry.is_symlink():
            yield f"{name} -> {one_line(os.readlink(entry.path), width=300)}"
        elif entry.is_dir(follow_symlinks=False):
            yield f"{name}/"
            if depth > 1 and entry.name not in CLOSED:
                yield from _lines(Path(entry.path), f"{name}/", depth - 1)
        elif entry.is_file(follow_symlinks=False):
            yield f"{name}  {entry.stat(follow_symlinks=False).st_size:,} bytes"
        else:
            yield f"{name}  (no ordinary file)"


# ── files ─────────────────────────────────────────────────────────────────────────────────────────

READ: Final = 10 * 1024 * 1024
"""Bytes of a file that are read at once."""
PICTURE: Final = 5 * 1024 * 1024
"""Bytes of a picture that a provider takes."""
_COMPARED: Final = 400_000
"""Characters of two texts whose difference is looked for."""
_PREVIEW: Final = 400
"""Lines of a change that are shown to whoever is asked."""

_PATH: Final = {"type": "string", "minLength": 1, "description": "In the working folder, or absolute"}


def files(workspace: Workspace) -> list[Tool]:
    """The four tools over one workspace."""
    return [_read_tool(workspace), _write_tool(workspace), _edit_tool(workspace), _list_tool(workspace)]


def parameters(needed: list[str], **fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}


def threaded(
    work: Callable[[Workspace, Arguments], ToolOutput], workspace: Workspace
) -> Callable[[Arguments], Awaitable[ToolOutput]]:
    """Work that waits for a disk, done where nobody else has to wait for it."""

    async def run(given: Arguments) -> ToolOutput:
        return await asyncio.to_thread(work, workspace, given)

    return run


def _told(verb: str, workspace: Workspace, given: Arguments) -> str:
    """The verb and the path, with the place that the path really leads to when that is another one."""
    path = one_line(str(given.get("path", ".")), width=300)
    try:
        real = workspace.name(workspace.find(str(given.get("path", "."))))
    except InvalidArguments:
        return f"{verb} {path} (outside of the working folder)"
    return f"{verb} {path}" if real == os.path.normpath(path) else f"{verb} {path} (which is {real})"


# ── read ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="read",
        description="Read a text file, or a part of it by lines; a picture is shown.",
        parameters=parameters(
            ["path"],
            path=_PATH,
            offset={"type": "integer", "minimum": 1, "description": "The first line, counted from 1"},
            limit={"type": "integer", "minimum": 1, "description": "At most so many lines"},
        ),
        run=threaded(_read, workspace),
        describe=partial(_told, "read", workspace),
        timeout=60.0,
    )


def _read(workspace: Workspace, given: Arguments) -> ToolOutput:
    path = workspace.find(given["path"])
    with workspace.open(path) as file:
        found = os.fstat(file.fileno())
        start = file.read(8_192)
        file.seek(0)
        mime = text_edit.picture(start)
        if mime and found.st_size <= PICTURE:
            return ToolOutput(content=(image(mime, file.read(PICTURE)),), touched=(str(path),))
        if mime or text_edit.binary(start):
            raise InvalidArguments(
                f"{workspace.name(path)} is not a text ({found.st_size:,} bytes), and was not read."
            )
        content = _part(file, found.st_size, given.get("offset", 1), given.get("limit"))
    workspace.saw(path, found)
    return ToolOutput(content=content, touched=(str(path),))


def _part(file: BinaryIO, size: int, offset: int, limit: int | None) -> str:
    """These lines of a file, after what must be said about them."""
    if size > READ:
        return _part_of_large(file, size, offset, limit)
    text, said = text_edit.readable(file.read(READ))
    lines = text.count("\n") + (text[-1:] not in ("", "\n"))
    if offset > max(1, lines):
        raise InvalidArguments(f"There is no line {offset:,}: the file has {lines:,}.")
    if offset > 1 or (limit is not None and limit < lines):
        chosen = text.split("\n")[offset - 1 : None if limit is None else offset - 1 + limit]
        last = min(lines, offset - 1 + len(chosen))
        said.insert(0, f"lines {offset:,} to {last:,} of {lines:,}")
        text = "\n".join(chosen)
    if not text:
        said.append("the file is empty" if not size else "these lines are empty")
    return _noted(said, text)


def _part_of_large(file: BinaryIO, size: int, offset: int, limit: int | None) -> str:
    """As many whole lines from the offset on as `READ` has room for; the others are neither kept nor counted."""
    skipped = sum(1 for _ in islice(_pieces(file), offset - 1))
    if skipped < offset - 1:
        raise InvalidArguments(f"There is no line {offset:,}: the file has {skipped:,}.")
    taken, room, lines = [], READ, 0
    while room > 0 and (limit is None or lines < limit) and (line := file.readline(room)):
        taken.append(line)
        room -= len(line)
        lines += 1
    text, said = text_edit.readable(b"".join(taken))
    said.insert(0, f"lines {offset:,} to {offset - 1 + lines:,} of a file with {size:,} bytes")
    if room <= 0:
        inside = "" if text.endswith("\n") else ", inside a line"
        said.append(f"cut after {READ:,} bytes{inside}; go on with offset {offset + lines:,}")
    return _noted(said, text)


def _pieces(file: BinaryIO) -> Iterator[None]:
    """The lines of a file one by one, none of them kept; one without an end is passed over in pieces."""
    while line := file.readline(READ):
        while line and not line.endswith(b"\n"):
            line = file.readline(READ)
        yield None


def _noted(said: list[str], text: str) -> str:
    return f"[foveal: {'; '.join(said)}]\n{text}" if said else text


# ── write and edit ───────────────────────────────────────────────────────────────────────────────────────


def _write_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="write",
        description="Write a whole file; folders are made as needed. An existing file must have been read before.",
        parameters=parameters(["path", "content"], path=_PATH, content={"type": "string"}),
        run=threaded(_write, workspace),
        describe=lambda given: f"{_told('write', workspace, given)}: {_size(given['content'])}",
        preview=lambda given: _diff(workspace, given, lambda _: given["content"]),
        changes=True,
        timeout=60.0,
    )


def _write(workspace: Workspace, given: Arguments) -> ToolOutput:
    path = workspace.find(given["path"])
    if path.is_dir():
        raise InvalidArguments(f"{workspace.name(path)} is a folder, so nothing was written.")
    workspace.check(path, needed=True)
    new, content, how = not path.exists(), given["content"], text_edit.TextCoding()
    if not new:
        old, how = _old(workspace, path)
        content = text_edit.endings(old, content)
    workspace.write(path, how.encode(content))
    what = "wrote the new file" if new else "wrote"
    return ToolOutput(content=f"{what} {workspace.name(path)}: {_size(content)}", touched=(str(path),))


def _edit_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="edit",
        description=(
            "Replace a text in a file by another one. The old text must be exactly as in the file, and be there "
            "only once, unless all is true."
        ),
        parameters=parameters(
            ["path", "old", "new"],
            path=_PATH,
            old={"type": "string", "minLength": 1, "description": "With enough lines around it to be unique"},
            new={"type": "string"},
            all={"type": "boolean", "description": "Replace it wherever it stands"},
        ),
        run=threaded(_edit, workspace),
        describe=lambda given: (
            f"{_told('edit', workspace, given)}: {_size(given['old'])} become {_size(given['new'])}"
        ),
        preview=lambda given: _diff(workspace, given, lambda old: _replaced(old, given)[0]),
        changes=True,
        timeout=60.0,
    )


def _edit(workspace: Workspace, given: Arguments) -> ToolOutput:
    path = workspace.find(given["path"])
    old, how = _old(workspace, path)
    workspace.check(path, needed=False)
    new, lines = _replaced(old, given)
    workspace.write(path, how.encode(new))
    places = f"{len(lines):,} places, first at line" if len(lines) > 1 else "at line"
    return ToolOutput(content=f"edited {workspace.name(path)} {places} {lines[0]:,}", touched=(str(path),))


def _replaced(old: str, given: Arguments) -> tuple[str, list[int]]:
    return replaced(old, given["old"], given["new"], everywhere=given.get("all", False))


def _old(workspace: Workspace, path: Path) -> tuple[str, text_edit.TextCoding]:
    """The file as it is, such that nothing of it is lost when it is written again."""
    with workspace.open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > READ:
            raise InvalidArguments(f"{workspace.name(path)} is too large to be changed here: {size:,} bytes.")
        return text_edit.exact(file.read(READ))


def _size(text: str) -> str:
    lines = text.count("\n") + (text[-1:] not in ("", "\n"))
    return f"{lines:,} line{'' if lines == 1 else 's'}, {len(text):,} characters"


def _diff(workspace: Workspace, given: Arguments, change: Callable[[str], str]) -> str:
    """What would change, line by line, for people."""
    try:
        path = workspace.find(given["path"])
        old = _old(workspace, path)[0] if path.exists() else ""
        new = text_edit.endings(old, change(old))
    except InvalidArguments as problem:
        return visible(str(problem))
    name = workspace.name(path)
    if len(old) + len(new) > _COMPARED:
        return f"{name}: {_size(old)} become {_size(new)}; too long to be compared here"
    lines = unified_diff(old.split("\n"), new.split("\n"), name, name, lineterm="", n=2)
    shown = [one_line_of(line) for line in islice(lines, _PREVIEW + 1)]
    if len(shown) > _PREVIEW:
        shown[-1] = "… and more"
    return "\n".join(shown)


def one_line_of(line: str) -> str:
    """A line for people, its indentation kept."""
    safe = visible(line.replace("\n", " ").removesuffix("\r"))
    return safe if len(safe) <= 500 else f"{safe[:500]}… (+{len(safe) - 500:,} characters)"


# ── list ─────────────────────────────────────────────────────────────────────────────────────────────────


def _list_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="list",
        description="List a folder, and the folders in it down to a depth.",
        parameters=parameters(
            [],
            path={**_PATH, "description": "The working folder, if not given"},
            depth={"type": "integer", "minimum": 1, "maximum": 10, "description": "1 if not given"},
        ),
        run=threaded(_list, workspace),
        describe=partial(_told, "list", workspace),
        timeout=30.0,
    )


def _list(workspace: Workspace, given: Arguments) -> ToolOutput:
    path = workspace.find(given.get("path", "."))
    if not path.is_dir():
        raise InvalidArguments(f"{workspace.name(path)} is not a folder.")
    return ToolOutput(content=listing(path, depth=given.get("depth", 1)), touched=(str(path),))
