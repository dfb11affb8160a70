"""One at a time: who works on a session, of all tasks and all processes that share a folder.

Between tasks of a process there is a lock in memory; between processes a range of one byte is locked in a file,
at a place that the session's name decides. The system lets go of it when a process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

if sys.platform != "win32":  # there, one process has a folder for itself
    import fcntl

FIRST: Final = 0.005
LONGEST: Final = 0.1
"""Seconds between two attempts, while another process holds a session."""


class SessionLock:
    """Somebody's turn, until it is released."""

    def __init__(self, turnstile: SessionLocks, lock: asyncio.Lock, place: int) -> None:
        self._turnstile = turnstile
        self._lock: asyncio.Lock | None = lock
        self._place = place

    def release(self) -> None:
        if self._lock is not None:
            self._turnstile.unlock(self._place)
            self._lock.release()
            self._lock = None


class SessionLocks:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, tenant: str, session: str) -> AsyncIterator[None]:
        """Wait for one's turn, and have it for as long as the block lasts."""
        place = _place(tenant, session)
        lock = self._lock(place)
        async with lock:
            wait = FIRST
            while not self._try(place):
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST)
            try:
                yield
            finally:
                self.unlock(place)

    async def try_hold(self, tenant: str, session: str) -> SessionLock | None:
        """One's turn if it can be had at once."""
        place = _place(tenant, session)
        lock = self._lock(place)
        if lock.locked():
            return None
        await lock.acquire()  # does not wait: nobody has it
        if not self._try(place):
            lock.release()
            return None
        return SessionLock(self, lock, place)

    def unlock(self, place: int) -> None:
        if sys.platform != "win32" and self._file >= 0:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self, place: int) -> asyncio.Lock:
        return self._locks.setdefault(place, asyncio.Lock())

    def _try(self, place: int) -> bool:
        if sys.platform != "win32":
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                return False
        return True


def _place(tenant: str, session: str) -> int:
    name = f"{tenant}\0{session}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest()) >> 2
