"""The list of past sessions of several sources: their order, names and changes, and what could not be read."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from foveal.errors import FovealError
from foveal.recall.archive.source import ArchiveSource, SessionDetails, SessionEntry, session_handle
from foveal.recall.archive.transcript_source import TranscriptSource, transcript_handle, transcript_place

MAX_LIST_AGE_S: Final = 0.5
"""Age of a list that is used again."""
MIN_ID_PART_CHARS: Final = 4
"""Shortest part of an id by which a session is found."""
_MAX_CURSOR_DIGITS: Final = 15


class ListedSession(NamedTuple):
    """A session and its source."""

    entry: SessionEntry
    source: ArchiveSource

    @property
    def order(self) -> tuple[float, str]:
        """By which sessions are ordered, the greatest first."""
        return self.entry.active, self.entry.handle

    @property
    def path(self) -> str:
        """The file of a transcript, or the name of the store."""
        if isinstance(self.source, TranscriptSource):
            return transcript_place(self.entry.key)[0]
        return self.source.name


def sessions_named(
    sessions: Iterable[ListedSession], name: str, *, by_part: bool = False
) -> list[ListedSession]:
    """Return the sessions with this handle or id, else those whose handle or id begins so. The names of files of
    Codex and pi have a date before the id. `by_part`: else those whose id contains the name."""
    sessions = list(sessions)
    exact = [each for each in sessions if name in (each.entry.handle, each.entry.name)]
    if exact or len(name) < MIN_ID_PART_CHARS:
        return exact
    begins = re.compile(rf"(?:^|[-_T]){re.escape(name)}", re.ASCII)
    return [
        each for each in sessions if each.entry.handle.startswith(name) or begins.search(each.entry.name)
    ] or [each for each in sessions if by_part and name in each.entry.name]


class SessionList:
    """The sessions of all sources as of the last `refresh`, which one task at a time may call."""

    def __init__(self, sources: Sequence[ArchiveSource]) -> None:
        self._sources = sources
        self._sessions: dict[str, ListedSession] = {}
        """By handle, the most recently active first."""
        self._entries: dict[str, list[SessionEntry]] = {}
        """Of each source that could be read, by its name."""
        self._names: dict[tuple[str, str], str] | None = None
        """Handles by the names of the source and of the session; None until one is asked for."""
        self._read_at = -MAX_LIST_AGE_S
        self._read_divisions: list[int] = []
        self._problems: list[str] = []
        self._run = uuid4().hex[:8]
        """Tells cursors of this list from those of an earlier process."""
        self._changes = 0
        self._changed: dict[str, tuple[tuple[float, ...], int]] = {}
        """For each session its version, and the number of its last change."""
        self._are_changes_noted = True

    async def refresh(self, *, max_age: float = MAX_LIST_AGE_S) -> None:
        """List the sources again, unless that was done up to `max_age` seconds ago, and no file has turned out to
        hold further conversations since: the page of a session shows its sub-agents, which are known once it has
        been read."""
        divisions = [each.division for each in self._sources if isinstance(each, TranscriptSource)]
        if divisions == self._read_divisions and time.monotonic() - self._read_at < max_age:
            return
        found: list[ListedSession] = []
        self._entries, self._problems = {}, []
        for source in self._sources:
            try:
                entries = self._entries[source.name] = await source.entries()
            except (FovealError, OSError) as problem:
                self._problems.append(str(problem))
                continue
            found += [ListedSession(entry, source) for entry in entries]
        found.sort(key=lambda each: each.order, reverse=True)
        self._sessions = {each.entry.handle: each for each in found}
        self._names, self._are_changes_noted = None, False
        self._read_at, self._read_divisions = time.monotonic(), divisions

    def __iter__(self) -> Iterator[ListedSession]:
        """Yield the sessions, the most recently active first."""
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, handle: str) -> ListedSession | None:
        return self._sessions.get(handle)

    def handles(self) -> Mapping[str, Collection[str]]:
        """Return the handles of the sessions of each source that could be read, by its name."""
        return {name: {entry.handle for entry in entries} for name, entries in self._entries.items()}

    def origin_key(self, listed: ListedSession, details: SessionDetails, origin: str) -> str:
        """Return the key of the session that started this one as a sub-agent, or that it continues; "" if there is
        none. `origin` is what the log says: `id`, or `id@seq` for a fork."""
        if details.parent:
            path, part = transcript_place(listed.entry.key)
            if part:
                return transcript_handle(path)
            if self._names is None:
                self._names = {
                    (name, entry.name): entry.handle
                    for name, entries in self._entries.items()
                    for entry in entries
                }
            return self._names.get((listed.source.name, details.parent), "")
        names = (origin, origin.rpartition("@")[0])
        keys = (session_handle(listed.source.name, name) for name in names if name)
        return next((key for key in keys if key in self._sessions), "")

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def cursor(self) -> str:
        """Stands for the newest change."""
        self._note_changes()
        return f"{self._run}-{self._changes}"

    def note_change(self, entry: SessionEntry) -> None:
        """Count a session as changed now."""
        self._changes += 1
        self._changed[entry.handle] = entry.version, self._changes

    def _note_changes(self) -> None:
        """Count the sessions as changed that the last refresh found new or with another version."""
        if self._are_changes_noted:
            return
        self._changed = {handle: known for handle, known in self._changed.items() if handle in self._sessions}
        for handle, each in self._sessions.items():
            if self._changed.get(handle, ((),))[0] != each.entry.version:
                self.note_change(each.entry)
        self._are_changes_noted = True

    def changed_since(self, cursor: str) -> list[ListedSession]:
        """Return the sessions that changed after `cursor`, newest first; all of them for one of another process."""
        self._note_changes()
        run, _, number = cursor.partition("-")
        seen = int(number[:_MAX_CURSOR_DIGITS]) if run == self._run and number.isdecimal() else 0
        return [each for each in self if self._changed[each.entry.handle][1] > seen]

    # ── Problems ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, for people."""
        return (*self._problems, *(text for source in self._sources for text in source.problems))

    def add_problem(self, problem: Exception) -> None:
        """Report that a session cannot be read. A transcript source keeps its own problems, so that they are named
        again when the file is not tried again."""
        if str(problem) not in self.problems:
            self._problems.append(str(problem))
