"""Sessions in memory: the plain reference of what a store does, and the one for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

import apsw
import msgspec

from foveal.core.log.codec import encode
from foveal.core.log.events import Erased, Event, kind
from foveal.errors import Conflict, StoreError, UnknownSession
from foveal.ports import Checkpoint, Hit, SessionInfo
from foveal.stores.sqlite.full_text import TextIndex, searchable


class _StoredSession(msgspec.Struct):
    key: int
    created: float
    active: float
    events: list[Event]
    title: str = ""
    erased: bool = False
    checkpoint: Checkpoint | None = None


class MemoryStore:
    """A `Store` that forgets everything when it is gone."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, _StoredSession] = {}
        self._index = TextIndex(apsw.Connection(":memory:"))
        self._index.create()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        return self._known(session).events[max(first, 0) : stop]

    async def news(self, session: str, *, first: int) -> tuple[list[Event], bool]:
        known = self._known(session)
        return known.events[max(first, 0) :], known.erased

    async def pick(self, session: str, seqs: Sequence[int]) -> list[Event]:
        events = self._known(session).events
        return [events[seq] for seq in sorted(set(seqs)) if 0 <= seq < len(events)]

    async def checkpoint(self, session: str) -> Checkpoint | None:
        return self._known(session).checkpoint

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        self._known(session).checkpoint = checkpoint

    async def search(self, session: str, query: str, *, limit: int = 50) -> list[Hit]:
        known = self._known(session)
        new = known.events[self._index.indexed(known.key) + 1 :]
        if new:
            self._index.add(known.key, [(event.seq, searchable(event)) for event in new])
        return self._index.search(known.key, query, limit) if limit > 0 else []

    async def sessions(self) -> list[SessionInfo]:
        newest = sorted(self._sessions.items(), key=lambda item: (-item[1].active, -item[1].key))
        return [_info(id, session) for id, session in newest]

    async def info(self, session: str) -> SessionInfo:
        return _info(session, self._known(session))

    async def rename(self, session: str, title: str) -> None:
        self._known(session).title = title

    async def fork(self, session: str, new: str, *, at: int) -> None:
        known = self._known(session)
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
        known = self._known(session)
        known.events = [_erased(event) for event in known.events]
        known.title, known.erased, known.checkpoint = "", True, None
        self._index.remove(known.key)

    async def close(self) -> None:
        """Nothing to do: what it holds goes when it goes."""

    def _known(self, session: str) -> _StoredSession:
        try:
            return self._sessions[session]
        except KeyError:
            raise UnknownSession(session) from None

    def _next_key(self) -> int:
        return len(self._sessions) + 1


def _time(event: Event, now: float) -> float:
    return now if event.at is None else event.at


def _erased(event: Event) -> Event:
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
