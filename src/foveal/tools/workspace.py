"""The agent's working folder: which paths are allowed, which files the model has read.

1. A path is resolved with all its links before it is checked: a link inside the folder that leads out of it is
   outside.
2. Paths outside are refused, except in `extra_folders`.
3. A file that has changed since the model read it, or was never read, is not overwritten.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, NamedTuple

from foveal.core.wire.safe_print import one_line
from foveal.tools.tool_arguments import InvalidArguments


class FileStamp(NamedTuple):
    """Identity and state of a file; it differs if the file was replaced or its content changed."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Workspace:
    """The working folder and the extra folders that are allowed."""

    def __init__(self, root: str | Path, *, extra_folders: Iterable[str | Path] = ()) -> None:
        self.root = Path(os.path.realpath(Path(root).expanduser()))
        self._allowed = (
            self.root,
            *(Path(os.path.realpath(Path(path).expanduser())) for path in extra_folders),
        )
        self._read: dict[Path, FileStamp] = {}

    def resolve(self, path: str) -> Path:
        """Return a path with its links resolved; raises `InvalidArguments` if it is outside."""
        if "\0" in path:
            raise InvalidArguments("A path cannot have a NUL character in it.")
        try:
            real = Path(os.path.realpath(self.root / Path(path or ".").expanduser()))
            real.as_posix().encode("utf-8", "surrogateescape")
        except (OSError, RuntimeError, ValueError) as problem:
            raise InvalidArguments(
                f"{one_line(path)} is not a path that can be used: {one_line(str(problem))}."
            ) from None
        if not any(real.is_relative_to(folder) for folder in self._allowed):
            raise InvalidArguments(
                f"{one_line(path, width=300)} is outside of the working folder {self.root}, and was not touched. "
                f"Allowed is what lies in {', '.join(map(str, self._allowed))}."
            )
        return real

    def display_name(self, path: Path) -> str:
        """Return a path on one line for users and models, relative if it is inside the folder."""
        inside = path.is_relative_to(self.root)
        return one_line(str(path.relative_to(self.root) if inside else path), width=300)

    def open_file(self, path: Path) -> BinaryIO:
        """Open a regular file for reading; folders, pipes and devices, which may be endless, are refused."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise InvalidArguments(
                f"There is no file {self.display_name(path)}.{self._similar_names(path)}"
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
        self._read[path] = _stamp(found)

    def check_writable(self, path: Path, *, must_be_read: bool) -> None:
        """Raise if the file has changed since it was read or, with `must_be_read`, was never read."""
        try:
            found = os.stat(path)
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
        if known is not None and known != _stamp(found):
            raise InvalidArguments(
                f"{self.display_name(path)} has changed since it was read, so nothing was written. Read it again "
                "first."
            )

    def write(self, path: Path, data: bytes) -> None:
        """Write a whole file atomically; an existing file keeps its mode."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".foveal-{token_hex(8)}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self.mark_read(path, os.stat(path))


def _stamp(found: os.stat_result) -> FileStamp:
    return FileStamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
