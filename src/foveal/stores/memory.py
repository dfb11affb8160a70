"""Store of sessions in memory, for tests and as the reference implementation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Self

import apsw
import msgspec

from foveal.core.log.codec import encode
from foveal.core.log.events import MEMORY_LOG_PREFIX, Erased, Event, kind
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.ports import Checkpoint, Hit, SessionEnd, SessionInfo
from foveal.stores.search_words import searchable_text
from foveal.stores.sqlite.full_text import FullTextIndex


class _StoredSession(msgspec.Struct):
    """A session; `key` is its number in the full-text index."""

    key: int
    created: float
    active: float
    events: list[Event]
    title: str = ""
    erased: bool = False
    checkpoint: Checkpoint | None = None


class MemoryStore:
    """A `Store` in memory; its sessions end with the object.

    Use it in tests, and as the reference implementation of the protocol. The methods are those of `Store`.

    Args:
        clock: Returns the time in seconds since 1970, for sessions whose events have none.

    Examples:
        ```python
        import foveal

        async with foveal.stores.MemoryStore() as store:
            session = await foveal.Session.open(store, "demo", model="gpt-4.1")
        ```
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, _StoredSession] = {}
        self._index = FullTextIndex(apsw.Connection(":memory:"))
        self._index.create()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def append(self, session: str, events: Sequence[Event]) -> None:
        if not events:
            return
        for before, after in pairwise(events):
            if after.seq != before.seq + 1:
                raise StoreError(
                    f"event {after.seq} was given right after event {before.seq}; seqs are gapless"
                )
        known = self._sessions.get(session)
        end = len(known.events) if known else 0
        if events[0].seq != end:
            raise Conflict(session, given=events[0].seq, next_seq=end)
        now = self._clock()
        if known is None:
            known = self._sessions[session] = _StoredSession(self._next_key(), _time(events[0], now), now, [])
        known.events.extend(events)
        known.active = _time(events[-1], now)

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]:
        stop = None if last is None else max(last + 1, 0)
        return self._get(session).events[max(first, 0) : stop]

    async def read_new(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        known = self._get(session)
        return known.events[max(first, 0) :], known.erased

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        events = self._get(session).events
        return [events[seq] for seq in sorted(set(seqs)) if 0 <= seq < len(events)]

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return self._get(session).checkpoint

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        self._get(session).checkpoint = checkpoint

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        known = self._get(session)
        new = known.events[self._index.last_indexed(known.key) + 1 :]
        if new:
            self._index.add(known.key, [(event.seq, searchable_text(event)) for event in new])
        return self._index.search(known.key, query, limit) if limit > 0 else []

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]:
        places = {id: (session.active, id) for id, session in self._sessions.items()}
        listed = (
            id
            for id, session in self._sessions.items()
            if id.startswith(MEMORY_LOG_PREFIX) is memories
            and (with_erased or not session.erased)
            and (before is None or places[id] < before)
        )
        newest = sorted(listed, key=places.__getitem__, reverse=True)
        return [_info(id, self._sessions[id]) for id in newest[:limit]]

    async def end(self, session: str) -> SessionEnd:
        known = self._get(session)
        return SessionEnd(len(known.events), known.erased)

    async def info(self, session: str) -> SessionInfo:
        return _info(session, self._get(session))

    async def rename(self, session: str, title: str) -> None:
        self._get(session).title = title

    async def fork(self, session: str, new: str, *, at: int) -> None:
        known = self._get(session)
        if new in self._sessions:
            raise Conflict(new, given=0, next_seq=len(self._sessions[new].events))
        end = len(known.events)
        if not 0 <= at < end:
            raise StoreError(f"session {session!r} has events 0 to {end - 1}; it cannot be forked at {at}")
        now = self._clock()
        copy = _StoredSession(
            self._next_key(), now, _time(known.events[at], now), known.events[: at + 1], erased=known.erased
        )
        if known.checkpoint and known.checkpoint.seq <= at:
            copy.checkpoint = known.checkpoint
        self._sessions[new] = copy

    async def erase(self, session: str) -> None:
        known = self._get(session)
        known.events = [_erase_event(event) for event in known.events]
        known.title, known.erased, known.checkpoint = "", True, None
        self._index.remove(known.key)

    async def close(self) -> None:
        """Do nothing: there is no file to close."""

    def _get(self, session: str) -> _StoredSession:
        try:
            return self._sessions[session]
        except KeyError:
            raise UnknownSession(session) from None

    def _next_key(self) -> int:
        return len(self._sessions) + 1


def _time(event: Event, now: float) -> float:
    return now if event.at is None else event.at


def _erase_event(event: Event) -> Event:
    fact = event.fact if isinstance(event.fact, Erased) else Erased(was=kind(event.fact))
    return Event(event.seq, fact, event.at)


def _info(id: str, session: _StoredSession) -> SessionInfo:
    return SessionInfo(
        id=id,
        title=session.title,
        created=session.created,
        active=session.active,
        events=len(session.events),
        bytes=sum(len(encode(event)) for event in session.events),
        erased=session.erased,
    )
