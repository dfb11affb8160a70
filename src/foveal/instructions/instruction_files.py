"""Instructions on disk: found, read with care, and told to a session.

    files = InstructionFiles(cwd, rules=config.rules)
    if files.asks:                                        # a project that nobody has judged yet
        files.trust.trust(files.root, yes=ask(files.root))
    await session.append(*await files.refresh(session))   # before each user message
    await session.append(*await files.touched(session, paths_in(call.arguments)))   # after a step's results

`refresh` returns the facts after which the model sees every file exactly once and in its newest version; none when
nothing has changed. `touched` returns what applies to files that were not touched before. What was left out, cut or
looks odd is in `notes`, and goes into the log as `Noted`, once; no model sees that.

Only files of trusted projects are read, and only those between the project's root and the working directory or the
files that were touched. Nothing above the root is read, and `@imports` in a file are text like any other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from foveal.core.log.events import AnyFact, Event, Instructed, Noted
from foveal.core.wire.safe_print import one_line, visible
from foveal.instructions.rules import (
    PREFERENCES,
    InstructionFile,
    InstructionKind,
    InstructionRules,
    InstructionSet,
    ShownFile,
    changes,
    concerns,
    fit,
    folders,
    instruction_set,
    slot,
)
from foveal.project import FileText, Trust, UnusableFile, config_folder, find_root, read

TOPIC: Final = "instructions"
"""Of the notes in the log."""
OWN: Final = ".foveal"
"""The folder of a project with what is Foveal's."""
_LEAST_READ: Final = 1 << 20


class InstructionLog(Protocol):
    """A session, as far as its log is read here."""

    async def events(self, *, first: int = 0, last: int | None = None) -> list[Event]: ...


class InstructionFiles:
    """The instructions of one working directory, for one session."""

    def __init__(
        self,
        cwd: Path | str,
        *,
        rules: InstructionRules | None = None,
        user_folder: Path | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.rules = rules or InstructionRules()
        self.cwd = Path(os.path.realpath(cwd))
        self.root = find_root(self.cwd, self.rules.root_markers)
        self.user_folder = user_folder or config_folder()
        self.trust = trust or Trust()
        self.shown: tuple[ShownFile, ...] = ()
        """What the model sees of each file, in order."""
        self.notes: tuple[str, ...] = ()
        """What people should know about the files: left out, cut, odd."""
        self._log: list[Event] = []
        self._noted: set[str] = set()
        self._next = 0
        self._beside: dict[str, None] = {}
        """Folders beside the way down to the working directory whose files were touched."""
        self._looked: set[str] = set()
        """Folders that were looked into since the last refresh."""

    @property
    def asks(self) -> bool:
        """Nobody has said yet whether this project is trusted, and it has something to say."""
        if self.trust.trusted(self.root) is not None:
            return False
        names = [folder / name for folder in map(Path, self._way()) for name in self.rules.names]
        return any(map(os.path.lexists, [*names, self.root / OWN / PREFERENCES]))

    # ── for an agent ─────────────────────────────────────────────────────────────────────────────────

    async def refresh(self, session: InstructionLog) -> tuple[AnyFact, ...]:
        """What has changed since the last turn."""
        events = await session.events(first=self._next)
        return await asyncio.to_thread(self.look, events)

    async def touched(self, session: InstructionLog, paths: Sequence[str]) -> tuple[AnyFact, ...]:
        """What applies to files and folders that were touched for the first time."""
        if not await asyncio.to_thread(self._fresh, paths):
            return ()
        events = await session.events(first=self._next)
        return await asyncio.to_thread(self.for_paths, paths, events)

    # ── without an event loop ────────────────────────────────────────────────────────────────────────

    def look(self, events: Iterable[Event]) -> tuple[AnyFact, ...]:
        """What to append, given the session's events; those that were given before may be left out."""
        held = self._take(events)
        self._looked.clear()
        elsewhere = {*self._way(), self.user_folder.as_posix()}
        self._beside = dict.fromkeys(
            place
            for place, one in held.files.items()
            if place not in elsewhere and place != one.source and folders(self.root.as_posix(), place)
        )
        return (*self._found(held), *self._new_notes())

    def for_paths(self, paths: Sequence[str], events: Iterable[Event] = ()) -> tuple[AnyFact, ...]:
        """The instructions of folders that were not looked into before; changes elsewhere wait for `look`."""
        held = self._take(events)
        new = self._fresh(paths)
        self._looked.update(new)
        if not new or not self.trust.trusted(self.root):
            return ()
        self._beside |= dict.fromkeys(new)
        facts = self._found(held)
        known = {slot(one.path) for one in self.shown} | held.files.keys()
        self._beside = dict.fromkeys(place for place in self._beside if place in known)
        added = (fact for fact in facts if fact.replaces is None and slot(fact.source) in new)
        return (*added, *self._new_notes())

    def _take(self, events: Iterable[Event]) -> InstructionSet:
        """What the session shows now."""
        for event in events:
            if event.seq >= self._next:
                self._next = event.seq + 1
                if concerns(event):
                    self._log.append(event)
                elif isinstance(event.fact, Noted) and event.fact.topic == TOPIC:
                    self._noted.add(event.fact.text)
        return instruction_set(self._log)

    def _new_notes(self) -> tuple[Noted, ...]:
        return tuple(Noted(text=note, topic=TOPIC) for note in self.notes if note not in self._noted)

    # ── which folders ────────────────────────────────────────────────────────────────────────────────

    def _way(self) -> tuple[str, ...]:
        """The folders from the root down to the working directory."""
        return folders(self.root.as_posix(), self.cwd.as_posix())

    def _fresh(self, paths: Sequence[str]) -> list[str]:
        """Folders of the project on the way to these paths that nobody has looked into."""
        seen = {*self._way(), *self._beside, *self._looked}
        found = (folder for path in paths for folder in self._through(path) if folder not in seen)
        return list(dict.fromkeys(found))

    def _through(self, path: str) -> tuple[str, ...]:
        try:
            folder = Path(os.path.realpath(self.cwd / os.path.expanduser(path)))
        except (OSError, ValueError):
            return ()
        while not os.path.isdir(folder) and folder != folder.parent:
            folder = folder.parent
        return folders(self.root.as_posix(), folder.as_posix())

    # ── what they say ────────────────────────────────────────────────────────────────────────────────

    def _found(self, held: InstructionSet) -> tuple[Instructed, ...]:
        """Read everything again, and compare it with what is shown."""
        reading = _DiskReader(self.rules, self.root)
        shown = [*self._instructions(reading), *self._preferences(reading)]
        if self.asks:
            reading.note(self.root, "is not trusted yet: its instructions are not read")
        self.shown, self.notes = tuple(shown), tuple(reading.notes)
        return changes(
            held, self.shown, {place: self._why_gone(one.source) for place, one in held.files.items()}
        )

    def _instructions(self, reading: _DiskReader) -> list[ShownFile]:
        room = self.rules.max_bytes
        if not room:
            return []
        names, trusted = self.rules.names, self.trust.trusted(self.root)
        way = reading.first(self.user_folder, names, kind="user")
        for folder in self._way() if trusted else ():
            way += reading.first(Path(folder), names)
        shown = reading.fitted(way, room)
        for folder in self._beside if trusted else ():  # what is left is theirs: nothing before them moves
            left = room - sum(len(one.content.encode("utf-8", "surrogatepass")) for one in shown)
            shown += reading.fitted(reading.first(Path(folder), names), left)
        return shown

    def _preferences(self, reading: _DiskReader) -> list[ShownFile]:
        if not self.rules.preferences_max_bytes:
            return []
        files = reading.first(self.user_folder, (PREFERENCES,), kind="preferences")
        if self.trust.trusted(self.root):
            files += reading.first(self.root / OWN, (PREFERENCES,), kind="preferences", within=self.root)
        return reading.fitted(files, self.rules.preferences_max_bytes)

    def _why_gone(self, source: str) -> str:
        if not os.path.lexists(source):
            return "was deleted"
        inside = folders(self.root.as_posix(), os.path.dirname(source))
        if inside and not self.trust.trusted(self.root):
            return "is not read, because its project is not trusted"
        return "is not used any more"


class _DiskReader:
    """One look at the disk: each file is read once, and what is odd about it is noted."""

    def __init__(self, rules: InstructionRules, root: Path) -> None:
        self.notes: list[str] = []
        self._rules = rules
        self._root = root
        self._most = max(_LEAST_READ, rules.max_bytes, rules.preferences_max_bytes)
        self._seen: dict[tuple[int, int], str] = {}

    def note(self, path: Path | str, what: str) -> None:
        self.notes.append(f"{one_line(str(path), width=1_000)} {what}")

    def first(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        kind: InstructionKind = "project",
        within: Path | None = None,
    ) -> list[InstructionFile]:
        """The first file of a folder that can be used, if there is one."""
        if kind == "project":
            within = self._root
            if self._rules.ignores(folder.relative_to(self._root).as_posix()):
                return []
        for name in names:
            path = folder / name
            try:
                found = read(path, most=self._most, within=within)
            except UnusableFile as problem:
                self.note(path, f"is left out: {problem}")
                continue
            if found is None:
                continue
            if found.identity in self._seen:  # it stands already, and nothing else counts beside it
                self.note(path, f"is left out: it is the same file as {self._seen[found.identity]}")
                return []
            if self._usable(path, found):
                return [InstructionFile(path.as_posix(), found.text, kind, found.unread)]
        return []

    def _usable(self, path: Path, found: FileText) -> bool:
        if not found.text.strip() and not found.unread:
            self.note(path, "is left out: it is empty")
            return False
        self._seen[found.identity] = one_line(str(path), width=1_000)
        if found.damaged:
            self.note(path, "is not UTF-8 throughout: what could not be read is shown as U+FFFD")
        if hidden := _hidden(found.text):
            self.note(path, f"has characters that cannot be seen ({hidden}); they are kept as they are")
        return True

    def fitted(self, files: Sequence[InstructionFile], room: int) -> list[ShownFile]:
        """What is shown of files in so many bytes."""
        fitted = fit(files, room)
        for file, one in zip(files, fitted, strict=True):
            if one is None:
                self.note(file.path, "is left out: there is no room for it")
            elif not one.whole:
                more = " or more" if file.unread else ""
                self.note(file.path, f"is cut: {one.lines:,} of {one.total:,}{more} lines are shown")
        return [one for one in fitted if one is not None]


def _hidden(text: str) -> str:
    """The characters of a text that do not show, by number."""
    marks = set(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    found = sorted(ord(mark) for mark in marks if visible(mark) != mark)
    named = ", ".join(f"U+{code:04X}" for code in found[:5])
    return named + (f" and {len(found) - 5:,} more" if len(found) > 5 else "")
