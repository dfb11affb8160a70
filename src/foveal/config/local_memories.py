"""The memories of this machine, and memory.md, the file that its owner reads and edits.

    file = user_memory_file(memory)
    notes = await file.read()       # before a turn: what the owner changed in an editor is recorded
    notes = await file.write()      # after a change: the file shows the entries as they are

1. The user's file is beside preferences.md, and only the user can read it. The project's file is in its folder
   `.foveal`, can be committed, and is written only by an explicit call.
2. Lines that were added, changed or deleted are the owner's edits of the memory. A line that cannot be an entry
   stays where it is in the file, with a note.
3. Before the file is replaced it is read again: what was edited meanwhile is taken over, never overwritten. The
   replacement is atomic.
4. The project's file is used only if the user allows it as it is now, as AGENTS.md is.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict

from foveal.config.config import Config, MemorySettings
from foveal.config.instructions.files import PROJECT_FOLDER_NAME
from foveal.config.project import (
    ITEM_STATE_WORDS,
    ItemAnswer,
    ItemTrust,
    ProjectItem,
    Trust,
    UnusableFile,
    read_text_file,
)
from foveal.config.sources import CONFIG_FILE_NAME
from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.core.wire.safe_print import one_line
from foveal.errors import NotRemembered, StoreError
from foveal.memory import Memory, MemoryEntry
from foveal.memory.files import FILES_LOG_SUFFIX
from foveal.memory.markdown import FileEdits, read_edits, render, unusable_lines
from foveal.memory.quotes import entry_text
from foveal.ports import Store
from foveal.user_paths import config_folder

MEMORY_NAME: Final = "memory.md"
"""The name of the file."""
USER_OWNER: Final = "user"
"""The owner of the user's memory, for all projects."""
PROJECT_OWNER_PREFIX: Final = "project "
"""The beginning of the owners of projects' memories."""
MAX_MEMORY_FILE_BYTES: Final = 8 * 1024 * 1024
_MAX_WRITE_TRIES: Final = 5
_PRIVATE_MODE: Final = 0o600
_SHARED_MODE: Final = 0o644


def project_owner(root: Path) -> str:
    """Return the owner of a project's memory in the store of a user."""
    return f"{PROJECT_OWNER_PREFIX}{os.path.realpath(root)}"


def user_memory_file(memory: Memory, *, folder: Path | None = None) -> MemoryFile:
    """Return the file of the user's memory, beside preferences.md."""
    return MemoryFile(memory, (folder or config_folder()) / MEMORY_NAME)


def project_memory_file(memory: Memory, root: Path, *, trust: ItemTrust | None = None) -> MemoryFile:
    """Return the file of a project's memory, which is used only if the user allows it."""
    return MemoryFile(memory, root / PROJECT_FOLDER_NAME / MEMORY_NAME, root=root, trust=trust)


def project_memory_item(root: Path, trust: ItemTrust | None = None) -> ItemAnswer | None:
    """Return the memory file of a project as it is now, and whether the user allows it; None if it has none that
    can be read."""
    try:
        text = _read_text(root / PROJECT_FOLDER_NAME / MEMORY_NAME, root)
    except UnusableFile:
        return None
    return None if text is None else _answer(root, trust or Trust(), text)


def _read_text(path: Path, root: Path | None) -> str | None:
    found = read_text_file(path, max_bytes=MAX_MEMORY_FILE_BYTES, within=root)
    if found is not None and (found.unread or found.damaged):
        raise UnusableFile("it is too large" if found.unread else "it is not UTF-8 throughout")
    return None if found is None else found.text


def _answer(root: Path, trust: ItemTrust, text: str) -> ItemAnswer:
    name, lines = f"{PROJECT_FOLDER_NAME}/{MEMORY_NAME}", len(text.splitlines())
    title = f"{lines:,} line{'s' * (lines != 1)} of memory for the model"
    item = ProjectItem(key=f"file {name}", title=title, source=name, text=text)
    return ItemAnswer(item, trust.state(root, item))


def _why_no_entry(line: str) -> str:
    """Return why a line cannot be an entry; "" if it can."""
    try:
        entry_text(line)
    except NotRemembered as problem:
        return str(problem)
    return ""


class MemoryFile:
    """The file of one memory. Without `root`, it is the user's own."""

    def __init__(
        self, memory: Memory, path: Path, *, root: Path | None = None, trust: ItemTrust | None = None
    ) -> None:
        self.memory: Memory = memory
        self.path: Path = path
        self._root = root
        self._trust = trust or Trust()
        self._seen: str | None = None
        """The text that was read or written last; None if there was none."""

    def item(self) -> ItemAnswer | None:
        """Return the project's file as it is now, and whether the user allows it; None if there is none."""
        return None if self._root is None else project_memory_item(self._root, self._trust)

    async def read(self) -> list[str]:
        """Record what the owner changed in the file; return notes about what could not be used.

        Raises `StoreError` if the memory cannot be written."""
        problem, notes = await self._read()
        return [problem] if problem else notes

    async def _read(self) -> tuple[str, list[str]]:
        """Record what the owner changed; return why the file cannot be used, and notes about lines of it."""
        try:
            text = await asyncio.to_thread(self._read_text)
        except UnusableFile as problem:
            return self._note(f"is left out: {problem}"), []
        if text is None or text == self._seen:
            self._seen = text
            return "", []
        if self._root is not None and (state := _answer(self._root, self._trust, text).state) != "allowed":
            advice = "" if state == "refused" else "; `foveal chat` asks when it starts"
            return self._note(f"is not used: {ITEM_STATE_WORDS[state]}{advice}"), []
        notes = await self._take_over(text)
        self._seen = text
        return "", notes

    async def write(self) -> list[str]:
        """Make the file show the entries; return notes if it is left as it is, or has lines that are no entries.

        Raises `StoreError` if the memory cannot be read, and `OSError` if the file cannot be written."""
        notes: list[str] = []
        for _ in range(_MAX_WRITE_TRIES):
            problem, found = await self._read()
            if problem:
                return [problem]
            notes += found
            await self.memory.refresh()
            state = self.memory.state
            if self._seen is None and not state.counting():
                return notes
            text = render(state, unusable_lines(self._seen or "", lambda line: not _why_no_entry(line)))
            if text == self._seen or await asyncio.to_thread(self._replace, text, self._seen):
                return notes
        return [self._note("is left as it is: another program writes it again and again")]

    async def delete(self) -> None:
        """Delete the file, when the memory is erased: its lines would be entries again."""
        await asyncio.to_thread(self.path.unlink, missing_ok=True)
        self._seen = None

    async def _take_over(self, text: str) -> list[str]:
        """Record the edits of a text; return a note for each line that cannot be an entry."""
        await self.memory.refresh()
        edits, notes = read_edits(text, self.memory.state), list[str]()

        def is_entry(line: str) -> bool:
            if problem := _why_no_entry(line):
                named = f'has a line that is left out, "{one_line(line, width=40)}": {problem}'
                notes.append(self._note(named))
            return not problem

        usable = FileEdits(
            added=tuple(added for added in edits.added if is_entry(added[1])),
            changed=tuple(changed for changed in edits.changed if is_entry(changed[1])),
            deleted=edits.deleted,
        )
        if usable:
            await self.memory.apply_edits(usable)
        return notes

    # ── The file ─────────────────────────────────────────────────────────────────────────────────────────

    def _read_text(self) -> str | None:
        return _read_text(self.path, self._root)

    def _replace(self, text: str, before: str | None) -> bool:
        """Replace the file atomically if it is still as it was read; return whether it was."""
        path = Path(os.path.realpath(self.path))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if self._root else 0o700)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{MEMORY_NAME}")
        try:
            with open(number, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                os.fchmod(file.fileno(), _PRIVATE_MODE if self._root is None else _SHARED_MODE)
                file.flush()
                os.fsync(file.fileno())
            if self._read_text() != before:
                return False
            os.replace(name, path)
            name = ""
        finally:
            if name:
                os.unlink(name)
        self._seen = text
        if self._root is not None and isinstance(self._trust, Trust):  # the user's own call wrote it
            answer = _answer(self._root, self._trust, text)
            self._trust.answer(self._root, [answer.item], allowed={answer.item.key})
        return True

    def _note(self, what: str) -> str:
        return f"{one_line(str(self.path), width=1_000)} {what}"


# ── The memories of this machine ─────────────────────────────────────────────────────────────────────────
# 1. The user's memory counts in all projects, the project's only in it. Both are in the store of the sessions.
#    A folder without the marks of a project (`project_of`) has no memory of its own.
# 2. Before a turn, what was edited in the files is recorded; after a change, the user's file shows the entries. The
#    project's file is written only after a command that names the project's memory.
# 3. What is wrong with a file is a note for the user and no error: a conversation goes on without it.

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
        self._store = store
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

    async def other_owners(self) -> list[str]:
        """Return the owners of the store's other memories, the last changed first."""
        stored = await self._store.sessions(memories=True, with_erased=False)
        owners = [info.id.removeprefix(MEMORY_LOG_PREFIX) for info in stored]
        own = {memory.owner for memory in self.all}
        return [one for one in owners if one not in own and not one.endswith(FILES_LOG_SUFFIX)]

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
