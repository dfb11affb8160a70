"""Sessions in one SQLite file.

Waiting for the disk happens in threads of the store: one that writes, two that read. Several processes may use the
same file. A cancelled call may have been carried out: whoever cancels an append reads again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self, TypeVar

from foveal.core.log.events import Event
from foveal.errors import BadSetting
from foveal.ports import Checkpoint, Hit, SessionInfo
from foveal.stores.sqlite import queries
from foveal.stores.sqlite.connection import Durability, OpenConnection, SqliteFile, Work, in_transaction
from foveal.stores.sqlite.full_text import searchable
from foveal.stores.sqlite.schema import SPAN
from foveal.stores.sqlite.threads import WorkerThreads

# ── ends ──────────────────────────────────────────────────────────────────────────────────────────
# Where sessions end, as far as one store can know that without looking.
#
# SQLite has a number for each connection that changes when anybody else has written into the file. While it is the
# same, a session ends where this store has left it, and nothing needs to be read to tell.

_MOST: Final = 10_000
"""Sessions that are remembered."""


class LastSeqCache:
    """For one event loop."""

    def __init__(self) -> None:
        self.begun = 0
        """Appends that were begun: what was read beside one of them says nothing about the end."""
        self._known: dict[str, tuple[int, int]] = {}
        self._doubtful: set[str] = set()

    def known(self, session: str, version: int | None, end: int) -> bool:
        """While the file has this version, the session ends there."""
        return version is not None and self._known.get(session) == (version, end)

    def keep(self, session: str, version: int | None, end: int) -> None:
        """The session ended there after the file had this version."""
        if version is None or session in self._doubtful:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[session] = version, end

    @contextmanager
    def appending(self, session: str, version: int | None, end: int) -> Iterator[None]:
        """Something is appended to a session, which then ends there. When that is cancelled, nobody can say when it
        will be carried out, so nothing is known of this session any more."""
        self.begun += 1
        self._known.pop(session, None)
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._doubtful.add(session)
            raise
        finally:
            self.begun += 1
        self.keep(session, version, end)

    @contextmanager
    def unknown(self) -> Iterator[None]:
        """Something else is done to sessions: what was known before, or is read meanwhile, does not hold."""
        try:
            yield
        finally:
            self.begun += 1
            self._known.clear()


# ── sqlite ────────────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")

_READERS: Final = 2
_INDEXED_AT_ONCE: Final = 500
"""Events that a search adds to the index in one transaction."""


class SqliteStore:
    """A `Store` in the file `path`, which is made if it does not exist; its folder must.

    The file is opened by `async with`, or by the first call."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`timeout`: seconds to wait while another process writes."""
        if durability not in ("full", "normal"):
            raise BadSetting("durability", durability, "`full` or `normal`")
        self._file = SqliteFile(os.path.abspath(os.fspath(path)), durability=durability, timeout=timeout)
        self._clock = clock
        self._writer = WorkerThreads("foveal-write")
        self._readers = WorkerThreads("foveal-read", threads=_READERS)
        self._ends = LastSeqCache()

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def durability(self) -> Durability:
        return self._file.durability

    async def __aenter__(self) -> Self:
        try:
            await self._writer.do(self._file.open)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if not events:
            return
        now = self._clock()
        with self._ends.appending(session, self._file.version(), events[-1].seq + 1):
            if not self._file.at_once(lambda door: _append_one(door, session, events)):
                await self._writer.do(
                    lambda: self._file.alone(lambda door: _append(door, session, events, now))
                )
        if self._file.unsettled:
            self._writer.start(self._file.settle)

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        seqs = range(max(first, 0), SPAN if last is None else min(last + 1, SPAN))

        def work(door: OpenConnection) -> list[Event]:
            return queries.read(
                door.connection, door.packer, queries.known(door.connection, session).key, seqs
            )

        return await self._read(work)

    async def news(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        version, begun = self._file.version(), self._ends.begun
        if self._ends.known(session, version, first):
            return [], False

        def work(door: OpenConnection) -> tuple[list[Event], bool]:
            key = queries.known(door.connection, session).key
            erased = queries.erased(door.connection, key)
            return queries.read(door.connection, door.packer, key, range(max(first, 0), SPAN)), erased

        events, erased = await self._read(work)
        if begun == self._ends.begun and not erased:
            self._ends.keep(session, version, events[-1].seq + 1 if events else first)
        return events, erased

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        def work(door: OpenConnection) -> list[Event]:
            return queries.pick(
                door.connection, door.packer, queries.known(door.connection, session).key, seqs
            )

        return await self._read(work)

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return await self._read(lambda door: queries.checkpoint(door.connection, session))

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        await self._write(lambda door: queries.keep_checkpoint(door.connection, session, checkpoint))

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        while await self._read(lambda door: _behind(door, session)):
            await self._write(lambda door: _index_some(door, session))
        return await self._read(lambda door: _found(door, session, query, limit))

    async def sessions(self) -> list[SessionInfo]:
        return await self._read(lambda door: queries.all_of_them(door.connection))

    async def info(self, session: str) -> SessionInfo:
        return await self._read(lambda door: queries.one(door.connection, session))

    async def rename(self, session: str, title: str) -> None:
        await self._write(lambda door: queries.rename(door.connection, session, title))

    async def fork(self, session: str, new: str, *, at: int) -> None:
        now = self._clock()
        await self._write(lambda door: queries.fork(door.connection, session, new, at, now))

    async def erase(self, session: str) -> None:
        def work(door: OpenConnection) -> None:
            door.words.remove(queries.erase(door.connection, door.packer, session))

        with self._ends.unknown():
            await self._write(work)
        await self._writer.do(self._file.scrub)

    async def close(self) -> None:
        """Wait for what has been asked for, then close the file; closing twice is fine."""
        await self._writer.do(self._readers.stop)
        await self._writer.do(self._file.close)
        self._writer.stop()

    async def _read(self, work: Work[T]) -> T:
        return await self._readers.do(lambda: self._file.read(work))

    async def _write(self, work: Work[T]) -> T:
        return await self._writer.do(lambda: self._file.write(work))


def _append(door: OpenConnection, session: str, events: Sequence[Event], now: float) -> None:
    if _append_one(door, session, events):
        return
    new = queries.lines(door.packer, events)

    def work(door: OpenConnection) -> int:
        return queries.append(door.connection, door.packer, session, events[0].seq, new, now)

    door.remember(session, in_transaction(door, "BEGIN IMMEDIATE", work))


def _append_one(door: OpenConnection, session: str, events: Sequence[Event]) -> bool:
    """The quick way, for what most appends are."""
    key = door.keys.get(session)
    return (
        key is not None and len(events) == 1 and queries.append_one(door.cursor, door.packer, key, events[0])
    )


def _behind(door: OpenConnection, session: str) -> bool:
    """Whether the index lacks events."""
    key, end, _ = queries.known(door.connection, session)
    return door.words.indexed(key) + 1 < end


def _index_some(door: OpenConnection, session: str) -> None:
    key = queries.known(door.connection, session).key
    start = door.words.indexed(key) + 1
    events = queries.read(door.connection, door.packer, key, range(start, start + _INDEXED_AT_ONCE))
    door.words.add(key, [(event.seq, searchable(event)) for event in events])


def _found(door: OpenConnection, session: str, query: str, limit: int) -> list[Hit]:
    return door.words.search(queries.known(door.connection, session).key, query, limit) if limit > 0 else []
