"""Copies of the files of a workspace, so that `/rewind` can restore what commands changed.

1. Before a command runs in the sandbox, every file of the workspace has a copy in the user's state folder, which
   commands cannot see. A copy is named by its SHA-256, so a file is copied again only when it has changed.
2. Left out are `.git`, where git keeps its own history, and folders that a tool can fill again
   (`REBUILT_FOLDERS`, and `target` beside a `Cargo.toml` or `pom.xml`).
3. A file that is too large has no copy, and commands that may delete or overwrite it ask. A workspace with more
   files than the limits, or with files that cannot be read, has no copies: `problem` says why, and commands that
   may delete ask.
4. Copies that were not needed for 30 days are deleted, and the oldest of more than `MAX_STORED_BYTES`.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from foveal.agent.permissions.protected_paths import REBUILT_FOLDERS
from foveal.agent.tools.files import MAX_READ_BYTES
from foveal.config.project import open_folder
from foveal.core.wire.safe_print import exact_line
from foveal.user_paths import state_folder

MAX_BACKED_UP_FILES: Final = 20_000
MAX_BACKED_UP_BYTES: Final = 256 * 1024 * 1024
MAX_STORED_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Most bytes of copies of all workspaces, when a chat begins."""
MAX_RECORDED_CHANGES: Final = 2_000
"""Most changes of one command that are recorded: those of files that were there before come first."""
_MAX_NAMED_FILES: Final = 3
_MAX_COPY_AGE_S: Final = 30 * 24 * 3600
FOLDER_DIGEST: Final = "folder"
"""In place of the digest of a file: the path is a folder."""
_BUILD_FILES: Final = ("Cargo.toml", "pom.xml")
"""Files beside which a folder `target` is the output of a build."""


class BackedUpFile(NamedTuple):
    """A state of a file: the name of its copy, or `FOLDER_DIGEST`, and its mode."""

    digest: str
    mode: int


class WorkspaceState(NamedTuple):
    """The files and folders of a workspace at one time."""

    files: Mapping[str, BackedUpFile]
    problem: str = ""
    """Why there are no copies; "" if every file has one that is not too large."""
    too_large: Mapping[str, int] = {}
    """Files without a copy, and when each has changed, in nanoseconds."""
    rebuilt: frozenset[str] = frozenset()
    """Folders that are left out, because a tool can fill them again."""

    def notes(self, root: Path) -> list[str]:
        """Return what to tell the user about files that cannot be restored."""
        if self.problem:
            return [f"/rewind cannot restore what commands delete: {self.problem}"]
        names = sorted(exact_line(os.path.relpath(path, os.path.realpath(root))) for path in self.too_large)
        more = f" and {len(names) - _MAX_NAMED_FILES:,} more" if len(names) > _MAX_NAMED_FILES else ""
        shown = ", ".join(names[:_MAX_NAMED_FILES])
        limit = f"more than {MAX_READ_BYTES:,} bytes each"
        return [f"/rewind cannot restore files of {limit}: {shown}{more}"] if names else []


class ChangedFile(NamedTuple):
    """A file that differs between two states; None is a file that does not exist."""

    path: str
    before: BackedUpFile | None
    after: BackedUpFile | None


class FileBackups:
    """The copies of one workspace; `excluded` are files that no command sees, such as the store of sessions."""

    def __init__(self, root: Path, *, excluded: Iterable[Path] = (), folder: Path | None = None) -> None:
        self._root = root
        self._excluded = frozenset(os.path.realpath(path) for path in excluded)
        self._folder = folder or state_folder() / "file-copies"
        self._known: dict[str, tuple[_Stamp, BackedUpFile]] = {}
        self._lock = threading.Lock()
        self._is_cleaned = False

    def take(self) -> WorkspaceState:
        """Copy the files that are new or have changed, and return the state of all."""
        with self._lock:
            found = _WalkedEntries({}, {}, {}, set())
            files: dict[str, BackedUpFile] = {}
            try:
                if problem := self._find(found):
                    return WorkspaceState({}, problem)
                self._clean()
                for path, status in found.files.items():
                    # A command that still runs has just removed it, or exchanged its folder for a link.
                    with suppress(FileNotFoundError, NotADirectoryError):
                        files[path] = self._version(path, status)
            except OSError as error:
                name = exact_line(os.path.relpath(error.filename or self._folder, self._root))
                return WorkspaceState({}, f"{name} cannot be copied: {error.strerror}")
            self._known = {path: known for path, known in self._known.items() if path in files}
            return WorkspaceState(
                files | found.folders, too_large=found.too_large, rebuilt=frozenset(found.rebuilt)
            )

    def read(self, digest: str) -> bytes | None:
        """Return the bytes of a copy, None if there is none."""
        with suppress(OSError):
            data = self._place(digest).read_bytes()
            return data if sha256(data).hexdigest() == digest else None
        return None

    def _find(self, found: _WalkedEntries) -> str:
        """Collect the files of the workspace; return why they cannot be copied."""
        size = 0
        for path, status, is_rebuilt in _entries_below(str(self._root), self._excluded):
            if is_rebuilt:
                found.rebuilt.add(path)
            elif stat.S_ISDIR(status.st_mode):
                found.folders[path] = BackedUpFile(FOLDER_DIGEST, status.st_mode)
            elif status.st_size > MAX_READ_BYTES:
                found.too_large[path] = status.st_ctime_ns
            else:
                found.files[path] = status
                size += status.st_size
            if len(found.files) > MAX_BACKED_UP_FILES or size > MAX_BACKED_UP_BYTES:
                limit = f"{MAX_BACKED_UP_FILES:,} files or {MAX_BACKED_UP_BYTES:,} bytes"
                return f"the working folder has more than {limit}"
        return ""

    def _version(self, path: str, status: os.stat_result) -> BackedUpFile:
        stamp = _Stamp.of(status)
        known = self._known.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            folder, name = os.path.split(path)
            with open_folder(folder, self._root) as opened:
                is_link = stat.S_ISLNK(status.st_mode)
                data = os.fsencode(os.readlink(name, dir_fd=opened)) if is_link else _read(opened, name)
        except PermissionError:
            if known is None or not known[0].has_content_of(stamp):
                raise
            return BackedUpFile(known[1].digest, status.st_mode)  # a command has changed its mode
        version = BackedUpFile(sha256(data).hexdigest(), status.st_mode)
        self._store(version.digest, data)
        self._known[path] = stamp, version
        return version

    def _store(self, digest: str, data: bytes) -> None:
        place = self._place(digest)
        with suppress(FileNotFoundError):
            os.utime(place)  # it is needed again
            return
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = place.with_name(f"{digest}-{token_hex(4)}")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(new, place)

    def _place(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _clean(self) -> None:
        """Delete old copies, once for each chat, before the first file is copied."""
        if self._is_cleaned:
            return
        self._is_cleaned = True
        copies = [(path, os.stat(path)) for path in self._folder.glob("??/*")]
        left = MAX_STORED_BYTES
        for path, status in sorted(copies, key=lambda copy: -copy[1].st_mtime):
            left -= status.st_size
            if left < 0 or time.time() - status.st_mtime > _MAX_COPY_AGE_S:
                path.unlink(missing_ok=True)


class _WalkedEntries(NamedTuple):
    """What a walk through the workspace has found."""

    files: dict[str, os.stat_result]
    folders: dict[str, BackedUpFile]
    too_large: dict[str, int]
    rebuilt: set[str]


class _Stamp(NamedTuple):
    """What changes with the content of a file, or with its mode."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @classmethod
    def of(cls, found: os.stat_result) -> _Stamp:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)

    def has_content_of(self, other: _Stamp) -> bool:
        """Return whether only the mode differs."""
        return self[:3] == other[:3]


def changed_files(before: WorkspaceState, after: WorkspaceState) -> list[ChangedFile]:
    """Return the files with copies, and the folders, that differ between two states in content or mode, new ones
    last and at most `MAX_RECORDED_CHANGES`."""
    paths = (*before.files, *(path for path in after.files if path not in before.files))
    without_copy = {*before.too_large, *after.too_large}
    changed = [
        ChangedFile(path, before.files.get(path), after.files.get(path))
        for path in paths
        if path not in without_copy
    ]
    return [one for one in changed if one.before != one.after][:MAX_RECORDED_CHANGES]


def _entries_below(root: str, excluded: frozenset[str]) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yield the files, links and folders below a folder, and whether a tool can fill a folder again; links are not
    followed."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except (FileNotFoundError, NotADirectoryError):
            if folder == root:
                raise
            continue  # a command that still runs has just removed it
        is_build = any(entry.name in _BUILD_FILES for entry in entries)
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                is_rebuilt = entry.name in REBUILT_FOLDERS or (entry.name == "target" and is_build)
                if entry.name != ".git":
                    waiting += [] if is_rebuilt else [entry.path]
                    yield entry.path, status, is_rebuilt
            elif stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK) and entry.path not in excluded:
                yield entry.path, status, False


def _read(folder: int, name: str) -> bytes:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(handle, "rb") as file:
        return file.read(MAX_READ_BYTES + 1)
