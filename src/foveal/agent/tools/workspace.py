"""The agent's working folder: which paths are allowed, which files the model has read.

1. A path is resolved with all its links before it is checked: a link inside the folder that leads out of it is
   outside.
2. Paths outside are refused, except in `extra_folders`.
3. A resolved path is opened folder by folder without following links, so that a folder which is replaced by a link
   after the check is refused.
4. A file that has changed since the model read it, or was never read, is not overwritten.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final, NamedTuple, Self

from foveal.agent.tool import InvalidArguments
from foveal.config.project import open_folder, resolve_links
from foveal.core.wire.safe_print import exact_line, one_line

_FILE_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileStamp(NamedTuple):
    """Identity and state of a file; it differs if the file was replaced or its content changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Workspace:
    """The working folder and the extra folders that are allowed."""

    def __init__(self, root: str | Path, *, extra_folders: Iterable[str | Path] = ()) -> None:
        self.root: Path = Path(os.path.realpath(Path(root).expanduser()))
        self._allowed = (
            self.root,
            *(Path(os.path.realpath(Path(path).expanduser())) for path in extra_folders),
        )
        self._read: dict[Path, FileStamp] = {}
        self.shown_changes: dict[str, str] = {}
        """Digests of changes that the user was shown, by call; each is taken when the call runs."""

    def resolve(self, path: str) -> Path:
        """Return a path with its links resolved; raises `InvalidArguments` if it is outside."""
        if "\0" in path:
            raise InvalidArguments("A path cannot have a NUL character in it.")
        try:
            real = Path(resolve_links(path, self.root))
            real.as_posix().encode("utf-8", "surrogateescape")
        except (OSError, RuntimeError, ValueError) as problem:
            raise InvalidArguments(
                f"{one_line(path)} is not a path that can be used: {one_line(str(problem))}."
            ) from None
        if not any(real.is_relative_to(folder) for folder in self._allowed):
            raise InvalidArguments(
                f"{exact_line(path)} is outside of the working folder {self.root}, and was not touched. "
                f"Allowed is what lies in {', '.join(map(str, self._allowed))}."
            )
        return real

    def display_name(self, path: Path) -> str:
        """Return all of a path on one line with every character visible, relative if it is inside the folder."""
        inside = path.is_relative_to(self.root)
        return exact_line(str(path.relative_to(self.root) if inside else path))

    def base_of(self, path: Path) -> Path:
        """Return the allowed folder in which a resolved path lies; no link is followed below it."""
        return next(folder for folder in self._allowed if path.is_relative_to(folder))

    @contextmanager
    def open_folder(self, path: Path, *, create: bool = False) -> Iterator[int]:
        """Open a folder by its resolved path without following links; `create` makes folders that are missing."""
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(open_folder(path, self.base_of(path), create=create))
            except NotADirectoryError as problem:
                raise InvalidArguments(
                    f"{one_line(problem.filename)} on the path {self.display_name(path)} is not a folder, or has "
                    "become a link, so nothing was touched."
                ) from None
            yield folder

    def open_file(self, path: Path) -> BinaryIO:
        """Open a regular file for reading; folders, pipes and devices, which may be endless, are refused."""
        if path in self._allowed:
            raise InvalidArguments(f"{self.display_name(path)} is a folder. Use list for it.")
        try:
            with self.open_folder(path.parent) as folder:
                handle = os.open(path.name, _FILE_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            raise InvalidArguments(
                f"There is no file {self.display_name(path)}.{self._similar_names(path)}"
            ) from None
        except OSError as problem:
            if problem.errno != errno.ELOOP:
                raise
            raise InvalidArguments(
                f"{self.display_name(path)} has become a link, and was not opened."
            ) from None
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return os.fdopen(handle, "rb")
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise InvalidArguments(f"{self.display_name(path)} is a folder. Use list for it.")
        raise InvalidArguments(f"{self.display_name(path)} is not an ordinary file, and was not opened.")

    def _similar_names(self, path: Path) -> str:
        """Return a sentence with similar names in the same folder, "" if there are none."""
        from difflib import get_close_matches

        with suppress(OSError):
            close = get_close_matches(path.name, os.listdir(path.parent)[:5_000], n=3)
            if close:
                return f" There is {', '.join(self.display_name(path.parent / name) for name in close)}."
        return ""

    # ── Overwriting ───────────────────────────────────────────────────────────────────────────────────────

    def mark_read(self, path: Path, found: os.stat_result) -> None:
        """Record that the model knows the file in its present state."""
        self._read[path] = FileStamp.of(found)

    def check_writable(self, path: Path, *, must_be_read: bool) -> None:
        """Raise if the file has changed since it was read or, with `must_be_read`, was never read."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode):
            raise InvalidArguments(
                f"{self.display_name(path)} is not an ordinary file, so nothing was written."
            )
        known = self._read.get(path)
        if known is None and must_be_read:
            raise InvalidArguments(
                f"{self.display_name(path)} exists and has not been read yet, so nothing was written. "
                "Read it first, or change a part of it with edit."
            )
        if known is not None and known != FileStamp.of(found):
            raise InvalidArguments(
                f"{self.display_name(path)} has changed since it was read, so nothing was written. Read it again "
                "first."
            )

    def write(self, path: Path, data: bytes, *, expected: FileStamp | None) -> None:
        """Write a whole file atomically; an existing file keeps its mode.

        `expected` is the state of the file that is replaced, None for a new file; another state is refused."""
        with self.open_folder(path.parent, create=True) as folder:
            temporary = f".foveal-{token_hex(8)}"
            handle = os.open(temporary, _NEW_FILE_FLAGS, 0o666, dir_fd=folder)
            try:
                with open(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    if (old := self._check_state(folder, path, expected)) is not None:
                        os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
            self.mark_read(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False))

    def _check_state(self, folder: int, path: Path, expected: FileStamp | None) -> os.stat_result | None:
        """Return the file that is replaced, None if there is none; raise if it is not as expected."""
        found: os.stat_result | None = None
        with suppress(FileNotFoundError):
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if (None if found is None else FileStamp.of(found)) != expected:
            raise InvalidArguments(
                f"{self.display_name(path)} has changed while it was being written, so nothing was written. Read "
                "it again first."
            )
        return found
