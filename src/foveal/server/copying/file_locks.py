"""Locks that keep servers and chats away from files while they are copied."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foveal.errors import StoreUnusable

if sys.platform != "win32":
    import fcntl


@contextmanager
def hold_unused(lock_file: Path, name: str, *, is_source: bool = False) -> Iterator[None]:
    """Hold all session locks in a file of them; raises `StoreUnusable` if another process holds one.

    Those of a source may be held by several copies, and their file is not written: if there is none, no server or
    chat has used the source."""
    if sys.platform == "win32" or not (lock_file if is_source else lock_file.parent).exists():
        yield
        return
    file = os.open(lock_file, os.O_RDONLY if is_source else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if is_source else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            advice = "; `--live` copies the sessions of a source that is in use" if is_source else ""
            raise StoreUnusable(
                f"{name} is used by a server, a chat or another copy, which holds a lock: end it first{advice}"
            ) from None
        yield
    finally:
        os.close(file)
