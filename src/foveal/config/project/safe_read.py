"""Safe reading of a text file from an untrusted folder, and files that commands write.

1. Reading never blocks: pipes, devices and sockets are not opened.
2. Links that lead out of the given folder are not followed.
3. At most `max_bytes` bytes are read.
4. A file that cannot be read raises `UnusableFile`, whose text says why. A missing file gives None.
5. `open_folder` is for a folder in which another program may exchange folders for links at any moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from foveal.core.wire.safe_print import visible
from foveal.errors import FovealError

_FILE_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_OPEN_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
FOLDER_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
"""Open a folder, but no link to one."""


class UnusableFile(FovealError):
    """The path exists but cannot be read as text; says why."""


class FileText(NamedTuple):
    """The text of a file, and what is known about the file."""

    text: str
    identity: tuple[int, int]
    """Device and inode: equal for all names of one file."""
    unread: int = 0
    """Bytes beyond the limit, which were not read."""
    damaged: bool = False
    """Whether bytes that are not UTF-8 were replaced by U+FFFD."""


def read_text_file(path: Path, *, max_bytes: int, within: Path | None = None) -> FileText | None:
    """Return the text of a file, or of its first `max_bytes` bytes up to a line end; None if there is no such file.

    A link must not lead out of the folder `within`."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as problem:
        raise UnusableFile(f"it cannot be read ({problem.strerror})") from None
    try:
        return _read_text(path, max_bytes, within)
    except FileNotFoundError:
        raise UnusableFile("it leads to nothing, or vanished while it was read") from None
    except OSError as problem:
        raise UnusableFile(f"it cannot be read ({problem.strerror})") from None


def _read_text(path: Path, max_bytes: int, within: Path | None) -> FileText:
    real = os.path.realpath(path, strict=True)
    if within is not None and not Path(real).is_relative_to(os.path.realpath(within)):
        raise UnusableFile("it is a link that leads out of the project")
    _check_regular(os.stat(real))
    with closing(_FileDescriptor(real)) as file:
        about = os.fstat(file.number)
        _check_regular(about)  # the file may have been replaced since the first check
        data = file.read(max_bytes + 1)
    unread = 0
    if len(data) > max_bytes:
        data = data[: data.rfind(b"\n", 0, max_bytes) + 1]
        unread = max(about.st_size, max_bytes + 1) - len(data)
    if b"\0" in data:
        raise UnusableFile("it is not text (it has NUL bytes)")
    try:
        return FileText(data.decode("utf-8"), (about.st_dev, about.st_ino), unread)
    except UnicodeDecodeError:
        return FileText(data.decode("utf-8", "replace"), (about.st_dev, about.st_ino), unread, damaged=True)


def _check_regular(about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for test, name in _FILE_KINDS if test(about.st_mode)), "no regular file")
        raise UnusableFile(f"it is {kind}")


class _FileDescriptor:
    """A file descriptor; opening it never blocks."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, _OPEN_FLAGS)

    def read(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` bytes."""
        pieces: list[bytes] = []
        while max_bytes > 0 and (piece := os.read(self.number, min(max_bytes, 1 << 20))):
            pieces.append(piece)
            max_bytes -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self.number)


@contextmanager
def open_folder(path: Path | str, base: Path, *, create: bool = False) -> Iterator[int]:
    """Open a folder that lies in `base`, or is it, one name after the other without following links; `create` makes
    folders that are missing. Raises `NotADirectoryError` with the name of what is a link or no folder."""
    folder = os.open(base, FOLDER_FLAGS)
    try:
        for name in Path(path).relative_to(base).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


@contextmanager
def open_output(path: Path, *, advice: str, replaces: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write; `advice` says what to do if it exists. A new file is removed if writing it fails.

    Only its owner can read it, like a store: what is written are conversations."""
    try:
        file = open(path, "wb" if replaces else "xb", opener=_open_private)  # noqa: SIM115 (closed below)
    except FileExistsError:
        raise FovealError(f"{visible(str(path))} exists and was not overwritten: {advice}") from None
    try:
        with file:
            yield file
    except BaseException:
        if not replaces:
            path.unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
