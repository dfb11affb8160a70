"""The memories on this machine: the user's, and that of the project, with their files.

1. The user's memory counts in all projects, the project's only in it. Both are in the store of the sessions.
2. Before a turn, what was edited in the files is recorded; after a change, the user's file shows the entries. The
   project's file is written only after a command that names the project's memory.
3. What is wrong with a file is a note for the user and no error: a conversation goes on without it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from foveal.config.config import MemorySettings
from foveal.config.memory_file import (
    USER_OWNER,
    MemoryFile,
    project_memory_file,
    project_owner,
    user_memory_file,
)
from foveal.config.project import ItemTrust
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
        return next((file for file in self.files if id.startswith(file.memory.letter)), self.user)

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


# ── Entries in words ─────────────────────────────────────────────────────────────────────────────────────


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
