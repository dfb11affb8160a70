"""The contract of a sandbox, and the private folder that each one has."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Final, NamedTuple, Protocol
from weakref import finalize

from foveal.user_paths import state_folder

_FOLDER_PREFIX: Final = "foveal-sandbox-"
_UNFINISHED_PREFIX: Final = "foveal-new-sandbox-"
"""A folder has this name until its process holds its lock."""
_ABANDONED_AFTER_S: Final = 3_600.0
"""Younger unfinished folders stay: their process may be about to take the lock."""


class Sandbox(Protocol):
    """Confines commands to a workspace."""

    @property
    def name(self) -> str:
        """Name for the status line."""
        ...

    @property
    def workspace(self) -> Path:
        """The folder in which commands can write."""
        ...

    def wrap(
        self,
        argv: Sequence[str],
        *,
        network: bool = False,
        commits: bool = False,
        reads_only: bool = False,
        unchanged: Collection[str] = (),
    ) -> list[str]:
        """Return the command line that runs a program inside the sandbox, in the workspace. A program that
        `commits` can write in the repositories there; with `reads_only` it cannot write there at all, and it
        cannot change the files `unchanged`."""
        ...


class SandboxFinding(NamedTuple):
    """The sandbox of a workspace, or why there is none."""

    sandbox: Sandbox | None
    why_not: str = ""


class PrivateFolder:
    """A folder with an unpredictable name for temporary files of sandboxed commands.

    It lasts as long as the object, so that a command finds what the one before it left in `/tmp`. A process that
    was killed leaves its folder behind; the next one removes it, because nothing holds its lock.

    Commands can write in two folders of it, and neither lies in the other or in the workspace: a command could
    put a link in place of the inner one, which the next command would get instead."""

    def __init__(self, *, workspace: Path | None = None) -> None:
        _remove_abandoned()
        new = os.path.realpath(mkdtemp(prefix=_UNFINISHED_PREFIX, dir=_place_outside_of(workspace)))
        lock = os.open(os.path.join(new, "empty"), os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _try_lock(lock)
        folder, name = os.path.split(new)
        path = os.path.join(folder, name.replace(_UNFINISHED_PREFIX, _FOLDER_PREFIX, 1))
        os.rename(new, path)
        self.temporary: str = os.path.join(path, "tmp")
        """What commands see as `/tmp`."""
        self.cache: str = os.path.join(path, "cache")
        """What commands see as `~/.cache`."""
        self.empty_file: str = os.path.join(path, "empty")
        """What commands see instead of a hidden file."""
        for writable in (self.temporary, self.cache):
            os.mkdir(writable, mode=0o700)
        finalize(self, _remove, path, lock, os.getpid())

    @property
    def is_whole(self) -> bool:
        """Whether its folders are still there; programs that clean `/tmp` remove them."""
        folders = (self.temporary, self.cache)
        return os.path.isfile(self.empty_file) and all(
            os.path.isdir(folder) and not os.path.islink(folder) for folder in folders
        )


def _place_outside_of(workspace: Path | None) -> str | None:
    """Return where a private folder is made, None for the usual place. The state folder is hidden from commands."""
    if workspace is None or not Path(os.path.realpath(gettempdir())).is_relative_to(workspace):
        return None
    state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(state_folder())


def _remove(path: str, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork of the process must not remove the folder that its parent uses
        _delete(path)
        os.close(lock)


def _remove_abandoned() -> None:
    """Remove folders of this user that processes left behind."""
    places = itertools.product((gettempdir(), str(state_folder())), (_FOLDER_PREFIX, _UNFINISHED_PREFIX))
    for path in (path for place, prefix in places for path in glob(os.path.join(place, f"{prefix}*"))):
        with suppress(OSError):
            found = os.lstat(path)
            is_finished = os.path.basename(path).startswith(_FOLDER_PREFIX)
            is_old = time.time() - found.st_mtime >= _ABANDONED_AFTER_S
            if found.st_uid != os.getuid() or not (is_finished or is_old):
                continue
            lock = os.open(os.path.join(path, "empty"), os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            if _try_lock(lock):
                _delete(path)
            os.close(lock)


def _delete(path: str) -> None:
    """Delete a folder, also with folders in it that a command made read-only, such as Go's module cache."""
    with suppress(OSError):  # another program has removed it, or put something else there
        for _, names, _, folder in os.fwalk(path):  # a command that is kept may exchange folders for links
            for name in names:
                with suppress(OSError, ValueError):  # it is a link
                    os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
    shutil.rmtree(path, ignore_errors=True)


def _try_lock(file: int) -> bool:
    """Return whether no other process holds the lock of a file, which this process then holds."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
