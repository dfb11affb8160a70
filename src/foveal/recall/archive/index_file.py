"""The file of the lasting index of past sessions, in the user's cache folder.

1. Only its owner can read it: the folder has mode 0700 and the file 0600. A folder or file of another user, and a
   link, are refused.
2. Several processes may use it at once; one of them at a time builds it (`try_build`).
3. A damaged file, and one of an older version, is emptied in place, never deleted: another process may have it
   open. `notice` says so.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from foveal.errors import StoreUnusable
from foveal.stores.sqlite.connection import translate_errors

if sys.platform != "win32":  # on Windows every process builds, and SQLite's own locks keep the file whole
    import fcntl

INDEX_FORMAT: Final = 1
"""Version of the tables and of the words in them; raise it when `search_text` or `text_to_index` changes."""
INDEX_APPLICATION_ID: Final = 0x466F7649
"""`FovI`: identifies the index among SQLite files."""
INDEX_NAME: Final = "sessions.db"
_LOCK_TIMEOUT_S: Final = 15.0
"""Time to wait for another process that writes; on a busy machine it may write for seconds."""
_RETRY_S: Final = 0.05


class IndexFile:
    """The file, open until `close`; for one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Open or create the file in a folder; raises `StoreUnusable`."""
        self.path: Final = str(folder / INDEX_NAME)
        self.notice = ""
        """Why the index is built anew, "" if it is not."""
        _make_private(folder, self.path)
        self._lock_file = -1
        self.connection: Final = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        self.connection.set_busy_timeout(int(1000 * _LOCK_TIMEOUT_S))
        try:
            with translate_errors(self.path):
                self._prepare_when_free()
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        self.end_build()
        self.connection.close()

    def _prepare_when_free(self) -> None:
        """Prepare the file; SQLite does not wait for another process that changes the journal mode."""
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return self._prepare()
            except apsw.BusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(_RETRY_S)

    def _prepare(self) -> None:
        try:
            found = self.connection.pragma("application_id"), self.connection.pragma("user_version")
            self.connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018  (reads the tables' list)
        except (apsw.CorruptError, apsw.NotADBError):
            self.empty("was damaged")
            found = INDEX_APPLICATION_ID, INDEX_FORMAT
        if found == (0, 0):
            self._mark()
        elif found[1] > INDEX_FORMAT:
            raise StoreUnusable(
                f"{self.path} was made by a later version of Foveal: update, or delete the file"
            )
        elif found != (INDEX_APPLICATION_ID, INDEX_FORMAT):
            self.empty("was made by an older version")
        self.connection.pragma("journal_mode", "wal")
        self.connection.pragma("synchronous", "normal")
        self.connection.pragma("secure_delete", 1)  # what is removed is overwritten

    def empty(self, why: str) -> None:
        """Remove everything, also from a damaged file. Other processes see an empty index."""
        self.notice = f"the index {why} and is built again"
        # VACUUM with this setting begins a new database in the same file, in one transaction.
        self.connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
        try:
            self.connection.execute("VACUUM")
        finally:
            self.connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
        self._mark()

    def _mark(self) -> None:
        with self.connection:  # one transaction: another process sees both or none
            self.connection.pragma("application_id", INDEX_APPLICATION_ID)
            self.connection.pragma("user_version", INDEX_FORMAT)

    def shrink_log(self) -> None:
        """Empty the write-ahead log, in which removed words stand too; not while another process reads."""
        with suppress(apsw.BusyError):
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    # ── One builder ──────────────────────────────────────────────────────────────────────────────────────

    def try_build(self) -> bool:
        """Return whether this process is the one that builds the index, from now to `end_build` or its end."""
        if sys.platform == "win32" or self._lock_file >= 0:
            return True
        file = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._lock_file = file
        return True

    def end_build(self) -> None:
        """Let another process build."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _make_private(folder: Path, path: str) -> None:
    """Create folder and file for their owner only; raises `StoreUnusable` for those of another user."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not stat.S_ISDIR(_owned(str(folder), 0o700).st_mode):
            raise StoreUnusable(f"{folder} is not a folder: remove it")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if not stat.S_ISREG(_owned(path, 0o600).st_mode):
            raise StoreUnusable(f"{path} is not a file: remove it")
    except OSError as problem:
        raise StoreUnusable(f"{path} cannot be used ({problem.strerror}): check its folder") from None


def _owned(path: str, mode: int) -> os.stat_result:
    """Return the state of a path, to which only its owner has access then."""
    found = os.lstat(path)
    if sys.platform != "win32":
        if found.st_uid != os.geteuid():
            raise StoreUnusable(f"{path} belongs to another user: remove it, or set XDG_CACHE_HOME")
        if stat.S_IMODE(found.st_mode) != mode and not stat.S_ISLNK(found.st_mode):
            os.chmod(path, mode)
    return found
