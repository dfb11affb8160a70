"""Use of a session by several chats at once: who has it open, and what others add.

Both chats may write, because the store orders their events. Each says what the other one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from foveal.core.log.events import Event
from foveal.stores.session_locks import SessionLock, SessionLocks


class SessionUse:
    """The use of one session at a time by this process; `take` changes the session."""

    def __init__(self, store: Path) -> None:
        self._locks: SessionLocks | None = None
        with suppress(OSError):  # without a file for locks, there are no warnings
            self._locks = SessionLocks(store.with_name(f"{store.name}.locks"))
        self._lock: SessionLock | None = None
        self._id = ""
        self._known = 0
        """Events of the session that this process has stored, or has seen when it took the session."""

    async def take(self, id: str, *, events: int) -> bool:
        """Use a session that has this many events; return whether another process uses it too."""
        self._known = events
        if id == self._id or self._locks is None:
            return False
        self.release()
        self._lock = await self._locks.try_lock("", id)
        self._id = id
        return self._lock is None

    def add_own(self, events: Sequence[Event]) -> None:
        """Count events that this process has stored."""
        self._known += len(events)

    def take_foreign(self, events: int) -> int:
        """Return how many of the session's events other processes have added since the last call."""
        foreign, self._known = max(0, events - self._known), events
        return foreign

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock, self._id = None, ""

    async def close(self) -> None:
        self.release()
        if self._locks is not None:
            await self._locks.close()
