"""The memories on this machine: the user's, and that of the project, with their files.

1. The user's memory counts in all projects, the project's only in it. Both are in the store of the sessions.
   A folder without the marks of a project (`project_of`) has no memory of its own.
2. Before a turn, what was edited in the files is recorded; after a change, the user's file shows the entries. The
   project's file is written only after a command that names the project's memory.
3. What is wrong with a file is a note for the user and no error: a conversation goes on without it.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict

from foveal.config.config import Config, MemorySettings
from foveal.config.instructions.files import PROJECT_FOLDER_NAME
from foveal.config.memory_file import (
    USER_OWNER,
    MemoryFile,
    project_memory_file,
    project_owner,
    user_memory_file,
)
from foveal.config.project import ItemTrust
from foveal.config.sources import CONFIG_FILE_NAME
from foveal.errors import StoreError
from foveal.memory import Memory, MemoryEntry
from foveal.ports import Store

_SOURCE_WORDS = {
    "told": "you told it",
    "spoken": "you asked for it",
    "quoted": "the model quoted you",
    "file": "you wrote it into memory.md",
    "imported": "imported",
    "proposed": "proposed",
}


def project_of(config: Config) -> Path | None:
    """Return the root of the project whose memory is used; None in a folder that shows no project: neither a root
    marker, such as `.git`, nor a file of Foveal."""
    marks = (*config.get("instructions.root_markers"), PROJECT_FOLDER_NAME, CONFIG_FILE_NAME)
    is_project = any(os.path.lexists(config.root / mark) for mark in marks)
    return config.root if is_project and config.root != Path.home().resolve() else None


class LocalMemories:
    """The user's memory and, with `root`, that of a project."""

    def __init__(
        self,
        store: Store,
        settings: MemorySettings,
        *,
        root: Path | None = None,
        trust: ItemTrust | None = None,
    ) -> None:
        """`trust` decides whether the project's file is used."""
        user = Memory(USER_OWNER, store=store, budget=settings.budget, hears=settings.learn_spoken)
        self.settings = settings
        self.user = user_memory_file(user)
        self.project: MemoryFile | None = None
        if root is not None:
            memory = Memory(
                project_owner(root),
                store=store,
                budget=settings.budget,
                title="this project",
                letter="p",
                hears=False,
            )
            self.project = project_memory_file(memory, root, trust=trust)
        self._lock = asyncio.Lock()

    @property
    def files(self) -> tuple[MemoryFile, ...]:
        """The files, the user's first."""
        return (self.user,) if self.project is None else (self.user, self.project)

    @property
    def all(self) -> tuple[Memory, ...]:
        """The memories, the user's first."""
        return tuple(file.memory for file in self.files)

    def file_of(self, id: str) -> MemoryFile:
        """Return the file of the memory that an id of an entry belongs to."""
        letter = id[:1] if id[1:].isdecimal() else ""
        return next((file for file in self.files if file.memory.letter == letter), self.user)

    async def newest_changed(self) -> MemoryFile:
        """Return the file of the memory that was changed last."""
        for memory in self.all:
            await memory.refresh()
        return max(self.files, key=lambda file: file.memory.state.newest_change_at())

    async def read(self) -> list[str]:
        """Record what was edited in the files; return notes about what could not be used."""
        async with self._lock:
            try:
                return [note for file in self.files for note in await file.read()]
            except StoreError as problem:
                return [f"the files of the memory are not read: {problem}"]

    async def write(self, file: MemoryFile | None = None) -> list[str]:
        """Make a file show its entries, by default the user's; return notes if it is left as it is."""
        chosen = file or self.user
        async with self._lock:
            try:
                return await chosen.write()
            except (OSError, StoreError) as problem:
                return [f"{chosen.path} is not written: {problem}"]


class UndoneChange(NamedTuple):
    """What an undo changed."""

    now: list[MemoryEntry]
    """Entries as they are now."""
    gone: list[MemoryEntry]
    """Entries that are not remembered any more, as they were."""


async def undo_change(memory: Memory, id: str | None) -> UndoneChange:
    """Take back the newest change of an entry, or of a memory; raises `NotRemembered`."""
    before = {entry.id: entry for entry in await memory.entries(all=True)}
    await memory.undo(id)
    after = {entry.id: entry for entry in await memory.entries(all=True)}
    now = [entry for entry in after.values() if before.get(entry.id) != entry]
    return UndoneChange(now, [entry for entry in before.values() if entry.id not in after])


async def with_replaced(memory: Memory, entry: MemoryEntry) -> list[MemoryEntry]:
    """Return an entry and those that it replaces."""
    return [entry, *(one for one in await memory.entries(all=True) if one.replaced_by == entry.id)]


# ── Entries in words and as JSON ──────────────────────────────────────────────────────────────────────────


def entry_json(entry: MemoryEntry) -> dict[str, Any]:
    """Return all fields of an entry, with those that the HTTP API has under the same names."""
    return {**asdict(entry), "counts": entry.counts, "origin": asdict(entry.origin)}


def entry_state(entry: MemoryEntry) -> str:
    """Return why an entry does not count, in words; "" if it does."""
    if entry.forgotten:
        return "rejected" if entry.proposed else "forgotten"
    if entry.replaced_by:
        return f"replaced by {entry.replaced_by}"
    return "proposed" if entry.proposed else ""


def entry_details(entry: MemoryEntry) -> list[tuple[str, str]]:
    """Return what is known about an entry, as a table with two columns."""
    origin = entry.origin
    came = _SOURCE_WORDS[origin.source] + (f", by {origin.by}" if origin.by else "")
    table = [("kind", entry.kind), ("origin", came)]
    if origin.quote:
        table.append(("your words", f"“{origin.quote}”"))
    if origin.session:
        table.append(("session", f"{origin.session}{f', {origin.event}' if origin.event else ''}"))
    if entry.at is not None:
        table.append(("since", time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.at))))
    if state := entry_state(entry):
        table.append(("state", state))
    return table
