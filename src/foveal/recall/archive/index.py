"""Full-text index of many past sessions: in memory, and of transcripts also in a file that lasts.

1. A session is brought up to date when it has changed: its new events are added, and of a transcript also those
   that were grouped differently when it was shorter.
2. Secrets are redacted before a text is indexed, so that they can neither be searched for nor stand in a file.
3. Only words of transcripts are kept in the file. A store erases sessions without telling an index, and nothing may
   survive that: its sessions are indexed in memory.
4. A session that its source no longer lists is removed, and so is all of a source that was not used for
   `MAX_UNUSED_S`.
5. The index holds sessions of at most `MAX_INDEXED_BYTES`; it takes about an eighth of that.
6. Work is done in threads, in steps, so that the caller can report progress and stop. Several processes may update
   a session at once: a step that finds another state than the one before it has left is not done, and a later call
   continues.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import apsw

from foveal.core.log.events import Event
from foveal.core.redaction import redact_fact
from foveal.core.wire.event_text import search_text
from foveal.errors import StoreUnusable
from foveal.ports import Hit
from foveal.recall.archive.source import SessionEntry, SessionLog
from foveal.stores.sqlite.connection import translate_errors
from foveal.stores.sqlite.full_text import FullTextIndex, search_sessions

MAX_INDEXED_BYTES: Final = 1_000_000_000
MAX_UNUSED_S: Final = 30 * 86_400
"""Time for which the words of a source stay in the file after its last use."""
_MEMORY_KEYS_START: Final = 1 << 30
_BATCH_EVENTS: Final = 200
"""Events that are read and indexed in one step."""
_NO_TEXT: Final = 0
"""Digest of a seq without an event."""
_PLACES: Final = "CREATE TABLE IF NOT EXISTS places (place TEXT PRIMARY KEY, used REAL NOT NULL) STRICT"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS archived (
    key INTEGER PRIMARY KEY, handle TEXT NOT NULL UNIQUE, place TEXT NOT NULL, version TEXT NOT NULL,
    size INTEGER NOT NULL, parts INTEGER NOT NULL, digests BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS unused_words (session INTEGER PRIMARY KEY) STRICT;
"""
"""`unused_words` has the sessions of which rows were removed whose words are still in the database: a process that
ends before it takes them out leaves that to the next."""

T = TypeVar("T")


class ArchiveIndex:
    """The index; for one task at a time."""

    def __init__(self, kept: IndexFile | None = None) -> None:
        """`kept`: the file that lasts. Without one, all sessions are indexed in memory."""
        self._kept = kept
        self._memory = SessionIndex(apsw.Connection(":memory:"), first_key=_MEMORY_KEYS_START)
        self._parts = [self._memory, *([SessionIndex(kept.connection)] if kept is not None else [])]
        """In memory, and in the file if there is one."""
        self._used: set[str] = set()
        """Places whose use this process has noted in the file."""
        self._guarded(self._create)

    def _create(self) -> None:
        for part in self._parts:
            part.create()
        if self._kept is not None:
            self._kept.connection.execute(_PLACES)
        self._used.clear()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    @property
    def notice(self) -> str:
        """Why the index is built anew, "" if it is not."""
        return self._kept.notice if self._kept is not None else ""

    @property
    def lasts(self) -> bool:
        """Whether it is kept after this process."""
        return self._kept is not None

    @property
    def is_full(self) -> bool:
        """Whether no further session is indexed."""
        known = self._guarded(lambda: [each for part in self._parts for each in part.sessions().values()])
        return sum(session.size for session in known) >= MAX_INDEXED_BYTES

    def can_hold(self, entries: Sequence[SessionEntry]) -> bool:
        """Return whether all these sessions fit into an empty index."""
        return sum(entry.size for entry in entries) <= MAX_INDEXED_BYTES

    def clear(self) -> None:
        """Forget all sessions."""
        for part in self._parts:
            part.forget(list(part.sessions()))

    def current(self, entries: Sequence[SessionEntry]) -> set[str]:
        """Return the handles of the sessions that are indexed as they are now."""
        return self._guarded(lambda: set().union(*(part.current(entries) for part in self._parts)))

    def remembered_parts(self, handle: str, version: tuple[float, ...]) -> int:
        """Return how many sessions a file of this version has, by the handle of the first; 1 if that is unknown."""
        known = self._guarded(self._parts[-1].sessions).get(handle)
        return known.parts if known is not None and known.version == version_text(version) else 1

    # ── Updates ──────────────────────────────────────────────────────────────────────────────────────────

    async def update(
        self, entry: SessionEntry, place: str, log: SessionLog, report: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Index what is new of a session of the source named `place`. After each step, `report` gets the part of it
        that is done, from 0 to 1, and returns whether to go on; a later call continues."""
        chosen = self._parts[-1] if log.is_lasting else self._memory
        for part in self._parts:
            if part is not chosen and entry.handle in part.sessions():
                await asyncio.to_thread(part.forget, [entry.handle])
        with self._translated():
            try:
                await chosen.update(entry, _place_digest(place), log, report)
            except apsw.BusyError:  # another process writes for long: a later call continues
                return
            except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as problem:
                await asyncio.to_thread(self._repair, problem)

    async def forget_unlisted(self, listed: Mapping[str, Collection[str]]) -> None:
        """Remove the sessions that are gone; `listed` has the handles of all sessions of a source by its name."""
        handles = {_place_digest(name): found for name, found in listed.items()}
        await asyncio.to_thread(self._guarded, lambda: self._forget_unlisted(handles))

    def _forget_unlisted(self, listed: Mapping[str, Collection[str]]) -> None:
        for part in self._parts:
            gone = [
                handle
                for handle, session in list(part.sessions().items())
                if session.place in listed and handle not in listed[session.place]
            ]
            part.forget(gone)
        if self._kept is not None and not listed.keys() <= self._used:
            self._forget_unused(self._kept.connection, listed)
            self._used |= listed.keys()

    def _forget_unused(self, connection: apsw.Connection, used: Collection[str]) -> None:
        now, part = time.time(), self._parts[-1]
        with part.writing():
            connection.executemany(
                "INSERT OR REPLACE INTO places VALUES (?, ?)", ((place, now) for place in used)
            )
            connection.execute("DELETE FROM places WHERE used < ?", (now - MAX_UNUSED_S,))
            rows = connection.execute(
                "SELECT handle FROM archived WHERE place NOT IN (SELECT place FROM places)"
            )
            unused = [handle for (handle,) in rows]
        part.forget(unused)

    @property
    def needs_tidying(self) -> bool:
        """Whether words of removed sessions are still stored."""
        return any(part.has_words_of_removed for part in self._parts)

    async def tidy(self) -> None:
        """Take the words of removed sessions out of memory and file."""
        for part in self._parts:
            if part.has_unused_words:
                await asyncio.to_thread(self._guarded, part.drop_unused_words)
                if part is not self._memory and self._kept is not None:
                    await asyncio.to_thread(self._kept.shrink_log)

    def try_build(self) -> bool:
        """Return whether this process may build the index: of those that share the file, one at a time."""
        return self._kept is None or self._kept.try_build()

    def end_build(self) -> None:
        """Let another process build."""
        if self._kept is not None:
            self._kept.end_build()

    # ── Search ───────────────────────────────────────────────────────────────────────────────────────────

    async def search(self, entries: Sequence[SessionEntry], query: str, limit: int) -> list[tuple[str, Hit]]:
        """Return the best events of these sessions as far as they are indexed, each with its session's handle."""

        def work() -> list[tuple[str, Hit]]:
            with ExitStack() as open_parts:
                for part in self._parts:
                    open_parts.enter_context(part.reading())
                keys = [self._handles(part, entries) for part in self._parts]
                parts = [
                    (part.full_text, found.keys()) for part, found in zip(self._parts, keys, strict=True)
                ]
                handles = {key: handle for found in keys for key, handle in found.items()}
                return [(handles[key], hit) for key, hit in search_sessions(parts, query, limit)]

        return await asyncio.to_thread(self._guarded, work)

    async def events_with_all(self, entries: Sequence[SessionEntry], text: str) -> dict[str, list[int]]:
        """Return the seqs of events with all words of a text, newest first, by the handles of their sessions."""

        def work() -> dict[str, list[int]]:
            found: dict[str, list[int]] = {}
            for part in self._parts:
                with part.reading():
                    handles = self._handles(part, entries)
                    seqs = part.full_text.events_with_all(handles.keys(), text)
                    found |= {handles[key]: each for key, each in seqs.items()}
            return found

        return await asyncio.to_thread(self._guarded, work)

    def _handles(self, part: SessionIndex, entries: Sequence[SessionEntry]) -> dict[int, str]:
        """Return the handles of the sessions that are indexed, by their keys in the index."""
        known = part.sessions()
        return {known[entry.handle].key: entry.handle for entry in entries if entry.handle in known}

    # ── Damage ───────────────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, work: Callable[[], T]) -> T:
        """Do the work, and once more with an empty index if the file is damaged. Raises `StoreUnusable`."""
        with self._translated():
            try:
                return work()
            except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError) as problem:
                self._repair(problem)
                return work()

    def _repair(self, problem: apsw.Error) -> None:
        """Empty a damaged file, and create the tables, which are missing while another process empties it."""
        if self._kept is not None and not isinstance(problem, apsw.SQLError):
            self._kept.empty("was damaged")
        self._create()

    def _translated(self) -> AbstractContextManager[None]:
        return translate_errors(self._kept.path if self._kept is not None else "the index in memory")


def _place_digest(name: str) -> str:
    """Return what the file has of a source's name, which can be a path with private words."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# ── One database ─────────────────────────────────────────────────────────────────────────────────────────


class IndexedSession(NamedTuple):
    """What the index has of a session."""

    key: int
    place: str
    """Digest of the name of its source."""
    version: str
    """The version that is indexed completely; "" while there is none."""
    size: int
    parts: int
    """Sessions of its file, if it is the first of them."""


class _Update:
    """An update of a session that goes on: what this process has seen of it."""

    def __init__(self, entry: SessionEntry, place: str, digests: array[int]) -> None:
        self.entry = entry
        self.place = place
        self.digests = digests
        """Of the text of each indexed event, where events can change."""


class SessionIndex:
    """The index in one database; `first_key` tells its sessions from those of another database."""

    def __init__(self, connection: apsw.Connection, *, first_key: int = 1) -> None:
        self.full_text: Final = FullTextIndex(connection)
        self._connection = connection
        self._first_key = first_key
        # A call that is cancelled leaves its thread at work.
        self._mutex = threading.RLock()
        self._sessions: dict[str, IndexedSession] = {}
        self._data_version = -1

    def create(self) -> None:
        """Create the tables, if they do not exist, and forget what was known of them."""
        if not self._has_tables():
            with self.writing():
                self._connection.execute(_SCHEMA)
                self.full_text.create()
        self._data_version, self._sessions = -1, {}

    def _has_tables(self) -> bool:
        """Return whether the tables exist. A server that starts must not wait for one that writes for long."""
        made = "SELECT count(*) FROM sqlite_schema WHERE name IN ('archived', 'foveal_text_done')"
        with self._mutex:
            return bool(self._connection.execute(made).get == 2)

    # ── Transactions ─────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All that is read in the block is of one state."""
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All that is written in the block, or nothing; no other process writes meanwhile."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        with self._mutex:
            self._connection.execute(begin)
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    # ── Sessions ─────────────────────────────────────────────────────────────────────────────────────────

    def sessions(self) -> dict[str, IndexedSession]:
        """Return the indexed sessions by handle, also those that another process has indexed meanwhile."""
        with self._mutex:
            data_version = self._connection.pragma("data_version")
            if data_version != self._data_version:
                rows = self._connection.execute(
                    "SELECT handle, key, place, version, size, parts FROM archived"
                )
                self._sessions = {handle: IndexedSession(*row) for handle, *row in rows}
                self._data_version = data_version
            return self._sessions

    def current(self, entries: Iterable[SessionEntry]) -> set[str]:
        """Return the handles of the sessions that are indexed as they are now."""
        known = self.sessions()
        return {
            entry.handle
            for entry in entries
            if entry.handle in known and known[entry.handle].version == version_text(entry.version)
        }

    def forget(self, handles: Collection[str]) -> None:
        """Remove sessions; their words go with `drop_unused_words`."""
        known = [(handle, found) for handle in handles if (found := self.sessions().get(handle)) is not None]
        if not known:
            return
        with self.writing():
            for _, session in known:
                self.full_text.hide(session.key)
                self._note_unused_words(session.key)
                self._connection.execute("DELETE FROM archived WHERE key = ?", (session.key,))
        for handle, _ in known:
            self._sessions.pop(handle, None)

    @property
    def has_unused_words(self) -> bool:
        """Whether rows were removed whose words are still in the database."""
        return self._exists("SELECT 1 FROM unused_words")

    @property
    def has_words_of_removed(self) -> bool:
        """Whether words of a whole session that was removed are still in the database. Those of one that changed
        wait for longer: most are in its new texts too, and rewriting the index takes a second."""
        return self._exists("SELECT 1 FROM unused_words WHERE session NOT IN (SELECT key FROM archived)")

    def _exists(self, rows: str) -> bool:
        with self._mutex:
            return bool(self._connection.execute(f"SELECT EXISTS ({rows})").get)

    def _note_unused_words(self, key: int) -> None:
        self._connection.execute("INSERT OR IGNORE INTO unused_words VALUES (?)", (key,))

    def drop_unused_words(self) -> None:
        """Rewrite the index without the words of what was removed."""
        with self.writing():
            self.full_text.drop_unused_words()
            self._connection.execute("DELETE FROM unused_words")

    # ── Update ───────────────────────────────────────────────────────────────────────────────────────────

    async def update(
        self, entry: SessionEntry, place: str, log: SessionLog, report: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Index what is new of a session. After each step, `report` gets the part of it that is done, from 0 to 1,
        and returns whether to go on; a later call continues."""
        key, digests = await asyncio.to_thread(self._row, entry.handle)
        update = _Update(entry, place, digests)
        if log.is_append_only:
            start = await asyncio.to_thread(self.full_text.last_indexed, key) + 1
            start = (
                start if start <= log.end else 0
            )  # shorter than before: another session has taken its place
        else:
            start = await self._count_unchanged(update, log)
        while True:
            stop = min(start + _BATCH_EVENTS, log.end)
            events = await log.pick(range(start, stop))
            if not await asyncio.to_thread(self._add, update, log, range(start, stop), events):
                return
            start = stop
            goes_on = await report(start / log.end if log.end else 1.0)
            if start >= log.end or not goes_on:
                return

    async def _count_unchanged(self, update: _Update, log: SessionLog) -> int:
        """Return how many events from the first on are as they were indexed."""
        if not update.digests:
            return 0
        seqs = range(min(log.end, len(update.digests)))
        events = await log.pick(seqs)
        new = await asyncio.to_thread(lambda: _digests(seqs, _texts(events)))
        pairs = enumerate(zip(update.digests, new, strict=False))
        return next((seq for seq, (old, found) in pairs if old != found), len(new))

    def _add(self, update: _Update, log: SessionLog, seqs: range, events: Sequence[Event]) -> bool:
        """Index these events in place of all from the first of them on; return False if another process has
        changed the session since the step before."""
        texts = _texts(events)
        digests = update.digests[: seqs.start]
        if not log.is_append_only:
            digests.extend(_digests(seqs, texts))
        entry = update.entry
        version = version_text(entry.version) if seqs.stop >= log.end else ""
        with self.writing():
            key, found = self._row(entry.handle)
            if found != update.digests:
                return False
            session = IndexedSession(key or self._new_key(), update.place, version, entry.size, log.parts)
            if self.full_text.last_indexed(session.key) >= seqs.start:
                self.full_text.remove_from(session.key, seqs.start)
                self._note_unused_words(session.key)
            self.full_text.add(session.key, texts)
            self._connection.execute(
                "INSERT OR REPLACE INTO archived (key, place, version, size, parts, handle, digests) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*session, entry.handle, digests.tobytes()),
            )
        update.digests = digests
        self._sessions[entry.handle] = session
        return True

    def _row(self, handle: str) -> tuple[int, array[int]]:
        """Return the key of a session and the digests of its events; 0 and none for one that is not indexed."""
        with self._mutex:
            query = "SELECT key, digests FROM archived WHERE handle = ?"
            key, digests = self._connection.execute(query, (handle,)).fetchone() or (0, b"")
            return key, array("Q", digests)

    def _new_key(self) -> int:
        used = "SELECT key FROM archived UNION ALL SELECT session FROM unused_words"
        newest = self._connection.execute(f"SELECT max(key) FROM ({used})").get
        return max(newest or 0, self._first_key - 1) + 1


def version_text(version: tuple[float, ...]) -> str:
    """Return a version as the index has it."""
    return " ".join(map(repr, version))


def _texts(events: Iterable[Event]) -> list[tuple[int, str]]:
    return [(event.seq, search_text(redact_fact(event.fact))) for event in events]


def _digests(seqs: range, texts: Iterable[tuple[int, str]]) -> list[int]:
    """Return the digest of the text of each seq, the same in every process."""
    found = {seq: _digest(text) for seq, text in texts}
    return [found.get(seq, _NO_TEXT) for seq in seqs]


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


if sys.platform != "win32":  # on Windows every process builds, and SQLite's own locks keep the file whole
    import fcntl

INDEX_FORMAT: Final = 1
"""Version of the tables and of the words in them; raise it when `search_text` or `text_to_index` changes."""
INDEX_APPLICATION_ID: Final = 0x466F7649
"""`FovI`: identifies the index among SQLite files."""
INDEX_NAME: Final = "sessions.db"
_LOCK_TIMEOUT_S: Final = 15.0
"""Time to wait for another process that writes; on a busy machine it may write for seconds."""
_RETRY_S: Final = 0.05


class IndexFile:
    """The file of the lasting index, in the user's cache folder, open until `close`; for one thread at a time.

    1. Only its owner can read it: the folder has mode 0700 and the file 0600. A folder or file of another user, and
       a link, are refused.
    2. Several processes may use it at once; one of them at a time builds it (`try_build`).
    3. A damaged file, and one of an older version, is emptied in place, never deleted: another process may have it
       open. `notice` says so.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the file in a folder; raises `StoreUnusable`."""
        self.path: Final = str(folder / INDEX_NAME)
        self.notice = ""
        """Why the index is built anew, "" if it is not."""
        _make_private(folder, self.path)
        self._lock_file = -1
        self.connection: Final = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        self.connection.set_busy_timeout(int(1000 * _LOCK_TIMEOUT_S))
        try:
            with translate_errors(self.path):
                self._prepare_when_free()
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        self.end_build()
        self.connection.close()

    def _prepare_when_free(self) -> None:
        """Prepare the file; SQLite does not wait for another process that changes the journal mode."""
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return self._prepare()
            except apsw.BusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(_RETRY_S)

    def _prepare(self) -> None:
        try:
            found = self.connection.pragma("application_id"), self.connection.pragma("user_version")
            self.connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018  (reads the tables' list)
        except (apsw.CorruptError, apsw.NotADBError):
            self.empty("was damaged")
            found = INDEX_APPLICATION_ID, INDEX_FORMAT
        if found == (0, 0):
            self._mark()
        elif found[1] > INDEX_FORMAT:
            raise StoreUnusable(
                f"{self.path} was made by a later version of Foveal: update, or delete the file"
            )
        elif found != (INDEX_APPLICATION_ID, INDEX_FORMAT):
            self.empty("was made by an older version")
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "normal")
        self.connection.pragma("secure_delete", 1)  # what is removed is overwritten

    def empty(self, why: str) -> None:
        """Remove everything, also from a damaged file. Other processes see an empty index."""
        self.notice = f"the index {why} and is built again"
        # VACUUM with this setting begins a new database in the same file, in one transaction.
        self.connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
        try:
            self.connection.execute("VACUUM")
        finally:
            self.connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
        self._mark()

    def _mark(self) -> None:
        with self.connection:  # one transaction: another process sees both or none
            self.connection.pragma("application_id", INDEX_APPLICATION_ID)
            self.connection.pragma("user_version", INDEX_FORMAT)

    def shrink_log(self) -> None:
        """Empty the write-ahead log, in which removed words stand too; not while another process reads."""
        with suppress(apsw.BusyError):
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    # ── One builder ──────────────────────────────────────────────────────────────────────────────────────

    def try_build(self) -> bool:
        """Return whether this process is the one that builds the index, from now to `end_build` or its end."""
        if sys.platform == "win32" or self._lock_file >= 0:
            return True
        file = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._lock_file = file
        return True

    def end_build(self) -> None:
        """Let another process build."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _make_private(folder: Path, path: str) -> None:
    """Create folder and file for their owner only; raises `StoreUnusable` for those of another user."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not stat.S_ISDIR(_owned(str(folder), 0o700).st_mode):
            raise StoreUnusable(f"{folder} is not a folder: remove it")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if not stat.S_ISREG(_owned(path, 0o600).st_mode):
            raise StoreUnusable(f"{path} is not a file: remove it")
    except OSError as problem:
        raise StoreUnusable(f"{path} cannot be used ({problem.strerror}): check its folder") from None


def _owned(path: str, mode: int) -> os.stat_result:
    """Return the state of a path, to which only its owner has access then."""
    found = os.lstat(path)
    if sys.platform != "win32":
        if found.st_uid != os.geteuid():
            raise StoreUnusable(f"{path} belongs to another user: remove it, or set XDG_CACHE_HOME")
        if stat.S_IMODE(found.st_mode) != mode and not stat.S_ISLNK(found.st_mode):
            os.chmod(path, mode)
    return found
