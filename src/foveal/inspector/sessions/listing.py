"""List of the sessions of several archive sources, with a number for each change."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError
from foveal.inspector.sessions.source import SessionMissing
from foveal.recall.archive import ArchiveSource, TranscriptSource
from foveal.recall.archive.source import SessionDetails, SessionEntry, session_handle
from foveal.recall.archive.transcript_source import transcript_handle, transcript_place

MAX_LIST_AGE_S: Final = 0.5
"""Age of a list that is used again."""
MIN_ID_BEGINNING_CHARS: Final = 4
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


class SessionList:
    """The sessions of all sources. `refresh` brings it up to date; one task at a time may call it."""

    def __init__(self, sources: Sequence[ArchiveSource]) -> None:
        self._sources = sources
        self._sessions: dict[str, ListedSession] = {}
        """By handle, the most recently active first."""
        self._handles: dict[tuple[str, str], str] = {}
        """By the names of the source and of the session."""
        self._read_at = -MAX_LIST_AGE_S
        self._read_divisions: list[int] = []
        self._problems: list[str] = []
        self._run = uuid4().hex[:8]
        """Tells cursors of this list from those of an earlier process."""
        self._changes = 0
        self._changed: dict[str, tuple[tuple[float, ...], int]] = {}
        """For each session its version, and the number of its last change."""

    async def refresh(self) -> None:
        """List the sources again, unless that was done just now, and no file has turned out to hold further
        conversations since: the page of a session shows its sub-agents, which are known once it has been read."""
        divisions = [each.division for each in self._sources if isinstance(each, TranscriptSource)]
        if divisions == self._read_divisions and time.monotonic() - self._read_at < MAX_LIST_AGE_S:
            return
        found: list[ListedSession] = []
        problems: list[str] = []
        for source in self._sources:
            try:
                found += [ListedSession(entry, source) for entry in await source.entries()]
            except (FovealError, OSError) as problem:
                problems.append(str(problem))
        found.sort(key=lambda each: each.order, reverse=True)
        self._sessions = {each.entry.handle: each for each in found}
        self._handles = {(each.source.name, each.entry.name): each.entry.handle for each in found}
        self._changed = {handle: known for handle, known in self._changed.items() if handle in self._sessions}
        for each in found:
            if self._changed.get(each.entry.handle, ((),))[0] != each.entry.version:
                self.note_change(each.entry)
        self._read_at, self._read_divisions, self._problems = time.monotonic(), divisions, problems

    def __iter__(self) -> Iterator[ListedSession]:
        """Yield the sessions, the most recently active first."""
        return iter(self._sessions.values())

    def get(self, handle: str) -> ListedSession | None:
        return self._sessions.get(handle)

    def resolve(self, key: str) -> ListedSession:
        """Return the session with this handle or id, or the only one whose id begins so.

        Raises `SessionMissing`."""
        if key in self._sessions:
            return self._sessions[key]
        found = [each for each in self if each.entry.name == key] or self._beginning_with(key)
        if len(found) == 1:
            return found[0]
        if found:
            keys = ", ".join(each.entry.handle for each in found[:5])
            raise SessionMissing(f"{len(found)} sessions are called {one_line(key)}: use one of {keys}")
        more = f"; what could not be read: {self.problems[0]}" if self.problems else ""
        raise SessionMissing(f"there is no session {one_line(key)}, or it was erased{more}")

    def _beginning_with(self, text: str) -> list[ListedSession]:
        """Return the sessions whose handle or id begins with a text. The names of files of Codex and pi have a date
        before the id."""
        if len(text) < MIN_ID_BEGINNING_CHARS:
            return []
        begins = re.compile(rf"(?:^|[-_T]){re.escape(text)}", re.ASCII)
        return [each for each in self if each.entry.handle.startswith(text) or begins.search(each.entry.name)]

    def origin_key(self, listed: ListedSession, details: SessionDetails, origin: str) -> str:
        """Return the key of the session that started this one as a sub-agent, or that it continues; "" if there is
        none. `origin` is what the log says: `id`, or `id@seq` for a fork."""
        if details.parent:
            path, part = transcript_place(listed.entry.key)
            if part:
                return transcript_handle(path)
            return self._handles.get((listed.source.name, details.parent), "")
        names = (origin, origin.rpartition("@")[0])
        keys = (session_handle(listed.source.name, name) for name in names if name)
        return next((key for key in keys if key in self._sessions), "")

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def cursor(self) -> str:
        """Stands for the newest change."""
        return f"{self._run}-{self._changes}"

    def note_change(self, entry: SessionEntry) -> None:
        """Count a session as changed now."""
        self._changes += 1
        self._changed[entry.handle] = entry.version, self._changes

    def changed_since(self, cursor: str) -> list[ListedSession]:
        """Return the sessions that changed after `cursor`, newest first; all of them for one of another process."""
        run, _, number = cursor.partition("-")
        seen = int(number[:_MAX_CURSOR_DIGITS]) if run == self._run and number.isdecimal() else 0
        return [each for each in self if self._changed[each.entry.handle][1] > seen]

    # ── Problems ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, for people."""
        return (*self._problems, *(text for source in self._sources for text in source.problems))

    def add_problem(self, problem: Exception) -> None:
        """Report that a session cannot be read."""
        if str(problem) not in self.problems:
            self._problems.append(str(problem))
