"""Sessions in one SQLite file.

Waiting for the disk happens in threads of the store: one that writes, two that read. Several processes may use the
same file. A cancelled call may have been carried out: whoever cancels an append reads again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from foveal.errors import BadSetting
from foveal.events import Event
from foveal.ports import Checkpoint, Hit, SessionInfo
from foveal.stores import listing, rows
from foveal.stores.ends import Ends
from foveal.stores.file import Door, File, Work, in_transaction
from foveal.stores.opening import Durability
from foveal.stores.schema import SPAN
from foveal.stores.text_index import searchable
from foveal.stores.threads import Crew

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
        self._file = File(os.path.abspath(os.fspath(path)), durability=durability, timeout=timeout)
        self._clock = clock
        self._writer = Crew("foveal-write")
        self._readers = Crew("foveal-read", threads=_READERS)
        self._ends = Ends()

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

        def work(door: Door) -> list[Event]:
            return rows.read(door.connection, door.packer, rows.known(door.connection, session).key, seqs)

        return await self._read(work)

    async def news(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        version, begun = self._file.version(), self._ends.begun
        if self._ends.known(session, version, first):
            return [], False

        def work(door: Door) -> tuple[list[Event], bool]:
            key = rows.known(door.connection, session).key
            erased = rows.erased(door.connection, key)
            return rows.read(door.connection, door.packer, key, range(max(first, 0), SPAN)), erased

        events, erased = await self._read(work)
        if begun == self._ends.begun and not erased:
            self._ends.keep(session, version, events[-1].seq + 1 if events else first)
        return events, erased

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        def work(door: Door) -> list[Event]:
            return rows.pick(door.connection, door.packer, rows.known(door.connection, session).key, seqs)

        return await self._read(work)

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return await self._read(lambda door: rows.checkpoint(door.connection, session))

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        await self._write(lambda door: rows.keep_checkpoint(door.connection, session, checkpoint))

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        while await self._read(lambda door: _behind(door, session)):
            await self._write(lambda door: _index_some(door, session))
        return await self._read(lambda door: _found(door, session, query, limit))

    async def sessions(self) -> list[SessionInfo]:
        return await self._read(lambda door: listing.all_of_them(door.connection))

    async def info(self, session: str) -> SessionInfo:
        return await self._read(lambda door: listing.one(door.connection, session))

    async def rename(self, session: str, title: str) -> None:
        await self._write(lambda door: rows.rename(door.connection, session, title))

    async def fork(self, session: str, new: str, *, at: int) -> None:
        now = self._clock()
        await self._write(lambda door: rows.fork(door.connection, session, new, at, now))

    async def erase(self, session: str) -> None:
        def work(door: Door) -> None:
            door.words.remove(rows.erase(door.connection, door.packer, session))

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


def _append(door: Door, session: str, events: Sequence[Event], now: float) -> None:
    if _append_one(door, session, events):
        return
    new = rows.lines(door.packer, events)

    def work(door: Door) -> int:
        return rows.append(door.connection, door.packer, session, events[0].seq, new, now)

    door.remember(session, in_transaction(door, "BEGIN IMMEDIATE", work))


def _append_one(door: Door, session: str, events: Sequence[Event]) -> bool:
    """The quick way, for what most appends are."""
    key = door.keys.get(session)
    return key is not None and len(events) == 1 and rows.append_one(door.cursor, door.packer, key, events[0])


def _behind(door: Door, session: str) -> bool:
    """Whether the index lacks events."""
    key, end, _ = rows.known(door.connection, session)
    return door.words.indexed(key) + 1 < end


def _index_some(door: Door, session: str) -> None:
    key = rows.known(door.connection, session).key
    start = door.words.indexed(key) + 1
    events = rows.read(door.connection, door.packer, key, range(start, start + _INDEXED_AT_ONCE))
    door.words.add(key, [(event.seq, searchable(event)) for event in events])


def _found(door: Door, session: str, query: str, limit: int) -> list[Hit]:
    return door.words.search(rows.known(door.connection, session).key, query, limit) if limit > 0 else []
