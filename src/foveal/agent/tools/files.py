"""The file tools: read, write, edit, list and search files of the workspace.

1. Paths outside of the workspace are refused, and only regular files are opened.
2. A file is written atomically; its mode, encoding and line endings stay. A file that the model has not read in its
   present state is not overwritten.
3. A change that was shown to the user is written only if the file, its real path and the new content are still
   those that were shown.
4. Text is returned as it is in the file. Notes, `[foveal: …]`, come before it.
5. `search_worker` searches in its own process, so that a pattern that never finishes can be stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from difflib import unified_diff
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from foveal.agent.tool import Arguments, InvalidArguments, Tool, ToolOutput, append_note, image_part
from foveal.agent.tools import search_worker, text_edit
from foveal.agent.tools.process_group import run_process, without_secrets
from foveal.agent.tools.search_worker import SKIPPED_FOLDERS
from foveal.agent.tools.text_edit import replace_text
from foveal.agent.tools.workspace import FileStamp, Workspace
from foveal.config.project import FOLDER_FLAGS
from foveal.core.wire.safe_print import exact_line, one_line, seconds_text, visible

MAX_LISTED_ENTRIES: Final = 2_000
"""Most lines of a folder listing."""
MAX_READ_BYTES: Final = 10 * 1024 * 1024
"""Most bytes of a file in one answer."""
MAX_IMAGE_BYTES: Final = 5 * 1024 * 1024
"""Largest image that providers accept."""

_PATH_SCHEMA: Final = {"type": "string", "minLength": 1, "description": "In the working folder, or absolute"}


def file_tools(workspace: Workspace) -> list[Tool]:
    """Return the four file tools for a workspace."""
    return [_read_tool(workspace), _write_tool(workspace), _edit_tool(workspace), _list_tool(workspace)]


def object_schema(required: list[str], **fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def run_in_thread(
    work: Callable[[Workspace, Arguments], ToolOutput], workspace: Workspace
) -> Callable[[Arguments], Awaitable[ToolOutput]]:
    """Return a tool's `run` that does blocking work in a thread."""

    async def run(given: Arguments) -> ToolOutput:
        return await asyncio.to_thread(work, workspace, given)

    return run


def _describe(verb: str, workspace: Workspace, given: Arguments) -> str:
    """Return the verb and the path, with the resolved path if it differs."""
    path = str(given.get("path", "."))
    shown = exact_line(path)
    try:
        real = workspace.display_name(workspace.resolve(path))
    except InvalidArguments:
        return f"{verb} {shown} (outside of the working folder)"
    return (
        f"{verb} {shown}"
        if real == exact_line(os.path.normpath(path))
        else f"{verb} {shown} (which is {real})"
    )


# ── Read ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="read",
        description="Read a text file, or a part of it by lines; a picture is shown.",
        parameters=object_schema(
            ["path"],
            path=_PATH_SCHEMA,
            offset={"type": "integer", "minimum": 1, "description": "The first line, counted from 1"},
            limit={"type": "integer", "minimum": 1, "description": "At most so many lines"},
        ),
        run=run_in_thread(_read, workspace),
        describe=partial(_describe, "read", workspace),
        timeout=60.0,
    )


def _read(workspace: Workspace, given: Arguments) -> ToolOutput:
    path = workspace.resolve(given["path"])
    with workspace.open_file(path) as file:
        found = os.fstat(file.fileno())
        start = file.read(8_192)
        file.seek(0)
        mime = text_edit.image_type(start)
        if mime and found.st_size <= MAX_IMAGE_BYTES:
            return ToolOutput(content=(image_part(mime, file.read(MAX_IMAGE_BYTES)),), touched=(str(path),))
        if mime or text_edit.is_binary(start):
            raise InvalidArguments(
                f"{workspace.display_name(path)} is not a text ({found.st_size:,} bytes), and was not read."
            )
        content = _read_part(file, found.st_size, given.get("offset", 1), given.get("limit"))
    workspace.mark_read(path, found)
    return ToolOutput(content=content, touched=(str(path),))


def _read_part(file: BinaryIO, size: int, offset: int, limit: int | None) -> str:
    """Return lines of a file, with notes before them."""
    if size > MAX_READ_BYTES:
        return _read_large_part(file, size, offset, limit)
    text, notes = text_edit.decode_for_reading(file.read(MAX_READ_BYTES))
    lines = text.count("\n") + (text[-1:] not in ("", "\n"))
    if offset > max(1, lines):
        raise InvalidArguments(f"There is no line {offset:,}: the file has {lines:,}.")
    if offset > 1 or (limit is not None and limit < lines):
        chosen = text.split("\n")[offset - 1 : None if limit is None else offset - 1 + limit]
        last = min(lines, offset - 1 + len(chosen))
        notes.insert(0, f"lines {offset:,} to {last:,} of {lines:,}")
        text = "\n".join(chosen)
    if not text:
        notes.append("the file is empty" if not size else "these lines are empty")
    return _with_notes(notes, text)


def _read_large_part(file: BinaryIO, size: int, offset: int, limit: int | None) -> str:
    """Return lines from the offset on, at most `MAX_READ_BYTES`; the other lines are neither kept nor counted."""
    skipped = sum(1 for _ in islice(_lines_of(file), offset - 1))
    if skipped < offset - 1:
        raise InvalidArguments(f"There is no line {offset:,}: the file has {skipped:,}.")
    taken, room, lines = [], MAX_READ_BYTES, 0
    while room > 0 and (limit is None or lines < limit) and (line := file.readline(room)):
        taken.append(line)
        room -= len(line)
        lines += 1
    text, notes = text_edit.decode_for_reading(b"".join(taken))
    notes.insert(0, f"lines {offset:,} to {offset - 1 + lines:,} of a file with {size:,} bytes")
    if room <= 0:
        inside = "" if text.endswith("\n") else ", inside a line"
        notes.append(f"cut after {MAX_READ_BYTES:,} bytes{inside}; go on with offset {offset + lines:,}")
    return _with_notes(notes, text)


def _lines_of(file: BinaryIO) -> Iterator[None]:
    """Yield once per line of a file without keeping it; a very long line is read in pieces."""
    while line := file.readline(MAX_READ_BYTES):
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_READ_BYTES)
        yield None


def _with_notes(notes: list[str], text: str) -> str:
    return f"[foveal: {'; '.join(notes)}]\n{text}" if notes else text


# ── Planned changes ──────────────────────────────────────────────────────────────────────────────────

_MAX_DIFF_CHARS: Final = 400_000
"""Most characters of two texts that are compared line by line; above it, the middle that differs is shown whole."""
_CONTEXT_LINES: Final = 2
"""Unchanged lines that are shown around a change."""


class PlannedChange(NamedTuple):
    """The new text of a file, and the state of the file from which it was planned."""

    path: Path
    """Real path."""
    old: str | None
    """None for a new file."""
    new: str
    coding: text_edit.TextCoding
    stamp: FileStamp | None
    """The file when it was read; None for a new file."""
    lines: tuple[int, ...] = ()
    """Lines at which an edit replaces a text."""

    @property
    def data(self) -> bytes:
        """The bytes to write."""
        return self.coding.encode(self.new)

    @property
    def digest(self) -> str:
        """Identifies the real path, the old and the new content."""
        old = b"-" if self.old is None else b"+" + self.coding.encode(self.old)
        total = sha256()
        for part in (os.fsencode(self.path), old, self.data):
            total.update(b"%d:" % len(part))
            total.update(part)
        return total.hexdigest()

    def diff(self, name: str) -> str:
        """Return the whole change as a unified diff that is safe to print."""
        old, new = _without_crlf(self.old or "", self.new)
        lines = _diff_lines(old, new, name)
        head = islice(lines, 2)  # has the name, which is visible already
        return "\n".join([*head, *map(visible, lines)])


def count_text(text: str) -> str:
    """Return how many lines and characters a text has, in words."""
    lines = text.count("\n") + (text[-1:] not in ("", "\n"))
    return f"{lines:,} line{'s' * (lines != 1)}, {len(text):,} character{'s' * (len(text) != 1)}"


def _without_crlf(old: str, new: str) -> tuple[str, str]:
    """Return both texts with `\\n` if all their lines end in CRLF; else a carriage return is part of the change."""
    if all("\r\n" in text and text.count("\r") == text.count("\n") for text in (old, new) if text):
        return old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    return old, new


def _diff_lines(old: str, new: str, name: str) -> Iterator[str]:
    before, after = _split_lines(old), _split_lines(new)
    if len(old) + len(new) <= _MAX_DIFF_CHARS:
        yield from unified_diff(before, after, name, name, lineterm="", n=_CONTEXT_LINES)
    elif old != new:
        yield from _middle_lines(before, after, name)


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text; a last line without a line end says so, as in git."""
    if not text:
        return []
    lines = text.removesuffix("\n").split("\n")
    return lines if text.endswith("\n") else [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


def _middle_lines(before: Sequence[str], after: Sequence[str], name: str) -> Iterator[str]:
    """Yield a diff in linear time: one hunk from the first to the last line that differs."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    removed, added = before[head : len(before) - tail], after[head : len(after) - tail]
    yield f"--- {name}"
    yield f"+++ {name}"
    yield f"@@ -{head + 1},{len(removed)} +{head + 1},{len(added)} @@"
    yield from (f"-{line}" for line in removed)
    yield from (f"+{line}" for line in added)


# ── Write and edit ───────────────────────────────────────────────────────────────────────────────────────

PlanChange = Callable[[Workspace, Arguments], PlannedChange]


def _write_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="write",
        description="Write a whole file; folders are made as needed. An existing file must have been read before.",
        parameters=object_schema(["path", "content"], path=_PATH_SCHEMA, content={"type": "string"}),
        run=run_in_thread(_write, workspace),
        describe=lambda given: f"{_describe('write', workspace, given)}: {count_text(given['content'])}",
        preview=partial(_preview, workspace, _plan_write),
        check=partial(_check_change, workspace, _plan_write, must_be_read=True),
        needs_approval=True,
        timeout=60.0,
    )


def _plan_write(workspace: Workspace, given: Arguments) -> PlannedChange:
    path, new = workspace.resolve(given["path"]), given["content"]
    if path.is_dir():
        raise InvalidArguments(f"{workspace.display_name(path)} is a folder, so nothing was written.")
    if not path.exists():
        return PlannedChange(path, None, new, text_edit.TextCoding(), None)
    old, coding, stamp = _read_exact(workspace, path)
    return PlannedChange(path, old, text_edit.keep_line_endings(old, new), coding, stamp)


def _write(workspace: Workspace, given: Arguments) -> ToolOutput:
    change = _plan_shown(workspace, _plan_write, given)
    workspace.check_writable(change.path, must_be_read=True)
    workspace.write(change.path, change.data, expected=change.stamp)
    verb = "wrote the new file" if change.old is None else "wrote"
    return ToolOutput(
        content=f"{verb} {workspace.display_name(change.path)}: {count_text(change.new)}",
        touched=(str(change.path),),
    )


def _edit_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="edit",
        description=(
            "Replace a text in a file by another one. The old text must be exactly as in the file, and be there "
            "only once, unless all is true."
        ),
        parameters=object_schema(
            ["path", "old", "new"],
            path=_PATH_SCHEMA,
            old={"type": "string", "minLength": 1, "description": "With enough lines around it to be unique"},
            new={"type": "string"},
            all={"type": "boolean", "description": "Replace it wherever it stands"},
        ),
        run=run_in_thread(_edit, workspace),
        describe=lambda given: (
            f"{_describe('edit', workspace, given)}: {count_text(given['old'])} become {count_text(given['new'])}"
        ),
        preview=partial(_preview, workspace, _plan_edit),
        check=partial(_check_change, workspace, _plan_edit, must_be_read=False),
        needs_approval=True,
        timeout=60.0,
    )


def _plan_edit(workspace: Workspace, given: Arguments) -> PlannedChange:
    path = workspace.resolve(given["path"])
    old, coding, stamp = _read_exact(workspace, path)
    new, lines = replace_text(old, given["old"], given["new"], everywhere=given.get("all", False))
    return PlannedChange(path, old, new, coding, stamp, tuple(lines))


def _edit(workspace: Workspace, given: Arguments) -> ToolOutput:
    change = _plan_shown(workspace, _plan_edit, given)
    workspace.check_writable(change.path, must_be_read=False)
    workspace.write(change.path, change.data, expected=change.stamp)
    count, first = len(change.lines), change.lines[0]
    places = f"{count:,} places, first at line" if count > 1 else "at line"
    return ToolOutput(
        content=f"edited {workspace.display_name(change.path)} {places} {first:,}",
        touched=(str(change.path),),
    )


def _read_exact(workspace: Workspace, path: Path) -> tuple[str, text_edit.TextCoding, FileStamp]:
    """Return the text and encoding of a file such that writing it again changes nothing, and its state."""
    with workspace.open_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_READ_BYTES:
            raise InvalidArguments(
                f"{workspace.display_name(path)} is too large to be changed here: {found.st_size:,} bytes."
            )
        return *text_edit.decode_exactly(file.read(MAX_READ_BYTES)), FileStamp.of(found)


def _check_change(workspace: Workspace, plan: PlanChange, given: Arguments, *, must_be_read: bool) -> None:
    workspace.check_writable(plan(workspace, given).path, must_be_read=must_be_read)


def _preview(workspace: Workspace, plan: PlanChange, given: Arguments) -> str:
    """Return the change as a diff for the user, and bind the call to it."""
    key = _call_key(plan, given)
    try:
        change = plan(workspace, given)
        workspace.shown_changes[key] = change.digest
    except InvalidArguments as problem:
        # The user sees a problem, not a change: if the call could succeed later, that would not be what was shown.
        workspace.shown_changes[key] = ""
        return visible(str(problem))
    return change.diff(workspace.display_name(change.path))


def _plan_shown(workspace: Workspace, plan: PlanChange, given: Arguments) -> PlannedChange:
    """Return the change of a call; raise if the call was shown to the user as another change."""
    shown = workspace.shown_changes.pop(_call_key(plan, given), None)
    change = plan(workspace, given)
    if shown is not None and shown != change.digest:
        raise InvalidArguments(
            f"{workspace.display_name(change.path)} is not as it was when the user was asked: the file or a folder "
            "on its path has changed since, so nothing was written. Read it and call again."
        )
    return change


def _call_key(plan: PlanChange, given: Arguments) -> str:
    text = json.dumps([plan.__name__, dict(given)], sort_keys=True)
    return sha256(text.encode()).hexdigest()


# ── List ─────────────────────────────────────────────────────────────────────────────────────────────────


def _list_tool(workspace: Workspace) -> Tool:
    return Tool(
        name="list",
        description="List a folder, and the folders in it down to a depth.",
        parameters=object_schema(
            [],
            path={**_PATH_SCHEMA, "description": "The working folder, if not given"},
            depth={"type": "integer", "minimum": 1, "maximum": 10, "description": "1 if not given"},
        ),
        run=run_in_thread(_list, workspace),
        describe=partial(_describe, "list", workspace),
        timeout=30.0,
    )


def _list(workspace: Workspace, given: Arguments) -> ToolOutput:
    path = workspace.resolve(given.get("path", "."))
    if not path.is_dir():
        raise InvalidArguments(f"{workspace.display_name(path)} is not a folder.")
    with workspace.open_folder(path) as folder:
        return ToolOutput(content=list_folder(folder, depth=given.get("depth", 1)), touched=(str(path),))


def list_folder(folder: int | str | Path, *, depth: int) -> str:
    """Return the entries sorted by name, one per line: folders end in `/`, links show their target.

    The folder is a path or a file descriptor; links in it are not followed."""
    opened = os.dup(folder) if isinstance(folder, int) else os.open(folder, FOLDER_FLAGS)
    try:
        lines = list(islice(_entry_lines(opened, "", depth), MAX_LISTED_ENTRIES + 1))
    finally:
        os.close(opened)
    if len(lines) > MAX_LISTED_ENTRIES:
        lines[-1] = f"[foveal: there is more; this is the first {MAX_LISTED_ENTRIES:,}]"
    return "\n".join(lines) or "[foveal: the folder is empty]"


def _entry_lines(folder: int, before: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as problem:
        yield f"{before}[foveal: cannot be listed: {problem.strerror}]"
        return
    for entry in entries:
        name = before + one_line(entry.name, width=300)
        if entry.is_symlink():
            yield f"{name} -> {one_line(os.readlink(entry.name, dir_fd=folder), width=300)}"
        elif entry.is_dir(follow_symlinks=False):
            yield f"{name}/"
            if depth > 1 and entry.name not in SKIPPED_FOLDERS:
                yield from _inner_lines(folder, entry.name, f"{name}/", depth - 1)
        elif entry.is_file(follow_symlinks=False):
            yield f"{name}  {entry.stat(follow_symlinks=False).st_size:,} bytes"
        else:
            yield f"{name}  (no ordinary file)"


def _inner_lines(folder: int, name: str, before: str, depth: int) -> Iterator[str]:
    try:
        inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except OSError as problem:
        yield f"{before}[foveal: cannot be listed: {problem.strerror}]"
        return
    try:
        yield from _entry_lines(inner, before, depth)
    finally:
        os.close(inner)


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
        note = f"[foveal: stopped after {seconds_text(timeout_s)}; narrow the pattern, the path or the glob]"
        content = str(append_note(content, note))
    return ToolOutput(content=content, error=result.status != 0, touched=(str(path),))
