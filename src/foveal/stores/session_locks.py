"""Session locks: at most one holder per session, across tasks and processes.

Tasks of one process use an `asyncio.Lock`. Processes that share a folder lock one byte of a file, at an offset
derived from the tenant and session names. The operating system releases the byte when a process ends, however it
ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

if sys.platform != "win32":  # on Windows only one process may use a folder
    import fcntl

FIRST_RETRY_DELAY_S: Final = 0.005
MAX_RETRY_DELAY_S: Final = 0.1
"""Delay between two attempts while another process holds the lock; it doubles from the first to the maximum."""


class HeldLock(Protocol):
    """A lock that is held until `release` is called."""

    def release(self) -> None: ...


class Locks(Protocol):
    """The locks of all sessions, between the tasks of all processes that share a storage."""

    def lock(self, tenant: str, session: str) -> AbstractAsyncContextManager[None]:
        """Wait for the lock and hold it for the duration of the block."""
        ...

    async def try_lock(self, tenant: str, session: str) -> HeldLock | None:
        """Return the lock, or None if it is held elsewhere."""
        ...

    async def unlocked(self, sessions: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those of these sessions (tenant and session) whose lock is held nowhere."""
        ...

    async def close(self) -> None: ...


class SessionLock:
    """A lock that is held until `release` is called."""

    def __init__(self, locks: SessionLocks, lock: asyncio.Lock, offset: int) -> None:
        self._locks = locks
        self._lock: asyncio.Lock | None = lock
        self._offset = offset

    def release(self) -> None:
        if self._lock is not None:
            self._locks.unlock(self._offset)
            self._lock.release()
            self._lock = None


class _LockedBlock:
    """Holds a lock for the duration of a block. A generator would take twice as long, twice per drop-in request."""

    __slots__ = ("_lock", "_locks", "_offset")

    def __init__(self, locks: SessionLocks, lock: asyncio.Lock, offset: int) -> None:
        self._locks = locks
        self._lock = lock
        self._offset = offset

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await self._locks.lock_file(self._offset)
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *_error: object) -> None:
        try:
            self._locks.unlock(self._offset)
        finally:
            self._lock.release()


class SessionLocks:
    """The locks of all sessions in one folder."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def lock(self, tenant: str, session: str) -> AbstractAsyncContextManager[None]:
        """Wait for the lock and hold it for the duration of the block."""
        offset = _offset(tenant, session)
        return _LockedBlock(self, self._task_lock(offset), offset)

    async def try_lock(self, tenant: str, session: str) -> SessionLock | None:
        """Return the lock, or None if it is held elsewhere."""
        offset = _offset(tenant, session)
        lock = self._task_lock(offset)
        if lock.locked():
            return None
        await lock.acquire()  # returns at once: the lock is free
        if not self._try_file_lock(offset):
            lock.release()
            return None
        return SessionLock(self, lock, offset)

    async def unlocked(self, sessions: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those of these sessions (tenant and session) whose lock is held nowhere."""
        found = []
        for tenant, session in sessions:
            lock = await self.try_lock(tenant, session)
            if lock is not None:
                lock.release()
                found.append((tenant, session))
        return found

    async def lock_file(self, offset: int) -> None:
        """Wait until no other process holds the lock."""
        delay = FIRST_RETRY_DELAY_S
        while not self._try_file_lock(offset):
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_RETRY_DELAY_S)

    def unlock(self, offset: int) -> None:
        if sys.platform != "win32" and self._file >= 0:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)

    async def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _task_lock(self, offset: int) -> asyncio.Lock:
        lock = self._locks.get(offset)
        if lock is None:
            lock = self._locks[offset] = asyncio.Lock()
        return lock

    def _try_file_lock(self, offset: int) -> bool:
        if sys.platform != "win32":
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except (BlockingIOError, PermissionError):
                return False
        return True


def _offset(tenant: str, session: str) -> int:
    name = f"{tenant}\0{session}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest()) >> 2
