"""Where past sessions are, and the list of them: order, names, changes, and problems.

`SessionFilter` says which sessions a call is about: by text, folder and date. A query has parts, all of which a
session must contain: a word, in any of its forms; an identifier such as `db-zh-7`, exactly as it is written; or a
phrase in double quotes. Upper and lower case are the same.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from foveal.core.wire.query_match import STOP_WORDS
from foveal.errors import FovealError, StoreUnusable
from foveal.recall.archive.source import (
    ArchiveSource,
    RecallProblem,
    SessionDetails,
    SessionEntry,
    session_handle,
)
from foveal.recall.archive.store_sources import PostgresSource, SqliteSource
from foveal.recall.archive.transcript_source import TranscriptSource, transcript_handle, transcript_place
from foveal.stores import is_postgres_url, other_url_error
from foveal.stores.sqlite.schema import check_header
from foveal.user_paths import store_path

MAX_QUERY_PARTS: Final = 64
_PART: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_IDENTIFIER: Final = re.compile(r"\w[-_./:@#\\]+\w")
_OUTER_PUNCTUATION: Final = ".,;:!?()[]{}<>'`“”‘’"


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a session must meet; "" for none."""

    text: str = ""
    """Words, and phrases in double quotes, that must all occur in its title, folder, id or format."""
    folder: str = ""
    """Its working folder, or a folder above that."""
    since: str = ""
    """Earliest day or time of its newest message, in ISO 8601; UTC unless it names an offset."""
    until: str = ""
    """Latest day (all of it) or time of its newest message."""

    def period(self) -> tuple[float, float]:
        """Return the first and the last time of the period; raises `RecallProblem`."""
        first = _parse_date("since", self.since, is_end=False) if self.since else -inf
        last = _parse_date("until", self.until, is_end=True) if self.until else inf
        if first > last:
            raise RecallProblem(f"since {self.since} is later than until {self.until}: exchange them")
        return first, last

    @property
    def needs_details(self) -> bool:
        """Whether an entry alone does not show if its session matches."""
        return bool(self.text.strip() or self.folder.strip())

    def matches(self, entry: SessionEntry, details: SessionDetails) -> bool:
        """Return whether a session has the text and the folder."""
        if self.folder.strip() and not _is_below(details.folder, self.folder.strip()):
            return False
        shown = "\n".join((details.title, details.folder, details.kind, entry.name, entry.handle)).casefold()
        return all(part.occurs_in(shown) for part in query_parts(self.text))


def _parse_date(name: str, text: str, *, is_end: bool) -> float:
    try:
        parsed = datetime.fromisoformat(text.strip())
        if is_end and len(text.strip()) <= len("2026-10-01"):
            parsed += timedelta(days=1) - timedelta(microseconds=1)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise RecallProblem(
            f'{name} must be a day or a time such as "2026-10-01" or "2026-10-01T14:30"'
        ) from None


def _is_below(folder: str, above: str) -> bool:
    if not folder:
        return False
    wanted, given = os.path.normpath(os.path.expanduser(above)), os.path.normpath(folder)
    return given == wanted or given.startswith(wanted.rstrip(os.sep) + os.sep)


# ── Query ────────────────────────────────────────────────────────────────────────────────────────────────


class QueryPart(NamedTuple):
    """A word, an identifier or a phrase."""

    text: str
    is_exact: bool
    """Whether it must occur as it is written."""

    def occurs_in(self, text: str) -> bool:
        """Return whether a text has the part as it is written."""
        return self.text.casefold() in text.casefold()


def query_parts(query: str) -> list[QueryPart]:
    """Return the distinct parts of a query."""
    parts = (_part(phrase.strip(), word) for phrase, word in _PART.findall(query))
    return list(dict.fromkeys(part for part in parts if part.text))[:MAX_QUERY_PARTS]


def significant_parts(query: str) -> list[QueryPart]:
    """Return the distinct parts of a query; stop words only if there are no others."""
    parts = query_parts(query)
    return [part for part in parts if part.is_exact or part.text.casefold() not in STOP_WORDS] or parts


def _part(phrase: str, word: str) -> QueryPart:
    if phrase:
        return QueryPart(phrase, is_exact=True)
    bare = word.strip(_OUTER_PUNCTUATION) or word
    return QueryPart(bare, is_exact=_IDENTIFIER.search(bare) is not None)


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


# ── Places ───────────────────────────────────────────────────────────────────────────────────────────────

_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_AGENT_FOLDERS: Final = (
    ("CLAUDE_CONFIG_DIR", ".claude", ("projects",)),
    ("CODEX_HOME", ".codex", ("sessions", "archived_sessions")),
    ("PI_CODING_AGENT_DIR", ".pi/agent", ("sessions",)),
)
"""For each agent: the variable that names its folder, the default below the home folder, and where transcripts
are."""


def default_sources() -> list[ArchiveSource]:
    """Return the places of Claude Code, Codex, pi and Foveal that exist."""
    folders = [
        Path(os.environ.get(variable) or Path.home() / default) / name
        for variable, default, names in _AGENT_FOLDERS
        for name in names
    ]
    sources: list[ArchiveSource] = [TranscriptSource(folder) for folder in folders if folder.is_dir()]
    store = store_path()
    return [*sources, *([SqliteSource(store)] if store.is_file() else [])]


def find_sources(
    places: Sequence[str], *, tenant: str = "default", served: Path | None = None
) -> list[ArchiveSource]:
    """Return the sources of these places; without any, the default ones and the store that a server has `served`
    for the tenant. Raises `FovealError` if none exists."""
    if places:
        sources = given_sources(places, tenant=tenant)
    else:
        served_stores: list[ArchiveSource] = [SqliteSource(served)] if served and served.is_file() else []
        sources = [*default_sources(), *served_stores]
    if not sources:
        raise FovealError("no sessions of Claude Code, Codex, pi or Foveal were found: name a path")
    return sources


def given_sources(places: Sequence[str], *, tenant: str = "default") -> list[ArchiveSource]:
    """Return the sources for paths and URLs; raises `FovealError` for a path that does not exist."""
    return [source for place in places for source in _sources_of(place, tenant)]


def _sources_of(place: str, tenant: str) -> Iterator[ArchiveSource]:
    if is_postgres_url(place):
        yield PostgresSource(place, tenant)
        return
    if "://" in place:
        raise other_url_error(place, "a path, or a postgresql:// URL")
    path = Path(place).expanduser().absolute()
    if not path.exists():
        raise FovealError(f"there is no file or folder {path}: check the path")
    if path.is_dir():
        yield TranscriptSource(path)
        yield from (SqliteSource(file) for file in _store_files(path))
    elif _is_sqlite(path):
        yield SqliteSource(path)
    else:
        yield TranscriptSource(path)


def _store_files(folder: Path) -> Iterator[Path]:
    """Yield the stores in a folder, and those of the tenants if it is a server's folder."""
    for pattern in ("*.db", "tenants/*.db"):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and _is_store(path):
                yield path


def _is_store(path: Path) -> bool:
    """Return whether a file is a store of Foveal, not a database of another program or of the server."""
    try:
        check_header(str(path))
    except (StoreUnusable, OSError):
        return False
    return _is_sqlite(path)


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:  # the source reports the error when it is read
        return path.suffix == ".db"
