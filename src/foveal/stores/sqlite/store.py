"""Store of sessions in one SQLite file.

1. Threads wait for the disk: one writes, two read. They belong to the store, or to the `StoreFiles` that it is in.
2. Several processes may use the same file.
3. A cancelled call may have been carried out: after cancelling an append, read the session again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar

from foveal.core.log.events import Event
from foveal.errors import BadSetting
from foveal.ports import Checkpoint, Hit, SessionEnd, SessionInfo
from foveal.stores.compression import to_rows
from foveal.stores.search_words import searchable_text
from foveal.stores.sqlite import queries
from foveal.stores.sqlite.connection import Durability, StoreConnection, Work, in_transaction
from foveal.stores.sqlite.schema import ID_STRIDE
from foveal.stores.sqlite.store_files import StoreFile, StoreFiles
from foveal.stores.sqlite.threads import CallQueue

T = TypeVar("T")

_INDEX_BATCH_EVENTS: Final = 64
"""Events that a search adds to the index in one transaction: other writers wait for some milliseconds."""


class SqliteStore:
    """A `Store` in one SQLite file, for several processes.

    The file is created if it does not exist; its folder must exist. `async with` opens the file; without it the
    first call does. The methods are those of `Store`.

    Args:
        path: The path of the file.
        durability: `"full"` survives a power cut. With `"normal"`, a power cut may lose the newest appends.
        timeout: Seconds to wait for another process that writes.
        clock: Returns the time in seconds since 1970.
        files: Shares threads and connections with other stores. None opens the file for this store alone.

    Raises:
        BadSetting: The durability is not `"full"` or `"normal"`.

    Examples:
        ```python
        from foveal.stores import SqliteStore

        async with SqliteStore("chats.db", durability="normal") as store:
            assert await store.sessions() == []
        ```
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
        files: StoreFiles | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise BadSetting("durability", durability, "`full` or `normal`")
        full_path = os.path.abspath(os.fspath(path))
        shared = StoreFile(full_path, timeout=timeout) if files is None else files.get(full_path, timeout)
        self._durability: Final = durability
        self._clock = clock
        self._files = files
        self._shared = shared
        self._file = shared.file
        self._writer: CallQueue = shared.writer
        self._readers: CallQueue = shared.readers
        self._last_seqs = shared.last_seqs

    @property
    def path(self) -> str:
        """The absolute path of the file."""
        return self._file.path

    @property
    def durability(self) -> Durability:
        """What survives a power cut."""
        return self._durability

    async def __aenter__(self) -> Self:
        try:
            await self._writer.run(self._file.open)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls before this one, then close the file.

        Closing twice is allowed. A file that the store shares stays open until `StoreFiles` closes it.
        """
        await self._writer.run(self._readers.wait_until_empty)
        if self._files is None:
            await self._writer.run(self._file.close)
            self._shared.stop_threads()

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if not events:
            return
        now = self._clock()
        self._use()
        # An older version is as good: if another process has written since, the present one differs from it.
        version, creates = self._last_seqs.version_of(session), events[0].seq == 0
        if version is None:
            version = self._file.data_version()
        with self._last_seqs.appending(session, version, events[-1].seq + 1, creates=creates):
            # A small append that waits for nothing is done here; a thread would take longer to wake the loop.
            if self._durability == "full" or not self._file.try_now(
                lambda db: _append_one(db, session, events)
            ):
                await self._writer.run(
                    lambda: self._file.exclusive(
                        lambda db: _append_batch(db, session, events, now), self._durability
                    )
                )
        if self._file.needs_wal_checkpoint:
            self._writer.submit(self._file.checkpoint_wal)

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        seqs = range(max(first, 0), ID_STRIDE if last is None else min(last + 1, ID_STRIDE))

        def work(db: StoreConnection) -> list[Event]:
            return queries.read(
                db.connection, db.packer, queries.get_session(db.connection, session).key, seqs
            )

        return await self._read(work)

    async def read_new(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        version, changes = self._file.data_version(), self._last_seqs.changes
        if self._last_seqs.is_end(session, version, first):
            return [], False

        def work(db: StoreConnection) -> tuple[list[Event], bool]:
            key = queries.get_session(db.connection, session).key
            erased = queries.is_erased(db.connection, key)
            return queries.read(db.connection, db.packer, key, range(max(first, 0), ID_STRIDE)), erased

        events, erased = await self._read(work)
        if changes == self._last_seqs.changes and not erased:
            self._last_seqs.set_end(session, version, events[-1].seq + 1 if events else first)
        return events, erased

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        def work(db: StoreConnection) -> list[Event]:
            return queries.pick(
                db.connection, db.packer, queries.get_session(db.connection, session).key, seqs
            )

        return await self._read(work)

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return await self._read(lambda db: queries.checkpoint(db.connection, session))

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        await self._write(lambda db: queries.keep_checkpoint(db.connection, session, checkpoint))

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        while await self._read(lambda db: _index_is_behind(db, session)):
            await self._write(lambda db: _index_batch(db, session))
        return await self._read(lambda db: _search(db, session, query, limit))

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]:
        def work(db: StoreConnection) -> list[SessionInfo]:
            return queries.list_sessions(
                db.connection, limit=limit, before=before, with_erased=with_erased, memories=memories
            )

        return await self._read(work)

    async def end(self, session: str) -> SessionEnd:
        def work(db: StoreConnection) -> SessionEnd:
            key, end, _ = queries.get_session(db.connection, session)
            return SessionEnd(end, queries.is_erased(db.connection, key))

        return await self._read(work)

    async def info(self, session: str) -> SessionInfo:
        return await self._read(lambda db: queries.session_info(db.connection, session))

    async def rename(self, session: str, title: str) -> None:
        await self._write(lambda db: queries.rename(db.connection, session, title))

    async def restore_info(self, info: SessionInfo) -> None:
        """Set the title, the times and the erasure of a copied session.

        Args:
            info: What the store that it came from knows of the session.
        """
        with self._last_seqs.invalidating():
            await self._write(lambda db: queries.restore_info(db.connection, info))

    async def fork(self, session: str, new: str, *, at: int) -> None:
        now = self._clock()
        await self._write(lambda db: queries.fork(db.connection, session, new, at, now))

    async def erase(self, session: str) -> None:
        def work(db: StoreConnection) -> None:
            db.text_index.remove(queries.erase(db.connection, db.packer, session))

        with self._last_seqs.invalidating():
            await self._write(work)
        await self._shared.vacuum()

    async def _read(self, work: Work[T]) -> T:
        self._use()
        return await self._readers.run(lambda: self._file.read(work))

    async def _write(self, work: Work[T]) -> T:
        self._use()
        return await self._writer.run(lambda: self._file.write(work, self._durability))

    def _use(self) -> None:
        if self._files is not None:
            self._files.use(self._shared)


def _append_batch(db: StoreConnection, session: str, events: Sequence[Event], now: float) -> None:
    if _append_one(db, session, events):
        return
    rows = to_rows(db.packer, events)

    def work(db: StoreConnection) -> int:
        return queries.append(db.connection, db.packer, session, events[0].seq, rows, now)

    db.remember_key(session, in_transaction(db, "BEGIN IMMEDIATE", work))


def _append_one(db: StoreConnection, session: str, events: Sequence[Event]) -> bool:
    """Append the only event if it is small and the session's key is cached; return whether that was done."""
    key = db.session_keys.get(session)
    return key is not None and len(events) == 1 and queries.append_one(db.cursor, db.packer, key, events[0])


def _index_is_behind(db: StoreConnection, session: str) -> bool:
    """Return whether the index lacks events of the session."""
    key, end, _ = queries.get_session(db.connection, session)
    return db.text_index.last_indexed(key) + 1 < end


def _index_batch(db: StoreConnection, session: str) -> None:
    key = queries.get_session(db.connection, session).key
    start = db.text_index.last_indexed(key) + 1
    events = queries.read(db.connection, db.packer, key, range(start, start + _INDEX_BATCH_EVENTS))
    db.text_index.add(key, [(event.seq, searchable_text(event)) for event in events])


def _search(db: StoreConnection, session: str, query: str, limit: int) -> list[Hit]:
    return (
        db.text_index.search(queries.get_session(db.connection, session).key, query, limit)
        if limit > 0
        else []
    )
