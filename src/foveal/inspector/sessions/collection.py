"""Sessions of several archive sources as one `SessionSource`.

sessions = SessionCollection(default_sources())
page = await sessions.rows(query="flaky test")
reader = await sessions.open(page.rows[0].key)

The reader of a session follows it while it grows: a store is asked for its end, and a transcript is read again when
its file has changed. The longer a look takes, the longer a follower rests after it, so that a large file that grows
does not keep a processor busy.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from operator import eq
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from foveal.config.local_memories import PROJECT_OWNER_PREFIX
from foveal.core.engine.state import stored_counts
from foveal.core.log.events import MEMORY_LOG_PREFIX, Event, Opened
from foveal.core.tokens.counter import counter
from foveal.core.tokens.message_tokens import MessageCounts
from foveal.core.wire.safe_print import one_line
from foveal.errors import FovealError, UnknownSession
from foveal.inspector.sessions.rows import SessionRows, bare_row
from foveal.inspector.sessions.source import (
    MAX_PART_EVENTS,
    ActionResult,
    LogEnd,
    MemoryChange,
    MemoryList,
    NotWritable,
    OfferedWriter,
    OwnedMemory,
    SessionAbout,
    SessionAction,
    SessionChanges,
    SessionMissing,
    SessionPage,
    SessionRow,
)
from foveal.memory import Memory
from foveal.memory.files import FILES_LOG_SUFFIX
from foveal.memory.fold import fold_memory
from foveal.recall.archive import (
    Archive,
    ArchiveSource,
    PostgresSource,
    SqliteSource,
    StoreSource,
    TranscriptSource,
)
from foveal.recall.archive.listing import ListedSession, SessionList, sessions_named
from foveal.recall.archive.source import RecallProblem, SessionLog, session_handle

if TYPE_CHECKING:
    from foveal.inspector.sessions.actions import SessionActor


# ── Memories ─────────────────────────────────────────────────────────────────────────────────────────────
# Reading opens nothing for writing. A change opens the store for that change only, as actions on sessions do.


async def list_memories(
    sources: Iterable[ArchiveSource], refusal: Callable[[ArchiveSource], str]
) -> MemoryList:
    """Return the memories that have entries, the last changed first in each place."""
    found, problems = list[OwnedMemory](), list[str]()
    for source in sources:
        if isinstance(source, SqliteSource | StoreSource | PostgresSource):
            try:
                found += await _memories_of(source, refusal(source))
            except (FovealError, OSError) as problem:
                problems.append(str(problem))
    return MemoryList(tuple(found), tuple(problems))


async def _memories_of(
    source: SqliteSource | StoreSource | PostgresSource, refusal: str
) -> list[OwnedMemory]:
    stored = await source.opened() if isinstance(source, PostgresSource) else source
    found: list[OwnedMemory] = []
    for info in await stored.memories():
        owner = info.id.removeprefix(MEMORY_LOG_PREFIX)
        if owner.endswith(FILES_LOG_SUFFIX):
            continue
        state = fold_memory(await stored.pick(info.id, range(info.events)), letter_of(owner))
        if state.entries:
            key = session_handle(stored.name, info.id)
            found.append(OwnedMemory(key, owner, stored.name, tuple(state.entries.values()), refusal))
    return found


async def change_memory(
    sources: Iterable[ArchiveSource], change: MemoryChange, refusal: Callable[[ArchiveSource], str]
) -> str:
    """Carry out a change of a memory and return its owner; raises `SessionMissing`, `NotWritable` or
    `NotRemembered`."""
    from foveal.inspector.sessions.actions import opened_store  # loads the engine

    for source in sources:
        listed = await list_memories([source], refusal)
        for found in listed.memories:
            if found.key == change.memory:
                if found.refusal:
                    raise NotWritable(found.refusal)
                async with opened_store(source) as store:
                    memory = Memory(found.owner, store=store, letter=letter_of(found.owner))
                    await _carry_out(memory, change)
                return found.owner
    raise SessionMissing("there is no such memory here, or it was erased")


async def _carry_out(memory: Memory, change: MemoryChange) -> None:
    match change.action:
        case "forget":
            await memory.forget(change.id)
        case "undo":
            await memory.undo(change.id or None)
        case "accept":
            await memory.accept(change.id)
        case "reject":
            await memory.reject(change.id)


def letter_of(owner: str) -> str:
    """Return the letter with which the ids of an owner's entries begin."""
    return "p" if owner.startswith(PROJECT_OWNER_PREFIX) else "m"


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────────

MAX_PAGE_ROWS: Final = 200
SEARCH_WORK_S: Final = 0.3
"""Time for which a search reads titles, and for which the first one indexes sessions; a task indexes the rest."""
MAX_INDEXING_S: Final = 30.0
"""Time after the last search at which the task stops."""
MAX_COMPLETING_S: Final = 30.0
"""Time after the last look at the list at which the task that completes its figures stops."""
MAX_KEPT_READERS: Final = 64
_MAX_CURSOR_DIGITS: Final = 9
MAX_ABOUT_AGE_S: Final = 5.0
"""Age of what is known of a session that is used again."""


POLL_S: Final = 0.5
"""Pause between two looks at a session that is followed."""
REST_PER_WORK: Final = 5
"""A follower rests at least this many times as long as its last look took."""


class ArchivedSession:
    """A session of an archive source."""

    def __init__(
        self,
        listed: ListedSession,
        about: SessionAbout,
        *,
        first: Event | None = None,
        actor: SessionActor,
        next_generation: Callable[[], int],
    ) -> None:
        self.entry: Final = listed.entry
        self.source: Final = listed.source
        self.first: Final = first
        """The first event, as far as it is known."""
        self._about = about
        self._actor = actor
        self._next_generation = next_generation
        self._log: SessionLog | None = None
        self._generation = 0
        self._looking = asyncio.Lock()
        self._looked_at = 0.0

    @property
    def about(self) -> SessionAbout:
        return self._about

    def set_about(self, about: SessionAbout) -> None:
        """Replace what is known of the session."""
        self._about = about

    def begin_generation(self) -> None:
        """Say that earlier events may be others now."""
        self._generation = self._next_generation()

    async def end(self, *, max_age: float = 0.0) -> LogEnd:
        """Return where the log ends now, or ended up to `max_age` seconds ago."""
        log = await self._look(max_age)
        return LogEnd(log.end, self._generation)

    async def read(self, first: int, last: int) -> list[Event]:
        return await self.pick(range(max(first, 0), min(last + 1, first + MAX_PART_EVENTS)))

    async def pick(self, seqs: Sequence[int]) -> list[Event]:
        log = self._log or await self._look()
        wanted = [seq for seq in seqs if seq >= 0]
        if wanted and max(wanted) >= log.end:
            log = await self._look()
        with _missing():
            return await log.pick([seq for seq in wanted if seq < log.end])

    async def counts(self) -> MessageCounts | None:
        log = self._log or await self._look()
        with _missing():
            checkpoint = await log.checkpoint()
        return None if checkpoint is None else stored_counts(checkpoint.state)

    async def wait(self, after: LogEnd, *, timeout: float) -> LogEnd:
        until = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            end = await self.end(max_age=POLL_S / 2)  # one look is enough for all who wait
            now = time.monotonic()
            if end != after or now >= until:
                return end
            await asyncio.sleep(min(max(POLL_S, REST_PER_WORK * (now - began)), until - now))

    async def act(self, action: SessionAction) -> ActionResult:
        if refusal := self._actor.refusal(self.source):
            raise NotWritable(refusal)
        return await self._actor.act(self.source, self.entry.key, action)

    async def writers(self) -> tuple[OfferedWriter, ...]:
        return await self._actor.writers()

    async def _look(self, max_age: float = 0.0) -> SessionLog:
        """Return the log as it is now, or was up to `max_age` seconds ago."""
        async with self._looking:
            if self._log is not None and time.monotonic() - self._looked_at < max_age:
                return self._log
            looked_at = time.monotonic()
            with _missing():
                log, before = await self.source.open(self.entry), self._log
            if log is not before and not await _continues(before, log):
                self.begin_generation()
            self._log, self._looked_at = log, looked_at
            return log


async def _continues(before: SessionLog | None, log: SessionLog) -> bool:
    """Return whether all events that `before` had are the same in `log`."""
    if before is None:
        return log.is_append_only
    if log.end < before.end:
        return False
    if log.is_append_only:
        return True
    seqs = range(before.end)
    return await asyncio.to_thread(eq, await before.pick(seqs), await log.pick(seqs))


@contextmanager
def _missing() -> Iterator[None]:
    """Raise `SessionMissing` for a session that does not exist any more."""
    try:
        yield
    except (UnknownSession, RecallProblem) as problem:
        raise SessionMissing(str(problem)) from None


def _store_actor() -> SessionActor:
    from foveal.inspector.sessions.actions import StoreActor  # loads the engine

    return StoreActor()


class SessionCollection:
    """The sessions of several sources, for one event loop."""

    def __init__(
        self,
        sources: Sequence[ArchiveSource],
        *,
        actor: SessionActor | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """`settings` are those of Foveal's own sessions that their logs do not record, such as `window`; the actor
        has its own."""
        self._actor = actor or _store_actor()
        self._settings = settings or {}
        # It only searches here, so nothing is counted exactly: loading a vocabulary takes long.
        self._sources = sources
        self._archive = Archive(sources, counting=counter("estimate"))
        self._sessions = SessionList(sources)
        self._rows = SessionRows(self._sessions, window=int(self._settings.get("window") or 0))
        self._lock = asyncio.Lock()
        self._readers: OrderedDict[str, tuple[ArchivedSession, float]] = OrderedDict()
        """By handle, each with the time at which it was described."""
        self._generations = count(1)
        self._completing: asyncio.Task[None] | None = None
        self._completing_until = 0.0

    async def close(self) -> None:
        if self._completing is not None:
            self._completing.cancel()
            await asyncio.wait({self._completing})
        await self._archive.close()

    async def check(self) -> list[str]:
        """Return what cannot be read; of the sessions, only one that is alone in its source is tried."""
        return await self._archive.check()

    # ── Pages ────────────────────────────────────────────────────────────────────────────────────────────

    async def rows(self, *, after: str = "", limit: int = 50, query: str = "") -> SessionPage:
        limit = max(1, min(limit, MAX_PAGE_ROWS))
        if query.strip():
            return await self._search(query.strip(), after, limit)
        async with self._lock:
            await self._sessions.refresh()
            last = _parse_order(after)
            listed = [each for each in self._sessions if last is None or each.order < last]
            page = listed[:limit]
            rows = await self._make_rows(page)
            more = "" if len(listed) <= limit else f"{page[-1].entry.active!r} {page[-1].entry.handle}"
            return SessionPage(rows, more, self._sessions.problems)

    async def _search(self, query: str, after: str, limit: int) -> SessionPage:
        index_s = 0.0 if self._archive.is_indexing else SEARCH_WORK_S
        found = await self._archive.find_sessions(query, title_s=SEARCH_WORK_S, index_s=index_s)
        if found.left:
            self._archive.index_in_background(for_s=MAX_INDEXING_S)
        async with self._lock:
            await self._sessions.refresh()
            listed = [each for handle in found.handles if (each := self._sessions.get(handle)) is not None]
            first = int(after[:_MAX_CURSOR_DIGITS]) if after.isdecimal() else 0
            rows = await self._make_rows(listed[first : first + limit])
            more = str(first + limit) if len(listed) > first + limit else ""
            return SessionPage(rows, more, self._sessions.problems, found.left)

    async def _make_rows(self, listed: Sequence[ListedSession]) -> tuple[SessionRow, ...]:
        refusals = {each.source.name: self._actor.refusal(each.source) for each in listed}
        writable = {each.entry.handle: not refusals[each.source.name] for each in listed}
        return tuple(replace(row, writable=writable[row.key]) for row in await self._rows.rows(listed))

    # ── Memories ─────────────────────────────────────────────────────────────────────────────────────────

    async def memories(self) -> MemoryList:
        return await list_memories(self._sources, self._actor.refusal)

    async def change_memory(self, change: MemoryChange) -> str:
        return await change_memory(self._sources, change, self._actor.refusal)

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────

    async def cursor(self) -> str:
        async with self._lock:
            await self._sessions.refresh()
            return self._sessions.cursor

    async def wait_for_changes(self, cursor: str, *, timeout: float) -> SessionChanges:
        until = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            async with self._lock:
                await self._sessions.refresh()
                await self._rows.finish()
                current = self._sessions.cursor
                rows = await self._make_rows(self._sessions.changed_since(cursor)[:MAX_PAGE_ROWS])
            self._complete_rows()
            now = time.monotonic()
            if rows or now >= until:
                return SessionChanges(rows, current)
            await asyncio.sleep(min(max(2 * POLL_S, REST_PER_WORK * (now - began)), until - now))

    def _complete_rows(self) -> None:
        """Compute the figures of whole sessions, of which rows have a part, in a task."""
        self._completing_until = time.monotonic() + MAX_COMPLETING_S
        if self._rows.incomplete and (self._completing is None or self._completing.done()):
            self._completing = asyncio.ensure_future(self._complete())

    async def _complete(self) -> None:
        while self._rows.incomplete and time.monotonic() < self._completing_until:
            handle = next(iter(self._rows.incomplete))
            self._rows.incomplete.pop(handle)
            listed, began = self._sessions.get(handle), time.monotonic()
            if listed is None:
                continue
            with suppress(FovealError, OSError):  # the row reports it
                whole = await self._rows.compute_whole(listed)
                async with self._lock:
                    self._rows.complete(listed, whole)
            await asyncio.sleep(REST_PER_WORK * (time.monotonic() - began))

    # ── One session ──────────────────────────────────────────────────────────────────────────────────────

    async def open(self, key: str) -> ArchivedSession:
        known = self._readers.get(key)
        if known is not None and time.monotonic() - known[1] < MAX_ABOUT_AGE_S:
            self._readers.move_to_end(key)
            return known[0]
        listed = await self._resolve(key)
        if isinstance(listed.source, TranscriptSource):
            # The whole file says more than its beginning. It is read without the lock: that can take seconds.
            with suppress(FovealError, OSError):
                await listed.source.open(listed.entry)
        async with self._lock:
            about, first = await self._about(listed)
            known = self._readers.pop(about.key, None)
            # A store can be replaced by another one with a session of the same id.
            is_known = known is not None and known[0].first in (None, first)
            reader = known[0] if known is not None and is_known else self._reader(listed, about, first)
            if known is not None and not is_known:
                reader.begin_generation()
            reader.set_about(about)
            self._readers[about.key] = reader, time.monotonic()
            if len(self._readers) > MAX_KEPT_READERS:
                self._readers.popitem(last=False)
            return reader

    async def newest_keys(self, limit: int) -> list[str]:
        """Return the keys of the most recently active sessions, without reading them."""
        async with self._lock:
            await self._sessions.refresh()
            return [each.entry.handle for each in islice(self._sessions, limit)]

    async def key_of(self, name: str) -> str:
        """Return the key of a session by its key, id or the beginning of its id; raises `SessionMissing`."""
        return (await self._resolve(name)).entry.handle

    async def _resolve(self, name: str) -> ListedSession:
        """Return the session with this handle or id, or the only one whose id begins with it."""
        async with self._lock:
            await self._sessions.refresh()
            listed, problems = self._sessions.get(name), self._sessions.problems
            found = [listed] if listed is not None else sessions_named(self._sessions, name)
        if len(found) == 1:
            return found[0]
        if found:
            keys = ", ".join(each.entry.handle for each in found[:5])
            raise SessionMissing(f"{len(found)} sessions are called {one_line(name)}: use one of {keys}")
        more = f"; what could not be read: {problems[0]}" if problems else ""
        raise SessionMissing(f"there is no session {one_line(name)}, or it was erased{more}")

    def _reader(self, listed: ListedSession, about: SessionAbout, first: Event | None) -> ArchivedSession:
        return ArchivedSession(
            listed, about, first=first, actor=self._actor, next_generation=lambda: next(self._generations)
        )

    async def _about(self, listed: ListedSession) -> tuple[SessionAbout, Event | None]:
        """Return what is known of a session, and the first event of one of Foveal's own."""
        source, entry = listed.source, listed.entry
        try:
            details = await source.describe(entry)
            is_own = details.kind == "foveal"
            first = await (await source.open(entry)).pick([0]) if is_own else []
        except (FovealError, OSError) as problem:
            raise SessionMissing(str(problem)) from None
        opened = next((event.fact for event in first if isinstance(event.fact, Opened)), None)
        figures = self._rows.figures(entry.handle)
        origin = figures.origin if figures else ""
        row = bare_row(self._sessions, listed, details, origin=origin or (opened.origin if opened else ""))
        refusal = self._actor.refusal(source)
        unknown = _unknown_lines(details.unknown or 0)
        about = SessionAbout(
            key=entry.handle,
            id=entry.name,
            title=row.title,
            format=row.format,
            model=(figures.model if figures else "") or row.model,
            policy=opened.policy if opened else "",
            settings=self._settings if is_own else {"window": details.window} if details.window else {},
            origin=row.origin,
            place=row.place,
            writable=not refusal,
            reason=refusal,
            problems=(unknown,) if unknown else (),
        )
        return about, first[0] if first else None


def _unknown_lines(count: int) -> str:
    if count == 1:
        return "1 line of the file was not understood; it is shown as a note"
    return f"{count:,} lines of the file were not understood; they are shown as notes" if count else ""


def _parse_order(cursor: str) -> tuple[float, str] | None:
    active, _, handle = cursor.partition(" ")
    with suppress(ValueError):
        return float(active), handle
    return None
